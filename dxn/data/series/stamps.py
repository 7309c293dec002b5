"""How times are written: dates in several orders, months, quarters, ISO weeks and Unix times."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dxn.tokenize.cells.cell_values import NumberFormat
from dxn.tokenize.cells.date_values import COMPACT, find_day_first, parse_date

DAY = 86_400  # seconds
EPOCH = (datetime.date(1970, 1, 1).toordinal() - 1) * DAY
UNIX = {"unix": 1, "unix_ms": 1000}  # units per second
# September 2001 to September 2039: numbers of seconds (or milliseconds) with 10 (or 13) digits.
UNIX_RANGE = (1e9, 2.2e9)
UNIX_NAMES = re.compile(r"time|stamp|unix|epoch|date|^[td]s$")

WEEKS = "GGGGww"  # numbers such as 202605, which are weeks in a column of weeks only
DATES = ("YYYY-MM-DD", "YYYYMMDD", "YYYY/MM/DD", "YYYY.MM.DD", "DD.MM.YYYY", "D.M.YYYY")
DATES += ("DD/MM/YYYY", "D/M/YYYY", "MM/DD/YYYY", "M/D/YYYY", "DD-MM-YYYY", "MM-DD-YYYY")
PERIODS = ("YYYY-MM", "YYYY/MM", "YYYY.MM", "YYYYMM", "YYYY'M'MM", "MM/YYYY", "MM.YYYY", "YYYY-M")
PERIODS += ("M/YYYY", "MM-YYYY", "GGGG-Www", "GGGGWww", "GGGG Www", WEEKS)
PERIODS += ("YYYYQq", "YYYY-Qq", "YYYY Qq", "Qq YYYY", "Qq-YYYY", "Qq/YYYY")
TIMES = ("hh:mm", "hh:mm:ss")
ZONES = ("", "Z", " UTC", "+zz:zz", "+zzzz")
# In this order: with two digits where both are possible, such as 30.12.2026.
STYLES = (
    *DATES,
    *PERIODS,
    *map("".join, itertools.product(DATES, (" ", "T"), TIMES, ZONES)),
    *UNIX,
)
MAX_CHECKED = 1000  # cells from which the style is found

TOKEN = re.compile(r"'M'|YYYY|GGGG|MM|DD|hh|mm|ss|ww|\+zz:?zz|q|M|D")
PARTS: Mapping[str, Callable[[datetime.datetime], str]] = {
    "'M'": lambda _: "M",
    "YYYY": lambda m: f"{m.year:04}",
    "GGGG": lambda m: f"{m.isocalendar().year:04}",
    "MM": lambda m: f"{m.month:02}",
    "DD": lambda m: f"{m.day:02}",
    "M": lambda m: str(m.month),
    "D": lambda m: str(m.day),
    "hh": lambda m: f"{m.hour:02}",
    "mm": lambda m: f"{m.minute:02}",
    "ss": lambda m: f"{m.second:02}",
    "ww": lambda m: f"{m.isocalendar().week:02}",
    "q": lambda m: str((m.month + 2) // 3),
}
MONTH = re.compile(
    r"(?P<year>\d{4})(?:[-/]|[- ]?[Mm])(?P<month>\d{1,2})|(?P<month2>\d{1,2})[-/](?P<year2>\d{4})"
    # Also numbers, which are months if all cells of a column are, see `are_months`.
    r"|(?P<year3>(?:19|20)\d\d)\.?(?P<month3>0[1-9]|1[0-2])"
    r"|(?P<month4>0[1-9]|1[0-2])\.(?P<year4>(?:19|20)\d\d)"
)
WEEK = re.compile(r"(\d{4})[- ]?W(\d{1,2})(?:-?([1-7]))?", re.IGNORECASE)
WEEK_NUMBER = re.compile(r"((?:19|20)\d\d)(\d\d)")
WEEK_NAMES = re.compile(r"week|^(?:yr|year)?_?wk$|^kw$")
QUARTER = re.compile(r"(\d{4})[-/ ]?Q([1-4])|Q([1-4])[-/ ]?(\d{4})", re.IGNORECASE)


def moment_of(time: float) -> datetime.datetime:
    """Return the date and time of a number of seconds since January 1 of year 1."""
    return datetime.datetime.min + datetime.timedelta(seconds=time)


def read_period(cell: Any) -> float | None:
    """Return the start of a month, a quarter or an ISO week; None if the cell is none.

    Args:
        cell: A cell such as 2026-01, 202601, 01/2026, 2026M01, 2026Q1, Q1 2026,
            2026-W05 or the day 2026-W05-3.
    """
    if not isinstance(cell, str | int):
        return None
    text = str(cell).strip()
    try:
        if match := MONTH.fullmatch(text):
            month, year = (part for name, part in sorted(match.groupdict().items()) if part)
            day = datetime.date(int(year), int(month), 1)
        elif match := QUARTER.fullmatch(text):
            year, quarter = (match[1], match[2]) if match[1] else (match[4], match[3])
            day = datetime.date(int(year), 3 * int(quarter) - 2, 1)
        elif match := WEEK.fullmatch(text):
            day = datetime.date.fromisocalendar(*(int(part or 1) for part in match.groups()))
        else:
            return None
    except ValueError:  # no such month or week
        return None
    return float((day.toordinal() - 1) * DAY)


def are_months(cells: Sequence[Any]) -> bool:
    """Whether numbers such as 202601, 2026.01 or 01.2026 are months, judged by all cells."""
    texts = [str(cell).strip() for cell in cells]
    # 10.1987 and 12.2026 can be other numbers, but not 01.2026.
    are_sure = any(not text.startswith(("10.", "11.", "12.")) for text in texts)
    return are_sure and all(map(MONTH.fullmatch, texts))


def read_week(cell: Any) -> tuple[float, None] | None:
    """Return the start of an ISO week such as 202605 with no offset; None if the cell is none."""
    match = WEEK_NUMBER.fullmatch(str(cell).strip())
    start = match and read_period(f"{match[1]}-W{match[2]}")
    return None if start is None else (start, None)


def reader_of(
    cells: Sequence[Any], day_first: bool | None = None, *, style: str = "", column: str = ""
) -> Callable[[Any], tuple[float, float | None] | None]:
    """Return the function that reads the cells, judged by the first one that is present.

    It returns a time and its offset from UTC.

    Args:
        cells: The cells.
        day_first: Whether the day comes before the month. Default: as in most cells.
        style: How the times of the training are written. Default: numbers such as 202601 are
            months if all are, and ISO weeks if all are and the column has the name of weeks.
        column: Name of the column.
    """
    present = [cell for cell in cells if cell is not None]
    may_be_weeks = bool(not style and present and WEEK_NAMES.search(column.strip().lower()))
    if style == WEEKS or (may_be_weeks and all(map(read_week, present))):
        return read_week
    are_compact = all(COMPACT.fullmatch(str(cell).strip()) for cell in present)
    are_numbers = bool(present) and read_number(present[0]) is not None
    if are_numbers and not (are_compact or style in PERIODS or are_months(present)):
        return read_number
    day_first = find_day_first(present) if day_first is None else day_first
    return lambda cell: _read_date(cell, day_first)


def read_number(cell: Any) -> tuple[float, None] | None:
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    number = NumberFormat().parse(cell)
    return None if number is None else (number, None)


def _read_date(cell: Any, day_first: bool) -> tuple[float, float | None] | None:
    period = read_period(cell)
    if period is not None:
        return period, None
    moment = parse_date(cell, day_first=day_first)
    if moment is None or moment.day is None:
        return None
    return (moment.day - 1) * DAY + (moment.second or 0.0), moment.offset


def looks_like_times(cells: Sequence[Any], share: float = 1.0, column: str = "") -> bool:
    """Whether all cells of a column, or a share of them, are dates."""
    reader = reader_of(cells, column=column)
    dates = (cell is not None and reader(cell) is not None for cell in cells)
    return reader is not read_number and sum(dates) >= share * len(cells)


def unix_style(cells: Sequence[float], column: str) -> str:
    """Return the style of a column of numbers that are Unix times; "" if they are none."""
    if not cells or not UNIX_NAMES.search(column.strip().lower()):
        return ""
    for style, factor in UNIX.items():
        low, high = (limit * factor for limit in UNIX_RANGE)
        if all(low <= cell < high for cell in cells):
            return style
    return ""


def style_of(cells: Sequence[Any], times: Sequence[float], offset: float | None) -> str:
    """Return the style in which all cells are written; "" if it is none of STYLES.

    Args:
        cells: The cells.
        times: What they mean, in seconds since January 1 of year 1.
        offset: Seconds by which their clock is ahead of UTC. None: it is not known.
    """
    every = -(-len(cells) // MAX_CHECKED) or 1
    pairs = [(str(c).strip(), t) for c, t in zip(cells[::every], times[::every], strict=True)]
    for style in STYLES[: -len(UNIX)]:
        if pairs and all(write(style, time, offset) == text for text, time in pairs):
            return style
    return ""


def write(style: str, time: float, offset: float | None) -> str | int | float:
    """Return a time in a style.

    Raises:
        OverflowError: If the time is after the year 9999.
    """
    if style in UNIX:
        number = (time - EPOCH) * UNIX[style]
        return round(number) if abs(number - round(number)) < 1e-3 else number
    moment = moment_of(time)

    def part(match: re.Match[str]) -> str:
        if match[0] in PARTS:
            return PARTS[match[0]](moment)
        sign, minutes = "-" if (offset or 0) < 0 else "+", abs(round(offset or 0)) // 60
        colon = ":" if ":" in match[0] else ""
        return f"{sign}{minutes // 60:02}{colon}{minutes % 60:02}"

    # Times without an offset have none of the styles with a zone, and the other way around.
    has_zone = style.endswith(("Z", "UTC", "zz"))
    if ":" in style and has_zone != (offset is not None):
        return ""
    if style.endswith(("Z", "UTC")) and offset:
        return ""
    return TOKEN.sub(part, style)
