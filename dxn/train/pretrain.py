"""What a model can learn from the training split's inputs alone, before it learns the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.data.samples import BatchOrder, Samples, make_loader
from dxn.errors import UserError
from dxn.models import Model
from dxn.train.evaluate import to_device
from dxn.train.optim import adamw, cosine


@dataclass(frozen=True)
class Epoch:
    """One pass over the text: its number, the mean loss and the share of hidden subwords guessed right."""

    number: int
    loss: float
    accuracy: float


class MaskedText:
    """Hides subwords and lets the text adapter and the backbone guess them (arXiv:1810.04805, 3.1).

    Of the chosen ones 8 in 10 become [MASK], 1 in 10 another subword, 1 in 10 stay. Each is guessed by its
    likeness to the subwords' own vectors.

    Args:
        epochs: passes over the training split's text.
        share: probability that a subword is to be guessed.
        lr: highest learning rate; it rises, then falls like half a cosine.
        warmup: share of the steps in which the rate rises from 0.
    """

    def __init__(self, *, epochs: int = 10, share: float = 0.15, lr: float = 1e-3, warmup: float = 0.1):
        if epochs < 1 or not 0 < share < 1:
            raise ValueError(f"needs an epoch and a share between 0 and 1, got {epochs} and {share}")
        self.epochs, self.share, self.lr, self.schedule = epochs, share, lr, cosine(warmup=warmup)

    def __call__(self, model: Model, samples: Samples, *, batch_size: int, bf16: bool) -> Iterator[Epoch]:
        """Train model, which must have a text adapter, in place on samples that have text; what each epoch came to."""
        adapter, device = model.adapters["text"], next(model.parameters()).device
        parts = nn.ModuleDict({"text": adapter, "backbone": model.backbone, "guess": Guess(adapter.dim)}).to(device)
        optimizer = adamw(parts, lr=self.lr)
        text = Samples(samples.opened, {"text": adapter.prepare}, seed=samples.seed, augment=True)
        order = BatchOrder(text, batch_size, seed=samples.seed, shuffle=True)
        loader, draw = make_loader(order), torch.Generator(device).manual_seed(samples.seed)
        parts.train()
        for epoch in range(self.epochs):
            order.epoch, losses, right, hidden = epoch, 0.0, 0, 0
            for step, batch in enumerate(loader):
                optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = self.lr * self.schedule(
                    (epoch * len(order) + step + 1) / (self.epochs * len(order))
                )
                with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    logits, ids = self._guess(parts, to_device(batch, device)["text"], draw)
                if len(ids) == 0:
                    continue
                loss = F.cross_entropy(logits.float(), ids)
                loss.backward()
                nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses, hidden = losses + float(loss.detach()) * len(ids), hidden + len(ids)
                right += int((logits.argmax(-1) == ids).sum())
            yield Epoch(epoch + 1, losses / max(hidden, 1), right / max(hidden, 1))

    def _guess(self, parts, batch: dict[str, Tensor], draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Logits (M, V) and the ids (M,) of the hidden subwords."""
        ids, table, prepare = batch["ids"], parts["text"].table.weight, parts["text"].prepare
        if prepare.mask_id is None:
            raise UserError("pretrain: the text's tokenizer has no [MASK] to hide words with")
        chosen, spoiled = hide(
            ids,
            batch["mask"],
            self.share,
            draw,
            vocab_size=len(table),
            special_ids=prepare.special_ids,
            mask_id=prepare.mask_id,
        )
        encoded = parts["backbone"](parts["text"]({**batch, "ids": spoiled})).x[:, : ids.shape[1]]
        return parts["guess"](encoded[chosen]) @ table.T, ids[chosen]


class Guess(nn.Module):
    """From an encoded token to what is compared with the subwords' vectors."""

    def __init__(self, dim: int):
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (M, D) to (M, D)."""
        return self.norm(F.gelu(self.dense(x)))


def hide(
    ids: Tensor,
    mask: Tensor,
    share: float,
    draw: torch.Generator,
    *,
    vocab_size: int,
    special_ids: Sequence[int],
    mask_id: int,
) -> tuple[Tensor, Tensor]:
    """Which of ids (B, N) are to be guessed (B, N) bool, never padding or a special one; and the ids to show."""
    luck = torch.rand(ids.shape, generator=draw, device=ids.device)
    special = torch.tensor(list(special_ids), device=ids.device)
    chosen = mask & ~torch.isin(ids, special) & (luck < share)
    other = torch.randint(vocab_size, ids.shape, generator=draw, device=ids.device)
    other = torch.where(torch.isin(other, special), ids, other)
    shown = torch.where(chosen & (luck < 0.8 * share), mask_id, ids)
    return chosen, torch.where(chosen & (luck >= 0.8 * share) & (luck < 0.9 * share), other, shown)
