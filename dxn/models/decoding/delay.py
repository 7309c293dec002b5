"""The delay pattern: several codes of a token are written in few steps (MusicGen)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from dxn.models.decoding.decoder import Memory, StepDecoder


class Delayed(StepDecoder):
    """Writes code r of token i in step i + r (arXiv:2306.05284, section 2.2).

    Row B R + r of a generation is stage r of sample B: use `generate` with R as the count. A row
    writes begin tokens before its first code, and the end token after its last one. The output
    vectors are logits already, because each row can have other tokens.

    Args:
        decoder: The decoder, which adds the embeddings of the R tokens of a position.
        allowed: (R, V) bool. True at the tokens of each stage. Those of the first one contain the
            end token if it decides about the length; the end of the others follows from it.
        begin: Id of the begin token.
        end: Id of the end token.
        length: Maximum number of tokens that have R codes each.
    """

    joint_rows = True
    allowed: Tensor

    def __init__(self, decoder: StepDecoder, *, allowed: Tensor, begin: int, end: int, length: int):
        nn.Module.__init__(self)  # it has no embedding of its own
        self.decoder = decoder
        self.max_len = decoder.max_len
        self.static_steps = decoder.static_steps
        self.begin, self.end, self.length = begin, end, length
        self.register_buffer("allowed", allowed, persistent=False)
        self.layer = decoder.output_layer()

    def next_states(
        self, ids: Tensor, mask: Tensor, memory: Memory | None, caches: Sequence[Any]
    ) -> Tensor:
        """Compute the logits (B R, V) of the next tokens.

        Args:
            ids: (B, 1) begin tokens in the first step, then (B R, 1).
            mask: (B, N) or (B R, N) bool. All rows have the same number of real tokens.
            memory: Sequence to which the decoder attends.
            caches: See `StepDecoder.forward`.
        """
        assert memory is not None
        stages = len(self.allowed)
        last = rearrange(ids, "(b r) 1 -> b r", b=len(memory.x)).expand(-1, stages)
        mask = mask[:: len(mask) // len(memory.x)]
        states = self.decoder.next_states(last[:, None], mask, memory, caches)
        logits = self.layer(states)[:, None].masked_fill(~self.allowed, -torch.inf)
        step = mask.sum(1, keepdim=True) - 1  # the first one is 0
        waits = step < torch.arange(stages, device=ids.device)
        # A stage ends one step after the previous one.
        ended = last == self.end
        before = torch.cat([step >= self.length, ended[:, :-1]], 1)
        ended = ended | before
        forced = torch.where(waits, self.begin, self.end)[..., None]
        only = torch.full_like(logits, -torch.inf).scatter(2, forced, 0.0)
        return torch.where((waits | ended)[..., None], only, logits).flatten(0, 1)

    def caches(self) -> list[Any]:
        """See `StepDecoder.caches`."""
        return [*self.decoder.caches()]

    def output_layer(self) -> nn.Module:
        """See `StepDecoder.output_layer`."""
        return nn.Identity()
