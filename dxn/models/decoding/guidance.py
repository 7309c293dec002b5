"""Classifier-free guidance of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dxn.models.decoding.decoder import KVCache, Memory, StepDecoder


class Guided(StepDecoder):
    """Moves the predictions of a decoder away from those without a memory (arXiv:2207.12598).

    The output vectors are u + s (c - u) for those with the memory c, those with a memory of zeros
    u, and the scale s. The output layer is linear, so its logits are combined in the same way. A
    softcap is applied afterwards.

    Args:
        decoder: The decoder, which was trained with some memories of zeros.
        scale: Scale s. 1: no guidance.
    """

    def __init__(self, decoder: StepDecoder, scale: float):
        nn.Module.__init__(self)  # it has no embedding of its own
        self.decoder = decoder
        self.scale = scale
        self.max_len = decoder.max_len
        self.static_steps = decoder.static_steps

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Any]
    ) -> Tensor:
        """See `StepDecoder.next_states`. Both predictions are computed as one batch."""
        assert memory is not None
        x = torch.cat([memory.x, torch.zeros_like(memory.x)])
        attn_mask = None if memory.attn_mask is None else _twice(memory.attn_mask)
        both = Memory(x, attn_mask, sizes=memory.sizes)
        c, u = self.decoder.next_states(_twice(ids), _twice(mask), both, caches).chunk(2)
        return u + self.scale * (c - u)

    def caches(self) -> list[Any]:
        """Create empty caches for the rows with the memory, and as many for a memory of zeros."""
        return [_BothCache() for _ in self.decoder.caches()]

    def output_layer(self) -> nn.Module:
        """See `StepDecoder.output_layer`."""
        return self.decoder.output_layer()


class _BothCache(KVCache):
    """A cache for twice as many rows and samples as those that `select` chooses from."""

    def select(self, rows: Tensor, samples: Tensor | None = None) -> None:
        """See `KVCache.select`."""
        assert self._tokens is not None
        rows = torch.cat([rows, rows + len(self._tokens[0]) // 2])
        if samples is not None:
            assert self.memory is not None
            samples = torch.cat([samples, samples + len(self.memory[0]) // 2])
        super().select(rows, samples)


def _twice(x: Tensor) -> Tensor:
    """Return the rows of a tensor, and the same rows after them."""
    return torch.cat([x, x])
