"""The layout of a table whose rows are time steps: windows of a history and its future values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.data.rows import VALUES, as_column
from dxn.data.series.clock import Clock
from dxn.data.series.layout_columns import check_unused
from dxn.data.series.steps import Series, read_series
from dxn.data.tables.read import Table
from dxn.tokenize.cells.numbers import NumberFormat

MAX_SIZE = 100_000  # of the options, which can come from an untrusted model folder
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
class Windows:
    """The rows are time steps of one or several series, which are cut into windows.

    Args:
        target: Columns whose future values are predicted.
        covariates: Further columns of numbers, of which only the past is known.
        time: Column with the time of a row. None: the rows are in the order of time.
        series_id: Column that identifies the series of a row. None: there is one series.
        horizon: Number of future steps.
        context: Number of steps of a history.
        season: Season length in steps.
        clock: Step between the rows as plain data. None: not known.
        formats: Decimal separator and unit of the numbers of each channel. None: found in each
            table.
    """

    target: Sequence[str]
    covariates: Sequence[str] = ()
    time: str | None = None
    series_id: str | None = None
    horizon: int = 1
    context: int = 1
    season: int = 1
    clock: Mapping[str, Any] | None = None
    formats: Sequence[Sequence[str]] | None = None

    kind = "windows"
    added = (VALUES,)

    def __post_init__(self) -> None:
        for name in ("horizon", "context", "season"):
            size = getattr(self, name)
            if type(size) is not int or not 1 <= size <= MAX_SIZE:
                raise ValueError(f"windows.{name} must be a positive integer, got {size!r}")
        names = [*self.target, *self.covariates, *self.ids]
        if not self.target or not all(isinstance(name, str) for name in names):
            raise ValueError(f"windows must name columns, got {names}")
        if self.clock is not None:
            Clock.from_node(self.clock)
        if self.formats is not None:
            _check_formats(self.formats, len(self.target) + len(self.covariates))

    @property
    def ids(self) -> Sequence[str]:
        return [name for name in (self.series_id, self.time) if name is not None]

    @property
    def target_name(self) -> str:
        """Name of the column of future values in the new table."""
        return NAME_SEPARATOR.join(self.target)

    def apply(
        self,
        table: Table,
        *,
        key: str = "data.",
        required: Collection[str] = (),
        with_target: bool = True,
        notes: list[str] | None = None,
    ) -> Table:
        """Return one row per window: all windows with a future, or the end of each series.

        Without `with_target`, the history of a row is the end of a series, and its future is
        predicted.
        """
        clock = None if self.clock is None else Clock.from_node(self.clock)
        series = self.read(table, clock, key=key, notes=[] if notes is None else notes)
        if not with_target:
            return self.cut(table, [(one, [len(one)]) for one in series], with_target=False)
        shortest = 1 + self.horizon
        long = [one for one in series if len(one) >= shortest]
        if not long:
            raise UserError(
                f"{table.name}: has {max(map(len, series))} time steps, but an evaluation needs a "
                f"history and {self.horizon} later values; add rows, or use dxn predict"
            )
        windows = [(one, self.starts(one, 0, len(one))) for one in long]
        return self.cut(table, windows)

    def read(
        self, table: Table, clock: Clock | None, *, key: str, notes: list[str]
    ) -> list[Series]:
        """Read the series of a table, see `dxn.data.series.steps.read_series`."""
        return read_series(
            table,
            [*self.target, *self.covariates],
            num_targets=len(self.target),
            time=self.time,
            series_id=self.series_id,
            clock=clock,
            formats=None if self.formats is None else [NumberFormat(*f) for f in self.formats],
            key=key,
            notes=notes,
        )

    def starts(self, series: Series, begin: int, end: int) -> range:
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

        check_unused([*self.ids, self.target_name], VALUES, table)
        clock = Clock() if self.clock is None else Clock.from_node(self.clock)
        columns: dict[str, list[Any]] = {name: [] for name in (*self.ids, VALUES)}
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
                columns[VALUES].append(history)
                if self.series_id is not None:
                    columns[self.series_id].append(series.name)
                label = ""
                if self.time is not None:
                    times = FutureTimes(series, start, self.horizon, clock)
                    columns[self.time].append(times)
                    label = str(times[0])
                if with_target:
                    future = Future(
                        values,
                        season=self.season,
                        scale=scales[start],
                        names=self.target,
                        start=label,
                    )
                    columns[self.target_name].append(future)
        origins = table.origins.take(np.array(rows, np.int64))
        packed = {name: as_column(cells) for name, cells in columns.items()}
        return Table(packed, origins, table.notes, table.path)

    def node(self) -> dict[str, Any]:
        return {self.kind: {name: v for name, v in asdict(self).items() if v is not None}}

    def options(self) -> dict[str, Any]:
        # The step between the rows and the formats are not options: they are found in the table.
        node = self.node()[self.kind]
        return {name: node[name] for name in node if name not in ("clock", "formats")}

    @classmethod
    def from_option(cls, value: Any) -> Windows:
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping with target and horizon, got {value!r}")
        return cls(**value)


def _check_formats(formats: Any, num_channels: int) -> None:
    pairs = formats if isinstance(formats, list | tuple) else []
    is_valid = len(pairs) == num_channels and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and pair[0] in (".", ",")
        and isinstance(pair[1], str)
        for pair in pairs
    )
    if not is_valid:
        raise ValueError(
            "windows.formats must have a decimal separator and a unit for each channel, "
            f"got {formats!r}"
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
