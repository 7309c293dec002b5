"""Early fusion of the inputs of a sample. `late_fusion.py` encodes each input separately."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol

import torch
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.parts import Recorded
from dxn.core.tokens import Tokens, join
from dxn.models.pooling import MapOptions, Pooling, Pools


class Encoder(Protocol):
    """The interface of a backbone, such as Backbone or Recurrent, that a fusion requires."""

    blocks: nn.ModuleList
    norm: nn.Module

    def __call__(self, tokens: Tokens, /) -> Tokens:
        """Apply all blocks and the final norm to Tokens."""
        ...

    def run(
        self,
        x: Tensor,
        mask: Tensor,
        start: int = 0,
        stop: int | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """Apply the blocks start:stop to x (B, N, D), see `Backbone.run`."""
        ...


class EarlyFusion(Recorded, nn.Module):
    """Concatenates all inputs to one sequence, in which every token can attend to every input.

    The tokens of an input are before those of a text, unless the text has a token that stands for
    them, see `place`.

    Args:
        dim: Width D of a token.
        inputs: Names of the inputs. With several inputs, a learned vector per input is added to its
            tokens.
        input_embedding: Whether there are these vectors.
        pool: Pooling of the tokens to one vector: mean, max, attention (a learned weighted mean),
            map (multi-head attention of a learned query, and an MLP), cls (class token), first,
            last, mean_sqrt (sum divided by the square root of the number of tokens), mean_linear
            (weighted mean, with the weight i of token i), cls_mean (class token and mean,
            concatenated), leading (mean of the class token and the registers) or leading_cat
            (class token and registers, concatenated). A list such as [first,mean] concatenates
            poolings that need no weights and no class token.
        registers: Number of learned tokens before the others, excluded from mean and max
            (arXiv:2309.16588).
        late_registers: Number of registers, the last ones, that only the last `late_blocks` blocks
            have (arXiv:2503.19108). Until then, no token attends to them.
        late_blocks: Number of blocks with late registers. A backbone with fewer blocks has them in
            all blocks.
        map: Options of pool=map.
    """

    # Whether one pass of the backbone sees the tokens of several inputs.
    joins_inputs: ClassVar[bool] = True

    def __init__(
        self,
        dim: int = 128,
        *,
        inputs: Sequence[str] = (),
        input_embedding: bool = True,
        pool: Pools = "mean",
        registers: Annotated[int, Ge(0)] = 0,
        late_registers: Annotated[int, Ge(0)] = 0,
        late_blocks: Annotated[int, Ge(0)] = 4,
        map: MapOptions = MapOptions(),
    ):
        super().__init__()
        if late_registers > max(registers, 0):
            raise ValueError(
                f"late_registers are some of the registers: there can be at most {registers}, got "
                f"{late_registers}"
            )
        self.late_registers = late_registers
        self.late_blocks = late_blocks
        has_vectors = input_embedding and len(inputs) > 1
        self.input_embedding = InputEmbedding(dim, inputs) if has_vectors else None
        self.pool = Pooling(pool, dim, registers=registers, map=map)
        self.width = self.pool.width

    def forward(self, parts: Sequence[Tokens], backbone: Encoder) -> tuple[Tokens, Tensor]:
        """Return the encoded Tokens of all parts, and one vector per sample (B, width)."""
        if self.input_embedding is not None:
            parts = self.input_embedding(parts)
        tokens = join(parts)
        places = None
        if len(parts) > 1 and (marks := tokens.spans[-1].marks) is not None:
            places = place(tokens.mask, [part.x.shape[1] for part in parts[:-1]], marks)
            x = tokens.x.take_along_dim(places.order[..., None], 1)
            tokens = replace(tokens, x=x, mask=places.mask, num_real=None)
        # A sample has at least one real column, see `Samples.collate`.
        tokens = self.pool.lead(tokens, all_real=True)
        if self.late_registers:
            encoded = self._with_late_registers(tokens, backbone)
        else:
            encoded = backbone(tokens)
        if places is not None:
            lead = self.pool.leading
            moved = [
                part.split([lead, part.shape[1] - lead], 1) for part in (encoded.x, encoded.mask)
            ]
            (first, x), (first_mask, _) = moved
            x = torch.cat([first, x.take_along_dim(places.back[..., None], 1)], 1)
            mask = torch.cat([first_mask, *(part.mask for part in parts)], 1)
            encoded = replace(encoded, x=x, mask=mask, num_real=None)
        return encoded, self.pool(encoded.x, encoded.mask, encoded.num_real)

    def _with_late_registers(self, tokens: Tokens, backbone: Encoder) -> Tokens:
        """Apply a backbone, in whose first blocks the late registers are as padding."""
        start, stop = self.pool.leading - self.late_registers, self.pool.leading
        mask = tokens.mask.clone()
        mask[:, start:stop] = False
        num_real = tokens.num_real
        if num_real is not None:
            num_real -= mask.shape[0] * self.late_registers
        first = max(len(backbone.blocks) - self.late_blocks, 0)
        x = backbone.run(tokens.x, mask, 0, first, num_real=num_real)
        x = torch.cat([x[:, :start], tokens.x[:, start:stop], x[:, stop:]], 1)
        x = backbone.run(x, tokens.mask, first, num_real=tokens.num_real)
        return tokens.with_x(backbone.norm(x))


@dataclass(frozen=True)
class ColumnOrder:
    """The order of the columns of several inputs in one sequence.

    Args:
        order: (B, N). Index of the column at each place of the sequence, whose padding is at the
            end.
        mask: (B, N) bool. True at the real places.
        back: (B, N). Place of the output vector of each column. A column that stands for those of
            an input has the output of the last one of them.
    """

    order: Tensor
    mask: Tensor
    back: Tensor


def place(mask: Tensor, sizes: Sequence[int], marks: Tensor | None) -> ColumnOrder:
    """Return the places of the columns of a text and of other inputs.

    In each sample, the first column of `marks` is replaced by the columns of the first input that
    the sample has, the second one by those of the second input, and so on. Further inputs are
    before the text, and further columns of `marks` are unchanged.

    Args:
        mask: (B, N) bool. True at the real columns: those of the other inputs, then the text.
        sizes: Number of columns of each of the other inputs.
        marks: (B, n) bool. True at the columns of the text that stand for other inputs. None: there
            are none.
    """
    num_columns = mask.shape[1]
    start = sum(sizes)
    columns = torch.arange(num_columns, device=mask.device)
    keys = (columns - start).clamp(min=-1).expand_as(mask)
    back = columns.expand_as(mask)
    if marks is not None:
        others = mask[:, :start].split(list(sizes), 1)
        marks = marks & mask[:, start:]
        number = marks.cumsum(1)
        used = torch.zeros_like(number[:, :1])
        new_keys, ends, is_real = [], back[:, start:], mask[:, start:]
        for first, real in zip(_starts(sizes), others, strict=True):
            is_there = real.any(1, keepdim=True)
            used = used + is_there
            is_mark = marks & (number == used) & is_there
            index = is_mark.int().argmax(1, keepdim=True)
            new_keys.append(torch.where(is_mark.any(1, keepdim=True), index, -1).expand_as(real))
            last = first + torch.where(real, torch.arange(real.shape[1], device=real.device), 0)
            ends = torch.where(is_mark, last.amax(1, keepdim=True), ends)
            is_real = is_real & ~is_mark
        keys = torch.cat([*new_keys, keys[:, start:]], 1)
        back = torch.cat([back[:, :start], ends], 1)
        mask = torch.cat([mask[:, :start], is_real], 1)
    # Stable, so that the columns of an input, and inputs before the text, keep their order.
    order = keys.masked_fill(~mask, num_columns).argsort(dim=1, stable=True)
    return ColumnOrder(order, mask.gather(1, order), order.argsort(dim=1).gather(1, back))


def _starts(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


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
