"""report.json: what a report knows that the other files of a run do not contain."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from dxn.core.files import write_text
from dxn.core.printable import json_text
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json
from dxn.report.intervals import Interval
from dxn.tasks import Task

FILE = "report.json"
MAX_SCORES = 50_000  # rows whose scores are stored; a row takes about 50 bytes
MAX_COLUMNS = 8  # columns whose cells are compared
MAX_TARGET = 200  # characters of a target that identify it
MAX_CLASSES = 200  # classes whose rows are counted
# Parts of the path of a file that identify it. Two runs can name the same folder in other ways.
PATH_PARTS = 3
PACKAGES = ("dxn", "torch", "torchvision", "torchaudio", "accelerate", "tokenizers", "numpy")


class Facts(Strict):
    """What only the training knows.

    Args:
        inputs: One line per input.
        targets: Description of the targets, by split.
        classes: Number of rows of each class, by split. Empty: the task has no classes.
        warnings: Problems of the data, such as rows that occur in two splits.
        remarks: Sentences about the metrics, such as that a simple baseline is as good.
        environment: Versions and hardware, by name.
    """

    inputs: list[str] = Field(default_factory=list)
    targets: dict[str, str] = Field(default_factory=dict)
    classes: dict[str, dict[str, int]] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    environment: dict[str, str] = Field(default_factory=dict)


class Saved(Strict):
    """The content of report.json.

    Args:
        split: Name of the evaluated split.
        task: Name of the task.
        target: Name of the target.
        monitored: Name of the metric that selected the epoch.
        higher_is_better: Whether higher values of it are better.
        rows: Number of evaluated rows.
        score: Name of the score of a row. None: the task has none.
        score_is_better_if_higher: Whether a higher score is a better answer.
        scores: Score of each row, by a key that is equal for the same row in other runs.
        contents: Hash of each cell in the order of `scores`, by column.
        intervals: 95% intervals, by set of inputs and metric.
        facts: What only the training knows.
    """

    split: str
    task: str
    target: str | None
    monitored: str
    higher_is_better: bool
    rows: int
    score: str | None = None
    score_is_better_if_higher: bool = True
    scores: dict[str, float] = Field(default_factory=dict)
    contents: dict[str, list[str]] = Field(default_factory=dict)
    intervals: dict[str, dict[str, list[float]]] = Field(default_factory=dict)
    facts: Facts = Facts()

    def interval(self, inputs: str, metric: str) -> Interval | None:
        """Return the interval of a metric for a set of inputs; None if it has none."""
        ends = self.intervals.get(inputs, {}).get(metric)
        return (ends[0], ends[1]) if ends and len(ends) == 2 else None


def read(folder: Path) -> Saved | None:
    """Read report.json of an untrusted run folder; None if there is none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / FILE
    return validated(Saved, load_json(path), path) if path.exists() else None


def write(folder: Path, saved: Saved) -> None:
    """Write report.json."""
    write_text(folder / FILE, json_text(saved.model_dump(), indent=None))


def row_keys(origins: Sequence[str], targets: Sequence[Any]) -> list[str]:
    """Return a key of each row that is equal for the same row in another run.

    The key has only the last parts of a path, so that another run can name the folder in another
    way.
    """
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for origin, target in zip(origins, targets, strict=True):
        key = _digest(f"{_end(origin)}\n{str(target)[:MAX_TARGET]}", 8)
        # Windows of one series can have the same origin.
        seen[key] += 1
        keys.append(f"{key}-{seen[key]}" if seen[key] > 1 else key)
    return keys


def contents(cells: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """Return a hash of each cell by column, "" for values that are not texts, paths or numbers.

    Args:
        cells: What the inputs were read from, by column.
    """
    found: dict[str, list[str]] = {}
    for name, values in list(cells.items())[:MAX_COLUMNS]:
        digests = ["" if value is None else _digest(_end(str(value)), 4) for value in values]
        if any(digests):
            found[name] = digests
    return found


def common_scores(first: Saved, second: Saved) -> list[tuple[float, float]]:
    """Return the scores of the rows that two runs have in common.

    A row must have the same origin and target, and the same content of each column that both runs
    have read: the rows of generated data and of a changed table can have equal origins.
    """
    columns = [name for name in first.contents if name in second.contents]
    places = {key: i for i, key in enumerate(second.scores)}
    others = list(second.scores.values())
    pairs: list[tuple[float, float]] = []
    for i, (key, value) in enumerate(first.scores.items()):
        j = places.get(key)
        if j is not None and all(_at(first, c, i) == _at(second, c, j) for c in columns):
            pairs.append((value, others[j]))
    return pairs


def _at(saved: Saved, column: str, row: int) -> str:
    values = saved.contents[column]
    return values[row] if row < len(values) else ""


def _end(text: str) -> str:
    """Return the last parts of a path; a text without slashes as it is."""
    return "/".join(text.rsplit("/", PATH_PARTS)[-PATH_PARTS:])


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=size).hexdigest()


def count_classes(task: Task, targets: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, int]]:
    """Return the number of rows of each class, by split. Empty if targets are not class names.

    Args:
        task: The task.
        targets: Parsed targets of each split.
    """
    labels = set(task.target.labels or ())
    if not labels or len(labels) > MAX_CLASSES:
        return {}
    counts: dict[str, dict[str, int]] = {}
    for split, values in targets.items():
        names: Counter[str] = Counter()
        for value in values:
            items = value if isinstance(value, list) else [value]
            names.update(item for item in items if isinstance(item, str))
        # A vocabulary is not a list of classes: its texts are not among its tokens.
        if not names or not labels & set(names):
            return {}
        counts[split] = {name: names[name] for name in task.target.labels or () if names[name]}
    return counts


def environment(device: str) -> dict[str, str]:
    """Return versions and hardware, without anything that identifies the machine or the user."""
    found = {
        "time": datetime.now().strftime("%Y-%m-%d %H:%M"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
    if device.startswith("cuda"):
        found["GPU"] = torch.cuda.get_device_name()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
