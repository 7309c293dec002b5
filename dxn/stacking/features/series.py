"""Statistics of each channel over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dxn.stacking.features.base import Features, time_statistics


def series_features(adapter: Any, batch: Mapping[str, Tensor]) -> Features:
    """Return statistics over time of each channel, NaN for a channel without values."""
    x, observed = batch["values"], batch["observed"]
    # The padding of a batch counts as not observed.
    low = x.masked_fill(~observed, torch.inf).amin(1)
    high = x.masked_fill(~observed, -torch.inf).amax(1)
    dense = torch.cat([time_statistics(x, observed), low, high], 1)
    dense = dense.masked_fill(dense.isinf(), torch.nan)
    steps = adapter.tokenizer.history(batch) if adapter.tokenizer.window else None
    return Features("statistics", dense, steps=steps)
