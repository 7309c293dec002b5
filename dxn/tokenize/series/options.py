"""Option groups of the series adapter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

SeriesChannels = Literal["joint", "independent"]
SeriesNormalization = Literal["train", "sample", "none"]
SeriesStem = Literal["patch", "conv"]
# The default patch size gives a series of the median length about this many tokens: enough to see
# its course, and few enough for quadratic attention.
USUAL_TOKENS = 32


@dataclass(frozen=True)
class SeriesAugment:
    """Random augmentation of training series. It is drawn again in each epoch.

    Args:
        noise: Maximum standard deviation of added noise, relative to that of each channel.
        scale: Maximum relative change of the values of a channel around their mean.
        shift: Maximum distance by which a channel is moved up or down, relative to its standard
            deviation.
        warp: Maximum relative stretching of the time axis.
        crop: Maximum fraction of the time steps that is cut off at both ends together.
        time_mask: Maximum fraction of the time steps in a window that is set to missing.
        channel_mask: Probability of setting a channel to missing. At least one channel remains.
    """

    noise: float = 0.0
    scale: float = 0.0
    shift: float = 0.0
    warp: float = 0.0
    crop: float = 0.0
    time_mask: float = 0.0
    channel_mask: float = 0.0

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value < 0:
                raise ValueError(f"augment.{option.name} must be at least 0, got {value}")
        for name in ("scale", "warp", "crop", "time_mask", "channel_mask"):
            if getattr(self, name) >= 1:
                raise ValueError(f"augment.{name} must be below 1, got {getattr(self, name)}")


def usual_patch_size(length: float) -> int:
    """Return the power of two with which a series of this length has about 32 patches."""
    size = 1
    while length / (2 * size) >= USUAL_TOKENS / 2**0.5:
        size *= 2
    return size
