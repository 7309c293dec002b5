"""Read dates and times as people write them in tables: 2026-01-31, 31.1.2026, 9:30 PM."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dxn.tokenize.cells.cell_values import has_no_number
from dxn.tokenize.cells.numbers import sample

# Fraction of the cells of a column that must match.
MOST = 0.95
# Number of cells that are inspected first, and the fraction of them that must match. It is lower,
# because a few cells can have more than their share of those that do not match.
NUM_IN_SAMPLE = 20
MIN_IN_SAMPLE = 0.5
# A date of eight digits, such as 20260131.
COMPACT = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])")
DATE = re.compile(
    r"(?:"
    r"(?:(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
    r"|(?P<first>\d{1,2})(?P<mark2>[-/.])(?P<second>\d{1,2})(?P=mark2)(?P<year2>\d{2,4})"
    r"|(?P<day3>\d{1,2})\.? ?(?P<name3>[A-Za-z]{3,9})\.?,? (?P<year3>\d{4})"
    r"|(?P<name4>[A-Za-z]{3,9})\.? (?P<day4>\d{1,2}),? (?P<year4>\d{4}))"
    r"(?:[T ]+(?P<time>\d{1,2}:\d{2}.*))?"
    r"|(?P<only_time>\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?))"
)
TIME = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:[.,]\d+)?))?\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?:(?P<utc>Z|UTC|GMT)|\(?[A-Z]{2,5}\)?|(?P<sign>[-+])(?P<hours>\d{2}):?(?P<minutes>\d{2})?)?"
)
# The first three letters of a month in English and German.
MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
    "mär": 3,
    "mrz": 3,
    "mae": 3,
    "mai": 5,
    "okt": 10,
    "dez": 12,
}
# Two digits of a year are 1969 to 2068, as in Python and POSIX.
CENTURY_START = 69
SECONDS_PER_DAY = 86400


@dataclass(frozen=True)
class Moment:
    """A date, a time of day, or both.

    Args:
        day: Number of the day, 1 is January 1 of year 1. None: there is no date.
        second: Seconds since midnight on the clock of the place. None: there is no time.
        offset: Seconds by which this clock is ahead of UTC. None: it is not known.
    """

    day: int | None
    second: float | None
    offset: float | None = None

    @property
    def days(self) -> float:
        """The date and the time as a number of days."""
        return (self.day or 0) + (self.second or 0.0) / SECONDS_PER_DAY

    def __str__(self) -> str:
        parts = []
        if self.day is not None:
            parts.append(datetime.date.fromordinal(self.day).isoformat())
        if self.second is not None:
            minutes = int(self.second) // 60
            parts.append(f"{minutes // 60:02}:{minutes % 60:02}")
        return " ".join(parts)


def parse_date(value: Any, *, day_first: bool) -> Moment | None:
    """Return the date or time of a cell; None if it is none.

    Args:
        value: The cell.
        day_first: Whether 1/2/2026 is the first of February instead of the second of January.
    """
    if isinstance(value, datetime.datetime):
        zone = value.utcoffset()
        offset = None if zone is None else zone.total_seconds()
        return Moment(value.toordinal(), _seconds(value.time()), offset)
    if isinstance(value, datetime.date):
        return Moment(value.toordinal(), None)
    if isinstance(value, datetime.time):
        return Moment(None, _seconds(value))
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if COMPACT.fullmatch(text):
        return _moment(int(text[:4]), int(text[4:6]), int(text[6:]), None)
    match = DATE.fullmatch(text)
    if match is None:
        return None
    written = match["only_time"] or match["time"]
    time = _time_of(written) if written else None
    if written and time is None:
        return None
    if match["only_time"]:
        return time
    return _moment(*_date_of(match, day_first=day_first), time)


def find_day_first(values: Sequence[Any]) -> bool:
    """Return whether days come before months in a column. It is decided by all cells together.

    A single 1/2/2026 can be in January or in February. Another cell, such as 25/2/2026, shows which
    of them is meant. Without such a cell, a date with slashes starts with the month.
    """
    texts = [value.strip() for value in values if isinstance(value, str)]
    matches = [match for text in texts if (match := DATE.fullmatch(text)) and match["first"]]
    first = sum(int(match["first"]) > 12 for match in matches)
    second = sum(int(match["second"]) > 12 for match in matches)
    if first != second:
        return first > second
    num_slashes = sum(match["mark2"] == "/" for match in matches)
    return 2 * num_slashes <= len(matches)


def are_dates(values: Sequence[Any]) -> bool:
    """Return whether nearly all values that are not missing are dates or times."""
    # Most columns are recognized by a few cells, which is faster.
    few = [value for value in sample(values, NUM_IN_SAMPLE) if not has_no_number(value)]
    if sum(map(looks_like_date, few)) < MIN_IN_SAMPLE * len(few):
        return False
    present = [value for value in values if not has_no_number(value)]
    return bool(present) and sum(map(looks_like_date, present)) >= MOST * len(present)


def looks_like_date(value: Any) -> bool:
    """Whether a cell looks like a date or a time. The day need not exist, such as February 30."""
    if isinstance(value, datetime.date | datetime.time):
        return True
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return False
    text = value.strip()
    return (COMPACT.fullmatch(text) or DATE.fullmatch(text)) is not None


def _date_of(match: re.Match[str], *, day_first: bool) -> tuple[int, int, int]:
    """Return year, month and day; 0 for a month with an unknown name."""
    if match["year"]:
        return int(match["year"]), int(match["month"]), int(match["day"])
    if match["year2"]:
        first, second = int(match["first"]), int(match["second"])
        day, month = (first, second) if day_first else (second, first)
        return _full_year(match["year2"]), month, day
    kind = "3" if match["year3"] else "4"
    month = MONTHS.get(match[f"name{kind}"][:3].lower(), 0)
    return int(match[f"year{kind}"]), month, int(match[f"day{kind}"])


def _moment(year: int, month: int, day: int, time: Moment | None) -> Moment | None:
    try:
        ordinal = datetime.date(year, month, day).toordinal()
    except ValueError:  # such as February 30
        return None
    return Moment(ordinal, None) if time is None else replace(time, day=ordinal)


def _time_of(text: str) -> Moment | None:
    """Return a time of day."""
    match = TIME.fullmatch(text.strip())
    if match is None:
        return None
    hour, minute = int(match["hour"]), int(match["minute"])
    second = float((match["second"] or "0").replace(",", "."))
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
    # 24:00 is the end of the day, and a leap second is number 60.
    if hour > 24 or minute > 59 or second >= 61:
        return None
    offset = 0.0 if match["utc"] else None
    if match["sign"]:
        offset = 3600.0 * int(match["hours"]) + 60.0 * int(match["minutes"] or 0)
        if offset >= SECONDS_PER_DAY:
            return None
        offset = -offset if match["sign"] == "-" else offset
    return Moment(None, float((3600 * hour + 60 * minute + second) % SECONDS_PER_DAY), offset)


def _seconds(time: datetime.time) -> float:
    return 3600 * time.hour + 60 * time.minute + time.second + time.microsecond / 1e6


def _full_year(digits: str) -> int:
    year = int(digits)
    if len(digits) > 2:
        return year
    return year + (1900 if year >= CENTURY_START else 2000)
