"""Classifier-free guidance of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dxn.models.decoding.decoder import Memory, StepDecoder


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

    def states(
        self,
        ids: Tensor,
        mask: Tensor,
        memory: Memory | None = None,
        caches: Sequence[Any] | None = None,
        *,
        num_real: int | None = None,
    ) -> Tensor:
        """See `StepDecoder.states`."""
        assert memory is not None
        half = len(caches or ()) // 2
        with_memory, without = (caches[:half], caches[half:]) if caches else (None, None)
        zeros = replace(memory, x=torch.zeros_like(memory.x))
        c = self.decoder.states(ids, mask, memory, with_memory, num_real=num_real)
        u = self.decoder.states(ids, mask, zeros, without, num_real=num_real)
        return u + self.scale * (c - u)

    def caches(self) -> list[Any]:
        """Create empty caches with the memory, and after them as many for a memory of zeros."""
        return [*self.decoder.caches(), *self.decoder.caches()]

    def output_layer(self) -> nn.Module:
        """See `StepDecoder.output_layer`."""
        return self.decoder.output_layer()
