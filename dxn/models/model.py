"""The whole: adapters, how they meet, the backbone and the head."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dxn.tokens import Tokens

LOSSES = ("text", "next", "masked")  # heads of these kinds are told the truth, and give their loss in place of logits
Batch = Mapping[str, Any]  # "size" int, "text", "image", "audio": dict of tensors, see Model.embed


class Model(nn.Module):
    """Takes built parts: adapters by modality, a fusion, the backbone and a head."""

    # Parts, not a base class: what each must offer is what the methods below call.
    adapters: Any
    fusion: Any
    backbone: Any
    head: Any

    def __init__(self, adapters: Mapping[str, nn.Module], *, fusion: nn.Module, backbone: nn.Module, head: nn.Module):
        super().__init__()
        self.adapters = nn.ModuleDict(dict(adapters))
        self.fusion, self.backbone, self.head = fusion, backbone, head
        if self.head.kind in ("text", "next") and self.head.shares:
            self.head.share(self.adapters["text"].table)
        if self.head.kind == "masked":
            self.head.attach(self.adapters)

    def embed(self, batch: Batch) -> list[Tokens]:
        """Each modality's Tokens, in the adapters' order, before they meet.

        batch[modality] is what the adapter's prepare half collated, and `rows` (b,): which of the batch's
        samples have that modality. A modality that no sample has gives no part.
        """
        parts = [
            adapter(batch[name]).spread(batch[name]["rows"], batch["size"])
            for name, adapter in self.adapters.items()
            if name in batch
        ]
        return [self.head.mark(part, batch) for part in parts] if "hidden" in batch else parts

    def shown(self, batch: Batch) -> dict[str, Any]:
        """What is seen of a batch: all of it, but where the task is to guess what is hidden."""
        return self.head.hide(batch) if self.head.kind == "masked" and "target" in batch else dict(batch)

    def encode(self, parts: list[Tokens]) -> tuple[Tokens, Tensor]:
        """Parts to the encoded Tokens and one vector a sample (B, D)."""
        return self.fusion(parts, self.backbone)

    def forward(self, batch: Batch, mixing: tuple[Tensor, float] | None = None) -> Tensor:
        """A batch to the head's logits. mixing: a permutation (B,) and a share, see `mix`."""
        batch = self.shown(batch)
        parts = self.embed(batch)
        if mixing is not None:
            parts = [mix(part, *mixing) for part in parts]
        return self.answer(*self.encode(parts), batch)

    def answer(self, tokens: Tokens, pooled: Tensor, batch: Batch) -> Tensor:
        """What was encoded to the head's logits; to the loss of the truth, where text or what is hidden is guessed."""
        if self.head.kind == "masked":
            return self.head(tokens, pooled, batch)
        if self.head.kind in LOSSES:
            return self.head(tokens, pooled, batch["target"])
        return self.head(tokens, pooled)


def mix(tokens: Tokens, order: Tensor, share: float) -> Tokens:
    """Mixup at the token matrix: share of each sample and (1 - share) of sample order[i].

    Patches are projected linearly, so for images it is mixup of the pixels (arXiv:1710.09412); for text it
    is that of word vectors (arXiv:1905.08941). A column is real where it was in either.
    """
    x = tokens.x * tokens.mask[..., None]
    return Tokens(share * x + (1 - share) * x[order], tokens.mask | tokens.mask[order], tokens.spans)


def count_parameters(module: nn.Module, *, trained: bool = False) -> int:
    """Numbers in the weights, or in those of them that are trained."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)
