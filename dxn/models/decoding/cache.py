"""What a decoder keeps between the steps of generation: the memory, and keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from dxn.core.tokens import Tokens, has_no_padding

# Number of tokens by which a cache grows: the attention computes on all of its columns.
BLOCK = 8


@dataclass(frozen=True, slots=True)
class Memory:
    """The sequence to which cross-attention attends, such as the output of an encoder.

    Args:
        x: (B, M, D). Vectors of the tokens.
        attn_mask: (B, 1, 1, M) bool. True at real tokens. None: all tokens are real.
    """

    x: Tensor
    attn_mask: Tensor | None

    @classmethod
    def from_tokens(cls, tokens: Tokens) -> Memory:
        """Convert encoded Tokens to a memory.

        A sample without real tokens attends to its padding, because a softmax over no keys is NaN.
        """
        # Without a mask, torch can choose its fastest kernel.
        if has_no_padding(tokens.mask):
            return cls(tokens.x, None)
        readable = tokens.mask | ~tokens.mask.any(1, keepdim=True)
        return cls(tokens.x, rearrange(readable, "b m -> b 1 1 m"))

    def select(self, samples: Tensor) -> Memory:
        """Return the memory of these samples (b,) of the batch."""
        mask = None if self.attn_mask is None else self.attn_mask[samples]
        return Memory(self.x[samples], mask)


class KVCache:
    """Keys and values of one block, for the previous tokens and for the memory.

    In generation, each step computes only the new tokens and reads all others from the cache. The
    tensors have room for further tokens, so that a step writes only the new ones. They are used as
    a whole, because the CPU kernels for bf16 copy parts of tensors. Beams of a sample are rows of
    their own, but share the keys and values of the memory.
    """

    def __init__(self):
        self.length = 0  # number N of tokens
        self.memory: tuple[Tensor, Tensor] | None = None
        self._tokens: tuple[Tensor, Tensor] | None = None  # (R, H, C, d) with C >= N each

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (R, H, n, d) of new tokens, and return all (R, H, C, d).

        The columns from N to C are zeros, which `mask` hides.
        """
        start, self.length = self.length, self.length + key.shape[2]
        if self._tokens is None:
            self._tokens = key, value
            return self._tokens
        if self._tokens[0].shape[2] < self.length:
            key_room, value_room = (
                F.pad(part, (0, 0, 0, key.shape[2] + BLOCK)) for part in self._tokens
            )
            self._tokens = key_room, value_room
        for part, new in zip(self._tokens, (key, value), strict=True):
            part[:, :, start : self.length] = new
        return self._tokens

    def mask(self, attn_mask: Tensor | None) -> Tensor | None:
        """Extend an attention mask (..., N), see `attend`, to the C columns of the keys."""
        assert self._tokens is not None
        columns = self._tokens[0].shape[2]
        if columns == self.length:
            return attn_mask
        if attn_mask is None:
            return torch.arange(columns, device=self._tokens[0].device)[None] < self.length
        hidden = False if attn_mask.dtype == torch.bool else -torch.inf
        return F.pad(attn_mask, (0, columns - self.length), value=hidden)

    def select(self, rows: Tensor, samples: Tensor | None = None) -> None:
        """Keep these rows (r,), which can be repeated, and the memory of these samples (b,).

        Args:
            rows: Indices of the rows of the previous tokens.
            samples: Indices of the samples of the memory. Default: all of them.
        """
        if self._tokens is not None:
            # On a CPU, index_select is several times as fast as indexing.
            key, value = (part.index_select(0, rows) for part in self._tokens)
            self._tokens = key, value
        if self.memory is not None and samples is not None:
            self.memory = self.memory[0][samples], self.memory[1][samples]

    def clear(self) -> None:
        """Forget the tokens, but not the memory."""
        self.length = 0
        self._tokens = None
