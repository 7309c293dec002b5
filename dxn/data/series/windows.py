"""The layout of a table whose rows are time steps: windows of a history and its future values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.data.rows import VALUES, as_column
from dxn.data.series.clock import Clock
from dxn.data.series.steps import MAX_VALUES, OneHot, Series, check_unused, group_rows, read_series
from dxn.data.tables.read import Layout, Rearranging, Table, one_value_each
from dxn.tokenize.cells.cell_values import NumberFormat

MAX_SIZE = 100_000  # of the options, which can come from an untrusted model folder
MAX_NAMED = 5  # series in a note
NAME_SEPARATOR = ", "  # between the target columns in `Source.target`


class FutureTimes(Sequence[Any]):
    """The times of the steps of a forecast, which are formatted only when they are written.

    Args:
        series: The series.
        start: Index of the first future step.
        horizon: Number of future steps.
        clock: Step after the end of the series.
    """

    def __init__(self, series: Series, start: int, horizon: int, clock: Clock):
        self.series = series
        self.start = start
        self.horizon = horizon
        self.clock = clock

    def __len__(self) -> int:
        return self.horizon

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < self.horizon:
            raise IndexError(index)  # which ends an iteration
        assert self.series.times is not None
        step = self.start + index
        beyond = step - len(self.series) + 1
        if beyond <= 0:
            return self.clock.format(self.series.times[step])
        return self.clock.format(self.clock.after(self.series.times[-1], beyond))


@dataclass(frozen=True)
class Windows(Layout):
    """The rows are time steps of one or several series, which are cut into windows.

    Args:
        target: Columns whose future values are predicted.
        covariates: Further columns of numbers or categories, of which only the past is known.
        time: Column with the time of a row. None: the rows are in the order of time.
        series_id: Column that identifies the series of a row. None: there is one series.
        known: Further columns whose values of the next `horizon` steps are known.
        static: Columns with one value per series, which are further inputs.
        horizon: Number of future steps.
        context: Number of steps of a history.
        season: Season length in steps.
        clock: Step between the rows as plain data. None: not known.
        formats: For each column, the decimal separator and the unit of its numbers, or a mapping
            with the values of its categories, see `OneHot`. None: all columns have numbers, whose
            format is found in each table.
    """

    target: Sequence[str]
    covariates: Sequence[str] = ()
    time: str | None = None
    series_id: str | None = None
    known: Sequence[str] = ()
    static: Sequence[str] = ()
    horizon: int = 1
    context: int = 1
    season: int = 1
    clock: Mapping[str, Any] | None = None
    formats: Sequence[Sequence[str] | Mapping[str, Sequence[str]]] | None = None

    kind = "windows"

    def __post_init__(self) -> None:
        sizes = {"horizon": self.horizon, "context": self.context, "season": self.season}
        for name, size in sizes.items():
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise ValueError(f"windows.{name} must be a positive integer, got {size!r}")
        names = [*self.target, *self.covariates, *self.known, *self.static, *self.ids]
        if not self.target or not all(isinstance(name, str) for name in names):
            raise ValueError(f"windows must name columns, got {names}")
        if len(set(names)) < len(names):
            raise ValueError(f"windows must name each column once, got {names}")
        if self.clock is not None:
            Clock(**self.clock)
        formats = list(self.columns) if self.formats is None else self.formats
        if not isinstance(formats, list | tuple) or len(formats) != len(self.columns):
            raise ValueError(f"windows.formats must have an item per column, got {self.formats!r}")
        one_hot = [name for name, form in self.column_formats.items() if isinstance(form, OneHot)]
        if not set(self.target).isdisjoint(one_hot):
            raise ValueError("windows.formats must not have categories of a target")

    @property
    def ids(self) -> Sequence[str]:
        return [name for name in (self.series_id, self.time) if name is not None]

    @property
    def columns(self) -> dict[str, str]:
        """The option that contains each column of the series, in the order of the channels."""
        options = {"target": self.target, "covariates": self.covariates, "known": self.known}
        return {name: option for option, names in options.items() for name in names}

    @property
    def column_formats(self) -> dict[str, NumberFormat | OneHot | None]:
        """How the cells of each column are read. None: as numbers, as found in the table."""
        if self.formats is None:
            return dict.fromkeys(self.columns)
        return dict(zip(self.columns, map(_parsed_format, self.formats), strict=True))

    @property
    def channels(self) -> dict[str, range]:
        """The channels of each column of the series."""
        channels: dict[str, range] = {}
        end = 0
        for name, form in self.column_formats.items():
            start, end = end, end + (len(form) if isinstance(form, OneHot) else 1)
            channels[name] = range(start, end)
        return channels

    @property
    def num_known(self) -> int:
        """Number of the last channels whose future is known."""
        channels = self.channels
        return sum(len(channels[name]) for name in self.known)

    @property
    def known_clock(self) -> Clock | None:
        """The step between the rows. None: not known."""
        return None if self.clock is None else Clock(**self.clock)

    @property
    def target_name(self) -> str:
        """Name of the column of future values in the new table."""
        return NAME_SEPARATOR.join(self.target)

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return one row per window: all windows with a future, or the end of each series.

        Without `with_target`, the history of a row is the end of a series, and its future is
        predicted. With known columns, the history ends at the last value of a target.
        """
        series = self.read(table, key=use.key, notes=use.notes)
        if not use.with_target:
            ends = [(sequence, [self.end(sequence)]) for sequence in series]
            self._check_histories(table, series, use.notes)
            if self.known:
                for sequence, (end,) in ends:
                    self._check_future(table, sequence, end)
            return self.cut(table, ends, with_target=False)
        shortest = 1 + self.horizon
        long = [sequence for sequence in series if len(sequence) >= shortest]
        if not long:
            raise UserError(
                f"{table.name}: has {max(map(len, series))} time steps, but an evaluation needs a "
                f"history and {self.horizon} later values; add rows, or use dxn predict"
            )
        windows = [(sequence, self.starts(0, len(sequence))) for sequence in long]
        return self.cut(table, windows)

    def read(self, table: Table, *, key: str, notes: list[str]) -> list[Series]:
        """Read the series of a table, see `dxn.data.series.steps.read_series`."""
        return read_series(
            table,
            self.columns,
            time=self.time,
            series_id=self.series_id,
            clock=self.known_clock,
            formats=self.column_formats,
            key=key,
            notes=notes,
        )

    def end(self, series: Series) -> int:
        """Return the first step after the history; with known columns, later rows can follow."""
        if not self.known:
            return len(series)
        present = (~series.values[:, : len(self.target)].isnan()).any(1).nonzero()
        return int(present[-1]) + 1 if len(present) else 0

    def starts(self, begin: int, end: int) -> range:
        """Return the first future steps of all windows whose future is in begin:end.

        A window has a complete history, except at the start of a short series.
        """
        last = end - self.horizon
        first = min(self.context, max(last, 1))
        return range(max(begin, first), last + 1)

    def cut(
        self,
        table: Table,
        windows: Iterable[tuple[Series, Sequence[int]]],
        *,
        with_target: bool = True,
    ) -> Table:
        """Return a table with a row per window.

        Args:
            table: The table of the series.
            windows: Series, and the index of the first future step of each window.
            with_target: Whether the future is known. Windows without any future value are left out.
        """
        from dxn.tasks.forecast.futures import Future  # only tables of series have them

        check_unused([*self.ids, *self.static, self.target_name], VALUES, table)
        clock = self.known_clock or Clock()
        columns: dict[str, list[Any]] = {n: [] for n in (*self.ids, *self.static, VALUES)}
        fixed = {name: static_values(table, name, self.series_id) for name in self.static}
        if with_target:
            columns[self.target_name] = []
        rows: list[int] = []
        for series, starts in windows:
            scales = running_scales(series.values[:, : len(self.target)], self.season)
            for start in starts:
                history = series.values[max(0, start - self.context) : start]
                values = series.values[start : start + self.horizon, : len(self.target)]
                if history.isnan().all() or (with_target and values.isnan().all()):
                    continue
                rows.append(series.rows[start - 1])
                columns[VALUES].append(self._with_known(series, history, start))
                if self.series_id is not None:
                    columns[self.series_id].append(series.name)
                for name, by_series in fixed.items():
                    columns[name].append(by_series[series.name])
                first = last = ""
                if self.time is not None:
                    times = FutureTimes(series, start, self.horizon, clock)
                    columns[self.time].append(times)
                    first, last = str(times[0]), str(times[self.horizon - 1])
                if with_target:
                    future = Future(
                        values,
                        season=self.season,
                        scale=scales[start],
                        names=self.target,
                        start=first,
                        stop=last,
                        time=_number(series, start),
                        end=_number(series, start + len(values) - 1),
                        series=series.name,
                        num_known=self.num_known,
                    )
                    columns[self.target_name].append(future)
        origins = table.origins.take(np.array(rows, np.int64))
        packed = {name: as_column(cells) for name, cells in columns.items()}
        return Table(packed, origins, table.notes, table.path)

    def _with_known(self, series: Series, history: Tensor, start: int) -> Tensor:
        """Return a history with the next steps, in which only the known channels have values."""
        if not self.known:
            return history
        ahead = history.new_full((self.horizon, history.shape[1]), torch.nan)
        future = series.values[start : start + self.horizon, -self.num_known :]
        ahead[: len(future), -self.num_known :] = future
        return torch.cat([history, ahead])

    def _check_histories(self, table: Table, series: Sequence[Series], notes: list[str]) -> None:
        """Note which series have no value before a forecast.

        Raises:
            UserError: If no series has one.
        """
        empty: list[Any] = []
        for sequence in series:
            end = self.end(sequence)
            if bool(sequence.values[max(0, end - self.context) : end].isnan().all()):
                empty.append(sequence.name)
        if not empty:
            return
        if len(empty) == len(series):
            raise UserError(
                f"{table.path or table.name}: has {count(len(table), 'row')}, but the history is "
                f"missing: no row has a value of {self.target_name}, which a forecast continues; "
                "add the rows before the forecast"
            )
        shown = list_names(list(map(str, empty)), MAX_NAMED)
        notes.append(
            f"no forecast of {len(empty)} of {len(series)} series, which have no value: {shown}"
        )

    def _check_future(self, table: Table, series: Series, end: int) -> None:
        """Check that the known columns have a value at each step of the forecast.

        Raises:
            UserError: If a row or a number is missing.
        """
        # A series without any history has no forecast.
        if not end:
            return
        formats, channels = self.column_formats, self.channels
        # A category without a value is one that the training did not have.
        numbers = [name for name in self.known if not isinstance(formats[name], OneHot)]
        for step in range(end, end + self.horizon):
            has_row = step < len(series) and series.rows[step] != series.rows[step - 1]
            if not has_row:
                self._refuse_without_row(table, series, end, step)
            for name in numbers:
                if series.values[step, channels[name]].isnan().any():
                    raise UserError(
                        f"{table.origin(series.rows[step])}: no value in column {name!r}, which "
                        f"must be known for the {self.horizon} steps of a forecast; fill the cell"
                    )

    def _refuse_without_row(self, table: Table, series: Series, end: int, step: int) -> None:
        names = ", ".join(self.known)
        where = "" if self.series_id is None else f" of series {series.name!r}"
        if self.time is not None:
            times = FutureTimes(series, end, self.horizon, self.known_clock or Clock())
            where += f" at {times[step - end]}"
        raise UserError(
            f"{table.path or table.name}: no row{where}; a forecast needs {names} of the "
            f"{self.horizon} steps after the last value of {self.target_name}: add rows for these "
            f"steps, and leave {self.target_name} empty there"
        )

    def options(self) -> dict[str, Any]:
        # The step between the rows and the formats are not options: they are found in the table.
        node = self.node()[self.kind]
        return {name: node[name] for name in node if name not in ("clock", "formats")}


def _number(series: Series, step: int) -> float:
    return step if series.times is None else series.times[step]


def static_values(table: Table, column: str, series_id: str | None) -> dict[Any, Any]:
    """Return the only value of a column in each series; None where all cells are empty.

    Raises:
        UserError: If a series has several values.
    """
    cells = table.column(column, "data.static")
    groups = group_rows(table, series_id, "data.")
    values, differing = one_value_each(cells, groups.values())
    if differing is not None:
        first, other = differing
        raise UserError(
            f"{table.origin(other)}: column {column!r} has {str(cells[other])[:40]!r}, but "
            f"{table.origin(first)}, which belongs to the same series, has "
            f"{str(cells[first])[:40]!r}; a column of data.static must have one value per series"
        )
    return dict(zip(groups, values, strict=True))


def _parsed_format(form: Any) -> NumberFormat | OneHot:
    """Return a format, which can come from an untrusted model folder.

    Raises:
        ValueError: If it is not valid.
    """
    if isinstance(form, Mapping) and list(form) == ["values"]:
        values = form["values"]
        is_listed = isinstance(values, list | tuple) and 0 < len(values) <= MAX_VALUES
        if is_listed and all(isinstance(value, str) for value in values):
            return OneHot(tuple(values))
    if isinstance(form, list | tuple) and len(form) == 2:
        decimal, unit = form
        if decimal in (".", ",") and isinstance(unit, str):
            return NumberFormat(decimal, unit)
    raise ValueError(
        "windows.formats must have a decimal separator and a unit, or the values of its "
        f"categories, for each column, got {form!r}"
    )


def running_scales(values: Tensor, season: int) -> Tensor:
    """Return the scale of MASE of every history, see `dxn.tasks.forecast.futures.seasonal_scale`.

    Args:
        values: Values (T, K). NaN is missing.
        season: Season length in steps.

    Returns:
        Scales (T + 1, K), float32. Item t is the scale of the history values[:t]. NaN: none.
    """
    seasonal = _running_mean(values, season)
    scales = torch.where(seasonal.isnan(), _running_mean(values, 1), seasonal)
    return torch.where(scales > 0, scales, torch.nan).float()


def _running_mean(values: Tensor, lag: int) -> Tensor:
    """Return the mean absolute difference at a lag of every history (T + 1, K)."""
    difference = (values[lag:] - values[:-lag]).double().abs()
    valid = ~difference.isnan()
    sums = difference.nan_to_num().cumsum(0) / valid.cumsum(0)
    empty = sums.new_full((len(values) + 1 - len(sums), values.shape[1]), torch.nan)
    return torch.cat([empty, sums])
