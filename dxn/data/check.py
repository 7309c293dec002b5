"""Read a complete data set before training, and report its statistics and its bad rows."""

from __future__ import annotations

import csv
import hashlib
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.data.opening import Opened, survey_rows
from dxn.data.rows import Source
from dxn.tasks.task import Task
from dxn.tokenize.adapter import Preprocessor, summarize, truncated


@dataclass(frozen=True)
class Bad:
    """One row of bad.csv, which lists bad rows and bad files.

    Args:
        split: Name of the split.
        row: Origin of the row, such as "train.csv row 17".
        input: Name of the input. Empty if the whole row is bad.
        path: Path of the bad file. Empty if the value is not a path.
        reason: Why the row or file cannot be used.
    """

    split: str
    row: str
    input: str
    path: str
    reason: str


@dataclass(frozen=True)
class Truncation:
    """Statistics of the samples of an input that are truncated to max_len tokens.

    Args:
        count: Number of truncated samples.
        total: Number of all samples.
        max_len: Maximum number of tokens of a sample.
        median_read: Median, over the truncated samples, of the fraction of tokens that is kept.
    """

    count: int
    total: int
    max_len: int
    median_read: float

    def __str__(self) -> str:
        return (
            f"{self.count:,} of {self.total:,} samples are truncated to {self.max_len:,} tokens "
            f"(median: {100 * self.median_read:.0f}% of a truncated sample is kept)"
        )


@dataclass(frozen=True)
class Report:
    """Result of `check`.

    Args:
        source: The data set.
        task: The task that parsed the targets. None: targets were not parsed.
        splits: Opened rows, by split.
        summaries: One line about the values of each input, by split and input.
        truncations: Statistics of truncated samples, by split and input.
        duplicates: Number of duplicate rows, by a description such as "within train" or "of train
            in test".
        bad: Bad rows and bad files.
    """

    source: Source
    task: Task | None
    splits: Mapping[str, Opened]
    summaries: Mapping[str, Mapping[str, str]]
    truncations: Mapping[str, Mapping[str, Truncation]]
    duplicates: Mapping[str, int]
    bad: Sequence[Bad]

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = _header(self.source, self.task)
        for name, opened in self.splits.items():
            left_out = f", {opened.skipped:,} left out" if opened.skipped else ""
            lines.append(f"{name}: {len(opened):,} rows{left_out}")
            lines += [f"  {line}" for line in self._split_lines(name, opened)]
        for where, count in self.duplicates.items():
            if count:
                lines.append(f"duplicates {where}: {count:,}")
        # Print equal reasons once with their count. `write_bad` lists every bad row.
        reasons = Counter(" ".join(filter(None, (bad.input, bad.reason))) for bad in self.bad)
        lines += [f"bad: {count} × {reason}" for reason, count in reasons.most_common()]
        return lines

    def _split_lines(self, name: str, opened: Opened) -> list[str]:
        lines: list[str] = []
        for input_name, summary in self.summaries[name].items():
            lines.append(f"{input_name}: {summary}")
            truncation = self.truncations[name].get(input_name)
            if truncation is not None:
                lines.append(f"{input_name}: {truncation}")
        if opened.targets is not None and self.task is not None:
            lines.append(f"target: {self.task.describe(opened.targets)}")
        return lines


def check(
    source: Source,
    preprocessors: Mapping[str, Preprocessor],
    *,
    task: Task | None = None,
    fit: Callable[[Mapping[str, Opened]], object] | None = None,
) -> Report:
    """Read every file of every split, and collect statistics and problems.

    Args:
        source: The data set.
        preprocessors: Preprocessor of each input, by input name.
        task: Task that parses the targets. Default: targets are not parsed.
        fit: Function that fits the adapters. It is called with the opened splits before samples are
            prepared, because a text adapter needs its vocabulary to count tokens.
    """
    # A data set without a target column can be checked; only training needs the column.
    need_target = task is not None and task.needs_target and source.target is not None
    splits = {
        name: survey_rows(rows, preprocessors, task=task, need_target=need_target)
        for name, rows in source.splits.items()
        if len(rows)
    }
    # Fit after reading, because adapters are fitted on the rows that can be read.
    if fit is not None:
        fit(splits)
    bad: list[Bad] = []
    for name, split in splits.items():
        for fault in sorted(split.bad, key=lambda fault: fault.row):
            bad.append(Bad(name, fault.origin, fault.input, fault.path, fault.reason))
    return Report(
        source=source,
        task=task,
        splits=splits,
        summaries={name: _summaries(source, name, splits, preprocessors) for name in splits},
        truncations={n: count_truncated(split, preprocessors) for n, split in splits.items()},
        duplicates=_count_duplicates(splits),
        bad=bad,
    )


def count_truncated(
    opened: Opened, preprocessors: Mapping[str, Preprocessor]
) -> dict[str, Truncation]:
    """Count truncated samples, by input name. Inputs without truncated samples are left out.

    Args:
        opened: Opened rows.
        preprocessors: Preprocessors of fitted adapters, by input name.
    """
    truncations: dict[str, Truncation] = {}
    for name, preprocessor in preprocessors.items():
        # A preprocessor without the method `truncated` never truncates. Skip it, because preparing
        # all of its samples would take long.
        if name not in opened.raws or not hasattr(preprocessor, "truncated"):
            continue
        raws = [raw for raw in opened.raws[name] if raw is not None]
        # Samples are prepared without a random generator, because augmentation changes the lengths.
        counts = [count for raw in raws if (count := truncated(preprocessor, preprocessor(raw)))]
        if counts:
            max_len = max(kept for kept, _ in counts)
            median = statistics.median(kept / total for kept, total in counts)
            truncations[name] = Truncation(len(counts), len(raws), max_len, median)
    return truncations


def write_bad(report: Report, path: Path) -> None:
    """Write a CSV file with one line per entry of `report.bad`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Bad)])
        writer.writerows(astuple(bad) for bad in report.bad)


def _header(source: Source, task: Task | None) -> list[str]:
    lines: list[str] = []
    for name, spec in source.inputs.items():
        # Do not print the modality again if the input has the same name.
        modality = "" if name == spec.modality else f" ({spec.modality})"
        lines.append(f"{name}: {spec.column}{modality}")
    if source.target is not None:
        task_name = f" ({task.name})" if task is not None else ""
        lines.append(f"target: {source.target}{task_name}")
    return lines + [f"note: {note}" for note in source.notes]


def _summaries(
    source: Source,
    split: str,
    splits: Mapping[str, Opened],
    preprocessors: Mapping[str, Preprocessor],
) -> dict[str, str]:
    """Return the number of values and empty cells, and the sizes of the values, by input."""
    opened, rows = splits[split], source.splits[split]
    summaries: dict[str, str] = {}
    for name, column in opened.raws.items():
        cells = rows.cells[name]
        present = [
            (raw, cells[i]) for raw, i in zip(column, opened.kept, strict=True) if raw is not None
        ]
        # Empty cells are counted separately: unlike a file that cannot be read, they are not bad.
        num_empty = sum(cell is None for cell in cells)
        counts = f"{len(present):,}" + (f", {num_empty:,} empty" if num_empty else "")
        summary = summarize(
            preprocessors[name], [raw for raw, _ in present], [cell for _, cell in present]
        )
        summaries[name] = "; ".join(filter(None, [counts, summary]))
    return summaries


def _count_duplicates(splits: Mapping[str, Opened]) -> dict[str, int]:
    """Count rows whose inputs are all equal to those of another row.

    The counts are for rows within each split, and for rows that occur in two splits.
    """
    digests: dict[str, list[bytes]] = {}
    for name, split in splits.items():
        digests[name] = [_digest(split, i) for i in range(len(split))]
    counts = {f"within {name}": len(d) - len(set(d)) for name, d in digests.items()}
    # A row that occurs in both a training and a test split makes the test metrics too high.
    for first, second in combinations(digests, 2):
        in_first = set(digests[first])
        counts[f"of {first} in {second}"] = sum(digest in in_first for digest in digests[second])
    return counts


def _digest(split: Opened, row: int) -> bytes:
    """Return a hash of the content of all inputs of a row."""
    digest = hashlib.blake2b(digest_size=16)
    for name, column in split.raws.items():
        raw: Any = column[row]
        # Hash the content, not the path, because copies of a file may be in several folders.
        if isinstance(raw, Tensor):
            raw = raw.numpy(force=True)
        if isinstance(raw, np.ndarray):
            # Include the shape: equal bytes with different shapes are different images.
            digest.update(repr((name, raw.shape)).encode())
            digest.update(np.ascontiguousarray(raw).data)
        else:
            digest.update(repr((name, raw)).encode())
    return digest.digest()
