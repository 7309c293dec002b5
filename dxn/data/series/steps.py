"""Read the series of a table whose rows are time steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.series.clock import Clock, grid_positions, parse_times
from dxn.data.tables.read import Table
from dxn.tokenize.base import Reader
from dxn.tokenize.cells.cell_values import NumberFormat, read_numbers

# A regular grid may have this many steps per row of the table. With more, the gaps are not filled:
# a typing error in a date would otherwise need all memory.
MAX_GAPS = 20
MAX_NUMBER = torch.finfo(torch.float32).max  # a larger one would be infinite
MAX_VALUES = 64  # of a column of categories, each of which is a channel


@dataclass(frozen=True)
class OneHot:
    """How a column of categories becomes channels: 1 at the steps with a value, otherwise 0.

    An empty cell has 0 in all channels, such as the name of a holiday on other days. A value that
    is not listed is missing in all channels.

    Args:
        values: The values, in the order of the channels.
    """

    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def parse(self, cell: Any) -> list[float] | None:
        """Return the channels of a cell; None if its value is not listed."""
        if cell is not None and str(cell) not in self.values:
            return None
        return [float(cell is not None and str(cell) == value) for value in self.values]


@dataclass(frozen=True)
class Series:
    """One series of a table.

    Args:
        name: Value of the column that identifies the series. None: there is no such column.
        values: Values (T, C), float32: the targets first. NaN is missing.
        rows: Row of the table of each step. A step without a row has that of the step before.
        times: Time of each step. None: the table has no time column.
    """

    name: Any
    values: Tensor
    rows: Sequence[int]
    times: Sequence[float] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def until(self, end: int) -> Series:
        """Return the series without the steps from `end` on."""
        times = None if self.times is None else self.times[:end]
        return Series(self.name, self.values[:end], self.rows[:end], times)


def read_series(
    table: Table,
    options: Mapping[str, str],
    *,
    time: str | None,
    series_id: str | None,
    clock: Clock | None,
    formats: Mapping[str, NumberFormat | OneHot | None],
    key: str,
    notes: list[str],
) -> list[Series]:
    """Read the series of a table, sorted by time, with missing values where times are missing.

    Args:
        table: The table, whose rows are time steps.
        options: The option that contains each column, by column.
        time: Column with the time of a row. None: the rows are in the order of time.
        series_id: Column that identifies the series of a row. None: there is one series.
        clock: Regular step between the rows. None: the rows are the steps.
        formats: How the cells of each column are read. None: it is found in the table.
        key: Prefix of the options in error messages.
        notes: Sentences about unsorted rows, repeated times and gaps are appended to this list.

    Raises:
        UserError: If a column is missing, or its cells are neither numbers nor times.
    """
    channels: list[list[float]] = []
    for name, option in options.items():
        form = formats[name] or column_format(table, name, option, key)
        if isinstance(form, OneHot):
            channels += _read_categories(table, name, f"{key}{option}", form, notes)
        else:
            channels.append(_read_channel(table, name, f"{key}{option}", form, notes))
    values = torch.tensor(channels).T if len(table) else torch.zeros(0, len(channels))
    times = None
    if time is not None:
        column = table.column(time, f"{key}time")
        offset = None if clock is None else clock.offset
        style = "" if clock is None else clock.style
        times, written = parse_times(column, table.origin, time, offset, style)
        if clock is not None and times and written.are_dates != clock.are_dates:
            kinds = ("dates", "numbers") if clock.are_dates else ("numbers", "dates")
            raise UserError(
                f"{table.path or table.name}: column {time!r}: must contain {kinds[0]}, as in the "
                f"training, got {kinds[1]}; correct the table"
            )
    groups = group_rows(table, series_id, key)
    problems: Counter[str] = Counter()
    result = [
        _make_series(name, rows, values, times, clock, problems) for name, rows in groups.items()
    ]
    notes += _sentences(problems, time or "", len(groups), clock)
    return result


def series_modality(readers: Mapping[str, Reader]) -> str:
    """Return the modality of the reader of series.

    Raises:
        UserError: If no reader in use reads series.
    """
    for modality, reader in readers.items():
        if reader.steps:
            return modality
    raise UserError(
        "data: needs an adapter that reads series; add it to adapters=[...], got "
        f"{', '.join(readers)}"
    )


def group_rows(table: Table, series_id: str | None, key: str) -> dict[Any, list[int]]:
    """Return the rows of each series; those of the only series with the key None."""
    if series_id is None:
        return {None: list(range(len(table)))}
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(table.column(series_id, f"{key}series_id")):
        if name is None:
            raise UserError(
                f"{table.origin(row)}: no value in column {series_id!r}, which says to which "
                "series the row belongs; fill the cell"
            )
        groups.setdefault(name, []).append(row)
    return groups


def check_unused(columns: Collection[str], name: str, table: Table) -> None:
    """Check that a layout can add a column.

    Raises:
        UserError: If the table has another column of this name.
    """
    if name in columns:
        raise UserError(
            f"{table.name}: has a column {name!r}, which is the name of the series that are made "
            "of the other columns; rename the column"
        )


def _sentences(
    problems: Mapping[str, int], time: str, num_series: int, clock: Clock | None
) -> list[str]:
    """Return a sentence for each kind of problem with the times of the rows.

    Args:
        problems: Number of "unsorted" rows, of those with a "repeated" time, of "gaps" (steps
            without a row) among the "steps" of regular series, of "irregular" series, and of
            "sparse" ones, whose gaps are too long to fill.
        time: Column of the times.
        num_series: Number of series.
        clock: Regular step between the rows.
    """
    which = "the steps are" if num_series == 1 else f"the steps of {problems['irregular']} are"
    sentences = {
        "unsorted": f"{count(problems['unsorted'], 'row')} not in the order of time; the rows are "
        "sorted",
        "repeated": f"{count(problems['repeated'], 'row')} with the time of another row; their "
        "mean is used",
        "gaps": f"time steps without a row: {problems['gaps']:,} of {problems['steps']:,}; these "
        "values are missing",
        "irregular": f"{which} not regular; each row is read as one step, and the times of a "
        f"forecast follow with one row per {clock}, which may not be those of the next rows",
    }
    where = "" if num_series == 1 else f" in {count(problems['sparse'], 'series', 'series')}"
    sentences["sparse"] = (
        f"more than {MAX_GAPS - 1} of {MAX_GAPS} time steps have no row{where}, as with a typing "
        "error in a time; each row is read as one step"
    )
    return [f"{time}: {sentence}" for kind, sentence in sentences.items() if problems[kind]]


def _make_series(
    name: Any,
    rows: list[int],
    values: Tensor,
    times: Sequence[float] | None,
    clock: Clock | None,
    problems: Counter[str],
) -> Series:
    if times is None:
        return Series(name, values[rows], rows)
    problems["unsorted"] += sum(times[a] > times[b] for a, b in itertools.pairwise(rows))
    order = sorted(rows, key=times.__getitem__)
    groups = [list(group) for _, group in itertools.groupby(order, key=times.__getitem__)]
    problems["repeated"] += len(order) - len(groups)
    first = [group[0] for group in groups]
    steps = values[first]
    for i, group in enumerate(groups):
        if len(group) > 1:
            steps[i] = values[group].nanmean(0)
    distinct = [times[row] for row in first]
    positions = None if clock is None else grid_positions(distinct, clock)
    length = 0 if not positions else positions[-1] + 1
    if positions is None or length > MAX_GAPS * len(positions):
        problems["irregular" if positions is None else "sparse"] += clock is not None
        return Series(name, steps, first, distinct)
    problems["gaps"] += length - len(positions)
    problems["steps"] += length
    grid = steps.new_full((length, steps.shape[1]), torch.nan)
    grid[positions] = steps
    assert clock is not None
    # The index of the last row at each step, which is that of the step itself without gaps.
    index = torch.zeros(length, dtype=torch.long)
    index[positions] = torch.arange(len(positions))
    last = index.cummax(0).values.tolist()
    by_position = dict(zip(positions, distinct, strict=True))
    filled = [
        by_position.get(i, clock.after(distinct[last[i]], i - positions[last[i]]))
        for i in range(length)
    ]
    return Series(name, grid, [first[i] for i in last], filled)


def column_format(table: Table, name: str, option: str, key: str) -> NumberFormat | OneHot:
    """Return how the cells of a column are read: as numbers, or as categories.

    Args:
        table: The table.
        name: Name of the column.
        option: The option that contains it. Targets must be numbers.
        key: Prefix of the option in error messages.

    Raises:
        UserError: If it is neither a column of numbers nor one of few categories.
    """
    present = [cell for cell in table.column(name, f"{key}{option}") if cell is not None]
    numbers = read_numbers(present)
    if numbers is not None:
        return numbers.format
    example = f", got {str(present[0])[:40]!r}" if present else ", but it is empty"
    where = f"{key}{option}: column {name!r} must contain numbers"
    if option == "target" or not present:
        raise UserError(f"{where}{example}; choose another one")
    # Not a list or a dict, which cannot be counted.
    values = Counter(map(str, present))
    if len(values) > MAX_VALUES:
        raise UserError(
            f"{where}, or at most {MAX_VALUES} different texts, got {len(values):,} such as "
            f"{str(present[0])[:40]!r}; choose another one"
        )
    return OneHot(tuple(sorted(values)))


def _read_categories(
    table: Table, name: str, key: str, form: OneHot, notes: list[str]
) -> list[list[float]]:
    """Return the channels of a column of categories."""
    cells = table.column(name, key)
    missing = [float("nan")] * len(form)
    parsed = [form.parse(cell) for cell in cells]
    unknown = [str(cell)[:20] for cell, row in zip(cells, parsed, strict=True) if row is None]
    if unknown:
        notes.append(
            f"{name}: {count(len(unknown), 'cell')} with a value that the training did not have, "
            f"such as {unknown[0]!r}; these values are missing"
        )
    rows = [missing if row is None else row for row in parsed]
    return [list(channel) for channel in zip(*rows, strict=True)]


def _read_channel(
    table: Table, name: str, key: str, form: NumberFormat, notes: list[str]
) -> list[float]:
    """Return the numbers of a column, NaN where a cell is empty or no number."""
    cells = table.column(name, key)
    parsed = [None if cell is None else form.parse(cell) for cell in cells]
    others = [cell for cell, number in zip(cells, parsed, strict=True) if number is None]
    others = [str(cell)[:20] for cell in others if cell is not None]
    if others and all(number is None for number in parsed):
        raise UserError(
            f"{key}: column {name!r} must contain numbers with the decimal separator "
            f"{form.decimal!r}, as in the training, got {others[0]!r}; correct the table"
        )
    if others:
        notes.append(
            f"{name}: {count(len(others), 'cell')} without a number, such as {others[0]!r}; "
            "these values are missing"
        )
    for i, number in enumerate(parsed):
        if number is not None and abs(number) > MAX_NUMBER:
            raise UserError(
                f"{table.origin(i)}: column {name!r} must contain numbers up to 3e38, got "
                f"{cells[i]!r}; correct the cell"
            )
    return [float("nan") if number is None else number for number in parsed]
