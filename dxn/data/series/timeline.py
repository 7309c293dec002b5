"""The data source of a table whose rows are time steps, to forecast its next values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.columns.choose import Readers, name_inputs, to_rows
from dxn.data.columns.infer import infer_columns
from dxn.data.columns.steps import TIME_NAMES, find_series_id
from dxn.data.formats import SPLITS
from dxn.data.rows import VALUES, Source
from dxn.data.series.clock import Clock, find_clock, find_season, parse_times
from dxn.data.series.stamps import looks_like_times, unix_style
from dxn.data.series.steps import OneHot, Series, column_format, group_rows, series_modality
from dxn.data.series.windows import Windows
from dxn.data.splits.split import FRACTIONS, UNDIVIDED, check_fractions
from dxn.data.tables.read import Table, as_list, concatenate, read_table
from dxn.tokenize.cells.cell_values import read_numbers

MOST_TIMES = 0.9  # share of the cells of a time column that are times
# Defaults without a season, and the default context in seasons.
USUAL_HORIZON = 10
CONTEXT_SEASONS = 3
CONTEXT_HORIZONS = 3
# Windows of a validation or test split. More of them take long and tell little more.
MAX_WINDOWS = 2000


@dataclass(frozen=True)
class ForecastOptions:
    """The columns of a table whose rows are time steps, and its windows, see `timeline`.

    Raises:
        UserError: If a number is out of range.
    """

    target: str | Sequence[str] | None = None
    time: str | None = None
    series_id: str | None = None
    covariates: str | Sequence[str] | None = None
    known: str | Sequence[str] = ()
    static: str | Sequence[str] = ()
    horizon: int | None = None
    context: int | None = None
    season: int | None = None
    stride: int = 1
    fractions: Sequence[float] | None = FRACTIONS

    def __post_init__(self) -> None:
        for name in ("horizon", "context", "season", "stride"):
            value = vars(self)[name]
            if value is not None and value < 1:
                raise UserError(f"data.{name}: must be at least 1, got {value}")
        if self.fractions is not None:
            check_fractions(self.fractions)


def timeline(
    path: str | Sequence[str],
    *,
    readers: Readers,
    target: str | Sequence[str] | None = None,
    time: str | None = None,
    series_id: str | None = None,
    covariates: str | Sequence[str] | None = None,
    known: str | Sequence[str] = (),
    static: str | Sequence[str] = (),
    horizon: int | None = None,
    context: int | None = None,
    season: int | None = None,
    stride: int = 1,
    fractions: Sequence[float] | None = FRACTIONS,
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
) -> Source:
    """Read a table whose rows are time steps, and cut it into windows to forecast.

    The input of a sample is a window of `context` steps, and its target the next `horizon` values.
    The splits follow the time: the last steps of each series are its test part, those before are
    its validation part. The target of a window never overlaps another part.

    Args:
        path: Table, or list of tables with the same columns.
        readers: Readers in use, by modality. The caller sets this argument.
        target: Column or list of columns whose next values are predicted. Default: the only column
            of numbers.
        time: Column with the time of a row: dates, or numbers such as years. Rows are sorted by it.
            Default: a column of dates, or of numbers with a name such as year; otherwise the rows
            are in the order of time.
        series_id: Column that identifies the series of a row, if the table has several.
        covariates: Further columns of numbers or categories that the model reads. Only their past
            is known. Default: all other columns of numbers; an empty list: none.
        known: Columns of numbers or categories whose future is known, such as holidays, prices or
            plans. The model also reads their values of the next `horizon` steps.
        static: Columns with one value per series, such as its category or a text. They are further
            inputs.
        horizon: Number of future steps to predict. Default: one season, or 10 steps, but at most a
            fifth of the longest series.
        context: Number of past steps that the model reads. Default: three seasons, or three times
            the horizon if that is longer, but at most half of the training part, and less if few
            windows would be left.
        season: Season length in steps. Default: from the step between the rows, such as 12 for
            months, otherwise from the autocorrelation of the values.
        stride: Number of steps between the starts of training windows.
        fractions: Fractions of the time steps of the training, validation and test part. Null: the
            steps are not divided.
        sep: Separator of CSV cells. Default: detected from the header.
        encoding: Encoding of text files, such as cp1252. Default: UTF-8, or UTF-16 if the file
            starts with a byte order mark.
        sheet: Name of the sheet of an Excel file. Default: the first sheet with a table.

    Raises:
        UserError: If the table cannot be read, a column does not exist or has no numbers or times,
            or the series are too short.
    """
    options = ForecastOptions(
        stride=stride,
        fractions=fractions,
        target=target,
        time=time,
        series_id=series_id,
        covariates=covariates,
        known=known,
        static=static,
        horizon=horizon,
        context=context,
        season=season,
    )
    tables = [
        read_table(Path(file), sep=sep, encoding=encoding, sheet=sheet) for file in as_list(path)
    ]
    return forecast_source(concatenate(tables), readers, options)


def forecast_source(table: Table, readers: Readers, options: ForecastOptions) -> Source:
    """Cut a table whose rows are time steps into windows to forecast, see `timeline`."""
    modality = series_modality(readers)
    notes = list(table.notes)
    windows, series = find_windows(table, options, notes)
    parts = _parts(table, windows, series, options, notes)
    by_modality = {modality: [VALUES]}
    if windows.static:
        first = next(iter(parts.values()))
        infer_columns(first, windows.static, readers, by_modality, [], (), notes)
        if unread := set(windows.static).difference(*by_modality.values()):
            raise UserError(
                f"data.static: no adapter in use reads column {min(unread)!r}, or all series have "
                "the same value; remove it, or add an adapter"
            )
    inputs = name_inputs(by_modality)
    splits = {}
    for name, part in parts.items():
        rows = to_rows(part, inputs, [windows.target_name], readers)
        splits[name] = replace(rows, ids={i: part.columns[i] for i in windows.ids})
    return Source(
        splits,
        inputs,
        target=windows.target_name,
        task="forecast",
        notes=notes,
        layout=windows.node(),
    )


def find_windows(
    table: Table, options: ForecastOptions, notes: list[str]
) -> tuple[Windows, list[Series]]:
    """Return the layout of a table whose rows are time steps, and its series.

    Args:
        table: The table.
        options: The columns and sizes that the user chose.
        notes: Sentences about the choices are appended to this list.

    Raises:
        UserError: See `timeline`.
    """
    if not len(table):
        raise UserError(f"{table.path or table.name}: the table has no rows; choose another one")
    windows = _choose_columns(table, options, notes)
    clock = _find_clock(table, windows, notes)
    windows = replace(
        windows,
        clock=None if clock is None else asdict(clock),
        formats=_find_formats(table, windows, notes),
    )
    series = windows.read(table, key="data.", notes=notes)
    if windows.known:
        # Later rows, of which only the known columns have values, are nothing to learn from.
        series = [sequence.until(windows.end(sequence)) for sequence in series]
    windows = _choose_sizes(windows, series, clock, options, notes)
    return windows, series


def _choose_columns(table: Table, options: ForecastOptions, notes: list[str]) -> Windows:
    """Choose the columns of the series, as `Windows` without sizes."""
    time, series_id = options.time, options.series_id
    targets, ahead, fixed = (
        list(dict.fromkeys(map(str, as_list(names))))
        for names in (options.target, options.known, options.static)
    )
    for name, key in ((time, "time"), (series_id, "series_id")):
        if name is not None:
            table.column(name, f"data.{key}")
            if name in targets:
                raise UserError(
                    f"data.{key}: column {name!r} is also the target; choose another one"
                )
    for name in targets:
        table.column(name, "data.target")
    if time is None:
        time = _time_column(table, {*targets, *ahead, *fixed, series_id})
        if time is None:
            notes.append("no time column: the rows are read in the order of the table")
    if fixed and series_id is None:
        raise UserError(
            "data.static: needs data.series_id; with a single series, a column that never changes "
            "says nothing"
        )
    used = {*targets, *ahead, *fixed, time, series_id}
    numbers = [
        name
        for name, cells in table.columns.items()
        if name not in used and read_numbers([c for c in cells if c is not None]) is not None
    ]
    if not targets:
        if len(numbers) != 1:
            names = ", ".join(numbers) or "none"
            raise UserError(
                f"data.target: set it to the column to forecast; the columns of numbers are {names}"
            )
        targets, numbers = numbers, []
    past = numbers if options.covariates is None else map(str, as_list(options.covariates))
    # A column of covariates whose future is known is no column of which only the past is known.
    past = [name for name in dict.fromkeys(past) if name not in ahead]
    taken = {*targets, time, series_id}
    for key, names in (("covariates", past), ("known", ahead), ("static", fixed)):
        for name in names:
            table.column(name, f"data.{key}")
            if name in taken:
                raise UserError(
                    f"data.{key}: column {name!r} is already the target, the time, the id of the "
                    "series or in another option; remove it"
                )
        taken.update(names)
    unused = [name for name in table.columns if name not in taken]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    return Windows(targets, past, time, series_id, known=ahead, static=fixed)


def _time_column(table: Table, used: set[str | None]) -> str | None:
    """Return a column of dates, or of distinct numbers with the name of a time."""
    names = [name for name in table.columns if name not in used]
    by_name = [name for name in names if name.strip().lower() in TIME_NAMES.split()]
    for name in [*by_name, *names]:
        if looks_like_times(table.columns[name], column=name):
            return name
    for name in [*by_name, *names]:
        cells = table.columns[name]
        present = [cell for cell in cells if cell is not None]
        numbers = read_numbers(present) if len(present) >= MOST_TIMES * len(cells) else None
        if numbers is not None and (name in by_name or unix_style(numbers.values, name)):
            return name
    # A few cells that are no times get an error, instead of a table in the order of its rows.
    return next((n for n in by_name if looks_like_times(table.columns[n], MOST_TIMES)), None)


def _find_formats(
    table: Table, windows: Windows, notes: list[str]
) -> list[list[str] | dict[str, list[str]]]:
    """Find out how the cells of each column are read. New tables are read in the same way."""
    result: list[list[str] | dict[str, list[str]]] = []
    for name, option in windows.columns.items():
        form = column_format(table, name, option, "data.")
        if isinstance(form, OneHot):
            notes.append(f"{name}: {count(len(form), 'different value')}, one channel each")
            result.append({"values": list(form.values)})
        else:
            result.append([form.decimal, form.unit])
    return result


def _find_clock(table: Table, windows: Windows, notes: list[str]) -> Clock | None:
    """Find the step between the rows; None without a time column."""
    if windows.time is None:
        return None
    column = table.column(windows.time, "data.time")
    numbers = read_numbers(column) if None not in column else None
    style = "" if numbers is None else unix_style(numbers.values, windows.time)
    times, written = parse_times(column, table.origin, windows.time, style=style)
    groups = group_rows(table, windows.series_id, "data.")
    ordered = [sorted({times[row] for row in rows}) for rows in groups.values()]
    clock = find_clock(written, ordered)
    if sum(map(len, ordered)) < len(table) / 2:
        used = {windows.time, *windows.target, *windows.ids}
        found = find_series_id(table, windows.time, [n for n in table.columns if n not in used])
        hint = "data.series_id to the column that tells them apart"
        if found is not None and windows.series_id is None:
            hint = f"data.series_id={found}, which tells them apart"
        of_series = "" if windows.series_id is None else f" and {windows.series_id!r}"
        raise UserError(
            f"data.time: most rows have the same value of {windows.time!r}{of_series} as another "
            f"row; if the table has several series, set {hint}; if other columns have the rest of "
            "the time, such as the month, write the whole time into one column; otherwise, write "
            "one row per time, such as the sum of its rows"
        )
    notes.append(f"time: {windows.time}, one row per {clock}")
    return clock


def _choose_sizes(
    windows: Windows,
    series: Sequence[Series],
    clock: Clock | None,
    options: ForecastOptions,
    notes: list[str],
) -> Windows:
    """Choose the season, the horizon and the context, and say why."""
    horizon, context, season = options.horizon, options.context, options.season
    fractions = options.fractions
    longest = max(series, key=len)
    train = 1.0 if fractions is None else fractions[0]
    reason = "data.season"
    if season is None:
        # The validation and the test part must not take part in any choice.
        values = longest.values[: max(1, round(train * len(longest))), 0].numpy()
        season, reason = find_season(values, clock)
    if horizon is None:
        horizon = season if season > 1 else USUAL_HORIZON
        # Each part needs at least one horizon, and the training part needs most of the steps.
        horizon = max(1, min(horizon, len(longest) // 5))
    usual = max(CONTEXT_SEASONS * season, CONTEXT_HORIZONS * horizon)
    if context is None:
        # A short series needs several windows more than a long history: one per step of the horizon
        # in the training part, or those that are left beside a season.
        bounds = split_bounds(len(longest), replace(windows, horizon=horizon), fractions) or {}
        end = max((end for begin, end in bounds.values() if not begin), default=0)
        room = end - horizon
        most = max(room - horizon, min(season, 3 * room // 4))
        context = max(1, min(usual, round(train * len(longest)) // 2, most))
    notes.append(
        f"season: {count(season, 'step')} ({reason}); horizon: {horizon}, context: {context}"
    )
    return replace(windows, season=season, horizon=horizon, context=context)


def _parts(
    table: Table,
    windows: Windows,
    series: Sequence[Series],
    options: ForecastOptions,
    notes: list[str],
) -> Mapping[str, Table]:
    """Cut the windows of each split."""
    fractions, stride = options.fractions, options.stride
    starts: dict[str, list[tuple[Series, Sequence[int]]]] = {}
    short = 0
    for sequence in series:
        bounds = split_bounds(len(sequence), windows, fractions)
        short += bounds is None
        for name, (begin, end) in (bounds or {}).items():
            chosen = windows.starts(begin, end)
            chosen = chosen[::-stride][::-1] if name in (SPLITS[0], UNDIVIDED) else chosen
            starts.setdefault(name, []).append((sequence, chosen))
    if not starts:
        need = windows.horizon * (1 if fractions is None else len(fractions)) + 1
        raise UserError(
            f"{table.name}: the longest series has {max(map(len, series))} time steps, but a "
            f"history and a horizon of {windows.horizon} in each split need at least {need}; set a "
            "shorter data.horizon"
        )
    if short:
        notes.append(f"not used: {short} of {len(series)} series, which are too short")
    for name in SPLITS[1:]:
        total = sum(len(chosen) for _, chosen in starts.get(name, ()))
        every = -(-total // MAX_WINDOWS)
        if every > 1:
            starts[name] = [(sequence, chosen[::every]) for sequence, chosen in starts[name]]
            notes.append(f"{name}: one of {every} windows is used, of {total:,}")
    parts = {name: windows.cut(table, listed) for name, listed in starts.items()}
    counts = ", ".join(f"{name} {len(part):,}" for name, part in parts.items())
    if fractions is not None:
        notes.append(f"splits: by time, the last steps are the test part; windows: {counts}")
    return parts


def split_bounds(
    length: int, windows: Windows, fractions: Sequence[float] | None
) -> dict[str, tuple[int, int]] | None:
    """Return the range of the future steps of each split; None if the series is too short.

    The parts after the training part have at least one horizon.
    """
    if fractions is None:
        return {UNDIVIDED: (0, length)} if length > windows.horizon else None
    sizes = [0 if f == 0 else max(windows.horizon, round(f * length)) for f in fractions[1:]]
    end = length - sum(sizes)
    if end < windows.horizon + 1:
        return None
    bounds = {SPLITS[0]: (0, end)}
    for name, size in zip(SPLITS[1:], sizes, strict=False):
        if size:
            bounds[name] = (end, end + size)
            end += size
    return bounds
