"""Sentences about how numeric targets are read, and which option changes that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dxn.tokenize.cells.numbers import NumberFormat, are_codes, read_numbers

MAX_EXAMPLES = 3
# A quantity with at most this many distinct values could also be classes.
MAX_CLOSE = 200
# Identifiers are different in at least this fraction of the rows.
MIN_IDENTIFIERS = 0.8
# The choice is close only if the values repeat at least this often.
MIN_REPEATS = 3


def explain_classes(values: Sequence[Any]) -> str:
    """Return why numbers are class labels. "": no value is a number, or there are two classes."""
    numbers = read_numbers(values)
    if numbers is None:
        return _explain_mixture(values)
    counts = Counter(numbers.values)
    if len(counts) <= 2:
        return ""
    if are_codes(values):
        why = "some start with a zero, as in codes"
    else:
        why = f"in about {len(values) / len(counts):.0f} rows each"
    note = (
        f"{len(counts)} different whole numbers ({_range(counts)}), {why}: read as classes; set "
        "head=regress to predict them as a quantity"
    )
    if numbers.others:
        # The same cell in a column of names is an ordinary class, so this needs a sentence.
        other = str(values[numbers.others[0]])[:20]
        note += f"; {other!r} is a class, too (leave the cell empty if the value is missing)"
    return note


def explain_amounts(values: Sequence[Any]) -> str:
    """Return why integers or repeated numbers are a quantity. "": they cannot be classes."""
    numbers = read_numbers(values)
    if numbers is None:
        return ""
    counts = Counter(numbers.values)
    repeats = len(numbers.values) / len(counts)
    if numbers.are_whole and len(counts) > max(MAX_CLOSE, MIN_IDENTIFIERS * len(values)):
        return (
            f"{len(counts):,} different whole numbers in {len(values):,} rows: read as a quantity; "
            "if they are identifiers or row numbers, choose another column"
        )
    if len(counts) > MAX_CLOSE or (repeats < MIN_REPEATS and not numbers.are_whole):
        return ""
    kind = "whole numbers" if numbers.are_whole else "numbers"
    return (
        f"{len(counts)} different {kind} ({_range(counts)}) in {len(values):,} rows: read as a "
        "quantity; set head=classify to make each number a class"
    )


def explain_format(
    form: NumberFormat, values: Sequence[Any], others: Sequence[int], origins: Sequence[str]
) -> list[str]:
    """Return how written numbers are read, and which cells are not numbers.

    Args:
        form: Format of the numbers.
        values: Cells of the column, never None.
        others: Indices of the cells that are not numbers.
        origins: File and row of each cell.
    """
    notes: list[str] = []
    example = next((v for v in values if isinstance(v, str) and _is_formatted(form, v)), None)
    if example is not None:
        number = form.parse(example)
        notes.append(f"target numbers are read as in {example.strip()!r} = {number:,.10g}")
    if others:
        shown = [f"{origins[i]} {str(values[i])[:20]!r}" for i in others[:MAX_EXAMPLES]]
        more = f" and {len(others) - MAX_EXAMPLES:,} more" if len(others) > MAX_EXAMPLES else ""
        notes.append(
            f"target: {len(values) - len(others):,} of {len(values):,} values are numbers, all but "
            f"{', '.join(shown)}{more}; set data.on_bad=skip to leave out these rows, or "
            "head=classify to make each value a class"
        )
    return notes


def _explain_mixture(values: Sequence[Any]) -> str:
    """Return why a column that contains many numbers is not numeric."""
    form = NumberFormat()
    others = [value for value in values if form.parse(value) is None]
    count = len(values) - len(others)
    # A few numbers among names are not worth a note.
    if count <= len(values) / 2:
        return ""
    return (
        f"{count:,} of {len(values):,} values are numbers, but others are not, such as "
        f"{str(others[0])[:20]!r}: each value is a class; set head=regress data.on_bad=skip to "
        "predict the numbers"
    )


def _is_formatted(form: NumberFormat, value: str) -> bool:
    """Whether a number has separators or a unit, so that it could be read in another way."""
    if form.parse(value) is None:
        return False
    try:
        return float(value) != form.parse(value)
    except ValueError:
        return True


def _range(counts: Counter[float]) -> str:
    return f"{min(counts):.10g} to {max(counts):.10g}"
