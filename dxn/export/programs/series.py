"""Convert time series to normalized values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dxn.tokenize.series.values import parse_series, read_steps, to_steps, without_end


def read(value: Any, options: Mapping[str, Any]) -> np.ndarray | None:
    """Return a series as float32 (T, C), NaN where a value is missing. None: it has no values.

    Args:
        value: An array or a list, (T,) or (T, C), or an array of frames (T, H, W); a text such as
            "1 2 nan" or "[[1, 2], [3, 4]]"; or the path of a .npy or .csv file.
        options: Options of the input in preprocess.json.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not a series, or has another number of channels than those of the
        model.
    """
    if isinstance(value, str | Path):
        value = _parsed(str(value), options["decimal"])
    steps = without_end(to_steps(value))
    if steps is not None and steps.ndim == 3:
        if options["grid_size"] is None:
            axes = f"(time steps, {options['channels']} channels)"
            raise ValueError(f"must have the axes {axes}, got {steps.shape}")
        if list(steps.shape[1:]) != options["grid_size"]:
            raise ValueError(f"must have frames of {options['grid_size']} cells, got {steps.shape}")
        steps = steps.reshape(len(steps), -1)
    if steps is not None and steps.shape[1] != options["channels"]:
        raise ValueError(f"must have {options['channels']} channels, got {steps.shape[1]}")
    ahead, unknown = options["ahead"], options["channels"] - options["num_known"]
    if steps is not None and ahead and not np.isnan(steps[-ahead:, :unknown]).all():
        raise ValueError(
            f"the first {unknown} channels must be NaN in the last {ahead} steps, which are those "
            "of the forecast"
        )
    return steps


def prepare(raws: Sequence[np.ndarray], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return values and observed (B, T, C), lengths (B,), and loc and scale (B, C).

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    raws = [_cut(raw, options) for raw in raws]
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


def _parsed(text: str, decimal: str) -> Any:
    """Return the numbers of a text or a file."""
    if text.lower().endswith(".npy"):
        return np.load(text)
    if text.lower().endswith(".csv"):
        return read_steps(Path(text).read_bytes())
    return parse_series(text, decimal)


def _cut(raw: np.ndarray, options: Mapping[str, Any]) -> np.ndarray:
    """Return the last steps for a forecast, and the first ones of a long series."""
    num_steps, limit = options["num_steps"], options["max_steps"]
    if num_steps:
        missing = np.full((max(0, num_steps - len(raw)), raw.shape[1]), np.nan, np.float32)
        return np.concatenate([missing, raw[-num_steps:]])[-limit:]
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
    if options["grid_size"] is not None:  # all cells have the same statistics
        x = x.reshape(-1, 1)
    count = np.maximum((~np.isnan(x)).sum(0), 1)
    mean = np.nansum(x, 0) / count
    std = np.sqrt(np.nansum((x - mean) ** 2, 0) / count)
    small = options["min_relative_std"]
    std = np.where(std <= small * np.abs(mean), options["constant_std"], std)
    std = np.where(np.isnan(x).all(0), 1.0, std)
    if options["num_known"]:
        last = slice(-options["num_known"], None)
        mean[last], std[last] = options["mean"][last], options["std"][last]
    mean, std = (np.broadcast_to(x, channels).astype(np.float32) for x in (mean, std))
    return mean, std
