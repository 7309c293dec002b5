"""Packed batches: a backbone computes on the real tokens of all samples, without padding.

All layers but attention process each token separately, so they work on one matrix with the real
tokens of all samples. Attention works on groups of samples of similar length, or on the matrix
itself where a kernel can do this: that of FlashAttention-2 (arXiv:2307.08691), which torch contains
for NVIDIA GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.core.tokens import matmul_dtype
from dxn.models.attention import Group, Unpad

if TYPE_CHECKING:
    from dxn.models.decoding.decoder import Memory

# Up to this share of padding, packing would take longer than it saves.
MAX_PADDING = 0.05
# On a GPU, the number of rows is a multiple of this, so that only a few numbers occur: a captured
# graph and the plans of some kernels are made for a number of rows.
ROWS = 256
# A sample joins a group if it has at least this share of the tokens of the longest sample, or if
# it has few tokens: a small group takes longer than some padding.
MIN_SHARE = 0.75
SHORT = 32
# Limits of the kernel for sequences.
DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_DIM = 256
HEAD_DIM_STEP = 8
CAPABILITY = (8, 0)  # of the GPU


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences whose tokens are the rows of one matrix (T, D).

    Args:
        starts: (B + 1,) int32. First row of each sequence, and T.
        longest: Number of tokens of the longest sequence, or more.
        causal: Each token attends only to itself and the tokens before it.
        window: Maximum distance between a query and a key. None: no limit.
        memory: As many sequences, to which cross-attention attends.
    """

    starts: Tensor
    longest: int
    causal: bool = False
    window: int | None = None
    memory: Sequences | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Average the values as `dxn.models.attention.attend` does, in each sequence separately.

        Args:
            query: (1, H, T, d), in one of DTYPES or, under autocast, in float32.
            key: (1, G, T, d), each head for H / G heads of the queries.
            value: (1, G, T, d), in one of DTYPES.

        Returns:
            (1, H, T, d).
        """
        reach = self.longest if self.window is None else self.window
        return self._attend(query, key, value, self, (reach, 0 if self.causal else reach))

    def attend_to_memory(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Do the same with the keys and values of the memory, of which all can be attended to."""
        assert self.memory is not None
        reach = self.memory.longest + self.longest
        return self._attend(query, key, value, self.memory, (reach, reach))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Sequences, limits: tuple[int, int]
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn  # takes a second

        # Norms of queries and keys return float32 under autocast.
        query, key, value = (
            part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value)
        )
        if key.shape[1] != query.shape[1]:  # torch 2.11 has no option for grouped heads
            size = query.shape[1] // key.shape[1]
            key, value = (part.repeat_interleave(size, 1) for part in (key, value))
        # Without limits, newer versions of torch choose a kernel of cuDNN, which has to be prepared
        # for each shape. FlashAttention ignores limits that are no shorter than a sequence.
        out = varlen_attn(
            query,
            key,
            value,
            self.starts,
            keys.starts,
            self.longest,
            keys.longest,
            window_size=limits,
        )
        assert isinstance(out, Tensor)
        return out.transpose(0, 1)[None]


@dataclass(frozen=True, slots=True)
class Packing:
    """The real tokens of a batch as the rows of one matrix (T, D): their base class.

    Args:
        index: (T,). Index of each row among the B N tokens of the batch.
        shape: (B, N).
    """

    index: Tensor
    shape: tuple[int, int]

    def select(self, memory: Memory) -> Memory:
        """Return a memory with the samples in the order of the rows."""
        raise NotImplementedError

    def groups(self) -> list[Group]:
        """Return the groups of samples whose attention is computed together."""
        raise NotImplementedError

    def pack(self, x: Tensor) -> Tensor:
        """Return the rows (T, D) of the real tokens of x (B, N, D)."""
        return Unpad.apply(x.flatten(0, 1), self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """Return (B, N, D) with the rows of x (T, D) at the real tokens, and zeros elsewhere."""
        batch, length = self.shape
        out = x.new_zeros(batch * length, x.shape[-1])
        return out.index_copy_(0, self.index, x).unflatten(0, self.shape)


@dataclass(frozen=True, slots=True)
class GroupPacking(Packing):
    """Groups of samples of similar length, for a CPU. The longest sample comes first.

    Args:
        longest_first: (B,). Index in the batch of each sample.
        lengths: Number of real tokens of each sample, in this order.
    """

    longest_first: Tensor
    lengths: Sequence[int]

    @classmethod
    def of(cls, mask: Tensor) -> GroupPacking | None:
        """Return the packing of a batch with mask (B, N), or None if it is not worthwhile."""
        counts = mask.sum(1)
        lengths = sorted(counts.tolist(), reverse=True)
        total = sum(lengths)
        if not total or mask.numel() - total <= MAX_PADDING * mask.numel():
            return None
        order = counts.argsort(descending=True, stable=True)
        columns = torch.arange(mask.numel(), device=mask.device).view(mask.shape)
        index = columns[order][mask[order]]
        return cls(index, (mask.shape[0], mask.shape[1]), order, lengths)

    def select(self, memory: Memory) -> Memory:
        """Return a memory with the longest sample first."""
        return memory.select(self.longest_first)

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

    def _group(self, samples: slice, row: int) -> Group:
        """Return the group of some samples, whose tokens begin at a row of the matrix."""
        lengths = self.lengths[samples]
        shape = len(lengths), lengths[0]
        rows = slice(row, row + sum(lengths))
        device = self.index.device
        columns = torch.arange(shape[1], device=device)
        if lengths[-1] == lengths[0]:
            return Group(rows, samples, shape, columns[None])
        counts = torch.tensor(lengths, device=device)[:, None]
        starts = counts.cumsum(0) - counts
        index = (starts + torch.minimum(columns, counts - 1)).flatten()
        mask = columns < counts
        real = mask.flatten().nonzero().flatten()
        return Group(rows, samples, shape, columns[None], mask=mask, index=index, real=real)


@dataclass(frozen=True, slots=True)
class SequencePacking(Packing):
    """All samples as parts of one sequence, for a kernel that computes each part separately.

    Rows that are left over have padding. It follows all real tokens, and the padding of each sample
    is a sequence of its own, so that no real token attends to it.

    Args:
        ranks: (B, N). Number of real tokens up to each token of its sample.
        memory: The packing of the memory, if there is one.
    """

    ranks: Tensor
    memory: SequencePacking | None = None

    @classmethod
    def of(
        cls, mask: Tensor | None, num_real: int | None, memory: Memory | None = None
    ) -> SequencePacking | None:
        """Return the packing of a batch. None: the number of real tokens is unknown, or 0.

        Args:
            mask: (B, N) bool. True at real tokens.
            num_real: Number of real tokens, or more. A GPU is not asked for it.
            memory: Sequence to which cross-attention attends.
        """
        if mask is None or not num_real:
            return None
        packed = None
        if memory is not None:
            packed = cls.of(memory.mask, memory.num_real)
            if packed is None:
                return None
        # Sorting needs no answer from the device, as it returns all tokens.
        index = mask.flatten().argsort(descending=True, stable=True)
        # A comparison of the two numbers would make two graphs.
        index = index[: torch.sym_min(-(-num_real // ROWS) * ROWS, index.shape[0])]
        return cls(index, (mask.shape[0], mask.shape[1]), mask.cumsum(1), packed)

    def select(self, memory: Memory) -> Memory:
        """Return a memory with the tokens of all samples as one sequence."""
        assert self.memory is not None
        return type(memory)(self.memory.pack(memory.x)[None], None)

    def sequences(self) -> Sequences:
        """Return the real tokens of each sample, then the padding of each sample."""
        length = self.shape[1]
        counts = self.ranks[:, -1]
        ends = torch.cat([counts, length - counts]).cumsum(0, dtype=torch.int32)
        starts = F.pad(ends.clamp(max=self.index.shape[0]), (1, 0))
        memory = None if self.memory is None else self.memory.sequences()
        return Sequences(starts, longest=length, memory=memory)

    def groups(self) -> list[Group]:
        """Return one group, whose only sequence has the tokens of all samples."""
        positions = self.ranks.flatten()[self.index] - 1
        every = slice(None)
        shape = 1, self.index.shape[0]
        return [Group(every, every, shape, positions[None], sequences=self.sequences())]


def has_kernel(x: Tensor, head_dim: int) -> bool:
    """Whether a kernel can compute attention to tokens x (..., D) with heads of d features."""
    if not x.is_cuda or torch.version.cuda is None or torch.compiler.is_exporting():
        return False
    fits = head_dim <= MAX_HEAD_DIM and head_dim % HEAD_DIM_STEP == 0 and matmul_dtype(x) in DTYPES
    return fits and torch.cuda.get_device_capability(x.device) >= CAPABILITY
