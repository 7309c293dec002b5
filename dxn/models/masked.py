"""A model that is shown less than there is, and guesses the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.model import Batch, Model
from dxn.tokens import Tokens


@dataclass(frozen=True)
class Hidden:
    """What a modality's b rows are shown, and what of it is to be guessed.

    shown: the collated batch without what is hidden. columns (b, N) bool, True at the M columns to guess; the adapter
    may make further ones. content: what stood there, subwords' ids (M,) or numbers (M, K). real (M, K) bool: which
    of the numbers are part of the picture or the sound, and no filling; none for ids.
    """

    shown: Mapping[str, Tensor]
    columns: Tensor
    content: Tensor
    real: Tensor | None = None


class Guess(nn.Module):
    """From an encoded token to what is compared with the subwords' vectors."""

    def __init__(self, dim: int):
        super().__init__()
        self.dense, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (M, D) to (M, D)."""
        return self.norm(F.gelu(self.dense(x)))


class MaskedModel(nn.Module):
    """A model's adapters, fusion and backbone, and what makes guesses of its encoded columns; its head rests.

    Subwords are guessed by their likeness to the table's vectors (arXiv:1810.04805, 3.1); numbers by one linear map
    of columns that a learned vector was added to where they were hidden (arXiv:2111.09886, 3).

    Args:
        model: what is pretrained, in place.
        sizes: of each other modality than text, how many numbers K a column stands for.
    """

    def __init__(self, model: Model, *, sizes: Mapping[str, int]):
        super().__init__()
        self.model, dim = model, next(iter(model.adapters.values())).dim
        self.guess = nn.ModuleDict({"text": Guess(dim)} if "text" in model.adapters else {})
        self.guess.update({name: nn.Linear(dim, size) for name, size in sizes.items()})
        self.marks = nn.ParameterDict({name: nn.Parameter(torch.randn(dim) * 0.02) for name in sizes})

    def forward(self, batch: Batch, hidden: Mapping[str, Hidden]) -> dict[str, Tensor]:
        """A batch and what to hide of its modalities, to each one's logits (M, V) or numbers (M, K)."""
        shown = {**batch, **{name: {**batch[name], **h.shown} for name, h in hidden.items()}}
        parts = [self._marked(part, batch, hidden) for part in self.model.embed(shown)]
        encoded, _ = self.model.encode(parts)
        return {name: self._guesses(name, encoded, batch[name]["rows"], h.columns) for name, h in hidden.items()}

    def _marked(self, part: Tokens, batch: Batch, hidden: Mapping[str, Hidden]) -> Tokens:
        """The learned vector added to the hidden columns, of what has one: [MASK] marks subwords."""
        name = part.spans[-1].modality
        if name not in hidden or name not in self.marks:
            return part
        columns = torch.zeros_like(part.mask).index_copy(0, batch[name]["rows"], hidden[name].columns)
        return part.with_x(part.x + columns[..., None] * self.marks[name].to(part.x.dtype))

    def _guesses(self, name: str, encoded: Tokens, rows: Tensor, columns: Tensor) -> Tensor:
        x = encoded.select(name).x[rows, : columns.shape[1]][columns]
        return self.guess[name](x) @ self.model.adapters[name].table.weight.T if name == "text" else self.guess[name](x)
