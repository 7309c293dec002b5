"""The layout of a table in which one row is a time step, and a column says of which series."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.rows import VALUES, as_column
from dxn.data.tables.read import Layout, Table, as_list
from dxn.tokenize.series.values import from_list, number_of

# Columns of the time steps of one series per row: those of each channel, or of the only channel.
WideColumns = str | Sequence[str] | Mapping[str, str | Sequence[str]]
# Time steps of a resampled series. A typing error in the step would otherwise need all memory.
MAX_STEPS = 1_000_000
# A time that is a tiny fraction of a step before its bin, by rounding, belongs to the bin.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Long(Layout):
    """Several rows are one series: each row is a time step, and a column says to which series.

    Args:
        id: Column that identifies the series of a row.
        time: Column with the time of a row: numbers, or dates such as 2026-01-31 12:00. Rows are
            sorted by it. Default: the rows are in the order of time.
        values: Column or list of columns with the measured values, one per channel.
        step: Duration of a time step of a regular grid, in the unit of the time column, or in
            seconds for dates. Each step gets the mean of its values; a step without values is
            missing. Default: one time step per row.
    """

    id: str | None = None
    time: str | None = None
    values: str | Sequence[str] | None = None
    step: float | None = None

    kind = "long"

    def __post_init__(self) -> None:
        for name in (self.id, self.time):
            if not isinstance(name, str | None):
                raise ValueError(f"id and time must be names of columns, got {name!r}")
        if self.id is None and (self.values or self.time or self.step is not None):
            raise ValueError("id must be set to the column that identifies a series")
        if self.id is not None and not as_list(self.values):
            raise ValueError("values must be set to the columns of the measured values")
        if self.step is not None and (self.time is None or not 0 < self.step < float("inf")):
            raise ValueError(
                f"step must be above 0 and needs time, got {self.step} and time={self.time}"
            )

    @property
    def ids(self) -> Sequence[str]:
        return [] if self.id is None else [self.id]

    def apply(
        self,
        table: Table,
        *,
        key: str = "data.",
        required: Collection[str] = (),
        with_target: bool = True,
        notes: list[str] | None = None,
    ) -> Table:
        """Return a table with one row per id, in the order in which the ids occur.

        Other columns are kept if they have one value per id, such as a label.
        """
        from dxn.data.series.clock import parse_times  # few tables are series

        assert self.id is not None
        names = [str(name) for name in as_list(self.values)]
        # Lists, because cells are used in another order than that of the table.
        channels = [list(table.column(name, f"{key}long.values")) for name in names]
        ids = table.column(self.id, f"{key}long.id")
        groups: dict[Any, list[int]] = {}
        for i, value in enumerate(ids):
            if value is None:
                raise UserError(
                    f"{table.origin(i)}: no value in column {self.id!r}, which says to which "
                    "series the row belongs"
                )
            if isinstance(value, list | dict):
                raise UserError(
                    f"{table.origin(i)}: column {self.id!r} must have one text or number per row, "
                    f"got a {type(value).__name__}; choose another column as {key}long.id"
                )
            groups.setdefault(value, []).append(i)
        times = None
        if self.time is not None:
            column = table.column(self.time, f"{key}long.time")
            times = parse_times(column, table.origin, self.time).values
        cells: list[Any] = []
        for series, rows in groups.items():
            steps = self._steps(table, rows, times, channels, f"{key}long.step", str(series))
            cells.append(series_cell(steps))
        first = [rows[0] for rows in groups.values()]
        columns = self._constant_columns(table, [*names, self.time], groups, required, notes)
        check_unused(columns, VALUES, table)
        new = {self.id: list(groups), **columns, VALUES: cells}
        packed = {name: as_column(values) for name, values in new.items()}
        origins = table.origins.take(np.array(first, np.int64))
        return Table(packed, origins, table.notes, table.path)

    def _steps(
        self,
        table: Table,
        rows: Sequence[int],
        times: Sequence[float] | None,
        channels: Sequence[Sequence[Any]],
        key: str,
        series: str,
    ) -> list[list[Any]]:
        """Return the time steps (T, C) of one series, None where a value is missing."""
        if times is None:
            return [[values[i] for values in channels] for i in rows]
        order = sorted(rows, key=times.__getitem__)
        if self.step is None:
            for before, after in pairwise(order):
                if times[before] == times[after]:
                    raise UserError(
                        f"{table.origin(after)}: {series!r} has a second row with the same time "
                        f"in column {self.time!r}; remove it, or set {key}, which averages them"
                    )
            return [[values[i] for values in channels] for i in order]
        start = times[order[0]]
        num_steps = (times[order[-1]] - start) / self.step + 1
        if num_steps > MAX_STEPS:  # before the bins are computed: it can be infinite
            raise UserError(
                f"{key}: {series!r} would have {num_steps:,.0f} time steps, more than "
                f"{MAX_STEPS:,}; choose a longer step than {self.step:g}"
            )
        index = [_bin_index(times[i], start, self.step) for i in order]
        sums = [[0.0] * len(channels) for _ in range(index[-1] + 1)]
        counts = [[0] * len(channels) for _ in sums]
        for i, step in zip(order, index, strict=True):
            for channel, values in enumerate(channels):
                try:
                    number = number_of(values[i])
                except ValueError as error:
                    raise UserError(f"{table.origin(i)}: {error}; correct the table") from None
                if not math.isnan(number):
                    sums[step][channel] += number
                    counts[step][channel] += 1
        return [
            [total / n if n else None for total, n in zip(row, number, strict=True)]
            for row, number in zip(sums, counts, strict=True)
        ]

    def _constant_columns(
        self,
        table: Table,
        used: Sequence[str | None],
        groups: Mapping[Any, Sequence[int]],
        required: Collection[str],
        notes: list[str] | None,
    ) -> dict[str, list]:
        """Return the other columns that have one value per series."""
        columns: dict[str, list] = {}
        varying: list[str] = []
        for name, column in table.columns.items():
            if name in used or name == self.id:
                continue
            values = list(column)
            cells: list[Any] = []
            for series, rows in groups.items():
                present = [i for i in rows if values[i] is not None]
                other = [i for i in present if values[i] != values[present[0]]]
                if other and name in required:
                    raise UserError(
                        f"{table.origin(other[0])}: column {name!r} must have one value per "
                        f"series, got {values[present[0]]!r} and {values[other[0]]!r} for "
                        f"{series!r}; correct the table"
                    )
                if other:
                    varying.append(name)
                    break
                cells.append(values[present[0]] if present else None)
            else:
                columns[name] = cells
        if varying and notes is not None:
            notes.append(
                f"not used: {', '.join(varying)} (several values per {self.id}; add the column to "
                "data.long.values to make it a channel)"
            )
        return columns


def _bin_index(time: float, start: float, step: float) -> int:
    """Return the index of the bin that contains a time, for bins of `step` from `start` on."""
    # Seconds since year 1 with a fraction are rounded by far more than small numbers.
    rounding = max(ROUNDING, 2 * math.ulp(time) / step)
    return math.floor((time - start) / step + rounding)


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


def series_cell(steps: Sequence[Any]) -> np.ndarray | list | None:
    """Return the cell of a series.

    Args:
        steps: Cells of the T time steps, or lists of the cells of C channels; None where a value is
            missing.

    Returns:
        An array (T,) or (T, C), float64, with NaN for missing values. None if all of them are
        missing. A list if a cell is not a number, so that it is reported as a bad cell of this row.
    """
    cells = chain.from_iterable(s if isinstance(s, list | tuple) else [s] for s in steps)
    has_texts = any(isinstance(cell, str) for cell in cells)
    try:
        # NumPy would read the text "1_000" as a number.
        values = from_list(list(steps)) if has_texts else np.array(steps, dtype=np.float64)
    except (TypeError, ValueError):
        return list(steps)
    return None if np.isnan(values).all() else values
