"""Statistics of values over time, and of the values of a whole training split."""

from __future__ import annotations

import torch
from torch import Tensor


class Moments:
    """Mean and standard deviation of each channel of values that are added piece by piece.

    The pieces are combined as in Chan, Golub and LeVeque (1983), because a sum of squares loses the
    variance of values that are large compared with it. NaN is a missing value.

    Args:
        num_channels: Number of channels C.

    Attributes:
        mean: (C,) float64. 0 where a channel has no value yet.
    """

    def __init__(self, num_channels: int):
        self.count = torch.zeros(num_channels, dtype=torch.float64)
        self.mean = torch.zeros(num_channels, dtype=torch.float64)
        self.squares = torch.zeros(num_channels, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add values x (M, C)."""
        x = x.double()
        count = (~x.isnan()).sum(0)
        mean = x.nanmean(0).nan_to_num(0.0)
        difference = mean - self.mean
        total = self.count + count
        share = count / total.clamp(min=1)
        self.squares += (x - mean).square().nansum(0) + difference**2 * self.count * share
        self.mean += difference * share
        self.count = total

    @property
    def std(self) -> Tensor:
        """(C,) float64. 0 where a channel has no value."""
        return (self.squares / self.count.clamp(min=1)).sqrt()


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


def extremes(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the maximum and the minimum over time, (B, 2 F).

    Args:
        x: (B, T, F).
        lengths: (B,). Number of steps of each sample.
    """
    is_padding = (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[..., None]
    largest = x.masked_fill(is_padding, -torch.inf).amax(1)
    smallest = x.masked_fill(is_padding, torch.inf).amin(1)
    return torch.cat([largest, smallest], 1)


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
