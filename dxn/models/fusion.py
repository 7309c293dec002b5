"""Early fusion of the inputs of a sample. `late_fusion.py` encodes each input separately."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.arguments import Recorded
from dxn.core.tokens import Tokens, join
from dxn.models.pooling import MapOptions, Pool, Pooling


class EarlyFusion(Recorded, nn.Module):
    """Concatenates all inputs to one sequence, in which every token can attend to every input.

    Args:
        dim: Width D of a token.
        inputs: Names of the inputs. With several inputs, a learned vector per input is added to its
            tokens.
        pool: Pooling of the tokens to one vector: mean, max, attention (a learned weighted mean),
            map (multi-head attention of a learned query, and an MLP), cls (class token), first,
            last, cls_mean (class token and mean, concatenated), leading (mean of the class token
            and the registers) or leading_cat (class token and registers, concatenated).
        registers: Number of learned tokens before the others, excluded from mean and max
            (arXiv:2309.16588).
        map: Options of pool=map.
    """

    # Whether one pass of the backbone sees the tokens of several inputs.
    joins_inputs: ClassVar[bool] = True

    def __init__(
        self,
        dim: int = 128,
        *,
        inputs: Sequence[str] = (),
        pool: Pool = "mean",
        registers: Annotated[int, Ge(0)] = 0,
        map: MapOptions = MapOptions(),
    ):
        super().__init__()
        self.input_embedding = InputEmbedding(dim, inputs) if len(inputs) > 1 else None
        self.pool = Pooling(pool, dim, registers=registers, map=map)
        self.width = self.pool.width

    def forward(
        self, parts: Sequence[Tokens], backbone: Callable[[Tokens], Tokens]
    ) -> tuple[Tokens, Tensor]:
        """Return the encoded Tokens of all parts, and one vector per sample (B, width)."""
        if self.input_embedding is not None:
            parts = self.input_embedding(parts)
        # A sample has at least one real column, see `Samples.collate`.
        encoded = backbone(self.pool.lead(join(parts), all_real=True))
        return encoded, self.pool(encoded.x, encoded.mask)


def shared_name(name: str) -> str:
    """Return the name that a tensor of one of several backbones has in a shared backbone."""
    # backbone.towers.1.blocks.0.attn.qkv.weight: the third part is the index of the input.
    return re.sub(r"^backbone\.towers\.\d+\.", "backbone.", name)


class InputEmbedding(nn.Module):
    """Adds a learned vector per input to its tokens, which tells the inputs apart."""

    def __init__(self, dim: int, inputs: Sequence[str]):
        super().__init__()
        if len(set(inputs)) < len(inputs):
            raise ValueError(f"the names of the inputs must be unique, got {', '.join(inputs)}")
        self.inputs = tuple(inputs)
        # One draw per input: a single draw would give other initial weights for the same seed.
        vectors = [torch.randn(dim) * 0.02 for _ in self.inputs]
        self.weight = nn.Parameter(torch.stack(vectors))

    def forward(self, parts: Sequence[Tokens]) -> list[Tokens]:
        """Return the parts with the vector of their input added to each token."""
        return [part.with_x(part.x + self.weight[self.index(part)]) for part in parts]

    def index(self, part: Tokens) -> int:
        """Return the index of the input of a part.

        Raises:
            ValueError: If the input is unknown.
        """
        # The last span, because the first one can belong to a class token.
        name = part.spans[-1].name
        if name not in self.inputs:
            raise ValueError(f"unknown input {name!r}: this fusion has {', '.join(self.inputs)}")
        return self.inputs.index(name)
