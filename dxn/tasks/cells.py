"""Tests and conversions of raw table cells, for parsing targets and for head=auto."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dxn.errors import UserError

# A column of integers with at most this many distinct values contains class labels (such as 1 to 5
# stars), not quantities. The threshold is a heuristic; head=NAME overrides it.
MAX_NUMERIC_CLASSES = 20


def as_number(value: Any) -> float | None:
    """Convert a cell to a finite float; return None if that is not possible."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    # float() also accepts "nan" and "inf", which would make the loss NaN.
    return number if math.isfinite(number) else None


def are_lists(values: Sequence[Any]) -> bool:
    """Return whether `values` is not empty and contains only lists."""
    return bool(values) and all(isinstance(value, list) for value in values)


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether `values` is not empty and contains only finite numbers."""
    return bool(values) and all(as_number(value) is not None for value in values)


def are_amounts(values: Sequence[Any]) -> bool:
    """Return whether the values are numbers that are quantities rather than class labels."""
    if not are_numbers(values):
        return False
    # "1" and "1.0" are the same number, so distinct values are counted after the conversion.
    numbers = {float(value) for value in values}
    return len(numbers) > MAX_NUMERIC_CLASSES or not all(n.is_integer() for n in numbers)


def parse_list(value: Any, origin: str) -> list[str]:
    """Convert a cell that contains a list to a list of strings.

    Raises:
        UserError: If the cell does not contain a list.
    """
    if not isinstance(value, list | tuple):
        raise UserError(f"{origin}: the target must be a list, got {value!r}")
    return [str(item) for item in value]
