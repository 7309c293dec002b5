"""The features of known and static columns in the ridge regression of a forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

# Features of all channels together. The time of a training is cubic in their number.
MAX_FEATURES = 1024
# The mean of a window in its standard deviations is limited: a window can be nearly constant.
MAX_LEVEL = 10.0


class ForecastColumns(NamedTuple):
    """Which features of known and static columns a regression reads.

    Attributes:
        num_known: Number of known channels J.
        steps: Number of their last past steps that are read. All steps of the horizon are read.
        static: Number of features of each input with static columns, by input name.
        has_products: Whether static features are also multiplied with known values. The effect of a
            known value then depends on them.

    All features are also multiplied with the mean of the past values: an effect, such as that of a
    promotion, can be proportional to it.
    """

    num_known: int = 0
    steps: int = 0
    static: Mapping[str, int] = {}
    has_products: bool = False

    def count(self, horizon: int) -> int:
        """Return the number of features of a channel."""
        known, static = self.num_known * (self.steps + horizon), sum(self.static.values())
        count = (1 + known) * (1 + static) if self.has_products else 1 + known + static
        return 2 * count - 1 if count > 1 else 0

    def features(self, known: Tensor, static: Tensor, level: Tensor, horizon: int) -> Tensor:
        """Return the features (B, K, K x count). Those of another channel are 0.

        The effect of a column can therefore differ from channel to channel.

        Args:
            known: (B, T + H, J). Known values, NaN where unknown.
            static: (B, S). Features of static columns, NaN where unknown.
            level: (B, K). Mean of the past values, in their standard deviations.
            horizon: Number H of future steps.
        """
        constant = torch.ones_like(level[:, :1])
        known = known[:, known.shape[1] - self.steps - horizon :].flatten(1)
        known = torch.cat([constant, known.nan_to_num(0.0)], 1)
        static = static.nan_to_num(0.0)
        if self.has_products:
            x = (torch.cat([constant, static], 1)[:, :, None] * known[:, None]).flatten(1)
        else:
            x = torch.cat([known, static], 1)
        channels = level.shape[1]
        x = x[:, None].expand(-1, channels, -1)
        x = torch.cat([x, x * level.clamp(-MAX_LEVEL, MAX_LEVEL)[..., None]], -1)
        x = x[..., 1:]  # the regression has a constant feature
        if channels == 1:
            return x
        same = torch.eye(channels, dtype=x.dtype, device=x.device)
        return (same[..., None] * x[:, :, None]).flatten(2)


def choose_columns(
    num_known: int, static: Mapping[str, int], *, shape: tuple[int, int, int], season: int
) -> ForecastColumns:
    """Return the features that are the most useful ones and not too many.

    Args:
        num_known: Number of known channels J.
        static: Number of features of each input with static columns, by input name.
        shape: Numbers of past steps T, future steps H and channels K.
        season: Season length in steps. At least one season of known past values is read.
    """
    steps, horizon, channels = shape
    if not num_known and not static:
        return ForecastColumns()
    choices = [
        ForecastColumns(num_known, 0, static, has_products=bool(num_known and static)),
        ForecastColumns(num_known, 0, static),
        ForecastColumns(num_known),
    ]
    wanted = min(steps, season) if num_known else 0
    for columns in choices:
        room = MAX_FEATURES // channels - columns.count(horizon)
        per_step = columns._replace(steps=1).count(horizon) - columns.count(horizon)
        fitting = min(steps, room // per_step) if per_step else 0
        if room >= 0 and fitting >= wanted:
            return columns._replace(steps=fitting)
    return ForecastColumns()
