"""Dates and times in the cells of tables, as people write them.

Such as 2026-01-31, 31.1.2026, 9:30 PM and 5 March 2026. Exported models use it without dxn.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dxn.tokenize.cells.cell_values import has_no_number, sample

# Fraction of the cells of a column that must match.
MOST = 0.95
# Number of cells that are inspected first, and the fraction of them that must match. It is lower,
# because a few cells can have more than their share of those that do not match.
NUM_IN_SAMPLE = 20
MIN_IN_SAMPLE = 0.5
# A date of eight digits, such as 20260131. Beside missing values, pandas writes it as 20260131.0.
COMPACT = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\.0)?")
DATE = re.compile(
    r"(?:"
    r"(?:(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
    r"|(?P<first>\d{1,2})(?P<mark2>[-/.])(?P<second>\d{1,2})(?P=mark2)(?P<year2>\d{4}|\d{2})"
    # 31 January 2026, 31.Jan 2026, 31-JAN-26 as in Oracle, and 31JAN2026 as in SAS.
    r"|(?P<day3>\d{1,2})(?:\.? ?|[-/])(?P<name3>[^\W\d_]{3,10})(?:\.?,? ?|[-/])"
    r"(?P<year3>\d{4}|(?<=[-/])\d{2})"
    r"|(?P<name4>[^\W\d_]{3,10})\.? (?P<day4>\d{1,2}),? (?P<year4>\d{4})"
    r"|(?P<year5>\d{4})[- ](?P<name5>[^\W\d_]{3,10})[- ](?P<day5>\d{1,2})"
    # The first day of a month, which has no number.
    r"|(?P<name6>[^\W\d_]{3,10})\.?[- ](?P<year6>\d{4})(?P<day6>))"
    r"(?:[T ]+(?P<time>\d{1,2}:\d{2}.*))?"
    r"|(?P<only_time>\d{1,2}:\d{2}(?::\d{2})?(?: ?[AaPp][Mm])?))"
)
NAMED_DATES = (3, 4, 5, 6)  # numbers of the groups of dates with the name of a month
TIME = re.compile(
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:[.,]\d+)?))?\s*(?P<half>[AaPp][Mm])?"
    r"\s*(?:\(?(?P<zone>Z|[A-Z]{2,5})\)?|(?P<sign>[-+])(?P<hours>\d{2}):?(?P<minutes>\d{2})?)?"
)
# Hours by which the clock of a zone is ahead of UTC. Others have several meanings, or are rare. CST
# is one of them, so CDT, which the same clocks show in summer, is left out too.
ZONES = {"Z": 0, "UTC": 0, "GMT": 0, "WET": 0, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3}
ZONES |= {"EST": -5, "EDT": -4, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
# Names of the months in English, German, French, Spanish, Italian, Portuguese and Dutch, and
# abbreviations of other than three letters.
MONTHS = (
    "january januar jänner janvier janv enero gennaio janeiro januari",
    "february februar feber février févr febrero febbraio fevereiro februari",
    "march märz maerz mrz mars marzo março maart mrt",
    "april avril abril aprile",
    "may mai mayo maggio maio mei",
    "june juni juin junio giugno junho",
    "july juli juillet juil julio luglio julho",
    "august août agosto augustus",
    "september sept septembre septiembre setiembre settembre sett setembro",
    "october oktober octobre octubre ottobre outubro",
    "november novembre noviembre novembro",
    "december dezember décembre diciembre dicembre dezembro",
)
ABBREVIATED = 3  # letters of an abbreviation
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

    @property
    def date(self) -> Moment:
        """The date without the time. A time of day without a date is unchanged."""
        return self if self.day is None else Moment(self.day, None)

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
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        return None
    text = value.strip()
    if COMPACT.fullmatch(text):
        return _moment(int(text[:4]), int(text[4:6]), int(text[6:8]), None)
    match = DATE.fullmatch(text)
    if match is None:
        return None
    written = match["only_time"] or match["time"]
    time = _time_of(written) if written else None
    if written and time is None:
        return None
    if match["only_time"]:
        return time and replace(time, second=(time.second or 0.0) % SECONDS_PER_DAY)
    return _moment(*_date_of(match, day_first=day_first), time)


def has_time(value: Any) -> bool:
    """Return whether a cell is a date with a time other than midnight, or a time of day."""
    # Most dates have none, and are not parsed.
    if isinstance(value, str) and ":" not in value:
        return False
    moment = parse_date(value, day_first=True) or parse_date(value, day_first=False)
    return moment is not None and bool(moment.second or moment.day is None)


def find_day_first(values: Sequence[Any]) -> bool:
    """Return whether days come before months in a column. It is decided by all cells together.

    A single 1/2/2026 can be in January or in February. Another cell, such as 25/2/2026, shows which
    of them is meant. Without such a cell, a date with slashes starts with the month.
    """
    matches = _days_and_months(values)
    shown = _shown_order(matches)
    if shown is not None:
        return shown
    num_slashes = sum(match["mark2"] == "/" for match in matches)
    return 2 * num_slashes <= len(matches)


def unclear_date(values: Sequence[Any]) -> str | None:
    """Return a date such as 1/2/2026 if no cell of the column shows whether its day comes first."""
    matches = _days_and_months(values)
    if _shown_order(matches) is not None:
        return None
    # Points are only used where the day comes first.
    unclear = (m for m in matches if m["mark2"] != "." and int(m["first"]) != int(m["second"]))
    return next((match[0] for match in unclear), None)


def unclear_year(values: Sequence[Any]) -> str | None:
    """Return a date such as 25-09-06 if the first number of all dates can be a year.

    No first number is a month, which would be a coincidence, and each last one can be a day.
    """
    matches = _days_and_months(values)
    if not matches or any(len(m["year2"]) > 2 or int(m["first"]) <= 12 for m in matches):
        return None
    return matches[0][0] if all(1 <= int(m["year2"]) <= 31 for m in matches) else None


def _days_and_months(values: Sequence[Any]) -> list[re.Match[str]]:
    """Return the matches of dates that start with a day or a month in digits."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    return [match for text in texts if (match := DATE.fullmatch(text)) and match["first"]]


def _shown_order(matches: Sequence[re.Match[str]]) -> bool | None:
    """Return whether the day comes first; None if as many dates say so as say the opposite."""
    first = sum(int(match["first"]) > 12 for match in matches)
    second = sum(int(match["second"]) > 12 for match in matches)
    return None if first == second else first > second


def are_dates(values: Sequence[Any]) -> bool:
    """Return whether nearly all values that are not missing are dates or times."""
    # Most columns are recognized by a few cells, which is faster.
    few = [value for value in sample(values, NUM_IN_SAMPLE) if not has_no_number(value)]
    if sum(map(_is_date, few)) < MIN_IN_SAMPLE * len(few):
        return False
    present = [value for value in values if not has_no_number(value)]
    return bool(present) and sum(map(_is_date, present)) >= MOST * len(present)


def _is_date(value: Any) -> bool:
    """Whether a cell is a date or a time, whether its day comes first or its month.

    A part number such as 99-82-52 is written like a date, but there is no such day.
    """
    return any(parse_date(value, day_first=order) is not None for order in (True, False))


@lru_cache(maxsize=1_000)
def _month_of(name: str) -> int:
    """Return the number of a month; 0 if it is no name of one, nor the start of one name."""
    written = _plain_letters(name)
    numbers: set[int] = set()
    for number, names in enumerate(MONTHS, 1):
        full = _plain_letters(names).split()
        # Longer starts are other words, such as Jane, apart from the usual ones among the names.
        if written in full or any(month[:ABBREVIATED] == written for month in full):
            numbers.add(number)
    return numbers.pop() if len(numbers) == 1 else 0  # "jui" is June or July in French


def _plain_letters(name: str) -> str:
    """Return a name in lower case without accents, which are often left out."""
    letters = unicodedata.normalize("NFD", name.lower())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _date_of(match: re.Match[str], *, day_first: bool) -> tuple[int, int, int]:
    """Return year, month and day; 0 for a month with an unknown name."""
    if match["year"]:
        return int(match["year"]), int(match["month"]), int(match["day"])
    if match["year2"]:
        first, second = int(match["first"]), int(match["second"])
        day, month = (first, second) if day_first else (second, first)
        return _full_year(match["year2"]), month, day
    kind = _kind_of(match)
    year, day = _full_year(match[f"year{kind}"]), int(match[f"day{kind}"] or 1)
    return year, _month_of(match[f"name{kind}"]), day


def _kind_of(match: re.Match[str]) -> int:
    """Return the number of the groups of a date with the name of a month; 3 for other dates."""
    return next((kind for kind in NAMED_DATES if match[f"name{kind}"]), NAMED_DATES[0])


def _moment(year: int, month: int, day: int, time: Moment | None) -> Moment | None:
    try:
        ordinal = datetime.date(year, month, day).toordinal()
    except ValueError:  # such as February 30
        return None
    if time is None or time.second is None:
        return Moment(ordinal, None)
    days, second = divmod(time.second, SECONDS_PER_DAY)
    if ordinal + days > datetime.date.max.toordinal():
        return None
    return replace(time, day=ordinal + int(days), second=second)


def _time_of(text: str) -> Moment | None:
    """Return a time of day. 24:00 and a leap second can be the start of the next day."""
    match = TIME.fullmatch(text.strip())
    if match is None:
        return None
    hour, minute = int(match["hour"]), int(match["minute"])
    second = float((match["second"] or "0").replace(",", "."))
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
    is_end = hour == 24 and minute == second == 0
    # A leap second is number 60.
    if (hour > 23 and not is_end) or minute > 59 or second >= 61:
        return None
    hours = ZONES.get(match["zone"] or "")
    offset = None if hours is None else 3600.0 * hours
    if match["sign"]:
        offset = 3600.0 * int(match["hours"]) + 60.0 * int(match["minutes"] or 0)
        if offset >= SECONDS_PER_DAY:
            return None
        offset = -offset if match["sign"] == "-" else offset
    return Moment(None, float(3600 * hour + 60 * minute + second), offset)


def _seconds(time: datetime.time) -> float:
    return 3600 * time.hour + 60 * time.minute + time.second + time.microsecond / 1e6


def _full_year(digits: str) -> int:
    year = int(digits)
    if len(digits) > 2:
        return year
    return year + (1900 if year >= CENTURY_START else 2000)
