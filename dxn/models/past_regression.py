"""A baseline of forecasts: a linear function of the past values, the same for all channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dxn.stacking.features import Features


class PastRegression(nn.Module):
    """Predicts quantiles of the next values of each channel from its past values by a matrix.

    The last value is subtracted from the past values and added to the forecast, as in NLinear
    (arXiv:2205.13504, section 3.2), so a shift of the values shifts the forecast.

    Args:
        about: Name of the model.
        input: Name of the input with the past values.
        shape: Numbers of past steps T, future steps H, channels K and quantiles Q.
    """

    # Unlike `Baseline`, it needs no features besides the past values.
    num_dense: ClassVar[Mapping[str, int]] = {}
    num_counted: ClassVar[Mapping[str, Sequence[int]]] = {}

    weight: Tensor
    offsets: Tensor

    def __init__(self, about: str, *, input: str, shape: Sequence[int]):
        super().__init__()
        self.about = about
        self.input = input
        self.shape = list(shape)
        steps, horizon, channels, quantiles = shape
        # The last row is that of the constant feature.
        self.register_buffer("weight", torch.zeros(steps + 1, horizon))
        self.register_buffer("offsets", torch.zeros(horizon, channels, quantiles))

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain data."""
        return {"about": self.about, "input": self.input, "shape": list(self.shape)}

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that are read."""
        return [self.input]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the output of a sample."""
        return tuple(self.offsets.shape)

    def fault(self, adapters: Mapping[str, Any]) -> str:
        """Return what is wrong with sizes that may come from a stranger's folder. Empty: nothing.

        Args:
            adapters: Adapters of the inputs, by input name.
        """
        window = getattr(adapters[self.input].prepare, "window", 0)
        if self.shape[0] <= window:
            return ""
        return f"must read at most {window} past values of {self.input}, got {self.shape[0]}"

    def forward(self, features: Mapping[str, Features], size: int) -> Tensor:
        """Return the quantiles (B, H, K, Q) in the unit of the past values.

        Args:
            features: Features of each input, by input name.
            size: Number of samples B.
        """
        steps = features[self.input].steps
        assert steps is not None
        with torch.autocast(self.weight.device.type, enabled=False):
            x, last = past_features(steps.float()[..., : self.shape[2]], self.shape[0])
            values = (x @ self.weight + last).transpose(1, 2)  # (B, H, K)
        return values[..., None] + self.offsets


def past_features(steps: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return what a regression reads of past values, and the values that it continues.

    Args:
        steps: (B, T, K). Values at each step, NaN where unknown. The last one is at index T - 1.
        count: Number of steps that are read.

    Returns:
        The last steps of each channel minus its last value, followed by 1, (B, K, count + 1), and
        the last values (B, K, 1). An unknown value is that of the step before.
    """
    x = filled(steps.transpose(1, 2))[..., -count:]
    last = x[..., -1:].nan_to_num(0.0)
    # Steps before the first known value have the last value, like a constant series.
    x = (x - last).nan_to_num(0.0)
    return torch.cat([x, torch.ones_like(last)], -1), last


def filled(x: Tensor) -> Tensor:
    """Replace each NaN of x (..., T) by the last value before it, if there is one."""
    shift = 1
    # With each step, the longest gap that is filled doubles.
    while shift < x.shape[-1]:
        before = torch.cat([torch.full_like(x[..., :shift], torch.nan), x[..., :-shift]], -1)
        x = torch.where(x.isnan(), before, x)
        shift *= 2
    return x
