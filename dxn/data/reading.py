"""Open rows: check every cell (files are decoded), parse the targets, and handle bad rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.dataset import Opened, printable
from dxn.data.raws import CacheBudget, read_column
from dxn.data.rows import TARGET, Column, OnBad, Rows, as_column
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer

# Characters. A longer cell is not a path, so error messages do not contain it.
MAX_PATH = 500


@dataclass(frozen=True)
class Issue:
    """What is wrong with an input, with a row, or with a whole data set.

    Args:
        reason: Description of the problem.
        origin: Origin of the row, such as "train.csv row 17". Empty: it is not one row.
        row: Index of the row in its split.
        split: Name of the split, if several are checked together.
        input: Name of the bad input. Empty if the whole row is bad.
        path: Path of the bad file. Empty if the cell is not a path.
        rows: The rows that are affected by a problem of the whole data set, if they are known.
    """

    reason: str
    origin: str = ""
    row: int = -1
    split: str = ""
    input: str = ""
    path: str = ""
    rows: Sequence[Issue] = ()

    def __str__(self) -> str:
        where = f"{self.input}: " if self.input else ""
        file = f"{self.path}: " if self.path else ""
        return f"{where}{file}{self.reason}"


def open_rows(
    rows: Rows,
    tokenizers: Mapping[str, Tokenizer],
    *,
    on_bad: OnBad = "error",
    key: str = "data.on_bad",
    **options: Any,
) -> Opened:
    """Check every cell of a split (files are decoded), and parse the targets.

    A file that several rows share is read once. A row is bad if one of its files cannot be read, if
    it has no input, or if it has no valid target although the task needs one.

    Args:
        rows: The split.
        tokenizers: Tokenizer of each input, by input name. Other inputs are ignored.
        on_bad: "error" raises an error for a bad row, "skip" leaves it out, and "missing" uses
            those of its inputs that can be read.
        key: Name of the on_bad option in error messages. Empty: a program has none.
        **options: Further options of `survey_rows`, such as the task.

    Raises:
        UserError: If there is a bad row and on_bad is "error", or if no row is left.
    """
    # Read all rows before raising an error, so that the message can contain the number of problems.
    opened = survey_rows(rows, tokenizers, on_bad=on_bad, **options)
    where = key.rpartition(".")[0] or "input"
    if on_bad == "error":
        refuse_bad(opened, key)
    if not len(rows):
        raise UserError(f"{where}: there are no rows; check the path and its options")
    # on_bad allows bad rows, but at least one row must be left.
    if not len(opened):
        first = _first(opened.bad)
        raise UserError(
            f"{where}: all {len(rows)} rows are bad; correct the data; the first problem is "
            f"{first.origin}: {first}"
        )
    return opened


def refuse_bad(opened: Opened, key: str = "data.on_bad") -> None:
    """Raise a UserError that names the first bad row, if there is one.

    Args:
        opened: The rows.
        key: Name of the on_bad option in the message. Empty: a program has none.
    """
    if not opened.bad:
        return
    first = _first(opened.bad)
    more = f" (and {count(len(opened.bad) - 1, 'more problem')})" if len(opened.bad) > 1 else ""
    # `dxn check` knows nothing of the columns that a trained model reads.
    hint = " (dxn check lists all bad rows)" if key.startswith("data.") else ""
    advice = f", or set {key}=skip or {key}=missing{hint}" if key else " or drop the row"
    raise UserError(f"{first.origin}: {first}{more}; correct the data{advice}")


def survey_rows(
    rows: Rows,
    tokenizers: Mapping[str, Tokenizer],
    *,
    task: Task | None = None,
    on_bad: OnBad = "missing",
    need_target: bool | None = None,
    budget: CacheBudget | None = None,
    only_headers: bool = False,
    required: Sequence[str] = (),
) -> Opened:
    """Open rows like `open_rows`, but collect all problems in `Opened.bad` instead of raising.

    Args:
        rows: The split.
        tokenizers: Tokenizer of each input, by input name. Other inputs are ignored.
        task: Task that parses the targets, and splits texts into words if it needs them. Default:
            targets stay raw cells.
        on_bad: See `open_rows`. "error" behaves like "missing".
        need_target: Whether a row without a target is bad. Default: whether the task needs targets.
        budget: Memory for decoded files. A file that does not fit is checked, and read again when a
            sample needs it. Default: a new budget of the default size.
        only_headers: Whether only the header of a file that does not fit is read, instead of
            decoding it. If it is bad nevertheless, on_bad decides when a sample needs it.
        required: Names of inputs without which a row is bad.

    Raises:
        UserError: If targets are needed but there is no target column.
    """
    if need_target is None:
        need_target = task is not None and task.is_supervised
    budget = budget or CacheBudget()
    raws: dict[str, Column] = {}
    present: dict[str, np.ndarray] = {}
    bad: list[Issue] = []
    for name, tokenizer in tokenizers.items():
        # New data for prediction may lack some inputs of the model.
        if name in rows.cells:
            cells = rows.cells[name]
            raws[name], present[name], reasons = read_column(
                name, cells, tokenizer, budget, only_headers=only_headers, on_bad=on_bad
            )
            for row, reason in reasons.items():
                is_path = tokenizer.reader.is_path(cells[row]) and len(cells[row]) < MAX_PATH
                path = cells[row] if is_path else ""
                bad.append(Issue(reason, rows.origin[row], row, input=name, path=path))
    targets = None
    # Otherwise, the task computes its targets from the inputs.
    if TARGET in rows.cells and (task is None or task.is_supervised):
        sources: Mapping[str, Sequence[Any]] = {}
        if task is not None and (task.target.needs_inputs or task.target.needs_cells):
            task.target.tokenizers = tokenizers
            sources = (
                raws if task.target.needs_inputs else {name: rows.cells[name] for name in raws}
            )
        targets, issues = _parse_targets(rows, sources, task, need_target=need_target)
        bad += issues
    elif TARGET not in rows.cells and need_target and len(rows):
        raise UserError(
            "data.target: no target column is chosen, but this task needs one; "
            "set data.target=COLUMN"
        )
    has_input = np.any([np.zeros(len(rows), bool), *present.values()], axis=0)
    verb = "is" if len(raws) == 1 else "are all"
    missing = f"{', '.join(raws)} {verb} missing" if raws else "there is no input column"
    bad_rows = {issue.row for issue in bad}
    needed = [name for name in required if name in present]
    is_usable = np.all([has_input, *(present[name] for name in needed)], axis=0)
    for row in np.flatnonzero(~is_usable).tolist():
        if row in bad_rows:  # such as a file that cannot be read
            continue
        reason = f"no input: {missing}"
        if has_input[row]:
            name = next(name for name in needed if not present[name][row])
            reason = f"no value of the input {name}, which this model needs for each answer"
        bad.append(Issue(reason, rows.origin[row], row))
    # After the targets are parsed, which can be positions in the text.
    if task is not None and task.target.words:
        for name, tokenizer in tokenizers.items():
            if name in raws and tokenizer.reader.words:
                raws[name] = Column(raws[name], decode=task.target.words_of)
    # A row with a bad input can be used if it has another input. A row that is bad as a whole
    # cannot.
    is_kept = np.ones(len(rows), bool)
    for issue in bad:
        if on_bad == "skip" or not issue.input or not is_usable[issue.row]:
            is_kept[issue.row] = False
    kept = np.flatnonzero(is_kept)
    if len(kept) < len(rows):
        rows = rows.take(kept)
        raws = {name: column.take(kept) for name, column in raws.items()}
        present = {name: has_input[kept] for name, has_input in present.items()}
        targets = None if targets is None else targets.take(kept)
    return Opened(
        raws=raws,
        present=present,
        targets=targets,
        origin=rows.origin,
        skipped=len(is_kept) - len(kept),
        bad=bad,
        kept=kept,
        ids=rows.ids,
        groups=rows.groups,
        cells={name: Column(rows.cells[name], decode=printable) for name in raws},
    )


def _parse_targets(
    rows: Rows, sources: Mapping[str, Sequence[Any]], task: Task | None, *, need_target: bool
) -> tuple[Column, list[Issue]]:
    """Parse all targets, which `Target.read` may compare with the inputs in `sources`.

    Returns:
        The parsed targets, None where they are missing or invalid; and the rows that need a target
        but have no valid one.
    """
    targets: list[Any] = []
    issues: list[Issue] = []
    if task is not None and sources:
        task.target.see_inputs(sources)
    for i, cell in enumerate(rows.cells[TARGET]):
        target, reason = cell, "no target"
        if task is not None and (cell is not None or task.target.reads_missing):
            origin = rows.origin[i]
            inputs = {name: cells[i] for name, cells in sources.items()}
            try:
                target = task.target.read(cell, origin, inputs)
            except UserError as error:
                # The message starts with the origin, which an Issue stores separately.
                target, reason = None, str(error).removeprefix(f"{origin}: ")
        # If no target is needed, an invalid target is treated as missing.
        if target is None and need_target:
            issues.append(Issue(reason, rows.origin[i], i))
        targets.append(target)
    return as_column(targets), issues


def _first(bad: Sequence[Issue]) -> Issue:
    # Issues are collected input by input, so the first in the list may not have the lowest row.
    return min(bad, key=lambda issue: (issue.row, str(issue)))
