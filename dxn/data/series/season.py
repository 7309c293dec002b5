"""Find the season length of a series, from the step between its rows or from its values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dxn.data.series.clock import DAY, Clock

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
    if clock.weekdays:
        return 5, "a week of weekdays"
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
