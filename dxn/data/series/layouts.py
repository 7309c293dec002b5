"""How a table is rearranged before its columns are chosen, for example into one series per row.

A layout is a small frozen dataclass. `apply` converts a `Table` into another `Table`, in which one
cell of the new column `values` holds a whole series; all later code sees an ordinary table. A data
source sets `Source.layout` to `Layout.node()`. The model folder stores it with the key `layout` in
config.yaml, `Predictor.layout` is the layout again, and `rows_of_table(..., layout=...)` applies it
to new tables, so that predict and evaluate rearrange them as the training did. A node is plain data
with one key, the kind, as in `{"wide": "t_*"}`. `layout_of` checks a node, which can come from a
stranger's model folder. A new kind of layout needs a subclass of `Layout` and a line in LAYOUTS.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import Any

import numpy as np

from dxn.core.errors import UserError, did_you_mean
from dxn.data.columns.chats import Chats
from dxn.data.columns.object_rows import ObjectRows
from dxn.data.columns.sentences import Sentences
from dxn.data.rows import VALUES, as_column
from dxn.data.series.steps import check_unused
from dxn.data.series.windows import Windows
from dxn.data.tables.read import (
    Layout,
    Rearranging,
    Table,
    as_list,
    differing_values,
    one_value_each,
)
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

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return a table with one row per id, in the order in which the ids occur.

        Other columns are kept if they have one value per id, such as a label.
        """
        from dxn.data.series.clock import parse_times  # few tables are series

        assert self.id is not None
        names = [str(name) for name in as_list(self.values)]
        # Lists, because cells are used in another order than that of the table.
        channels = [list(table.column(name, f"{use.key}long.values")) for name in names]
        ids = table.column(self.id, f"{use.key}long.id")
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
                    f"got a {type(value).__name__}; choose another column as {use.key}long.id"
                )
            groups.setdefault(value, []).append(i)
        times = None
        if self.time is not None:
            column = table.column(self.time, f"{use.key}long.time")
            times, _ = parse_times(column, table.origin, self.time)
        cells: list[Any] = []
        for series, rows in groups.items():
            steps = self._steps(table, rows, times, channels, f"{use.key}long.step", str(series))
            cells.append(series_cell(steps))
        first = [rows[0] for rows in groups.values()]
        columns = self._constant_columns(table, groups, use)
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
        self, table: Table, groups: Mapping[Any, Sequence[int]], use: Rearranging
    ) -> dict[str, list]:
        """Return the other columns that have one value per series."""
        assert self.id is not None
        columns: dict[str, list] = {}
        varying: list[str] = []
        for name, column in table.columns.items():
            if name in (self.id, self.time, *as_list(self.values)):
                continue
            values = list(column)
            cells, differing = one_value_each(values, groups.values())
            if differing is None:
                columns[name] = cells
            elif name in use.required:
                raise differing_values(table, name, differing, self.id)
            else:
                varying.append(name)
        if varying:
            use.notes.append(
                f"not used: {', '.join(varying)} (several values per {self.id}; add the column to "
                "data.long.values to make it a channel)"
            )
        return columns


def _bin_index(time: float, start: float, step: float) -> int:
    """Return the index of the bin that contains a time, for bins of `step` from `start` on."""
    # Seconds since year 1 with a fraction are rounded by far more than small numbers.
    rounding = max(ROUNDING, 2 * math.ulp(time) / step)
    return math.floor((time - start) / step + rounding)


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


WILDCARDS = "*?["


@dataclass(frozen=True)
class Wide(Layout):
    """One row is one series, whose time steps are columns of the table.

    Args:
        columns: Columns of the series in the order of time: a list of names, or a pattern such as
            "t_*". For several channels, a mapping from the name of a channel to its columns.
    """

    columns: WideColumns

    kind = "wide"

    def __post_init__(self) -> None:
        groups = self.columns.values() if isinstance(self.columns, Mapping) else [self.columns]
        names = [name for group in groups for name in as_list(group)]
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                "must be a pattern such as 't_*', a list of columns, or a mapping from channels "
                f"to columns, got {self.columns!r}"
            )

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return the table with the column `values`: a list per row, or a list of lists (T, C)."""
        is_joint = isinstance(self.columns, Mapping)
        groups = self.columns if isinstance(self.columns, Mapping) else {VALUES: self.columns}
        names = {
            channel: _matching_columns(table, columns, f"{use.key}wide", excluded=use.required)
            for channel, columns in groups.items()
        }
        lengths = {channel: len(columns) for channel, columns in names.items()}
        if len(set(lengths.values())) > 1:
            raise UserError(
                f"{use.key}wide: every channel must have the same number of columns, got {lengths}"
            )
        used = {name for columns in names.values() for name in columns}
        columns = {name: values for name, values in table.columns.items() if name not in used}
        check_unused(columns, VALUES, table)
        channels = []
        for group in names.values():
            channels.append(list(zip(*(table.columns[name] for name in group), strict=True)))
        rows = channels[0] if not is_joint else list(zip(*channels, strict=True))
        cells: list[Any] = []
        for row in rows:
            # Rows of a mapping are (C, T), and a cell is (T, C).
            steps = [list(step) for step in zip(*row, strict=True)] if is_joint else list(row)
            cells.append(series_cell(steps))
        shape = f"{len(names)} channels of " if len(names) > 1 else ""
        first = next(iter(names.values()))
        use.notes.append(
            f"values: {shape}{len(first)} columns of each row, {first[0]} to {first[-1]}"
        )
        columns[VALUES] = as_column(cells)
        return Table(columns, table.origins, table.notes, table.path)


def _matching_columns(
    table: Table, columns: str | Sequence[str], key: str, *, excluded: Collection[str] = ()
) -> list[str]:
    """Return the columns of a table that names and patterns select.

    Columns of a pattern that differ only in numbers are sorted by these numbers, so t_2 comes
    before t_10. Other columns of a pattern have the order of the table.

    Args:
        table: The table.
        columns: A name or a pattern with the wildcards * and ?, or a list of them.
        key: Option that contains them, for error messages.
        excluded: Columns that a pattern never selects.

    Raises:
        UserError: If a name or a pattern matches no column.
    """
    selected: dict[str, None] = {}
    for name in as_list(columns):
        if name in table.columns or not any(character in name for character in WILDCARDS):
            table.column(name, key)
            selected[name] = None
            continue
        matches = [c for c in table.columns if fnmatch.fnmatchcase(c, name) and c not in excluded]
        if not matches:
            hint = did_you_mean(name.strip(WILDCARDS), table.columns)
            raise UserError(
                f"{key}: no column of {table.name} matches {name!r}; its columns are "
                f"{', '.join(table.columns)}{hint}"
            )
        selected |= dict.fromkeys(_in_order(matches))
    return list(selected)


def _in_order(names: Sequence[str]) -> list[str]:
    numbers = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
    texts = {re.sub(r"\d+", "#", name) for name in names}
    # 400.25 and 400.5 are numbers with a fraction if they are in the order of these.
    decimals = [tuple(map(float, re.findall(r"\d+(?:\.\d+)?", name))) for name in names]
    if len(texts) > 1 or decimals == sorted(decimals):
        return list(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True))]


LAYOUTS: dict[str, type[Layout]] = {
    "wide": Wide,
    "long": Long,
    "windows": Windows,
    "sentence": Sentences,
    "chat": Chats,
    "objects": ObjectRows,
}


def chosen_layout(wide: WideColumns | None, long: Long) -> Layout | None:
    """Return the layout that the options of a data source describe; None if there is none.

    Raises:
        UserError: If both options are set, or `wide` is not valid.
    """
    if wide is None:
        return long if long.id is not None else None
    if long.id is not None:
        raise UserError("data.wide: cannot be combined with data.long; remove one of them")
    try:
        return Wide(wide)
    except ValueError as error:
        raise UserError(f"data.wide: {error}") from error


def layout_of(node: Any) -> Layout:
    """Create the layout of a node, see `Layout.node`.

    Raises:
        ValueError: If the node is not valid.
    """
    if not isinstance(node, Mapping) or len(node) != 1:
        raise ValueError(f"layout must have one key, one of {', '.join(LAYOUTS)}, got {node!r}")
    (kind, value), *_ = node.items()
    if kind not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {kind!r}")
    layout: Any = LAYOUTS[kind]
    names = [field.name for field in fields(layout)]
    try:
        if names == ["columns"]:
            return layout(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"{kind} must be a mapping with {', '.join(names)}, got {value!r}")
        return layout(**value)
    except TypeError as error:  # an unknown argument, or a value of a wrong type
        raise ValueError(f"layout.{kind}: {error}") from None
