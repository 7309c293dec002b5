"""Option groups of the series adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Interval

from dxn.core.schema import options

SeriesChannels = Literal["joint", "independent"]
SeriesNormalization = Literal["train", "sample", "none"]
SeriesStem = Literal["patch", "conv"]
Below1 = Annotated[float, Interval(ge=0, lt=1)]
# The default patch size gives a series of the median length about this many tokens: enough to see
# its course, and few enough for quadratic attention.
USUAL_TOKENS = 32


@options
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

    noise: Annotated[float, Ge(0)] = 0.0
    scale: Below1 = 0.0
    shift: Annotated[float, Ge(0)] = 0.0
    warp: Below1 = 0.0
    crop: Below1 = 0.0
    time_mask: Below1 = 0.0
    channel_mask: Below1 = 0.0


def usual_patch_size(length: float) -> int:
    """Return the power of two with which a series of this length has about 32 patches."""
    size = 1
    while length / (2 * size) >= USUAL_TOKENS / 2**0.5:
        size *= 2
    return size
