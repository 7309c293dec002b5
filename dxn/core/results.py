"""The record of a training or of an evaluation: the content of metrics.json.

The metrics are flat, so that a program reads them with `json.load(file)["test/accuracy"]`:
"test/accuracy" is that of all inputs, and "test/accuracy[text]" that of the input text alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from dxn.core.files import METRICS, write_text
from dxn.core.printable import json_text
from dxn.core.schema import Strict, validated
from dxn.core.untrusted import load_json

ALL = "all"  # the row of all inputs in tables
BEST = "validation/best"  # the monitored metric in the epoch that it selected
# Fields that describe the training, and not the evaluation.
TRAINING = (
    *("best_epoch", "epochs", "train_seconds", "bad_files", "parameters"),
    *("precision", "seeds", "data", "environment", "start"),
)

# A metric that is NaN or infinite is written, and `dxn verify` reports it.
Figure = Annotated[float, Field(allow_inf_nan=True)]
# Lower and upper end of a 95% interval. JSON has lists instead of tuples.
Interval = Annotated[tuple[float, float], Field(strict=False)]
Figures = Mapping[str, Mapping[str, float]]  # metrics by row of a table


class Truncation(Strict):
    """Statistics of the samples of an input that are truncated to max_len units, such as tokens.

    Args:
        count: Number of truncated samples.
        total: Number of all samples.
        max_len: Maximum number of units of a sample.
        unit: What is counted.
        median_read: Median, over the truncated samples, of the fraction that is kept.
    """

    count: int
    total: int
    max_len: int
    median_read: float
    unit: str = "tokens"

    def __str__(self) -> str:
        return (
            f"{self.count:,} of {self.total:,} samples are truncated to {self.max_len:,} "
            f"{self.unit} (median: {100 * self.median_read:.0f}% of a truncated sample is kept)"
        )


UNSEEN = "(not in the training split)"  # name of all classes that the model cannot predict


class DataFacts(Strict):
    """The data of a training, or the rows of an evaluation.

    Args:
        name: Path or name of the data.
        rows: Number of rows of each split.
        skipped: Number of rows that could not be read, by split.
        missing: Number of missing values of each input, by split.
        truncated: Inputs of the training split that are truncated.
        inputs: One line per input.
        targets: Description of the targets, by split.
        classes: Number of rows of each class, by split; the other classes are `UNSEEN`. Empty: the
            task has no classes.
        warnings: Problems of the data, such as rows that occur in two splits.
    """

    name: str = ""
    rows: dict[str, int] = Field(default_factory=dict)
    skipped: dict[str, int] = Field(default_factory=dict)
    missing: dict[str, dict[str, int]] = Field(default_factory=dict)
    truncated: dict[str, Truncation] = Field(default_factory=dict)
    inputs: list[str] = Field(default_factory=list)
    targets: dict[str, str] = Field(default_factory=dict)
    classes: dict[str, dict[str, int]] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


class Results(Strict):
    """The result of a training or of an evaluation.

    Args:
        split: Name of the evaluated split.
        task: Name of the task.
        monitored: Name of the metric that selects the epoch.
        higher_is_better: Whether higher values of it are better.
        metrics: Metrics by the keys of the file, see `flat`.
        target: Name of the target. None: the task has none.
        shown: Metrics that tables show, in their order.
        inputs: Names of the evaluated inputs.
        subsets: Rows of the table: the sets of inputs that were evaluated, the largest one last.
        references: Rows after them for comparison: parts of the model, and simple rules.
        evaluated: Number of rows that the last set of inputs was evaluated on.
        answers: The part of the model that answers. None: the model has no baseline.
        baseline: Description of the baseline.
        mix: Factors of the transformer and of the baseline in a mixture.
        formula: How the output is computed from both. "": only one of them answers.
        dtype: Data type of the weights in the evaluation.
        best_epoch: Epoch whose weights are saved, counted from 1.
        epochs: Number of epochs.
        train_seconds: Time spent in training.
        bad_files: Number of rows that were left out because a file turned out to be bad during the
            training, see `data.on_bad`.
        parameters: Number of parameters of the model.
        precision: Precision of the training.
        seeds: Seed of each member of an ensemble.
        remarks: Sentences about the metrics, such as that a simple baseline is as good.
        intervals: 95% intervals, by set of inputs and metric.
        data: The data.
        environment: Versions and hardware, by name.
        start: Checkpoints that the training started from, with their licences and digests.
    """

    split: str
    task: str
    monitored: str
    higher_is_better: bool
    metrics: dict[str, Figure]
    target: str | None = None
    shown: list[str] = Field(default_factory=list)
    inputs: list[str] = Field(default_factory=list)
    subsets: list[str] = Field(default_factory=list)
    references: list[str] = Field(default_factory=list)
    evaluated: int = 0
    answers: str | None = None
    baseline: str | None = None
    mix: list[float] = Field(default_factory=list)
    formula: str = ""
    dtype: str | None = None
    best_epoch: int | None = None
    epochs: int | None = None
    train_seconds: float | None = None
    bad_files: int = 0
    parameters: int | None = None
    precision: str | None = None
    seeds: list[int] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)
    intervals: dict[str, dict[str, Interval]] = Field(default_factory=dict)
    data: DataFacts = DataFacts()
    environment: dict[str, str] = Field(default_factory=dict)
    start: list[str] = Field(default_factory=list)

    def figures(self, split: str | None = None) -> dict[str, dict[str, float]]:
        """Return the metrics of a split by row of the table. Default: the evaluated split."""
        prefix = f"{split or self.split}/"
        rows: dict[str, dict[str, float]] = {row: {} for row in (*self.subsets, *self.references)}
        for key, value in self.metrics.items():
            if key.startswith(prefix) and key != BEST:
                name = key.removeprefix(prefix)
                # The name of a class can have brackets, too: f1:a[b] is a metric of all inputs.
                row = next((row for row in rows if name.endswith(f"[{row}]")), ALL)
                rows.setdefault(row, {})[name.removesuffix(f"[{row}]")] = value
        return rows

    def largest(self, metric: str) -> float:
        """Return the largest absolute value of a metric in the table, which decides its digits."""
        values = [abs(row.get(metric, 0.0)) for row in self.figures().values()]
        return max(filter(math.isfinite, values), default=0.0)

    def headings(self) -> dict[str, str]:
        """Return the rows of a table, and what each is called there.

        The row of all inputs has the name of the part that answers, which has no other row, or that
        of the only input.
        """
        everything = self.inputs[0] if len(self.inputs) == 1 else ALL
        if self.answers is not None:
            everything = f"{self.answers} (answers)"
        rows = [row for row in (*self.subsets, *self.references) if row != self.answers]
        return {row: everything if row == ALL else row for row in rows}

    def interval(self, row: str, metric: str) -> tuple[float, float] | None:
        """Return the interval of a metric; None if it has none."""
        return self.intervals.get(row, {}).get(metric)

    def of_training(self, training: Results) -> Results:
        """Return these results of an evaluation, with what another record says of the training."""
        # If the validation split was evaluated, its metrics are those of the complete model.
        update: dict[str, Any] = {"metrics": self.metrics | training.metrics | self.metrics}
        update |= {name: value for name, value in training if name in TRAINING}
        return self.model_copy(update=update)

    def content(self) -> dict[str, Any]:
        """Return the content of metrics.json."""
        others = self.model_dump(mode="json", exclude={"metrics"}, exclude_defaults=True)
        return {**self.metrics, **others}

    def write(self, folder: Path, name: str = METRICS) -> None:
        """Write metrics.json, or a file with another name."""
        write_text(folder / name, json_text(self.content(), indent=1))


def read_results(folder: Path, name: str = METRICS) -> Results | None:
    """Read metrics.json of an untrusted folder, or a file with another name; None if it has none.

    Raises:
        UserError: If the file is damaged.
    """
    path = folder / name
    if not path.exists():
        return None
    content = load_json(path, allow_nan=True)
    if isinstance(content, dict):
        content["metrics"] = {key: value for key, value in content.items() if "/" in key}
    return validated(Results, content, path)


def flat(split: str, figures: Figures) -> dict[str, float]:
    """Return the metrics of a split by the keys of metrics.json, those of all inputs first."""
    metrics: dict[str, float] = {}
    for row in sorted(figures, key=lambda row: row != ALL):
        suffix = "" if row == ALL else f"[{row}]"
        metrics |= {f"{split}/{name}{suffix}": value for name, value in figures[row].items()}
    return metrics
