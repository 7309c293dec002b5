"""The head of a model that is shown less than there is, and guesses the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.hiding import Hidden, HideCells, HidePatches, HideRuns, HideWords, Hiding
from dxn.tokens import Tokens

MODALITIES = ("text", "image", "audio")
Batch = Mapping[str, Any]


class Guess(nn.Module):
    """From an encoded token to what is compared with the subwords' vectors."""

    def __init__(self, dim: int):
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (M, D) to (M, D)."""
        return self.norm(F.gelu(self.dense(x)))


class Masked(nn.Module):
    """What was hidden of words, pictures and sounds, guessed from all that is left.

    Of the chosen subwords 8 in 10 become [MASK], 1 in 10 another subword, 1 in 10 stay (arXiv:1810.04805, 3.1); they
    are guessed by their likeness to the table's vectors. Of pictures and sounds what is hidden is blanked before it is
    embedded, and a learned vector marks its columns (arXiv:2111.09886, 3); numbers are guessed by one linear map:
    patches at random, whose pixels are normalised by patch (arXiv:2111.06377, 4), and runs of a spectrogram's or a
    waveform's columns, since neighbours are alike, as the adapter normalises them. The loss is the mean over
    modalities of the cross-entropy or the squared error, over what is hidden only.

    Args:
        dim: width D of a token.
        hiding: how much of each modality.
    """

    kind = "masked"

    def __init__(self, dim: int = 128, *, hiding: Hiding | None = None):
        super().__init__()
        self.dim = dim
        self.hiding = hiding or Hiding()
        self.neck = nn.Identity()
        self.hiders: dict[str, HideWords | HidePatches | HideRuns] = {}

    def attach(self, adapters: Mapping[str, Any]) -> None:
        """Make the guessers of what these adapters take; the adapters stay the model's."""
        self.hiders = self.hiding.hiders(adapters)
        sizes = {name: hider.size for name, hider in self.hiders.items() if isinstance(hider, HideCells)}
        self.guess = nn.ModuleDict({"text": Guess(self.dim)} if "text" in self.hiders else {})
        self.guess.update({name: nn.Linear(self.dim, size) for name, size in sizes.items()})
        self.marks = nn.ParameterDict({name: nn.Parameter(torch.randn(self.dim) * 0.02) for name in sizes})

    def hide(self, batch: Batch) -> dict[str, Any]:
        """A batch, whose target (B,) is a number a sample, to what is shown of it, and what is "hidden" by modality.

        Which places are hidden depends on the sum of these numbers alone.
        """
        draw = torch.Generator(batch["target"].device).manual_seed(int(batch["target"].sum()))
        hidden = {name: hider(batch[name], draw) for name, hider in self.hiders.items() if name in batch}
        return {**batch, **{name: {**batch[name], **h.shown} for name, h in hidden.items()}, "hidden": hidden}

    def mark(self, part: Tokens, batch: Batch) -> Tokens:
        """The learned vector added to the hidden columns, of what has one: [MASK] marks subwords."""
        name = part.spans[-1].modality
        hidden = batch.get("hidden", {})
        if name not in hidden or name not in self.marks:
            return part
        columns = torch.zeros_like(part.mask).index_copy(0, batch[name]["rows"], hidden[name].columns)
        return part.with_x(part.x + columns[..., None] * self.marks[name].to(part.x.dtype))

    def forward(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """Encoded tokens and what was hidden of the batch to (3, 3): of text, image and audio the sum of the losses,
        over how many, and how many subwords were guessed right."""
        rows = []
        for name in MODALITIES:
            hidden: Hidden | None = batch["hidden"].get(name)
            if hidden is None:
                rows.append(pooled.new_zeros(3, dtype=torch.float32))
                continue
            guesses = self.guesses(name, tokens, batch[name]["rows"], hidden.columns)
            rows.append(torch.stack([*summed_loss(guesses, hidden), right(guesses, hidden)]))
        return torch.stack(rows) + 0 * pooled.float().sum()  # a batch of which nothing is hidden is stepped over too

    def guesses(self, name: str, tokens: Tokens, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits (M, V) or numbers (M, K) of the columns (b, N) of one modality, which the samples `rows` (b,) have."""
        x = tokens.select(name).x[rows, : columns.shape[1]][columns]
        hider = self.hiders[name]
        return (
            self.guess[name](x) @ hider.adapter.table.weight.T if isinstance(hider, HideWords) else self.guess[name](x)
        )

    def loss(self, found: Tensor, targets: Any = None) -> Tensor:
        """The mean over modalities of the mean loss (); found (3, 3) as of forward, of one batch or several added."""
        sums, counts = found[:, 0], found[:, 1]
        return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum().clamp(min=1)


def guess_figures(found: Tensor) -> dict[str, float]:
    """Of what Masked.forward gave (3, 3), of several batches added: each modality's loss, where any of it was hidden,
    and the share of subwords that were guessed right."""
    figures = {}
    for name, (total, count, hits) in zip(MODALITIES, found.tolist(), strict=True):
        if count:
            figures[f"loss_{name}"] = total / count
            figures |= {"accuracy": hits / count} if name == "text" else {}
    return figures


def summed_loss(guesses: Tensor, hidden: Hidden) -> tuple[Tensor, Tensor]:
    """The sum, and over how many, of the cross-entropies of logits (M, V), or of the squared errors of the real ones
    of the numbers (M, K)."""
    if hidden.real is None:
        total, count = F.cross_entropy(guesses.float(), hidden.content, reduction="sum"), len(hidden.content)
    else:
        total = F.mse_loss(guesses.float()[hidden.real], hidden.content[hidden.real].float(), reduction="sum")
        count = int(hidden.real.sum())
    return total, total.new_tensor(count)


def right(guesses: Tensor, hidden: Hidden) -> Tensor:
    """How many of the subwords are the most probable one (); of numbers none."""
    if hidden.real is not None:
        return guesses.new_zeros((), dtype=torch.float32)
    return (guesses.argmax(-1) == hidden.content).sum().float()
