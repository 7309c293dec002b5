"""Ways to write the codes of a value: delayed stages, guidance, and all tokens at once.

They are used by head=any: the delay pattern of MusicGen, which writes several codes of a token in
few steps, classifier-free guidance, and parallel decoding in a few steps (MaskGIT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from dxn.models.decoding.decoder import KVCache, Memory, StepDecoder
from dxn.models.decoding.rules import Rules, RunningRules
from dxn.models.decoding.search import BatchSampler, RandomSampler, SampleSearch

# Scale of the Gumbel noise of the first step, which decreases linearly to 0 in the last one. Its
# source is the published code of MaskGIT. Without noise, the tokens that are kept first are the
# most common ones, so that samples differ little.
NOISE = 4.5


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


def num_masked(share: float, length: int) -> int:
    """Return how many of the tokens are masked after a share of the steps, by a cosine schedule.

    The source is arXiv:2202.04200, section 3.3. It is less than all for a share above 0.
    """
    return math.floor(length * math.cos(math.pi / 2 * share))


class Filling(SampleSearch):
    """Each step chooses all masked tokens, and masks some again (arXiv:2202.04200, section 3.2).

    Those with the largest log-probabilities plus Gumbel noise are kept. A row of the generation,
    whose prompt are the rows of `ids` and whose decoder is a parallel `Decoder`, is one token. The
    last one that is chosen for it is the result.

    Args:
        sampler: A sampler for each sequence, which chooses the tokens. The noise is drawn from its
            generator and multiplied by its temperature.
        ids: (B, 1 + n). The begin token and mask tokens, which each step replaces.
        mask_id: Id of the mask token.
        steps: Number of steps; at most n are computed.
        rules: Rules about the tokens, of which forbidden and forbidden_first are used.
    """

    def __init__(
        self, sampler: BatchSampler, ids: Tensor, *, mask_id: int, steps: int, rules: Rules
    ):
        length = ids.shape[1] - 1
        steps = min(steps, length)
        super().__init__(ids.numel(), 1, sampler=sampler, ends=(), max_new=steps, device=ids.device)
        self.ids = ids
        self.mask_id = mask_id
        self.forbidden, self.first = (
            torch.tensor([int(i) for i in forbidden], dtype=torch.long, device=ids.device)
            for forbidden in (rules.forbidden, rules.forbidden_first)
        )
        # At least one token is kept in each step, and all of them in the last one.
        scales, counts = [], [length]
        for step in range(1, steps + 1):
            scales.append(NOISE * (1 - step / steps))
            counts.append(min(num_masked(step / steps, length), counts[-1] - 1))
        # Of each step: the scale of the noise, and which ones of the tokens in the order of their
        # confidence are masked again.
        self.scales = torch.tensor(scales, device=ids.device)
        counts = torch.tensor(counts[1:], device=ids.device)
        self.masked = torch.arange(length, device=ids.device) < counts[:, None]
        self.step = torch.zeros(1, dtype=torch.long, device=ids.device)

    def advance(
        self, logits: Tensor, rules: RunningRules | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Choose the tokens. See `SampleSearch.advance`."""
        ids = self.ids[:, 1:]
        logits = logits.float().view(*self.ids.shape, -1)[:, 1:]
        logits.index_fill_(2, self.forbidden, -torch.inf)
        logits[:, 0].index_fill_(1, self.first, -torch.inf)
        log_probs = logits.log_softmax(-1)
        chosen = self.sampler(log_probs.flatten(0, 1)).view_as(ids)
        confidence = log_probs.gather(2, chosen[..., None])[..., 0]
        noise = torch.zeros_like(confidence)
        for row, sampler in zip(noise, self.samplers, strict=True):
            if isinstance(sampler, RandomSampler):
                row.exponential_(generator=sampler.generator).log_().mul_(-sampler.temperature)
        confidence += self.scales[self.step] * noise
        # Tokens that were kept before stay.
        is_written = ids != self.mask_id
        order = confidence.masked_fill_(is_written, torch.inf).argsort(1)
        masked = is_written.scatter(1, order, self.masked[self.step].expand_as(is_written))
        ids.copy_(torch.where(is_written, ids, chosen).masked_fill(masked, self.mask_id))
        self.step += 1
        self._append(self.ids.flatten())
        return self.ids.flatten(), None
