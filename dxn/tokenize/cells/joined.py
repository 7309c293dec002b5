"""Cells with several values: categories that are joined by a character, and texts of lists.

Exported models use it without dxn.
"""

from __future__ import annotations

import ast
import json
import shlex
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any

from dxn.tokenize.cells.cell_values import has_no_value

SEVERAL = (list, tuple, set, frozenset)  # cells of several values
MAX_CELL_VALUES = 64  # values of a list in one cell
MAX_CHARS = 200  # characters of a value
# Characters between several values of a cell; each part is a value if at least MIN_JOINED of the
# different cells have it, and there are at most MAX_PARTS as many different parts as cells.
SEPARATORS = ("|", ";", ",")
MIN_JOINED, MAX_PARTS = 0.3, 0.5
# In place of such a character: cells are texts of lists, such as ["red", "round"].
LISTS = "[]"
QUOTES = "'\""


def cell_values(
    cell: Any, separator: str | None, codes: Collection[str] = ()
) -> tuple[str, ...] | None:
    """Return the different values of a cell; None if it says that there is none, such as "N/A".

    Args:
        cell: A text, a number, a boolean or a list of these.
        separator: Separator of several values in a text, see `find_separator`. None: a text is one
            value.
        codes: Words that are codes, although elsewhere they say that there is no value.

    Raises:
        ValueError: If a value is none of these or too long, or there are too many of them.
    """
    if isinstance(cell, str) and separator is not None:
        cell = split_cell(cell, separator)
    items = list(cell) if isinstance(cell, SEVERAL) else [cell]
    if len(items) > MAX_CELL_VALUES:
        raise ValueError(f"must have at most {MAX_CELL_VALUES} values")
    items = [item for item in items if not has_no_value(item) or str(item).strip() in codes]
    return tuple(dict.fromkeys(map(_as_value, items))) or None


def one_value(values: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the values of a cell of a column of single values.

    Raises:
        ValueError: If there are several, which could be meant as those of several rows.
    """
    if values is not None and len(values) > 1:
        raise ValueError("must be one value, as in the training table")
    return values


def split_cell(text: str, separator: str) -> list[Any]:
    """Return the values of a text, see `find_separator`."""
    if separator != LISTS:
        return text.split(separator)
    items = list_of(text.strip())
    return [text] if items is None else items


def find_separator(values: Iterable[str]) -> str | None:
    """Return the character that separates several values in the cells of a column.

    It is LISTS for texts of lists, and None if the cells are single values. Many different cells
    must consist of few different parts: "Ships, boats" beside "Cars" and "Planes" is one value.
    """
    distinct = {value.strip() for value in values}
    if sum(value[:1] in ("[", "{") for value in distinct) > len(distinct) / 2:
        # JSON. Lists of objects, and objects, are one value.
        are_lists = all(list_of(value) is not None for value in distinct)
        return LISTS if are_lists and _repeat(distinct, LISTS) else None
    for separator in SEPARATORS:
        joined = [value for value in distinct if separator in value]
        if len(joined) >= MIN_JOINED * len(distinct) and _repeat(distinct, separator):
            return separator
    return None


def _repeat(distinct: Collection[str], separator: str) -> bool:
    """Return whether there are few different parts in many different cells."""
    parts = {str(part).strip() for value in distinct for part in split_cell(value, separator)}
    return len(parts) <= MAX_PARTS * len(distinct)


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


def list_of(value: Any) -> list[Any] | None:
    """Return the labels of a list, or of its text in JSON, Python or NumPy; None if neither."""
    items = items_of(value)
    if items is None or not isinstance(value, str):
        return items
    # The text of a list of objects, lists or quantities contains no labels.
    return items if all(map(_is_label, items)) else None


def items_of(value: Any) -> list[Any] | None:
    """Return the items of a list, or of its text in JSON, Python or NumPy; None if neither."""
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str) or not (value[:1] == "[" and value[-1:] == "]"):
        return None
    return _read_list(value)


def _read_list(text: str) -> list[Any] | None:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    inner = text[1:-1]
    try:
        # NumPy writes no commas. Python would join its texts 'a' 'b' to 'ab'.
        if "," not in inner:
            items = shlex.split(inner)
            is_quoted = any(quote in inner for quote in QUOTES)
            # Words without quotes are the name of a class, such as [UNK].
            return items if is_quoted else [_number(item) for item in items]
        # A backslash is a character of a label here: Python warns about unknown escapes.
        read = ast.literal_eval(text.replace("\\", "\\\\"))
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    return read if isinstance(read, list) else None


def _number(text: str) -> float | bool:
    if text in ("True", "False"):
        return text == "True"
    number = float(text)
    return int(number) if number.is_integer() else number


def _is_label(item: Any) -> bool:
    is_whole = isinstance(item, float) and item.is_integer()
    return item is None or is_whole or isinstance(item, str | int)
