"""The times of the rows of a table: their order, their step and season, and how they continue."""

from __future__ import annotations

import bisect
import calendar
import datetime
import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from dxn.core.errors import UserError
from dxn.data.series.stamps import (
    DAY,
    EPOCH,
    STYLES,
    UNIX,
    WEEKS,
    moment_of,
    read_number,
    read_week,
    reader_of,
    style_of,
    write,
)
from dxn.tokenize.cells.date_values import find_day_first, unclear_date

Unit = Literal["numeric", "second", "month"]
WEEK_DAYS = ["Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays"]
WEEKEND = (5, 6)  # Saturday and Sunday in a week that starts on Monday
# Differences from a multiple of the step, as a fraction of the step, such as the second at which a
# device writes a value of every two minutes.
TOLERANCE = 0.02
# Longest step of dates that is accepted, which keeps the times of a forecast finite. Numbers can
# have longer steps, such as a day in nanoseconds.
MAX_STEP = 1e12
HOUR = 3600
MINUTE = 60
MONTH_DAYS = (27, 36)  # between two times of following months, such as their third Fridays
STEP_NAMES = {1: "month", 3: "quarter", 6: "half-year", 12: "year"}
UNITS = (DAY, 3600, 60, 1)  # seconds of steps to which times with a jitter are rounded
MIN_DAYS = 21  # rows from which a day of the week that is missing is no chance
MAX_DAYS_OFF = 3
MAX_DAYS_OFF_OF_PATTERN = 5  # one day of a week is a step of a week
MAX_SPARSE = 2  # steps per time
# Share of the steps that must have a time. Otherwise, another pattern is tried, which must have it.
MIN_FILLED = 0.8
MIN_OF_PATTERN = 0.5  # of a pattern that has at least twice the share of the usual step
# A time of the day, or a day of the month, that is much rarer than others is no step.
MIN_SHARE = 0.2
MIN_CYCLES = 5  # days (or months) from which their times (or days) are no chance
MAX_TIMES = 1440  # of a day, one per minute
MAX_MONTH_DAYS = 6
LAST_DAY = 31  # of a month, also of a shorter one
SECOND_NAMES = {1: "second", 60: "minute", 3600: "hour", DAY: "day", 7 * DAY: "week"}


@dataclass(frozen=True)
class Clock:
    """The regular step between the rows of a table.

    A time is a number: that of the cell, or the seconds since January 1 of year 1 on a clock.

    Args:
        unit: Unit of the step: month, second, or numeric if the times are numbers such as years.
        step: Duration of a step.
        days_off: Days of the week without a step, from 0 (Monday) to 6 (Sunday).
        times: Seconds after midnight at which each day has a step, such as those of trading hours.
            Empty: at each multiple of the step.
        month_days: Days of the month that have a step, such as 1 and 15. 31 is the last day. Empty:
            one per month.
        has_clock: Whether times contain a time of day.
        style: How times are written, see `dxn.data.series.stamps`. Empty: as 2026-01-31 06:00:00.
        offset: Seconds by which the clock of the times is ahead of UTC. None: it is not known.
    """

    unit: Unit = "numeric"
    step: float = 1.0
    days_off: Sequence[int] = ()
    times: Sequence[float] = ()
    month_days: Sequence[int] = ()
    has_clock: bool = False
    style: str = ""
    offset: float | None = None

    def __post_init__(self) -> None:
        longest = sys.float_info.max if self.unit == "numeric" else MAX_STEP
        is_step = isinstance(self.step, int | float) and 0 < self.step <= longest
        if self.unit not in get_args(Unit) or not is_step:
            raise ValueError(f"unit and step must be valid, got {self.unit!r} and {self.step!r}")
        days = list(self.days_off)
        most = MAX_DAYS_OFF_OF_PATTERN
        if len(days) > most or sorted(set(days)) != days or not set(days) <= set(range(7)):
            raise ValueError(f"days_off must be days of the week, got {self.days_off!r}")
        times = list(self.times)
        are_times = all(isinstance(time, int | float) and 0 <= time < DAY for time in times)
        if not are_times or len(times) > MAX_TIMES or sorted(set(times)) != times:
            raise ValueError(f"times must be seconds of a day, got {str(self.times)[:100]}")
        days = list(self.month_days)
        if sorted(set(days)) != days or not set(days) <= set(range(1, LAST_DAY + 1)):
            raise ValueError(f"month_days must be days of a month, got {self.month_days!r}")
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
        if self.unit == "month" and not self.month_days:
            return (_month_of(time) - _month_of(start)) / self.step
        if self.month_days or self.days_off or self.times:
            return self._position(time) - self._position(start)
        return (time - start) / self.step

    def after(self, time: float, steps: int) -> float:
        """Return the time a number of steps after another one."""
        if self.month_days:
            # Of a time between two steps, the next step is the first one after it.
            last = math.floor(self._position(time))
            month, slot = divmod(last + steps, len(self.month_days))
            return _time_in(month, self.month_days[slot], time % DAY)
        if self.unit == "month":
            return _add_months(time, round(steps * self.step))
        if not self.days_off and not self.times:
            return time + steps * self.step
        last = math.floor(self._position(time))
        number, slot = divmod(last + steps, max(len(self.times), 1))
        days = self._days
        week, day = divmod(number, len(days))
        return (7 * week + days[day]) * DAY + (self.times[slot] if self.times else time % DAY)

    @property
    def _days(self) -> list[int]:
        return [day for day in range(7) if day not in self.days_off]

    def _position(self, time: float) -> float:
        """Return the number of steps before a time since year 1; a half for one between steps."""
        if self.month_days:
            moment = moment_of(time)
            last = calendar.monthrange(moment.year, moment.month)[1]
            days = [min(day, last) for day in self.month_days]
            return _month_of(time) * len(days) + _slot(days, moment.day, 0)
        week, day = divmod(int(time // DAY), 7)
        days = self._days
        number = len(days) * week + bisect.bisect_left(days, day)
        size = max(len(self.times), 1)
        if day not in days:
            return number * size - 0.5
        slot = _slot(self.times, time % DAY, TOLERANCE * self.step) if self.times else 0.0
        return number * size + slot

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
        on, off = (_listed(WEEK_DAYS[d] for d in days) for days in (self._days, self.days_off))
        if self.month_days:
            days = ("last" if day == LAST_DAY else str(day) for day in self.month_days)
            return f"day {_listed(days)} of a month"
        if self.times:
            shown = [f"{int(t // HOUR):02}:{int(t % HOUR // MINUTE):02}" for t in self.times]
            is_range = self.times[-1] - self.times[0] == (len(self.times) - 1) * self.step
            name = f"time of the day: {_listed(shown)}"
            if is_range and len(shown) > 2:
                name = f"{_name(self.step)} from {shown[0]} to {shown[-1]}"
            return f"{name}, without {off}" if off else name
        if tuple(self.days_off) == WEEKEND:
            return "1 weekday"
        if off:
            return f"1 day on {on}" if len(self._days) < 4 else f"1 day without {off}"
        return _name(self.step, STEP_NAMES if self.unit == "month" else SECOND_NAMES)


def _name(step: float, names: Mapping[int, str] = SECOND_NAMES) -> str:
    size = max(size for size in names if step % size == 0 or size == 1)
    number = step / size
    return f"{number:g} {names[size]}{'' if number == 1 else 's'}"


def _listed(names: Iterable[str]) -> str:
    *first, last = ["", *names]
    return " and ".join(filter(None, [", ".join(first[1:]), last]))


def _slot(slots: Sequence[float], value: float, tolerance: float) -> float:
    """Return the index of a value in sorted slots; between two of them, a half below the next."""
    index = bisect.bisect_left(slots, value - tolerance)
    is_slot = index < len(slots) and slots[index] <= value + tolerance
    return float(index) if is_slot else index - 0.5


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
    reader = reader_of(cells, day_first, style=style, column=column)
    if day_first is None and reader is not read_number and unclear_date(cells) is not None:
        # The other order of day and month, if only with it the times have a regular step.
        other = reader_of(cells, day_first=not find_day_first(cells))
        reader = other if _fits(cells, other) and not _fits(cells, reader) else reader
    times: list[tuple[float, float | None]] = []
    for i, cell in enumerate(cells):
        time = None if cell is None else reader(cell)
        if time is None:
            got = "an empty cell" if cell is None else repr(cell)
            raise UserError(
                f"{origin(i)}: column {column!r} must contain times, which are dates such as "
                f"2026-01-31 or numbers such as 2026, got {got}; correct the cell, or choose "
                "another column"
            )
        times.append(time)
    if reader is read_number and style in UNIX:
        seconds = [EPOCH + value / UNIX[style] for value, _ in times]
        return seconds, Clock("second", DAY, has_clock=True, style=style, offset=0.0)
    if reader is read_number:
        return [value for value, _ in times], Clock()
    values, offset = _on_one_clock(times, offset)
    has_clock = any(value % DAY for value in values)
    style = WEEKS if reader is read_week else style_of(cells, values, offset)
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


def find_clock(written: Clock, series: Sequence[Sequence[float]]) -> Clock:
    """Find the step between the rows.

    Args:
        written: How the times are written, see `parse_times`.
        series: The distinct times of each series, in ascending order.

    Returns:
        The clock with the most frequent step, or that of the same times of each day, the same days
        of each week or of each month, if only with it most steps have a row.
    """
    clock = _with_step(written, series)
    everything = list(itertools.chain.from_iterable(series))
    filled = _filled(series, clock) if clock.unit == "second" and everything else 1.0
    if filled >= MIN_FILLED:
        return clock
    # Of two shops with other opening hours, each has no row in some hours of the other.
    least = max(MIN_OF_PATTERN, min(2 * filled, MIN_FILLED)) if filled else MIN_FILLED
    patterns = _patterns(clock, everything)
    return next((each for each in patterns if _filled(series, each) >= least), clock)


def _patterns(clock: Clock, times: Sequence[float]) -> Iterator[Clock]:
    """Return clocks whose steps are the times of each day, or the days of each week or month."""
    days = sorted({time // DAY * DAY for time in times})
    seconds = _usual(time % DAY for time in times)
    off = _days_off(days, MAX_DAYS_OFF_OF_PATTERN)
    if len(days) >= MIN_CYCLES and 1 < len(seconds) <= MAX_TIMES:
        yield replace(clock, times=seconds, days_off=off)
    if len(seconds) != 1:
        return
    if off:
        yield replace(clock, step=DAY, days_off=off)
    moments = [moment_of(day) for day in days]
    ends = [m.day == calendar.monthrange(m.year, m.month)[1] for m in moments]
    numbers = _usual(LAST_DAY if end else m.day for m, end in zip(moments, ends, strict=True))
    months = {(m.year, m.month) for m in moments}
    if len(months) >= MIN_CYCLES and 1 < len(numbers) <= MAX_MONTH_DAYS:
        yield replace(clock, unit="month", step=1, month_days=numbers)


def _usual(values: Iterable[float]) -> list[float]:
    """Return the values in ascending order; none if some of them are rare."""
    counts = Counter(values)
    return sorted(counts) if min(counts.values()) >= MIN_SHARE * max(counts.values()) else []


def _filled(series: Sequence[Sequence[float]], clock: Clock) -> float:
    """Return the share of the steps of a clock that have a time; 0 if a time is at no step."""
    num_times = num_steps = 0
    for times in series:
        positions = grid_positions(times, clock)
        if positions is None:
            return 0.0
        num_times += len(positions)
        num_steps += positions[-1] + 1 if positions else 0
    return num_times / max(num_steps, 1)


def _with_step(written: Clock, series: Sequence[Sequence[float]]) -> Clock:
    """Return the clock with the most frequent step."""
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


def _days_off(times: Sequence[float], most: int = MAX_DAYS_OFF) -> tuple[int, ...]:
    """Return the days of the week on which no time of several weeks is."""
    if len(times) <= 7 or max(times) - min(times) < 7 * DAY:
        return ()
    present = {_weekday(time) for time in times}
    off = tuple(day for day in range(7) if day not in present)
    # A single day can be missing by chance in a few rows, but a weekend is usual.
    is_sure = off == WEEKEND or len(times) >= MIN_DAYS
    return off if is_sure and len(off) <= most else ()


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
    # The end of a month is continued at the end of the others.
    is_end = moment.day == calendar.monthrange(moment.year, moment.month)[1]
    return _time_in(_month_of(time) + months, LAST_DAY if is_end else moment.day, time % DAY)


def _time_in(month: int, day: int, second: float) -> float:
    """Return a time in a month, which is counted from year 0; on its last day if it is shorter."""
    year, month = divmod(month, 12)
    if year > datetime.MAXYEAR:
        return (datetime.MAXYEAR + 1) * 366.0 * DAY
    last = calendar.monthrange(year, month + 1)[1]
    ordinal = datetime.date(year, month + 1, min(day, last)).toordinal() - 1
    return ordinal * DAY + second


def _weekday(time: float) -> int:
    return int(time // DAY) % 7  # January 1 of year 1 is a Monday


# A season must occur at least this often in the training part.
MIN_SEASONS = 3
# The smallest autocorrelation of values one season apart.
MIN_CORRELATION = 0.3
NEARLY_HIGHEST = 0.9  # fraction of the highest autocorrelation that a shorter season must have
MIN_TIMES = 4  # steps per period, such as a day, of which fewer are no season
MAX_OF_A_DAY = 288  # steps, one per five minutes
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
        number = len(clock.month_days) or 1
        is_part = months < 12 and 12 % months == 0
        return (12 * number // months, "a year") if is_part else None
    number = len(clock.times) or 1
    if MIN_TIMES <= number <= MAX_OF_A_DAY:
        return number, "a day"
    if (clock.days_off or clock.times) and number < MIN_TIMES:
        days = 7 - len(clock.days_off)
        name = {5: "a week of weekdays", 7: "a week"}.get(days, f"a week of {days} days")
        return days * number, name
    periods = ((MINUTE, "a minute"), (HOUR, "an hour"), (DAY, "a day"), (7 * DAY, "a week"))
    if step == 7 * DAY:
        return 52, "a year of weeks"
    for period, name in periods:
        # A day of minutes has more steps than a model reads, so minutes get an hour.
        if step <= period / MIN_TIMES and period % step == 0 and period / step <= MAX_OF_A_DAY:
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
