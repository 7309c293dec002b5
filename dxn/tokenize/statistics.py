"""Statistics over time, from which a baseline learns."""

from __future__ import annotations

import torch
from torch import Tensor


def time_statistics(x: Tensor, mask: Tensor) -> Tensor:
    """Return mean, standard deviation and mean absolute difference over time, (B, 3 F).

    Args:
        x: (B, T, F). Values at each step. Those that the mask excludes may be anything finite.
        mask: (B, T) or (B, T, F) bool. True at known values.

    Returns:
        NaN where a sample has no known value. Differences between unknown steps count as none.
    """
    known = (mask if mask.ndim == 3 else mask[..., None]).to(x.dtype).expand_as(x)
    count = known.sum(1)
    mean = (x * known).sum(1) / count
    std = (((x - mean[:, None]) * known).square().sum(1) / count).sqrt()
    pairs = known[:, 1:] * known[:, :-1]
    steps = ((x[:, 1:] - x[:, :-1]).abs() * pairs).sum(1) / pairs.sum(1).clamp(min=1)
    return torch.cat([mean, std, steps], 1)


def means_of_parts(x: Tensor, lengths: Tensor, num_parts: int) -> Tensor:
    """Return the mean of each of equally long parts of a sequence, (B, num_parts F).

    Args:
        x: (B, T, F).
        lengths: (B,). Number of steps of each sample.
        num_parts: Number of parts.
    """
    steps = torch.arange(x.shape[1], device=x.device)
    means: list[Tensor] = []
    for part in range(num_parts):
        start = lengths * part // num_parts
        # At least one step, because a sequence can be shorter than the number of parts.
        stop = torch.maximum(lengths * (part + 1) // num_parts, start + 1)
        inside = (steps >= start[:, None]) & (steps < stop[:, None])
        weights = inside.to(x.dtype) / (stop - start)[:, None]
        means.append((x * weights[..., None]).sum(1))
    return torch.cat(means, 1)
