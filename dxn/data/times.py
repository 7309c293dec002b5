"""Times of table cells as numbers: numbers as they are, dates in seconds."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from dxn.errors import UserError

MONTH = re.compile(r"\d{4}-\d{2}")  # a month without a day, which fromisoformat refuses
# A time that is a tiny fraction of a step before its bin, by rounding, belongs to the bin.
ROUNDING = 1e-6


def read_times(values: Sequence[Any], origin: Callable[[int], str], column: str) -> list[float]:
    """Convert the cells of a time column to numbers that rise with time.

    Args:
        values: Cells: numbers, or dates and times in ISO format or as objects.
        origin: Returns the file and row of a cell, such as `Table.origin`.
        column: Name of the column, for error messages.

    Returns:
        Numbers as they are, or seconds since 1970 for dates. Times without a zone count as UTC.

    Raises:
        UserError: If a cell is missing, or neither a number nor a date, or both kinds occur.
    """
    times: list[float] = []
    first: bool | None = None
    for i, value in enumerate(values):
        time = _number_of(value)
        is_date = time is None
        if is_date:
            time = _seconds_of(value)
        if time is None:
            raise UserError(
                f"{origin(i)}: column {column!r} must contain times, which are numbers or dates "
                f"such as 2026-01-31 12:00, got {value!r}"
            )
        if first is not None and is_date != first:
            raise UserError(
                f"{origin(i)}: column {column!r} must contain either numbers or dates, got both: "
                f"{values[0]!r} and {value!r}"
            )
        first = is_date
        times.append(time)
    return times


def bin_index(time: float, step: float) -> int:
    """Return the index of the bin that contains a time, for bins of `step` that start at 0."""
    return math.floor(time / step + ROUNDING)


def _number_of(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _seconds_of(value: Any) -> float | None:
    if isinstance(value, str):
        text = value.strip()
        try:
            value = datetime.datetime.fromisoformat(f"{text}-01" if MONTH.fullmatch(text) else text)
        except ValueError:
            return None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime.combine(value, datetime.time.min)
    if not isinstance(value, datetime.datetime):
        return None
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    try:
        return value.timestamp()
    except (OverflowError, ValueError):
        return None
