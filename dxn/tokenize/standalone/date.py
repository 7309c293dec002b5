"""Convert dates and times to numbers."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(values: Sequence[str], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return value (B, 1, K) and valid (B, 1, K), False at what a date or a time lacks.

    Args:
        values: B dates such as 2026-01-31, times such as 12:30, or both: 2026-01-31 12:30.
        options: Options of the input in preprocess.json.
    """
    rows = [_features(value.strip(), options) for value in values]
    value = np.array([[features] for features, _ in rows], np.float32)
    return {"value": value, "valid": np.array([[valid] for _, valid in rows])}


def _features(text: str, options: Mapping[str, Any]) -> tuple[list[float], list[bool]]:
    has_date = "-" in text
    has_time = ":" in text
    day, clock = datetime.date.min, datetime.time()
    if has_date:
        moment = datetime.datetime.fromisoformat(text)
        day, clock = moment.date(), moment.time()
    elif has_time:
        clock = datetime.time.fromisoformat(text)
    seconds = clock.hour * 3600 + clock.minute * 60 + clock.second + clock.microsecond / 1e6
    counts = options["waves"]
    days = day.toordinal() + (seconds / 86400 if has_time else 0)
    trend = (days - options["center"]) / options["scale"]
    limit = options["max_trend"]
    dates = [
        *_waves(day.weekday() / 7, counts["weekday"]),
        *_waves(day.timetuple().tm_yday / options["days_per_year"], counts["year"]),
        *_waves(day.day / options["days_per_month"], counts["month"]),
        min(max(trend, -limit), limit),
    ]
    times = _waves(seconds / 86400, counts["day"])
    valid = [has_date] * len(dates) + [has_time] * len(times)
    return [x if v else 0.0 for x, v in zip([*dates, *times], valid, strict=True)], valid


def _waves(phase: float, count: int) -> list[float]:
    """Return the sines, and then the cosines, of the first multiples of a phase from 0 to 1."""
    angles = [2 * math.pi * k * phase for k in range(1, count + 1)]
    return [*map(math.sin, angles), *map(math.cos, angles)]
