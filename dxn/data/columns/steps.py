"""Recognize tables whose rows are the time steps of one or several series."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dxn.data.tables.read import Table
from dxn.tokenize.base import BadMedia
from dxn.tokenize.cells.date import DateReader

MIN_STEPS = 20  # rows, of which fewer have equal steps by chance
# Names of time columns whose cells can be numbers, such as years, in lower case.
TIME_NAMES = "time date datetime timestamp ds year month week day t hour step jahr datum zeit"
REGULAR = 0.8  # share of the steps of a series that are equal


def find_series_id(table: Table, time: str, names: Sequence[str]) -> str | None:
    """Return the first column that names the series of a row: each has each time at most once."""
    times = list(table.columns[time])
    for name in names:
        if name.strip().lower() in TIME_NAMES.split():
            continue  # such as the hour beside a date
        cells = table.columns[name]
        values = [cell for cell in cells if isinstance(cell, str | int)]
        if len(values) < len(times) or not 2 <= len(set(values)) <= len(values) / 2:
            continue
        if len(set(zip(values, times, strict=True))) == len(times):
            return name
    return None


def explain_steps(table: Table, times: Sequence[str], target: str, names: Sequence[str]) -> str:
    """Return a sentence about rows that are the steps of series; "" if they are not.

    Args:
        table: The table.
        times: Columns of dates.
        target: Column of numbers to predict.
        names: Columns that can name the series.
    """
    for time in times:
        cells = list(table.columns[time])
        series_id = None
        if len(set(cells)) < len(cells):
            series_id = find_series_id(table, time, [name for name in names if name != time])
            if series_id is None:
                continue
        days = _days(cells) if len(cells) >= MIN_STEPS else None
        if days is None or (series_id is None and len(set(days)) < len(days)):
            continue
        groups: dict[Any, list[float]] = {}
        for i, day in enumerate(days):
            groups.setdefault(series_id and table.columns[series_id][i], []).append(day)
        if not _are_regular(list(groups.values())):
            continue
        options = [f"target={target}", f"data.time={time}"]
        options += [f"data.series_id={series_id}"] if series_id else []
        command = shlex.join(
            ["dxn", "train", str(table.path or table.name), "data=timeline", *options]
        )
        per = f"{series_id} and {time}" if series_id else time
        return f"one row per {per}; to forecast {target} from its own past instead: {command}"
    return ""


def _days(cells: Sequence[Any]) -> list[float] | None:
    """Return dates as numbers of days; None if a cell is none."""
    reader = DateReader()
    reader.learn([cell for cell in cells if cell is not None])
    days: list[float] = []
    for cell in cells:
        try:
            moment = reader.read(cell)
        except BadMedia:
            return None
        if moment is None or moment.day is None:
            return None
        days.append(moment.days)
    return days


def _are_regular(series: Sequence[Sequence[float]]) -> bool:
    """Return whether most steps of series are equal. Months and years have similar lengths."""
    steps = Counter(round(b - a) for days in series for a, b in pairwise(sorted(days)))
    total = steps.total()
    if not total:
        return False
    usual, _ = steps.most_common(1)[0]
    near = sum(number for step, number in steps.items() if abs(step - usual) <= usual / 10)
    return near >= REGULAR * total
