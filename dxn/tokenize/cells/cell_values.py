"""Read the values of cells, some of which say that there is none, such as N/A.

Exported models use it without dxn.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Set
from functools import partial
from typing import Any

# In lower case. A value such as "none" or "unknown" is not here: it can be a category of its own,
# such as "none" in a column of garages.
NO_VALUE = {"na", "n/a", "n.a.", "nan", "null", "nil", "?", "-", "--", "—", "–", "#n/a"}
# Further cells that contain no number or date.
NO_NUMBER = NO_VALUE | {".", "none", "unknown", "missing", "tbd"}
NO_NUMBER |= {"not available", "not applicable", "#value!", "#div/0!", "#ref!"}  # Excel
MAX_CELL_VALUES = 64  # values of a list in one cell
MAX_CHARS = 200  # characters of a value
# Characters between several values of a cell; each part is a value if at least MIN_JOINED of the
# different cells have it, and there are at most MAX_PARTS as many different parts as cells.
SEPARATORS = ("|", ";", ",")
MIN_JOINED, MAX_PARTS = 0.3, 0.5


def has_no_value(value: Any, texts: Set[str] = NO_VALUE) -> bool:
    """Whether a cell says that there is no value: null, a blank text, or such as "N/A"."""
    # Texts first: this is called several times for each cell of a table.
    if not isinstance(value, str):
        return is_null(value)
    text = value.strip().lower()
    return not text or text in texts


# Whether a cell says that there is no number or date, such as "N/A" or "unknown".
has_no_number = partial(has_no_value, texts=NO_NUMBER)


def is_null(value: Any) -> bool:
    """Whether a value is None, NaN, or the missing value of pandas."""
    if isinstance(value, float):
        return value != value  # only NaN is not equal to itself
    # pandas need not be installed. Its NaT is an instance of datetime.
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def cell_values(
    cell: Any, separator: str | None, codes: Collection[str] = ()
) -> tuple[str, ...] | None:
    """Return the different values of a cell; None if it says that there is none, such as "N/A".

    Args:
        cell: A text, a number, a boolean or a list of these.
        separator: Separator of several values in a text. None: a text is one value.
        codes: Words that are codes, although elsewhere they say that there is no value.

    Raises:
        ValueError: If a value is none of these or too long, or there are too many of them.
    """
    if isinstance(cell, str) and separator is not None:
        cell = cell.split(separator)
    items = list(cell) if isinstance(cell, list | tuple | set | frozenset) else [cell]
    if len(items) > MAX_CELL_VALUES:
        raise ValueError(f"must have at most {MAX_CELL_VALUES} values")
    items = [item for item in items if not has_no_value(item) or str(item).strip() in codes]
    return tuple(dict.fromkeys(map(_as_value, items))) or None


def find_separator(values: Iterable[str]) -> str | None:
    """Return the character that separates several values in the cells of a column.

    None if the cells are single values. Many different cells must consist of few different parts:
    "Ships, boats" beside "Cars" and "Planes" is one value.
    """
    distinct = set(values)
    for separator in SEPARATORS:
        joined = [value for value in distinct if separator in value]
        if len(joined) < MIN_JOINED * len(distinct):
            continue
        parts = {part.strip() for value in distinct for part in value.split(separator)}
        if len(parts) <= MAX_PARTS * len(distinct):
            return separator
    return None


def _as_value(item: Any) -> str:
    """Return an item as it is compared with others: 3.0 is 3, and True is true."""
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, float) and item.is_integer():
        item = int(item)
    value = str(item).strip() if isinstance(item, str | int | float) else ""
    # A letter with an accent can be one or two characters, which look the same.
    value = unicodedata.normalize("NFC", value)
    if not value or len(value) > MAX_CHARS:
        raise ValueError(f"must be a text of at most {MAX_CHARS} characters, a number or a boolean")
    return value
