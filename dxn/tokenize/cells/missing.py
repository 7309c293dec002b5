"""Cells that say that there is no value, such as N/A. Exported models use it without dxn."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

# In lower case. A value such as "none" or "unknown" is not here: it can be a category of its own,
# such as "none" in a column of garages.
NO_VALUE = {"na", "n/a", "n.a.", "nan", "null", "nil", "?", "-", "--", "—", "–", "#n/a"}
# Further cells that contain no number or date.
NO_NUMBER = NO_VALUE | {".", "none", "unknown", "missing", "tbd"}
NO_NUMBER |= {"not available", "not applicable", "#value!", "#div/0!", "#ref!"}  # Excel


def has_no_value(value: Any, texts: Set[str] = NO_VALUE) -> bool:
    """Whether a cell says that there is no value: null, a blank text, or such as "N/A"."""
    # Texts first: this is called several times for each cell of a table.
    if not isinstance(value, str):
        return is_null(value)
    text = value.strip().lower()
    return not text or text in texts


def has_no_number(value: Any) -> bool:
    """Whether a cell says that there is no number or date, such as "N/A" or "unknown"."""
    return has_no_value(value, NO_NUMBER)


def is_null(value: Any) -> bool:
    """Whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(value, float):
        return value != value  # only NaN is not equal to itself
    # pandas need not be installed. Its NaT is an instance of datetime.
    return value is None or type(value).__name__ in ("NAType", "NaTType")
