"""The times of the rows of a table: their order, their step and season, and how they continue."""

from __future__ import annotations

import calendar
import datetime
import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from dxn.core.errors import UserError
from dxn.data.series.stamps import (
    DAY,
    EPOCH,
    STYLES,
    UNIX,
    moment_of,
    read_period,
    style_of,
    write,
)
from dxn.tokenize.cells.cell_values import (
    COMPACT,
    NumberFormat,
    find_day_first,
    parse_date,
    unclear_date,
)

Unit = Literal["numeric", "second", "month"]
WEEK_DAYS = ["Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays"]
WEEKEND = (5, 6)  # Saturday and Sunday in a week that starts on Monday
# Differences from a multiple of the step, as a fraction of the step, such as the second at which a
# device writes a value of every two minutes.
TOLERANCE = 0.02
# Longest step of dates that is accepted, which keeps the times of a forecast finite. Numbers can
# have longer steps, such as a day in nanoseconds.
MAX_STEP = 1e12
MONTH_DAYS = (27, 36)  # between two times of following months, such as their third Fridays
STEP_NAMES = {1: "month", 3: "quarter", 6: "half-year", 12: "year"}
UNITS = (DAY, 3600, 60, 1)  # seconds of steps to which times with a jitter are rounded
MIN_DAYS = 21  # rows from which a day of the week that is missing is no chance
MAX_DAYS_OFF = 3
MAX_SPARSE = 2  # steps per time
SECOND_NAMES = {1: "second", 60: "minute", 3600: "hour", DAY: "day", 7 * DAY: "week"}


@dataclass(frozen=True)
class Clock:
    """The regular step between the rows of a table.

    A time is a number: that of the cell, or the seconds since January 1 of year 1 on a clock.

    Args:
        unit: Unit of the step: month, second, or numeric if the times are numbers such as years.
        step: Duration of a step.
        days_off: Days of the week without a step, from 0 (Monday) to 6 (Sunday).
        has_clock: Whether times contain a time of day.
        style: How times are written, see `dxn.data.series.stamps`. Empty: as 2026-01-31 06:00:00.
        offset: Seconds by which the clock of the times is ahead of UTC. None: it is not known.
    """

    unit: Unit = "numeric"
    step: float = 1.0
    days_off: Sequence[int] = ()
    has_clock: bool = False
    style: str = ""
    offset: float | None = None

    def __post_init__(self) -> None:
        longest = sys.float_info.max if self.unit == "numeric" else MAX_STEP
        is_step = isinstance(self.step, int | float) and 0 < self.step <= longest
        if self.unit not in get_args(Unit) or not is_step:
            raise ValueError(f"unit and step must be valid, got {self.unit!r} and {self.step!r}")
        days = list(self.days_off)
        if len(days) > 5 or sorted(set(days)) != days or not set(days) <= set(range(7)):
            raise ValueError(f"days_off must be days of the week, got {self.days_off!r}")
        if self.style and self.style not in STYLES:
            raise ValueError(f"style must be a way to write times, got {self.style!r}")
        if self.offset is not None and not -DAY < self.offset < DAY:
            raise ValueError(f"offset must be less than a day, got {self.offset!r}")

    @property
    def are_dates(self) -> bool:
        """Whether times are dates, and not numbers such as years."""
        return self.unit != "numeric"

    def index(self, time: float, start: float) -> float:
        """Return the number of steps from a start to a time; a whole number on a regular grid."""
        if self.unit == "month":
            return (_month_of(time) - _month_of(start)) / self.step
        if self.days_off:
            return float(self._days_before(time) - self._days_before(start))
        return (time - start) / self.step

    def after(self, time: float, steps: int) -> float:
        """Return the time a number of steps after another one."""
        if self.unit == "month":
            return _add_months(time, round(steps * self.step))
        if not self.days_off:
            return time + steps * self.step
        for _ in range(steps):
            time += DAY
            while _weekday(time) in self.days_off:
                time += DAY
        return time

    def _days_before(self, time: float) -> int:
        """Return the number of days with a step before a time."""
        weeks, day = divmod(int(time // DAY), 7)
        return (7 - len(self.days_off)) * weeks + sum(d not in self.days_off for d in range(day))

    def format(self, time: float) -> str | int | float:
        """Return a time as a cell of a table."""
        if self.unit == "numeric":
            return int(time) if float(time).is_integer() else float(f"{time:.10g}")
        try:
            moment = moment_of(time)
            if self.style:
                return write(self.style, time, self.offset)
        except (OverflowError, ValueError):  # after the year 9999
            return ""
        if self.has_clock and self.offset is not None:
            zone = datetime.timezone(datetime.timedelta(seconds=self.offset))
            moment = moment.replace(tzinfo=zone)
        return moment.isoformat(" ") if self.has_clock else moment.date().isoformat()

    def __str__(self) -> str:
        if self.unit == "numeric":
            return f"{self.step:g}"
        if tuple(self.days_off) == WEEKEND:
            return "1 weekday"
        if self.days_off:
            off = " and ".join(WEEK_DAYS[day] for day in self.days_off)
            return f"1 day without {off}"
        names = STEP_NAMES if self.unit == "month" else SECOND_NAMES
        size = max(size for size in names if self.step % size == 0 or size == 1)
        number = self.step / size
        return f"{number:g} {names[size]}{'' if number == 1 else 's'}"


def parse_times(
    cells: Sequence[Any],
    origin: Callable[[int], str],
    column: str,
    offset: float | None = None,
    style: str = "",
) -> tuple[list[float], Clock]:
    """Read the cells of a time column: numbers, dates, or dates with a time of day.

    Cells with different offsets from UTC, as before and after the end of summer time, are converted
    to one clock. Cells without an offset are in the time of this clock.

    Args:
        cells: The cells.
        origin: Returns the file and row of a cell, such as `Table.origin`.
        column: Name of the column, for error messages.
        offset: Seconds by which the clock is ahead of UTC. Default: that of the cells, or 0 if they
            have different offsets.
        style: How the times of the training are written, see `dxn.data.series.stamps`. It says
            whether the day comes first, and whether numbers are Unix times. Default: found in the
            cells, and numbers are read as they are.

    Returns:
        The time of each cell, and how times are written. Its step is not known yet, see
        `find_clock`.

    Raises:
        UserError: If a cell is empty or no time, or numbers and dates are mixed.
    """
    day_first = {"D": True, "M": False}.get(style[:1])
    reader = _reader(cells, day_first)
    if day_first is None and reader is not _read_number and unclear_date(cells) is not None:
        # The other order of day and month, if only with it the times have a regular step.
        other = _reader(cells, day_first=not find_day_first(cells))
        reader = other if _fits(cells, other) and not _fits(cells, reader) else reader
    times: list[tuple[float, float | None]] = []
    for i, cell in enumerate(cells):
        time = None if cell is None else reader(cell)
        if time is None:
            raise UserError(
                f"{origin(i)}: column {column!r} must contain times, which are dates such as "
                f"2026-01-31 or numbers such as 2026, got {cell!r}; correct the cell, or choose "
                "another column"
            )
        times.append(time)
    if reader is _read_number and style in UNIX:
        seconds = [EPOCH + value / UNIX[style] for value, _ in times]
        return seconds, Clock("second", DAY, has_clock=True, style=style, offset=0.0)
    if reader is _read_number:
        return [value for value, _ in times], Clock()
    values, offset = _on_one_clock(times, offset)
    has_clock = any(value % DAY for value in values)
    style = style_of(cells, values, offset)
    return values, Clock("second", DAY, has_clock=has_clock, style=style, offset=offset)


def _on_one_clock(
    times: Sequence[tuple[float, float | None]], offset: float | None
) -> tuple[list[float], float | None]:
    """Convert times with their offsets from UTC to one clock, and return its offset."""
    offsets = {shift for _, shift in times}
    are_mixed = len(offsets) > 1
    are_distinct = len({value for value, _ in times}) == len(set(times))
    if are_mixed and are_distinct and len({value % DAY for value, _ in times}) == 1:
        # Days, each of which starts at midnight of the place, in summer and in winter.
        return [value for value, _ in times], None
    if offset is None:
        offset = 0.0 if are_mixed else next(iter(offsets), None)
    if offset is None:
        return [value for value, _ in times], None
    # A time on the first or the last day of the calendar must not leave it.
    last = datetime.date.max.toordinal() * DAY - 1.0
    moved = (value if shift is None else value - shift + offset for value, shift in times)
    return [min(max(value, 0.0), last) for value in moved], offset


def looks_like_times(cells: Sequence[Any]) -> bool:
    """Whether all cells are dates, without a message about the first that is none."""
    reader = _reader(cells)
    return reader is not _read_number and all(c is not None and reader(c) for c in cells)


def find_clock(written: Clock, series: Sequence[Sequence[float]]) -> Clock:
    """Find the step between the rows.

    Args:
        written: How the times are written, see `parse_times`.
        series: The distinct times of each series, in ascending order.

    Returns:
        The clock with the most frequent step.
    """
    gaps = Counter(b - a for ts in series for a, b in itertools.pairwise(ts))
    if not gaps:
        return written
    # With equal counts, the shorter step, of which the longer one may be a multiple.
    step = min(gaps, key=lambda gap: (-gaps[gap], gap))
    if not written.are_dates:
        return Clock("numeric", step)
    everything = list(itertools.chain.from_iterable(series))
    months = Counter(
        _month_of(b) - _month_of(a) for ts in series for a, b in itertools.pairwise(ts)
    )
    # One time in each month, such as its last weekday: the steps have different numbers of days,
    # which are not only those of rows that are missing.
    is_usual = (
        any(gap % step for gap in gaps) and MONTH_DAYS[0] * DAY <= step <= MONTH_DAYS[1] * DAY
    )
    if (_are_monthly(everything) or is_usual) and 0 not in months:
        month = min(months, key=lambda gap: (-months[gap], gap))
        return replace(written, unit="month", step=month)
    clock = replace(written, step=step)
    if step == DAY:
        return replace(clock, days_off=_days_off(everything))
    middle = statistics.median(gaps.elements())
    whole = next((unit * round(middle / unit) for unit in UNITS if middle >= unit), step)
    days_off = _days_off(everything) if whole == DAY else ()
    rounded = replace(written, step=whole, days_off=days_off)
    # Times that are written some seconds late have no frequent step.
    if abs(whole - middle) > TOLERANCE * whole or _is_regular(series, clock):
        return clock
    return rounded if _is_regular(series, rounded) else clock


def _is_regular(series: Sequence[Sequence[float]], clock: Clock) -> bool:
    return all(not times or grid_positions(times, clock) is not None for times in series)


def _days_off(times: Sequence[float]) -> tuple[int, ...]:
    """Return the days of the week on which no time of several weeks is."""
    if len(times) <= 7 or max(times) - min(times) < 7 * DAY:
        return ()
    present = {_weekday(time) for time in times}
    off = tuple(day for day in range(7) if day not in present)
    # A single day can be missing by chance in a few rows, but a weekend is usual.
    is_sure = off == WEEKEND or len(times) >= MIN_DAYS
    return off if is_sure and len(off) <= MAX_DAYS_OFF else ()


def grid_positions(times: Sequence[float], clock: Clock) -> list[int] | None:
    """Return the index of each time on a regular grid; None if the times are irregular.

    Args:
        times: Distinct times in ascending order.
        clock: Step of the grid.
    """
    positions: list[int] = []
    for time in times:
        index = clock.index(time, times[0])
        # A tiny step, which can come from an untrusted model folder, gives an infinite index.
        if math.isinf(index) or abs(index - round(index)) > TOLERANCE:
            return None
        positions.append(round(index))
    distinct = all(a < b for a, b in itertools.pairwise(positions))
    return positions if distinct else None


def _fits(cells: Sequence[Any], reader: Callable[[Any], Any]) -> bool:
    """Whether the times of all cells have a regular step, and most steps have a time."""
    times = [reader(cell) for cell in cells]
    if not times or None in times:
        return False
    distinct = sorted({time for time, _ in times})
    clock = find_clock(Clock("second", DAY), [distinct])
    positions = grid_positions(distinct, clock)
    return positions is not None and positions[-1] < MAX_SPARSE * len(positions)


def _reader(
    cells: Sequence[Any], day_first: bool | None = None
) -> Callable[[Any], tuple[float, float | None] | None]:
    """Return the function that reads the cells, judged by the first one that is present.

    It returns a time and its offset from UTC.

    Args:
        cells: The cells.
        day_first: Whether the day comes before the month. Default: as in most cells.
    """
    present = [cell for cell in cells if cell is not None]
    are_compact = all(COMPACT.fullmatch(str(cell).strip()) for cell in present)
    if not are_compact and present and _read_number(present[0]) is not None:
        return _read_number
    day_first = find_day_first(present) if day_first is None else day_first
    return lambda cell: _read_date(cell, day_first)


def _read_number(cell: Any) -> tuple[float, None] | None:
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


def _are_monthly(times: Sequence[float]) -> bool:
    """Whether all times are on the same day of a month, or all on the last day of a month."""
    if len({time % DAY for time in times}) > 1:
        return False
    moments = [moment_of(time) for time in times]
    is_end = all(m.day == calendar.monthrange(m.year, m.month)[1] for m in moments)
    return is_end or len({moment.day for moment in moments}) == 1


def _month_of(time: float) -> int:
    moment = moment_of(time)
    return 12 * moment.year + moment.month - 1


def _add_months(time: float, months: int) -> float:
    moment = moment_of(time)
    year, month = divmod(_month_of(time) + months, 12)
    if year > datetime.MAXYEAR:
        return (datetime.MAXYEAR + 1) * 366.0 * DAY
    last = calendar.monthrange(year, month + 1)[1]
    # The end of a month is continued at the end of the others.
    is_end = moment.day == calendar.monthrange(moment.year, moment.month)[1]
    day = last if is_end else min(moment.day, last)
    ordinal = datetime.date(year, month + 1, day).toordinal() - 1
    return ordinal * DAY + time % DAY


def _weekday(time: float) -> int:
    return int(time // DAY) % 7  # January 1 of year 1 is a Monday


HOUR = 3600
MINUTE = 60
# A season must occur at least this often in the training part.
MIN_SEASONS = 3
# The smallest autocorrelation of values one season apart.
MIN_CORRELATION = 0.3
NEARLY_HIGHEST = 0.9  # fraction of the highest autocorrelation that a shorter season must have
MAX_SEASON = 1000  # steps; the autocorrelation of longer seasons is not computed


def find_season(values: np.ndarray, clock: Clock | None) -> tuple[int, str]:
    """Return the season length in steps, and the reason for a note.

    Args:
        values: Training part (T,) of a series. NaN is a missing value.
        clock: Step between the values. None: not known.
    """
    usual = _usual_season(clock)
    if usual is not None:
        season, reason = usual
        if len(values) >= MIN_SEASONS * season:
            return season, reason
    lag, correlation = _best_lag(values)
    if lag > 1:
        return (
            lag,
            f"values at this distance are the most similar, autocorrelation {correlation:.2f}",
        )
    if usual is not None:
        return 1, f"the training part has fewer than {MIN_SEASONS} seasons of {usual[0]} steps"
    return 1, "no repetition found in the values"


def _usual_season(clock: Clock | None) -> tuple[int, str] | None:
    """Return the season that fits a calendar; None for years and for steps that are not time."""
    if clock is None or clock.unit == "numeric":
        return None
    step = clock.step
    if clock.unit == "month":
        months = round(step)
        return (12 // months, "a year") if months < 12 and 12 % months == 0 else None
    if clock.days_off:
        days = 7 - len(clock.days_off)
        return days, "a week of weekdays" if days == 5 else f"a week of {days} days"
    periods = ((MINUTE, "a minute"), (HOUR, "an hour"), (DAY, "a day"), (7 * DAY, "a week"))
    if step == 7 * DAY:
        return 52, "a year of weeks"
    for period, name in periods:
        # A day of minutes has more steps than a model reads, so minutes get an hour.
        if step <= period / 4 and period % step == 0 and period / step <= 288:
            longer = period == HOUR and step >= 5 * MINUTE  # a day is the stronger season
            if not longer:
                return round(period / step), name
    return None


def _best_lag(values: np.ndarray) -> tuple[int, float]:
    """Return the shortest lag with about the highest local maximum of the autocorrelation.

    The linear trend is removed first. The second number is the autocorrelation. (1, 0.0) if there
    is no maximum above MIN_CORRELATION.
    """
    valid = np.isfinite(values)
    count = len(values)
    if valid.sum() < 4 * MIN_SEASONS:
        return 1, 0.0
    steps = np.arange(count)
    trend = np.polyfit(steps[valid], values[valid], 1)
    rest = np.where(valid, values - np.polyval(trend, steps), 0.0)
    variance = float(rest @ rest)
    if variance <= 1e-12 * float(np.nansum(values**2)):
        return 1, 0.0
    longest = min(count // MIN_SEASONS, MAX_SEASON)
    lags = [_correlation(rest, lag) for lag in range(longest + 2)]
    peaks: Sequence[int] = [
        lag for lag in range(2, longest + 1) if lags[lag - 1] < lags[lag] >= lags[lag + 1]
    ]
    highest = max((lags[lag] for lag in peaks), default=0.0)
    if highest < MIN_CORRELATION:
        return 1, 0.0
    # Twice or three times the season has about the same autocorrelation.
    best = next(lag for lag in peaks if lags[lag] >= NEARLY_HIGHEST * highest)
    return best, lags[best]


def _correlation(rest: np.ndarray, lag: int) -> float:
    """Return the autocorrelation, whose denominator has the same terms as the numerator."""
    first, second = rest[: len(rest) - lag], rest[lag:]
    norm = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / norm if norm else 0.0
