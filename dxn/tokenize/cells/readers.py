"""The readers of the cells of a table: numbers, categories and dates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from dxn.core.untrusted import shortened
from dxn.tokenize.base import BadMedia, Reader
from dxn.tokenize.cells.category_cell import cell_values, find_separator
from dxn.tokenize.cells.dates import DateFormat, Moment, find_date_format
from dxn.tokenize.cells.numbers import (
    NumberFormat,
    find_format,
    has_no_number,
    has_no_value,
)

# A short code, such as that of a country. "NA" is Namibia in a column of these.
CODE = re.compile(r"[A-Z]{2}")
SURE = 0.95  # share of the other values of such a column that are codes
MAX_LISTED = 3  # values in a description
RawCategory = tuple[str, ...]


class NumberReader(Reader):
    """Reads numbers.

    Args:
        decimal: Decimal separator, a point or a comma. None: it is found in the training table.

    Attributes:
        format: How the numbers of the column are written.
        fixed: Whether the format is known, because it has been loaded.
    """

    modality = "number"
    tabular = True

    def __init__(self, decimal: str | None = None):
        self.decimal = decimal
        self.format = NumberFormat(decimal or ".")
        self.fixed = False

    def learn(self, cells: Sequence[Any]) -> str:
        """Find the decimal separator and the unit of a column, unless they are known."""
        if not self.fixed:
            found = find_format([cell for cell in cells if not has_no_number(cell)])
            self.format = NumberFormat(self.decimal or found.decimal, found.unit)
        return ""

    def read(self, cell: Any) -> float | None:
        """Return a number; None if the cell says that there is none, such as "N/A".

        Raises:
            BadMedia: If it is not a finite number in the format of the column.
        """
        if has_no_number(cell):
            return None
        number = self.format.parse(cell)
        if number is None:
            mark = "a decimal comma" if self.format.decimal == "," else "a decimal point"
            unit = f" and an optional unit {self.format.unit!r}" if self.format.unit else ""
            raise BadMedia(f"must be a number with {mark}{unit}, got {shortened(cell)}")
        return number

    def describe(self, raws: Sequence[float], cells: Sequence[Any]) -> str:
        """Describe the range."""
        if not raws:
            return ""
        middle = float(np.median(np.array(raws)))
        return f"{min(raws):,g} to {max(raws):,g}, median {middle:,g}"


class CategoryReader(Reader):
    """Reads a value, or a list of values.

    Args:
        separator: Separator of several values in a text. None: it is found in the training table.

    Attributes:
        codes: Words that are codes in this column, although elsewhere they say that there is no
            value.
        fixed: Whether both are known, because they have been loaded.
    """

    modality = "category"
    tabular = True

    def __init__(self, separator: str | None = None):
        self.separator = separator
        self.codes: frozenset[str] = frozenset()
        self.fixed = False

    def learn(self, cells: Sequence[Any]) -> str:
        """Find out whether cells have several values, and whether "NA" is a code, as of Namibia."""
        if self.fixed:
            return ""
        words = Counter(str(cell).strip() for cell in cells if has_no_value(cell))
        others = [str(cell).strip() for cell in cells if not has_no_value(cell)]
        codes = [word for word in words if CODE.fullmatch(word)]
        if codes and others and sum(map(bool, map(CODE.fullmatch, others))) >= SURE * len(others):
            self.codes = frozenset(codes)
            return f"{', '.join(codes)}: read as a code, like the other values"
        if self.separator is None:
            self.separator = find_separator(others)
            if self.separator is not None:
                example = next(value for value in others if self.separator in value)
                return (
                    f"read as several values separated by {self.separator!r}, such as {example!r}"
                )
        if words:
            word, _ = words.most_common(1)[0]
            return f"{words.total():,} cells such as {word!r} are read as missing" if word else ""
        return ""

    def read(self, cell: Any) -> RawCategory | None:
        """Return the values of a cell; None if it says that there is none, such as "N/A".

        Raises:
            BadMedia: If it is not a short text, a number, a boolean or a list of these.
        """
        try:
            return cell_values(cell, self.separator, self.codes)
        except ValueError as error:
            raise BadMedia(f"{error}, got {shortened(cell)}") from None

    def describe(self, raws: Sequence[RawCategory], cells: Sequence[Any]) -> str:
        """Describe the number of values, and name the most frequent ones."""
        counts = Counter(value for raw in raws for value in raw)
        most = ", ".join(f"{value} {count:,}" for value, count in counts.most_common(MAX_LISTED))
        more = ", ..." if len(counts) > MAX_LISTED else ""
        return f"{len(counts):,} different: {most}{more}" if counts else ""


class DateReader(Reader):
    """Reads dates and times.

    Args:
        day_first: Whether 1/2/2026 is the first of February. None: it is found in the table.

    Attributes:
        format: How the dates of the column are written.
        fixed: Whether the format is known, because it has been set or loaded.
    """

    modality = "date"
    tabular = True

    def __init__(self, day_first: bool | None = None):
        self.format = DateFormat(day_first is not False)
        self.fixed = day_first is not None

    def learn(self, cells: Sequence[Any]) -> str:
        """Find out whether days come before months, unless it is known."""
        if not self.fixed:
            self.format = find_date_format(cells)
        return ""

    def read(self, cell: Any) -> Moment | None:
        """Return a date, a time or both; None if the cell says that there is none.

        Raises:
            BadMedia: If it is neither a date nor a time, or the day does not exist.
        """
        if has_no_number(cell):
            return None
        moment = self.format.parse(cell)
        if moment is None:
            order = "day/month/year" if self.format.day_first else "month/day/year"
            raise BadMedia(
                f"must be a date such as 2026-01-31 or {order}, or a time such as 12:30, got "
                f"{shortened(cell)}"
            )
        return moment

    def describe(self, raws: Sequence[Moment], cells: Sequence[Any]) -> str:
        """Describe the range."""
        ordered = sorted(raws, key=lambda moment: moment.days)
        return f"{ordered[0]} to {ordered[-1]}" if ordered else ""
