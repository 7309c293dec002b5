"""Parallel decoding: all tokens of a sequence are predicted at once, in a few steps (MaskGIT)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dxn.models.decoding.decoder import Memory, StepDecoder
from dxn.models.decoding.rules import Rules
from dxn.models.decoding.search import BatchSampler, RandomSampler, Sampler

# Scale of the Gumbel noise of the first step, which decreases linearly to 0 in the last one. Its
# source is the published code of MaskGIT. Without noise, the tokens that are kept first are the
# most common ones, so that samples differ little.
NOISE = 4.5


def num_masked(share: float, length: int) -> int:
    """Return how many of the tokens are masked after a share of the steps, by a cosine schedule.

    The source is arXiv:2202.04200, section 3.3. It is less than all for a share above 0.
    """
    return math.floor(length * math.cos(math.pi / 2 * share))


@torch.inference_mode()
def generate_parallel(
    decoder: StepDecoder,
    memory: Memory,
    *,
    begin: int,
    mask_id: int,
    length: int,
    steps: int,
    sampler: BatchSampler,
    rules: Rules = Rules(),
    on_ids: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Return the token ids (B, n) of a sequence per sample (arXiv:2202.04200, section 3.2).

    Each step predicts all masked tokens, and keeps those with the largest log-probabilities plus
    Gumbel noise.

    Args:
        decoder: Decoder that attends in both directions, and predicts tokens at their own position.
        memory: Sequence to which the decoder attends.
        begin: Id of the begin token, which is before the sequence.
        mask_id: Id of the mask token.
        length: Number n of tokens.
        steps: Number of steps; at most n are computed.
        sampler: A sampler for each sample, which chooses the tokens. The noise is drawn from its
            generator and multiplied by its temperature.
        rules: Rules about the tokens, of which forbidden and forbidden_first are used.
        on_ids: Function that is called with the token ids (B, n) after each step. An exception in
            it stops the generation.
    """
    device = memory.x.device
    output = decoder.output_layer()
    ids = torch.full((len(memory.x), length + 1), mask_id, device=device)
    ids[:, 0] = begin
    real = torch.ones_like(ids, dtype=torch.bool)
    masked = real[:, 1:]
    forbidden = torch.tensor([int(i) for i in rules.forbidden], dtype=torch.long, device=device)
    first = torch.tensor([int(i) for i in rules.forbidden_first], dtype=torch.long, device=device)
    steps = min(steps, length)
    remaining = length
    for step in range(1, steps + 1):
        logits = output(decoder.states(ids, real, memory)[:, 1:]).float()  # (B, n, V)
        logits.index_fill_(2, forbidden, -torch.inf)
        logits[:, 0].index_fill_(1, first, -torch.inf)
        log_probs = logits.log_softmax(-1)
        parts = zip(sampler.samplers, log_probs, strict=True)
        chosen = torch.stack([sample(each) for sample, each in parts])
        chosen = torch.where(masked, chosen, ids[:, 1:])
        confidence = log_probs.gather(2, chosen[..., None])[..., 0]
        noise = torch.stack([_gumbel(each, length, device) for each in sampler.samplers])
        confidence += NOISE * (1 - step / steps) * noise
        # Tokens that were kept before stay.
        confidence = confidence.masked_fill(~masked, torch.inf)
        # At least one token is kept in each step, and all of them in the last one.
        remaining = min(num_masked(step / steps, length), remaining - 1)
        masked = torch.zeros_like(masked)
        masked.scatter_(1, confidence.argsort(1)[:, :remaining], True)
        ids[:, 1:] = chosen.masked_fill(masked, mask_id)
        if on_ids is not None:
            on_ids(ids[:, 1:])
    return ids[:, 1:]


def _gumbel(sampler: Sampler, length: int, device: torch.device) -> Tensor:
    """Return Gumbel noise (n,) times the temperature of a sampler; zeros if it is greedy."""
    noise = torch.zeros(length, device=device)
    if not isinstance(sampler, RandomSampler):
        return noise
    noise.exponential_(generator=sampler.generator)
    return -noise.log() * sampler.temperature
