"""Parallel decoding: all tokens of a sequence are predicted at once, in a few steps (MaskGIT)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dxn.models.decoding.rules import Rules, RunningRules
from dxn.models.decoding.search import BatchSampler, RandomSampler, SampleSearch

# Scale of the Gumbel noise of the first step, which decreases linearly to 0 in the last one. Its
# source is the published code of MaskGIT. Without noise, the tokens that are kept first are the
# most common ones, so that samples differ little.
NOISE = 4.5


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
        kept = ids != self.mask_id
        order = confidence.masked_fill_(kept, torch.inf).argsort(1)
        masked = kept.scatter(1, order, self.masked[self.step].expand_as(kept))
        ids.copy_(torch.where(kept, ids, chosen).masked_fill(masked, self.mask_id))
        self.step += 1
        self._append(self.ids.flatten())
        return self.ids.flatten(), None
