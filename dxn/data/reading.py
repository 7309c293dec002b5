"""Open rows: read all files, parse all targets, and handle bad rows."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.data.raws import CacheBudget, is_present, present_rows, read_column, take_rows
from dxn.data.rows import TARGET, OnBad, Rows
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer

# Characters. A longer cell is not a path, so error messages do not contain it.
MAX_PATH = 500
TIMEOUT = 300.0  # default number of seconds to wait for a batch of the data workers


@dataclass(frozen=True)
class Fault:
    """A reason why a row, or one of its inputs, cannot be used.

    Args:
        row: Index of the row in its split.
        origin: Origin of the row, such as "train.csv row 17".
        reason: Description of the problem.
        input: Name of the bad input. Empty if the whole row is bad.
        path: Path of the bad file. Empty if the cell is not a path.
    """

    row: int
    origin: str
    reason: str
    input: str = ""
    path: str = ""

    def __str__(self) -> str:
        where = f"{self.input}: " if self.input else ""
        file = f"{self.path} " if self.path else ""
        return f"{where}{file}{self.reason}"


@dataclass(frozen=True)
class Opened:
    """One split, with its files read and its targets parsed.

    Args:
        raws: Raw values by input name, one per row. None where a row does not have the input. The
            values of an input that reads files are a `RawColumn`.
        targets: Parsed targets, one per row. None if there are no targets.
        origin: Origin of each row, such as "train.csv row 17".
        missing: Number of rows without the input, by input name.
        skipped: Number of rows that were left out.
        bad: Problems of rows and inputs, including those of rows that were left out.
        kept: Index of each row in the original split, which includes the rows that were left out.
        ids: Values that identify the rows, by column name, see `Rows.ids`.
        cells: What the inputs were read from, by input name, one per row: a text, a path, a number
            or a list. None where it is missing, or cannot be printed, such as bytes and arrays.
        num_workers: Number of processes that read files again for an evaluation of these rows.
            None: see `dxn.data.loader.default_workers`.
        timeout: Number of seconds to wait for a batch of these processes. None: no limit.
    """

    raws: Mapping[str, Sequence[Any]]
    targets: Sequence[Any] | None
    origin: Sequence[str]
    missing: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    bad: Sequence[Fault] = ()
    kept: Sequence[int] = ()
    ids: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    cells: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    num_workers: int | None = None
    timeout: float | None = TIMEOUT

    def __len__(self) -> int:
        return len(self.origin)


def open_rows(
    rows: Rows,
    preprocessors: Mapping[str, Tokenizer],
    *,
    task: Task | None = None,
    on_bad: OnBad = "error",
    need_target: bool | None = None,
    key: str = "data.on_bad",
    budget: CacheBudget | None = None,
) -> Opened:
    """Read all files of a split, and parse its targets.

    A file that several rows share is read once. A row is bad if one of its files cannot be read, if
    it has no input, or if it has no valid target although the task needs one.

    Args:
        rows: The split.
        preprocessors: Tokenizer of each input, by input name. Other inputs are ignored.
        task: Task that parses the targets. Default: targets stay raw cells.
        on_bad: "error" raises an error for a bad row, "skip" leaves it out, and "missing" uses
            those of its inputs that can be read.
        need_target: Whether a row without a target is bad. Default: whether the task needs targets.
        key: Name of the on_bad option in error messages.
        budget: Memory for decoded files. A file that does not fit is checked, and read again when a
            sample needs it. Default: a new budget of the default size.

    Raises:
        UserError: If there is a bad row and on_bad is "error", or if no row is left.
    """
    # Read all rows before raising an error, so that the message can contain the number of problems.
    opened = survey_rows(
        rows, preprocessors, task=task, on_bad=on_bad, need_target=need_target, budget=budget
    )
    if opened.bad and on_bad == "error":
        first = _first(opened.bad)
        more = f" (and {len(opened.bad) - 1} more problems)" if len(opened.bad) > 1 else ""
        raise UserError(
            f"{first.origin}: {first}{more}; correct the data, or set {key}=skip or {key}=missing "
            "(dxn check lists all bad rows)"
        )
    if not len(rows):
        raise UserError("data: there are no rows; check the path and the options of the data set")
    # on_bad allows bad rows, but at least one row must be left.
    if not len(opened):
        first = _first(opened.bad)
        raise UserError(
            f"data: all {len(rows)} rows are bad; correct the data; the first problem is "
            f"{first.origin}: {first}"
        )
    return opened


def survey_rows(
    rows: Rows,
    preprocessors: Mapping[str, Tokenizer],
    *,
    task: Task | None = None,
    on_bad: OnBad = "missing",
    need_target: bool | None = None,
    budget: CacheBudget | None = None,
    words: str = "",
) -> Opened:
    """Open rows like `open_rows`, but collect all problems in `Opened.bad` instead of raising.

    The arguments are those of `open_rows`. on_bad="error" behaves like "missing". `words`
    is the regular expression of a word, if texts are to be split; default: that of the target.

    Raises:
        UserError: If targets are needed but there is no target column.
    """
    if need_target is None:
        need_target = task is not None and task.is_supervised
    budget = budget or CacheBudget()
    raws: dict[str, Sequence[Any]] = {}
    bad: list[Fault] = []
    for name, preprocessor in preprocessors.items():
        # New data for prediction may lack some inputs of the model.
        if name in rows.cells:
            raws[name], faults = _read_column(name, rows, preprocessor, budget)
            bad += faults
    targets, faults = _parse_targets(rows, raws, task, need_target=need_target)
    bad += faults
    bad += _rows_without_input(rows, raws, bad)
    if task is not None:
        words = words or task.target.words
    # After the targets are parsed, which can be positions in the text.
    if words:
        words_of = re.compile(words).findall
        for name, preprocessor in preprocessors.items():
            if name in raws and preprocessor.reader.words:
                raws[name] = [words_of(raw) if isinstance(raw, str) else raw for raw in raws[name]]
    left_out = _rows_to_leave_out(bad, raws, on_bad)
    kept = [i for i in range(len(rows)) if i not in left_out]
    kept_raws = {name: take_rows(column, kept) for name, column in raws.items()}
    missing: Counter[str] = Counter()
    for name, column in kept_raws.items():
        missing[name] = len(kept) - len(present_rows(column))
    return Opened(
        raws=kept_raws,
        targets=None if targets is None else [targets[i] for i in kept],
        origin=[rows.origin[i] for i in kept],
        missing=missing,
        skipped=len(left_out),
        bad=bad,
        kept=kept,
        ids={name: [values[i] for i in kept] for name, values in rows.ids.items()},
        cells={name: [_printable(rows.cells[name][i]) for i in kept] for name in raws},
    )


def _read_column(
    name: str, rows: Rows, preprocessor: Tokenizer, budget: CacheBudget
) -> tuple[Sequence[Any], list[Fault]]:
    """Read one input.

    Returns:
        One raw value per row, None where it is missing or bad, and the faults.
    """
    cells = rows.cells[name]
    column, reasons = read_column(name, cells, preprocessor, budget)
    faults: list[Fault] = []
    for i, reason in reasons.items():
        path = _path_of(cells[i]) if preprocessor.reader.is_path(cells[i]) else ""
        faults.append(Fault(i, rows.origin[i], reason, name, path))
    return column, faults


def _printable(cell: Any) -> Any:
    """Return a cell as it can be printed in a table, or None."""
    if isinstance(cell, Path):
        return str(cell)
    is_date = isinstance(cell, datetime.date | datetime.time)
    return cell if is_date or isinstance(cell, str | int | float | list) else None


def _path_of(cell: Any) -> str:
    return cell if isinstance(cell, str) and len(cell) < MAX_PATH else ""


def _parse_targets(
    rows: Rows, raws: Mapping[str, Sequence[Any]], task: Task | None, *, need_target: bool
) -> tuple[list[Any] | None, list[Fault]]:
    """Parse all targets.

    Returns:
        One parsed target per row (None where it is missing or invalid), or None if there are no
        targets; and the faults of rows that need a target but have no valid one.
    """
    if TARGET not in rows.cells:
        if need_target and len(rows):
            raise UserError(
                "data.target: no target column is chosen, but this task needs one; "
                "set data.target=COLUMN"
            )
        return None, []
    if task is not None and not task.is_supervised:
        return None, []  # the task computes its targets from the inputs
    targets: list[Any] = []
    faults: list[Fault] = []
    for i, (cell, origin) in enumerate(zip(rows.cells[TARGET], rows.origin, strict=True)):
        target, reason = None, "no target"
        if cell is not None:
            target, reason = _parse_target(cell, RawRow(raws, i), task, origin)
        # If no target is needed, an invalid target is treated as missing.
        if target is None and need_target:
            faults.append(Fault(i, origin, reason))
        targets.append(target)
    return targets, faults


def _parse_target(
    cell: Any, raws: Mapping[str, Any], task: Task | None, origin: str
) -> tuple[Any, str]:
    """Return the parsed target, or None and the reason why it is invalid."""
    if task is None:
        return cell, ""
    try:
        target = task.target.read(cell, origin, raws)
    except UserError as error:
        # The message starts with the origin, which a Fault stores separately.
        return None, str(error).removeprefix(f"{origin}: ")
    return target, ""


def _rows_without_input(
    rows: Rows, raws: Mapping[str, Sequence[Any]], bad: Sequence[Fault]
) -> list[Fault]:
    """Return a fault for each row without any input, except for rows that already have a fault."""
    bad_rows = {fault.row for fault in bad}
    verb = "is" if len(raws) == 1 else "are all"
    missing = f"{', '.join(raws)} {verb} missing" if raws else "there is no input column"
    reason = f"no input: {missing}"
    faults: list[Fault] = []
    for i, origin in enumerate(rows.origin):
        if i not in bad_rows and not _has_input(raws, i):
            faults.append(Fault(i, origin, reason))
    return faults


def _rows_to_leave_out(
    bad: Sequence[Fault], raws: Mapping[str, Sequence[Any]], on_bad: OnBad
) -> set[int]:
    """Return the indices of the bad rows that cannot be used."""
    if on_bad == "skip":
        return {fault.row for fault in bad}
    # A row with a bad input can be used if it has another input. A row with a fault of the whole
    # row cannot.
    return {fault.row for fault in bad if not fault.input or not _has_input(raws, fault.row)}


def _has_input(raws: Mapping[str, Sequence[Any]], row: int) -> bool:
    return any(is_present(column, row) for column in raws.values())


class RawRow(Mapping[str, Any]):
    """The raw values of one row by input name. A file is only read if its value is used."""

    def __init__(self, raws: Mapping[str, Sequence[Any]], row: int):
        self.raws = raws
        self.row = row

    def __getitem__(self, name: str) -> Any:
        return self.raws[name][self.row]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raws)

    def __len__(self) -> int:
        return len(self.raws)


def _first(bad: Sequence[Fault]) -> Fault:
    # Faults are collected input by input, so the first in the list may not have the lowest row.
    return min(bad, key=lambda fault: (fault.row, str(fault)))
