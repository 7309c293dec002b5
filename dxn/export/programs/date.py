"""Convert dates and times to numbers."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dxn.tokenize.cells.cell_values import has_no_number
from dxn.tokenize.cells.date_values import Moment, parse_date


def read(value: Any, options: Mapping[str, Any]) -> Moment | None:
    """Return a date, a time or both. None: the cell says that there is none, such as "N/A".

    Args:
        value: A date, a time, or a text in the format of the training table.
        options: Options of the input in preprocess.json.

    Raises:
        ValueError: If it is neither a date nor a time, or the day does not exist.
    """
    if has_no_number(value):
        return None
    moment = parse_date(value, day_first=options["day_first"])
    if moment is None:
        raise ValueError("must be a date or a time written as in the training table")
    return moment if options["has_times"] else moment.date


def prepare(raws: Sequence[Moment], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return value (B, 1, K) and valid (B, 1, K), False at what a date or a time lacks.

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    rows = [_features(raw, options) for raw in raws]
    value = np.array([[features] for features, _ in rows], np.float32)
    return {"value": value, "valid": np.array([[valid] for _, valid in rows])}


def _features(moment: Moment, options: Mapping[str, Any]) -> tuple[list[float], list[bool]]:
    has_date, has_time = moment.day is not None, moment.second is not None
    day = datetime.date.fromordinal(moment.day or 1)
    counts = options["waves"]
    trend = (moment.days - options["center"]) / options["scale"]
    limit = options["max_trend"]
    dates = [
        *_waves(day.weekday() / 7, counts["weekday"]),
        *_waves(day.timetuple().tm_yday / options["days_per_year"], counts["year"]),
        *_waves(day.day / options["days_per_month"], counts["month"]),
        min(max(trend, -limit), limit),
    ]
    times = _waves((moment.second or 0.0) / 86400, counts["day"])
    valid = [has_date] * len(dates) + [has_time] * len(times)
    return [x if v else 0.0 for x, v in zip([*dates, *times], valid, strict=True)], valid


def _waves(phase: float, count: int) -> list[float]:
    """Return the sines, and then the cosines, of the first multiples of a phase from 0 to 1."""
    angles = [2 * math.pi * k * phase for k in range(1, count + 1)]
    return [*map(math.sin, angles), *map(math.cos, angles)]
