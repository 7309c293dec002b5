"""Functions that choose the next token: the most probable one, or a random one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Sampler = Callable[[Tensor], Tensor]  # from log-probabilities (B, V) to the next token ids (B,)


def greedy(log_probs: Tensor) -> Tensor:
    """Return the most probable token of each row of log_probs (B, V)."""
    return log_probs.argmax(-1)


def random_sampler(
    generator: torch.Generator,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Sampler:
    """Create a sampler that draws tokens according to their probability.

    Args:
        generator: Random generator.
        temperature: Divisor of the log-probabilities. Values below 1 favor probable tokens.
        top_k: Sample only from the top_k most probable tokens. Default: no limit.
        top_p: Sample only from the smallest set of most probable tokens whose total probability
            reaches top_p (arXiv:1904.09751, section 3.1). Default: no limit.

    Raises:
        ValueError: If an argument is out of range.
    """
    if temperature <= 0:
        raise ValueError(f"temperature: must be above 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k: must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p: must be above 0 and at most 1, got {top_p}")

    def sample(log_probs: Tensor) -> Tensor:
        # Without the maximum, a temperature close to 0 would divide all of them to -infinity. A
        # smaller temperature than 1e-30 is 0 in float32.
        centered = log_probs - log_probs.amax(-1, keepdim=True)
        probs, order = (centered / max(temperature, 1e-30)).softmax(-1).sort(-1, descending=True)
        if top_k is not None:
            probs[:, top_k:] = 0
        if top_p is not None:
            # The sum before each token is compared, so that the most probable token always remains.
            probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0)
        choice = torch.multinomial(probs, 1, generator=generator)
        return order.gather(1, choice).squeeze(1)

    return sample


def make_sampler(
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Sampler:
    """Return `greedy` if temperature is 0, otherwise a `random_sampler` with this seed."""
    if temperature == 0:
        return greedy
    generator = torch.Generator(device).manual_seed(seed)
    return random_sampler(generator, temperature=temperature, top_k=top_k, top_p=top_p)
