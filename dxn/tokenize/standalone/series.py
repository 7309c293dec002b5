"""Convert time series to normalized values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return values and observed (B, T, C), lengths (B,), and loc and scale (B, C).

    Args:
        values: B series: arrays (T, C), or (T,) for one channel; or texts such as "1 2 nan" and
            "[[1, 2], [3, null]]". NaN is a missing value.
        options: Options of the input in preprocess.json.
    """
    raws = [np.asarray(_parsed(value), np.float32) for value in values]
    raws = [_cut(_without_end(raw if raw.ndim == 2 else raw[:, None]), options) for raw in raws]
    lengths = np.array([len(raw) for raw in raws], np.int64)
    shape = (len(raws), int(lengths.max()), raws[0].shape[1])
    result = {
        "values": np.zeros(shape, np.float32),
        "observed": np.zeros(shape, bool),
        "lengths": lengths,
        "loc": np.zeros((shape[0], shape[2]), np.float32),
        "scale": np.ones((shape[0], shape[2]), np.float32),
    }
    for i, raw in enumerate(raws):
        loc, scale = _statistics(raw, options)
        is_known = ~np.isnan(raw)
        result["values"][i, : len(raw)] = np.where(is_known, (raw - loc) / scale, 0)
        result["observed"][i, : len(raw)] = is_known
        result["loc"][i], result["scale"][i] = loc, scale
    return result


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.strip().startswith("["):
        return json.loads(re.sub(r"(?i)\b(nan|none|null)\b", "NaN", value))
    return re.split(r"[\s,;]+", value.strip())


def _without_end(raw: np.ndarray) -> np.ndarray:
    """Return a series without the steps at its end that have no values."""
    known = np.flatnonzero((~np.isnan(raw)).any(1))
    if not len(known):
        raise ValueError("a series must have a value; leave the input out if there is none")
    return raw[: known[-1] + 1]


def _cut(raw: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Return the last steps for a forecast, and the first ones of a long series."""
    window, limit = options["window"], options["max_steps"]
    if window:
        missing = np.full((max(0, window - len(raw)), raw.shape[1]), np.nan, np.float32)
        raw = np.concatenate([missing, raw[-window:]])
    # A long series that starts with missing values must keep a value.
    first = int((~np.isnan(raw)).any(1).argmax())
    start = 0 if first < limit else min(first, len(raw) - limit)
    return raw[start : start + limit]


def _statistics(raw: np.ndarray, options: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    if options["normalize"] == "train":
        return np.array(options["mean"], np.float32), np.array(options["std"], np.float32)
    channels = raw.shape[1]
    if options["normalize"] == "none":
        return np.zeros(channels, np.float32), np.ones(channels, np.float32)
    x = raw.astype(np.float64)
    count = np.maximum((~np.isnan(x)).sum(0), 1)
    mean = np.nansum(x, 0) / count
    std = np.sqrt(np.nansum((x - mean) ** 2, 0) / count)
    small = options["min_relative_std"]
    std = np.where(std <= small * np.maximum(np.abs(mean), small), 1.0, std)
    return mean.astype(np.float32), std.astype(np.float32)
