"""Tests and conversions of raw table cells, for parsing targets and for head=auto."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dxn.core.errors import UserError
from dxn.tokenize.cells.dates import are_dates, most
from dxn.tokenize.cells.numbers import Numbers, are_codes, are_numbers, read_numbers

# Thresholds of heuristics; head=NAME overrides their result.
# A column of whole numbers with at most this many distinct values contains class labels (such as 1
# to 5 stars), if the values repeat.
MAX_NUMERIC_CLASSES = 20
# The same limit for numbers with a unit, and for ranges that do not start at 0 or 1.
MAX_MEASURED_CLASSES = 10
# More distinct whole numbers are classes only if they look like class ids: 0 to K-1 or 1 to K,
# each in several rows, and hardly any of them rare. Ages and counts have gaps or rare values.
MIN_REPEATS = 5
RARE = 0.2  # a value is rare if it has less than this fraction of the mean number of rows
MAX_RARE = 0.2  # maximum fraction of rare values
PERCENT = 100  # 0 to 100 is a score or a percentage
# Below this number of values, a column is too short to tell identifiers from classes.
MIN_IDENTIFIERS = 20
DISTINCT = 0.9  # fraction of distinct values from which nearly all of them occur once
# An identifier contains a digit, such as SKU-1234, or is an address.
IDENTIFIER = re.compile(r"\S*(?:\d|@|://)\S*")


def are_lists(values: Sequence[Any]) -> bool:
    """Return whether `values` is not empty and contains only lists."""
    return bool(values) and all(isinstance(value, list) for value in values)


def are_amounts(values: Sequence[Any]) -> bool:
    """Return whether the values are numbers that are quantities rather than class labels."""
    numbers = read_numbers(values)
    if numbers is None or are_codes(values) or are_dates(values):  # a date can be 20260131
        return False
    return not are_class_ids(numbers)


def are_class_ids(numbers: Numbers) -> bool:
    """Return whether the numbers of a column are class labels rather than quantities."""
    if not numbers.are_whole:
        return False
    counts = Counter(numbers.values)  # "1" and "1.0" are the same number
    distinct, total = len(counts), len(numbers.values)
    low, high = min(counts), max(counts)
    is_contiguous = high - low + 1 == distinct
    is_range = is_contiguous and low in (0, 1)
    # 10 %, 20 % or $5 are quantities, and so are the years from 2005 to 2020.
    is_measured = bool(numbers.format.unit) or (is_contiguous and not is_range)
    if is_measured and distinct > MAX_MEASURED_CLASSES:
        return False
    if distinct <= MAX_NUMERIC_CLASSES:
        # Too few rows to see repetitions: only a range such as 0, 1, 2 shows classes.
        return distinct <= total / 2 or is_range or total < MIN_REPEATS
    if not is_range or (low, high) == (0, PERCENT) or total < MIN_REPEATS * distinct:
        return False
    num_rare = sum(count < RARE * total / distinct for count in counts.values())
    return num_rare <= MAX_RARE * distinct


def are_identifiers(values: Sequence[Any]) -> bool:
    """Return whether the values are codes such as SKU-1234, which nearly all occur once."""
    if len(values) < MIN_IDENTIFIERS or not all(isinstance(value, str) for value in values):
        return False
    is_code = most(values, lambda value: IDENTIFIER.fullmatch(value) is not None)
    return is_code and len(set(values)) > DISTINCT * len(values)


def problem_of(values: Sequence[Any]) -> str | None:
    """Return why target values are neither classes, numbers nor texts. None: they can be.

    Dates and identifiers are distinct in nearly every row, so that a model could only memorize
    them.
    """
    example = repr(str(values[0])) if values else ""
    distinct = len(set(map(str, values)))
    if are_dates(values) and (distinct > MAX_NUMERIC_CLASSES or distinct > len(values) / 2):
        return (
            f"contains {distinct:,} different dates or times, such as {example}, which no task "
            "predicts; add a column with a number (such as days) or a class (such as the month), "
            "or set head=classify to make each value a class"
        )
    if are_identifiers(values) and not are_numbers(values):
        return (
            f"contains identifiers such as {example}: {distinct:,} different values in "
            f"{len(values):,} rows; choose another column, or set head=classify to make each "
            "value a class, or head=generate to write it as a text"
        )
    return None


def kind_of(values: Sequence[Any]) -> str:
    """Return what the cells of a column are, for notes, such as "numbers".

    Args:
        values: Cells of the column; None where missing.
    """
    present = [value for value in values if value is not None]
    if not present:
        return "no values"
    if are_dates(present):
        return "dates"
    if are_numbers(present) and not are_codes(present):
        return "numbers"
    if any(isinstance(value, list | dict) for value in present):
        return "lists or objects"
    if are_identifiers(present):
        return "identifiers"
    distinct = len(set(map(str, present)))
    if distinct == 1:
        return "the same value in all rows"
    return "categories" if distinct <= len(present) / 2 else "texts"


def parse_list(value: Any, origin: str) -> list[str]:
    """Convert a cell that contains a list to a list of strings.

    Raises:
        UserError: If the cell does not contain a list.
    """
    if not isinstance(value, list | tuple):
        raise UserError(f"{origin}: the target must be a list, got {value!r}")
    return [class_name(item) for item in value]


def class_name(value: Any) -> str:
    """Return the name of a class, without outer white space and in the Unicode normal form C."""
    return unicodedata.normalize("NFC", str(value)).strip()
