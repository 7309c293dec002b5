"""Read a complete data set before training, and report its statistics and its bad rows."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dxn.core.display import count, input_line
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.core.printable import csv_cell
from dxn.core.results import Truncation
from dxn.data.dataset import Opened
from dxn.data.inspect.quality import check_learnable, count_truncated, find_problems
from dxn.data.raws import CacheBudget, digest_of, present_values
from dxn.data.reading import Issue, survey_rows
from dxn.data.rows import Column, Source
from dxn.data.splits.duplicates import codes_of, divided, row_codes
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer

# Columns of the CSV file of `write_bad`. A row is named by its origin.
HEADER = ["split", "row", "input", "path", "reason"]
# What differs between the sentences about problems of one kind.
VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d.,:]*")


@dataclass(frozen=True)
class Report:
    """Result of `check`.

    Args:
        source: The data set.
        task: The task that parsed the targets. None: targets were not parsed.
        splits: Opened rows, by split.
        summaries: One line about the values of each input, by split and input.
        truncations: Statistics of truncated samples, by split and input.
        duplicates: Number of rows that repeat another row of their split, by split.
        problems: Problems that make metrics wrong, such as rows that occur in two splits.
        bad: Bad rows and bad files.
        errors: Why the data set cannot be used for training, apart from bad rows.
    """

    source: Source
    task: Task | None
    splits: Mapping[str, Opened]
    summaries: Mapping[str, Mapping[str, str]]
    truncations: Mapping[str, Mapping[str, Truncation]]
    duplicates: Mapping[str, int]
    problems: Sequence[Issue]
    bad: Sequence[Issue]
    errors: Sequence[str] = ()

    @property
    def listed(self) -> list[Issue]:
        """The bad rows and files, and the rows of `problems`."""
        return [*self.bad, *(row for problem in self.problems for row in problem.rows)]

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = _header(self.source, self.task)
        for name, opened in self.splits.items():
            left_out = f", {opened.skipped:,} left out" if opened.skipped else ""
            lines.append(f"{name}: {count(len(opened), 'row')}{left_out}")
            lines += [f"  {line}" for line in self._split_lines(name, opened)]
        for name, number in self.duplicates.items():
            if number:
                lines.append(f"duplicates within {name}: {number:,}")
        lines += [f"warning: {problem.reason}" for problem in self.problems]
        lines += [f"error: {error}" for error in self.errors]
        return [*lines, *self._bad_lines()]

    def _bad_lines(self) -> list[str]:
        """Return one line per kind of problem with its count. `write_bad` lists every bad row."""
        kinds: dict[tuple[str, str], Counter[str]] = {}
        for bad in self.bad:
            key = bad.input or "", VALUE.sub("", bad.reason)
            kinds.setdefault(key, Counter())[bad.reason] += 1
        lines: list[str] = []
        for (name, _), reasons in sorted(kinds.items(), key=lambda item: -item[1].total()):
            reason, _ = reasons.most_common(1)[0]
            others = len(reasons) - 1
            more = f" (and {count(others, 'other')} like it)" if others else ""
            text = ": ".join(filter(None, (name, reason)))
            lines.append(f"bad: {reasons.total():,} × {text}{more}")
        return lines

    def _split_lines(self, name: str, opened: Opened) -> list[str]:
        lines: list[str] = []
        for input_name, summary in self.summaries[name].items():
            lines.append(f"{input_name}: {summary}")
            truncation = self.truncations[name].get(input_name)
            if truncation is not None:
                lines.append(f"{input_name}: {truncation}")
        if opened.targets is not None and self.task is not None:
            lines.append(f"target: {self.task.target.describe(opened.targets)}")
        return lines


def check(
    source: Source,
    tokenizers: Mapping[str, Tokenizer],
    *,
    task: Task | None = None,
    fit: Callable[[Mapping[str, Opened]], object] | None = None,
    errors: Sequence[str] = (),
) -> Report:
    """Read every file of every split, and collect statistics and problems.

    A problem never stops the check, so that the report lists all of them.

    Args:
        source: The data set.
        tokenizers: Tokenizer of each input, by input name.
        task: Task that parses the targets. Default: targets are not parsed.
        fit: Function that fits the adapters. It is called with the opened splits before samples are
            prepared, because a text adapter needs its vocabulary to count tokens.
        errors: Sentences about problems that are already known.
    """
    # A data set without a target column can be checked; only training needs the column.
    need_target = task is not None and task.is_supervised and source.target is not None
    budget = CacheBudget()
    splits = {
        name: survey_rows(rows, tokenizers, task=task, need_target=need_target, budget=budget)
        for name, rows in source.splits.items()
        if len(rows)
    }
    # Fit after reading, because adapters are fitted on the rows that can be read.
    errors = list(errors)
    is_fitted = fit is None
    train = splits.get("train")
    try:
        if train is None or not len(train):
            raise UserError("train: there is no row that can be used")
        if fit is not None:
            fit(splits)
        is_fitted = True
        if task is not None and need_target:
            check_learnable(train, source.target, task)
    except UserError as error:
        errors.append(str(error))
    bad: list[Issue] = []
    for name, split in splits.items():
        for issue in sorted(split.bad, key=lambda issue: issue.row):
            bad.append(replace(issue, split=name))
    codes = _codes(splits)
    return Report(
        source=source,
        task=task,
        splits=splits,
        summaries={name: _summaries(source, name, splits, tokenizers) for name in splits},
        truncations={
            name: count_truncated(split, tokenizers) if is_fitted else {}
            for name, split in splits.items()
        },
        duplicates=_count_duplicates(splits, codes),
        problems=find_problems(source, splits, task if need_target else None, codes),
        bad=bad,
        errors=errors,
    )


def write_bad(report: Report, path: Path) -> None:
    """Write a CSV file with one line per entry of `report.listed`."""
    with atomic_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for bad in report.listed:
            cells = (bad.split, bad.origin, bad.input, bad.path, bad.reason)
            writer.writerow(map(csv_cell, cells))


def remove_earlier(path: Path) -> None:
    """Delete the CSV file of an earlier check, so that nobody takes it for the current one.

    Raises:
        UserError: If the file is not such a file, because writing would destroy it.
    """
    if not path.exists():
        return
    try:
        with path.open(newline="", encoding="utf-8") as file:
            is_own = next(csv.reader(file), None) == HEADER
    except (OSError, UnicodeDecodeError, csv.Error):
        is_own = False
    if not is_own:
        raise UserError(
            f"output: {path} exists and was not written by dxn check; choose another name"
        )
    path.unlink()


def _header(source: Source, task: Task | None) -> list[str]:
    lines: list[str] = []
    for name, spec in source.inputs.items():
        lines.append(input_line(name, spec.column, spec.modality))
    if source.target is not None:
        task_name = f" ({task.name})" if task is not None else ""
        lines.append(f"target: {source.target}{task_name}")
    return lines + [f"note: {note}" for note in source.notes]


def _summaries(
    source: Source,
    split: str,
    splits: Mapping[str, Opened],
    tokenizers: Mapping[str, Tokenizer],
) -> dict[str, str]:
    """Return the number of values and empty cells, and the sizes of the values, by input."""
    opened, rows = splits[split], source.splits[split]
    bad_rows: dict[str, set[int]] = {}
    for issue in opened.bad:
        bad_rows.setdefault(issue.input, set()).add(issue.row)
    summaries: dict[str, str] = {}
    for name, column in opened.raws.items():
        cells = rows.cells[name]
        present = np.flatnonzero(opened.present[name]).tolist()
        # Empty cells are counted separately: unlike a file that cannot be read, they are not bad.
        # A cell such as "N/A" can be empty, too.
        bad = bad_rows.get(name, ())
        missing = np.flatnonzero(~opened.present[name]).tolist()
        num_empty = sum(int(opened.kept[i]) not in bad for i in missing)
        counts = f"{len(present):,}" + (f", {num_empty:,} empty" if num_empty else "")
        sources = [cells[int(opened.kept[i])] for i in present]
        values = present_values([(column, opened.present[name])])
        summary = tokenizers[name].reader.describe(values, sources)
        summaries[name] = "; ".join(filter(None, [counts, summary]))
    return summaries


def _codes(splits: Mapping[str, Opened]) -> dict[str, np.ndarray]:
    """Return the codes of the raw values of all splits, see `input_codes`."""
    # Hash the content, not the path, because copies of a file may be in several folders.
    digests: dict[str, list[bytes | None]] = {}
    num_rows = 0
    for split in splits.values():
        for name, column in split.raws.items():
            cells = digests.setdefault(name, [])
            cells += [None] * (num_rows - len(cells))  # those of splits that lack the input
            present = split.present[name].tolist()
            cells += [digest_of(column, row) if p else None for row, p in enumerate(present)]
        num_rows += len(split)
    codes: dict[str, np.ndarray] = {}
    for name, cells in digests.items():
        codes[name] = codes_of(Column([*cells, *[None] * (num_rows - len(cells))]))
    return codes


def _count_duplicates(
    splits: Mapping[str, Opened], codes: Mapping[str, np.ndarray]
) -> dict[str, int]:
    """Count the rows whose inputs are all equal to those of another row of their split."""
    rows = row_codes(codes, sum(map(len, splits.values())))
    by_split = divided(rows, splits)
    return {name: len(codes) - len(np.unique(codes)) for name, codes in by_split.items()}
