"""Packed batches: a backbone computes on the real tokens of all samples, without padding.

All layers but attention process each token separately, so they work on one matrix with the real
tokens of all samples. Attention works on groups of samples of similar length, or on the matrix
itself where a kernel can do this (see `dxn.models.varlen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.models.varlen import Sequences

# Up to this share of padding, packing would take longer than it saves.
MAX_PADDING = 0.05
# The same for a GPU, which computes padding fast, but starts kernels slowly: the number of padding
# tokens times the square of their width, to which the time of a block is proportional.
GPU_PADDING = 1e9
# A sample joins a group if it has at least this share of the tokens of the longest sample, or if
# it has few tokens: a small group takes longer than some padding.
MIN_SHARE = 0.75
SHORT = 32


@dataclass(frozen=True, slots=True)
class Group:
    """Samples whose attention is computed together.

    Args:
        rows: Their rows in the matrix (T, D) of the tokens of all samples.
        samples: Their positions in the batch.
        shape: Number b of samples, and number n of tokens of the longest one.
        index: (b n,). Row of each token, counted from the first row. Padding has the row of the
            last token of the sample. None: all samples have n tokens.
        real: (t,). Index of each row among the b n tokens. None: all samples have n tokens.
        attn_mask: Attention mask, see `dxn.models.attention.attend`.
        causal: Each token attends only to itself and the tokens before it.
        rope: Factors of the rotary positions, see `dxn.models.positions.rope_factors`.
        sequences: The samples as parts of one sequence: b is 1, and n is T. Default: each sample is
            a sequence of its own.
    """

    rows: slice
    samples: slice
    shape: tuple[int, int]
    index: Tensor | None = None
    real: Tensor | None = None
    attn_mask: Tensor | None = None
    causal: bool = False
    rope: tuple[Tensor, Tensor] | None = None
    sequences: Sequences | None = None

    @property
    def mask(self) -> Tensor | None:
        """(b, n) bool. True at real tokens. None: there is no padding."""
        if self.index is None or self.real is None:
            return None
        mask = torch.zeros(len(self.index), dtype=torch.bool, device=self.index.device)
        return mask.index_fill(0, self.real, True).view(self.shape)

    def pad(self, x: Tensor) -> Tensor:
        """Return the tokens (b, n, K) of this group. x (T, K) has the tokens of all samples."""
        x = x[self.rows]
        if self.index is not None:
            x = _Pad.apply(x, self.index, self.real)
        return x.unflatten(0, self.shape)

    def unpad(self, x: Tensor) -> Tensor:
        """Return the rows (t, K) of the real tokens of x (b, n, K)."""
        x = x.flatten(0, 1)
        return x if self.index is None else _Unpad.apply(x, self.real)


@dataclass(frozen=True, slots=True)
class Packing:
    """The order of the real tokens of a batch in one matrix: the longest sample comes first.

    Args:
        order: (B,). Index of each sample in the batch.
        lengths: Number of real tokens of each sample, in this order.
        index: (T,). Index of each row among the B N tokens of the batch.
        shape: (B, N).
    """

    order: Tensor
    lengths: Sequence[int]
    index: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Tensor, dim: int) -> Packing | None:
        """Return the packing of a batch, or None if it is not worthwhile.

        Args:
            mask: (B, N) bool. True at real tokens.
            dim: Width D of a token.
        """
        most = max_padding(mask.numel(), dim, mask.device)
        if mask.numel() <= most:  # decided without waiting for a GPU
            return None
        counts = mask.sum(1)
        lengths = sorted(counts.tolist(), reverse=True)
        total = sum(lengths)
        if not total or mask.numel() - total <= most:
            return None
        order = counts.argsort(descending=True, stable=True)
        columns = torch.arange(mask.numel(), device=mask.device).view(mask.shape)
        index = columns[order][mask[order]]
        return cls(order, lengths, index, (mask.shape[0], mask.shape[1]))

    def pack(self, x: Tensor) -> Tensor:
        """Return the rows (T, D) of the real tokens of x (B, N, D)."""
        return _Unpad.apply(x.flatten(0, 1), self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """Return (B, N, D) with the rows of x (T, D) at the real tokens, and zeros elsewhere."""
        batch, length = self.shape
        out = x.new_zeros(batch * length, x.shape[-1])
        return out.index_copy(0, self.index, x).unflatten(0, self.shape)

    def groups(self) -> list[Group]:
        """Divide the samples that have tokens into groups of similar length."""
        groups: list[Group] = []
        first = row = 0
        while first < len(self.lengths) and self.lengths[first]:
            longest = self.lengths[first]
            shortest = min(MIN_SHARE * longest, longest if longest > SHORT else 1)
            stop = first
            while stop < len(self.lengths) and self.lengths[stop] >= shortest:
                stop += 1
            group = self._group(slice(first, stop), row)
            groups.append(group)
            row = group.rows.stop
            first = stop
        return groups

    def sequences(self) -> Sequences:
        """Return the samples as parts of the matrix."""
        counts = torch.tensor([0, *self.lengths], dtype=torch.int32)
        starts = counts.cumsum(0, dtype=torch.int32).to(self.index.device)
        return Sequences(starts, longest=self.lengths[0])

    def positions(self) -> Tensor:
        """Return the index (T,) of each row among the rows of its sample."""
        counts = torch.tensor(self.lengths)
        starts = counts.cumsum(0) - counts
        rows = torch.arange(len(self.index)) - starts.repeat_interleave(counts)
        return rows.to(self.index.device)

    def _group(self, samples: slice, row: int) -> Group:
        """Return the group of some samples, whose tokens begin at a row of the matrix."""
        lengths = self.lengths[samples]
        shape = len(lengths), lengths[0]
        rows = slice(row, row + sum(lengths))
        if lengths[-1] == lengths[0]:
            return Group(rows, samples, shape)
        device = self.index.device
        counts = torch.tensor(lengths, device=device)[:, None]
        columns = torch.arange(shape[1], device=device)
        starts = counts.cumsum(0) - counts
        index = (starts + torch.minimum(columns, counts - 1)).flatten()
        real = (columns < counts).flatten().nonzero().flatten()
        return Group(rows, samples, shape, index, real)


def max_padding(size: int, dim: int, device: torch.device) -> float:
    """Return the number of padding tokens up to which packing takes longer than it saves.

    Args:
        size: Number B N of tokens of the batch, with padding.
        dim: Width D of a token.
        device: Device of the batch.
    """
    most = MAX_PADDING * size
    return most if device.type == "cpu" else max(most, GPU_PADDING / dim**2)


class _Pad(torch.autograd.Function):
    """Select the rows of a group, with padding.

    The gradient of the general selection would add up the rows one by one, because an index can
    occur several times. Here, the gradient of padding is zero: attention masks padded keys, and the
    outputs of padded queries are not used.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, real: Tensor) -> Tensor:
        ctx.real = real
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.real), None, None


class _Unpad(torch.autograd.Function):
    """Select the rows of real tokens. The gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, real: Tensor) -> Tensor:
        ctx.real = real
        ctx.rows = len(x)
        return x.index_select(0, real)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0]
        out = grad.new_zeros(ctx.rows, grad.shape[-1])
        return out.index_copy_(0, ctx.real, grad), None
