"""The readers of the cells of a table: numbers, categories and dates."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from dxn.core.randomness import evenly_spaced
from dxn.core.untrusted import shortened
from dxn.tokenize.base import BadMedia, Reader
from dxn.tokenize.cells.category_cell import MAX_CHARS, cell_values
from dxn.tokenize.cells.dates import DateFormat, Moment, are_dates, find_date_format
from dxn.tokenize.cells.numbers import (
    NumberFormat,
    are_codes,
    are_numbers,
    find_format,
    has_no_number,
    has_no_value,
)
from dxn.tokenize.media import MAX_INSPECTED

# A short code, such as that of a country. "NA" is Namibia in a column of these.
CODE = re.compile(r"[A-Z]{2}")
SURE = 0.95  # share of the other values of such a column that are codes
# Characters between several values of a cell; each part is a value if at least MIN_JOINED of the
# different cells have it, and there are at most MAX_PARTS as many different parts as cells.
SEPARATORS = ("|", ";", ",")
MIN_JOINED, MAX_PARTS = 0.3, 0.5
MAX_CELL_CHARS = 2_000  # of a cell with several values; longer ones are texts
# Values with at least this many words on average are sentences, which the text adapter reads.
SENTENCE_WORDS = 4
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

    def score(self, cells: Sequence[Any]) -> float:
        """Return 1 for a column of numbers, but not for booleans, dates and codes."""
        if any(isinstance(cell, bool) for cell in cells):
            return 0.0
        return float(are_numbers(cells) and not are_codes(cells) and not are_dates(cells))

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

    def score(self, cells: Sequence[Any]) -> float:
        """Return 0.3 for a column of repeated short values, booleans or codes.

        The score is below that of texts, which repeat less. It is 0.55, above that of texts, for
        cells with several tags: most combinations occur once, but the tags repeat.
        """
        present = [value for value in cells if not has_no_value(value)]
        if not all(isinstance(value, str | bool | int) for value in present):
            return 0.0
        texts = [str(value) for value in present]
        longest = max(map(len, texts), default=0)
        separator = find_separator(texts) if 0 < longest <= MAX_CELL_CHARS else None
        if separator is not None:
            parts = {part for text in texts for part in text.split(separator)}
            return 0.55 if max(map(len, parts)) <= MAX_CHARS else 0.0
        if not texts or len(set(texts)) > len(texts) / 2 or longest > MAX_CHARS:
            return 0.0
        is_boolean = all(isinstance(value, bool) for value in present)
        if not is_boolean and are_numbers(present) and not are_codes(present):
            return 0.0
        inspected = list(evenly_spaced(texts, MAX_INSPECTED))
        num_words = sum(len(text.split()) for text in inspected) / len(inspected)
        return 0.0 if are_dates(present) else (0.15 if num_words >= SENTENCE_WORDS else 0.3)

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

    def score(self, cells: Sequence[Any]) -> float:
        """Return 1 for a column of dates or times."""
        return float(are_dates(cells))

    def describe(self, raws: Sequence[Moment], cells: Sequence[Any]) -> str:
        """Describe the range."""
        ordered = sorted(raws, key=lambda moment: moment.days)
        return f"{ordered[0]} to {ordered[-1]}" if ordered else ""


def find_separator(values: Sequence[str]) -> str | None:
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
