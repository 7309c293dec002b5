"""Late and bottleneck fusion, which encode each input separately."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from einops import rearrange, repeat
from torch import Tensor, nn

from dxn.core.dropout import selected
from dxn.core.parts import Recorded
from dxn.core.tokens import Tokens, join
from dxn.models.fusion import Encoder, InputEmbedding
from dxn.models.pooling import CLASS, MapOptions, Pooling, Pools, masked_mean

# Distinguishes the dropout of inputs from the selections of the model, which count from 0.
INPUT_SALT = 2**15


class LateFusion(Recorded, nn.Module):
    """Encodes each input separately with the same backbone, and averages the pooled vectors.

    Args:
        dim: Width D of a token.
        inputs: Names of the inputs. With several inputs, a learned vector per input is added to its
            tokens, and a linear layer per input transforms its pooled vector.
        pool: Pooling of the tokens of each input to one vector: mean, max, attention, map, cls,
            first, last, mean_sqrt, mean_linear, cls_mean, leading, leading_cat, or a list (see
            early fusion).
        registers: Number of learned tokens before those of each input, excluded from mean and max.
        map: Options of pool=map.
    """

    joins_inputs: ClassVar[bool] = False

    def __init__(
        self,
        dim: int = 128,
        *,
        inputs: Sequence[str] = (),
        pool: Pools = "mean",
        registers: Annotated[int, Ge(0)] = 0,
        map: MapOptions = MapOptions(),
    ):
        super().__init__()
        self.inputs = tuple(inputs)
        self.input_embedding = InputEmbedding(dim, inputs) if len(inputs) > 1 else None
        self.pool = Pooling(pool, dim, registers=registers, map=map)
        # Not a ModuleDict by name: the name of an input can contain a dot, but a key cannot.
        self.mix = nn.ModuleList(nn.Linear(self.pool.width, dim) for _ in inputs)
        self.width = dim if len(self.mix) > 1 else self.pool.width

    def forward(self, parts: Sequence[Tokens], backbone: Encoder) -> tuple[Tokens, Tensor]:
        """Return the encoded Tokens of all parts, concatenated, and vectors (B, width)."""
        if self.input_embedding is not None:
            parts = self.input_embedding(parts)
        encoded: list[Tokens] = []
        for part in parts:
            with _own_noise(part, self.inputs):
                encoded.append(backbone(self.pool.lead(part)))
        vectors = [self._mix(part, self.pool(part.x, part.mask)) for part in encoded]
        # The mean of a sample includes only the inputs that it has.
        present = torch.stack([part.mask.any(1) for part in encoded], 1)
        return join(encoded), masked_mean(torch.stack(vectors, 1), present)

    def _mix(self, part: Tokens, vector: Tensor) -> Tensor:
        """Apply the linear layer of the input of a part to its pooled vector (B, width)."""
        if self.input_embedding is None:
            return vector
        return self.mix[self.input_embedding.index(part)](vector)


class BottleneckFusion(Recorded, nn.Module):
    """Exchanges information between inputs only through a few shared tokens.

    Each input is encoded separately, together with the shared tokens (arXiv:2107.00135, section
    3.2).

    Args:
        dim: Width D of a token.
        inputs: Names of the inputs. With several inputs, a learned vector per input is added to its
            tokens.
        pool: Pooling of the tokens of each input to one vector: mean, max, attention, map, cls,
            first, last, mean_sqrt, mean_linear, cls_mean, leading, leading_cat, or a list (see
            early fusion).
        registers: Number of learned tokens before those of each input, excluded from mean and max.
        map: Options of pool=map.
        num_tokens: Number of shared tokens.
        start: Index of the first block with shared tokens. The blocks before it process each input
            separately.
    """

    joins_inputs: ClassVar[bool] = False

    def __init__(
        self,
        dim: int = 128,
        *,
        inputs: Sequence[str] = (),
        pool: Pools = "mean",
        registers: Annotated[int, Ge(0)] = 0,
        map: MapOptions = MapOptions(),
        num_tokens: Annotated[int, Ge(1)] = 4,
        start: Annotated[int, Ge(0)] = 0,
    ):
        super().__init__()
        self.inputs = tuple(inputs)
        self.input_embedding = InputEmbedding(dim, inputs) if len(inputs) > 1 else None
        self.pool = Pooling(pool, dim, registers=registers, map=map)
        self.start = start
        self.width = self.pool.width
        self.shared = nn.Parameter(torch.empty(num_tokens, dim))
        nn.init.trunc_normal_(self.shared, std=0.02)

    def forward(self, parts: Sequence[Tokens], backbone: Encoder) -> tuple[Tokens, Tensor]:
        """Return the encoded Tokens of all parts, concatenated, and vectors (B, width)."""
        backbones: list[Encoder] = [backbone] * len(parts)
        if isinstance(backbone, SeparateBackbones):
            # The last span, because the first one can belong to a class token.
            backbones = [backbone.of(part.spans[-1].name) for part in parts]
        depth = len(backbones[0].blocks)
        if not 0 <= self.start < depth:
            raise ValueError(
                f"start must be at least 0 and below the depth of the backbone ({depth}), "
                f"got {self.start}"
            )
        if self.input_embedding is not None:
            parts = self.input_embedding(parts)
        parts = [self.pool.lead(part) for part in parts]
        pairs = zip(backbones, parts, strict=True)
        xs = [
            encoder.run(part.x, part.mask, 0, self.start, num_real=part.num_real)
            for encoder, part in pairs
        ]
        present = torch.stack([part.mask.any(1) for part in parts]).to(xs[0].dtype)  # (P, B)
        shared = repeat(self.shared, "k d -> b k d", b=parts[0].x.shape[0]).to(xs[0].dtype)
        for layer in range(self.start, depth):
            xs, shared = self._layer(backbones, layer, parts, xs, shared, present)
        columns = zip(backbones, parts, xs, strict=True)
        encoded = [part.with_x(encoder.norm(x)) for encoder, part, x in columns]
        vectors = torch.stack([self.pool(part.x, part.mask) for part in encoded], 1)
        return join(encoded), masked_mean(vectors, rearrange(present, "p b -> b p").bool())

    def _layer(
        self,
        backbones: Sequence[Encoder],
        layer: int,
        parts: Sequence[Tokens],
        xs: Sequence[Tensor],
        shared: Tensor,
        present: Tensor,
    ) -> tuple[list[Tensor], Tensor]:
        """Apply one block to the tokens of each input, together with the shared tokens.

        Each input gives new shared tokens. They are averaged over the inputs that a sample has.

        Args:
            backbones: Backbone of each input.
            layer: Index of the block.
            parts: Tokens of P inputs, of which only the masks are used.
            xs: Current embeddings (B, N, D) of each input.
            shared: (B, K, D). Current shared tokens.
            present: (P, B). 1 if a sample has an input, otherwise 0.
        """
        k = shared.shape[1]
        new_xs: list[Tensor] = []
        new_shared: list[Tensor] = []
        for backbone, part, x in zip(backbones, parts, xs, strict=True):
            # The shared tokens are real for all samples, even for those without this input.
            mask = torch.cat([part.mask.new_ones(part.mask.shape[0], k), part.mask], 1)
            with _own_noise(part, self.inputs):
                joined = torch.cat([shared, x], 1)
                num_real = part.num_real and part.num_real + k * len(joined)
                out = backbone.run(joined, mask, layer, layer + 1, num_real=num_real)
            new_shared.append(out[:, :k])
            new_xs.append(out[:, k:])
        # Shared tokens of a missing input have seen no other tokens, so their weight is 0.
        weight = rearrange(present / present.sum(0), "p b -> p b 1 1")
        return new_xs, (torch.stack(new_shared) * weight).sum(0)


class SeparateBackbones(nn.Module):
    """One backbone per input, for a model that encodes each input separately.

    Args:
        backbones: Backbone of each input, in the order of the inputs.
        inputs: Names of the inputs.
    """

    def __init__(self, backbones: Sequence[nn.Module], *, inputs: Sequence[str]):
        super().__init__()
        if len(backbones) != len(inputs):
            raise ValueError(
                f"the inputs {', '.join(inputs)} need one backbone each, got {len(backbones)}"
            )
        # Not a ModuleDict by name: the name of an input can contain a dot, but a key cannot.
        self.towers = nn.ModuleList(backbones)
        self.inputs = tuple(inputs)

    @property
    def blocks(self) -> Any:
        """The blocks of the first backbone. All backbones have the same depth."""
        return self.towers[0].blocks

    def of(self, name: str) -> Any:
        """Return the backbone of the input `name`."""
        return self.towers[self.inputs.index(name)]

    def forward(self, tokens: Tokens) -> Tokens:
        """Encode the Tokens of one input.

        Raises:
            ValueError: If they are the Tokens of several inputs.
        """
        # A class token is not from an input.
        names = [span.name for span in tokens.spans if span.modality != CLASS]
        if len(names) != 1:
            raise ValueError(
                "inputs with separate backbones cannot be encoded together, got "
                f"{', '.join(names)}; set share_backbone=true or fusion=late"
            )
        return self.of(names[0])(tokens)


def _own_noise(part: Tokens, inputs: Sequence[str]) -> AbstractContextManager[None]:
    """Return the context in which dropout draws other masks than for the other inputs.

    Otherwise the tokens with the same number of all inputs would lose the same features.
    """
    name = part.spans[-1].name
    number = inputs.index(name) if name in inputs else 0
    rows = torch.arange(part.x.shape[0], device=part.x.device)
    return selected(rows, INPUT_SALT + number)
