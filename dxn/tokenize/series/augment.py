"""Augmentation of series."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from dxn.core.randomness import torch_generator
from dxn.tokenize.series.options import SeriesAugment


def augment_series(x: Tensor, options: SeriesAugment, rand: random.Random) -> Tensor:
    """Augment a series (T, C), NaN where a value is missing. Its length can change.

    If nothing but missing values would remain, the series is returned as it is.
    """
    original = x
    if options.crop:
        kept = max(round(len(x) * (1 - rand.uniform(0, options.crop))), 1)
        start = rand.randint(0, len(x) - kept)
        x = x[start : start + kept]
    if options.warp:
        x = _stretch(x, 1 + rand.uniform(-options.warp, options.warp))
    generator = torch_generator(rand)
    steps, channels = x.shape
    if options.scale or options.shift or options.noise:
        x = _disturb(x, options, rand, generator)
    if options.time_mask:
        width = int(rand.uniform(0, options.time_mask) * steps)
        start = rand.randint(0, steps - width)
        hidden = torch.zeros(steps, 1, dtype=torch.bool)
        hidden[start : start + width] = True
        x = x.masked_fill(hidden, torch.nan)
    if options.channel_mask and channels > 1:
        hidden = torch.rand(channels, generator=generator) < options.channel_mask
        hidden[rand.randrange(channels)] = False
        x = x.masked_fill(hidden, torch.nan)
    return original if bool(x.isnan().all()) else x


def _disturb(
    x: Tensor, options: SeriesAugment, rand: random.Random, generator: torch.Generator
) -> Tensor:
    """Scale and shift each channel of x (T, C), and add noise."""
    mean = x.nanmean(0)
    std = (x - mean).square().nanmean(0).sqrt()
    channels = x.shape[1]
    factors = 1 + options.scale * (2 * torch.rand(channels, generator=generator) - 1)
    offsets = options.shift * (2 * torch.rand(channels, generator=generator) - 1)
    noise = rand.uniform(0, options.noise) * torch.randn(x.shape, generator=generator)
    return mean + (x - mean) * factors + (offsets + noise) * std


def _stretch(x: Tensor, factor: float) -> Tensor:
    """Stretch the time axis of x (T, C) by linear interpolation.

    A value is missing where one of its two neighbors is missing.
    """
    steps = max(round(len(x) * factor), 1)
    channels = rearrange(x, "t c -> 1 c t")
    stretched = F.interpolate(channels, steps, mode="linear", align_corners=True)
    return rearrange(stretched, "1 c t -> t c")
