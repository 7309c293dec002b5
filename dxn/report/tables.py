"""The tables of a report: metrics with intervals, splits, classes and confusions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dxn.core.display import number, percent
from dxn.core.results import ALL, UNSEEN, Figures, Interval, Results

MAX_CLASSES = 40  # rows of a table of classes
MAX_MATRIX = 30  # classes; a larger table is too wide to read
# What the names of metrics mean, for readers who do not know them.
MEANINGS = {
    "loss": "The value that the training minimizes. Lower is better.",
    "accuracy": "Share of right answers.",
    "accuracy_top5": "Share of rows whose class is among the five most probable ones.",
    "balanced_accuracy": "Mean over the classes of the share of their rows that is right.",
    "log_loss": "Mean negative logarithm of the probability of the right class. Lower is better.",
    "roc_auc": "Probability that a row of a class gets a higher probability of it than a row of "
    "another class; 0.5 is chance. With more than two classes or with labels: the mean over them.",
    "f1_macro": "Mean F1 of the classes. F1 is the harmonic mean of precision and recall. Each "
    "class counts the same, whatever its number of rows.",
    "f1_micro": "F1 over all decisions about single labels.",
    "exact_match": "Share of rows whose answer equals the target completely.",
    "average_precision": "Area below the precision-recall curve of the rarer class; chance is its "
    "share of the rows. With more than two classes or with labels: the mean over them.",
    "rmse": "Root mean squared error, in the unit of the target. Large errors count most.",
    "mae": "Mean absolute error, in the unit of the target.",
    "r2": "Share of the variance of the target that the predictions explain. 1 is perfect, and 0 "
    "is as good as always predicting the mean.",
    "bleu": "Overlap of words and phrases with the references, 0 to 100. It is 0 if no four words "
    "in a row agree anywhere, so it does not suit texts of a few words.",
    "chrf": "Overlap of character sequences with the references, 0 to 100.",
    "wer": "Word errors per word of the references. Lower is better.",
    "wer_normalized": "Word errors per word of the references, without upper case and punctuation. "
    "Lower is better.",
    "cer": "Character errors per character of the references. Lower is better.",
    "precision_entity": "Share of the predicted entities that are right.",
    "recall_entity": "Share of the true entities that are found.",
    "f1_answer": "Mean F1 of the words of the answer and of the best right one, as in SQuAD.",
    "f1_with_answer": "The same of the questions that have an answer.",
    "accuracy_without_answer": "Share of the questions without an answer that get none.",
    "f1_entity": "Harmonic mean of the precision and the recall of entities.",
    "perplexity": "Number of equally probable tokens between which the model chooses on average. "
    "Lower is better.",
    "mase": "Mean absolute error divided by that of repeating the last season of the training "
    "data. Below 1 is better than repeating.",
    "mse": "Mean squared error, in the squared unit of the target. Lower is better.",
    "skill": "1 minus the mean squared error divided by that of repeating the last season, or the "
    "last frame. 0 is as good as repeating, 1 is perfect.",
    "crps": "Continuous ranked probability score: error of the whole predicted distribution. Lower "
    "is better.",
    "psnr": "Peak signal-to-noise ratio in decibels: 10 log10 of the squared range of the values, "
    "divided by their mean squared error.",
    "snr": "Signal-to-noise ratio in decibels: 10 log10 of the variance of the values, divided by "
    "their mean squared error. 0 is as good as always giving the mean of the training split.",
    "ssim": "Structural similarity of pictures: means, contrasts and structures of small windows. "
    "1 is equal.",
    "bits": "Mean number of bits of the codes of a row.",
    "codes_used": "Share of the codes that occur in any row, as a mean over the stages.",
    "entropy": "Entropy of the frequencies of the codes, in bits per code, as a mean over the "
    "stages. Compare it on the same rows only.",
    "coverage": "Share of the true values between the lowest and the highest predicted quantile.",
}
INTERVAL = (
    "The interval below a figure contains 95% of the values on resampled rows (bootstrap). Two "
    "models whose intervals overlap can still differ: dxn compare tests this on equal rows. If all "
    "resampled values are equal, only shares of right rows have an interval, the exact one of "
    "Clopper and Pearson."
)
FindInterval = Callable[[str, str], Interval | None]
# A figure in a table, for the template: "value", "interval" ("": none), and on the scale of its
# column, in percent, the "position" of the figure (None: the column has no scale) and of the ends
# "low" and "high" of its interval.
Cell = dict[str, Any]


def metrics_table(results: Results, about: str) -> dict[str, Any]:
    """Return the table of metrics: one row per set of inputs, then those of simple rules.

    Args:
        results: Content of metrics.json.
        about: What the rows are.

    Returns:
        The names of the columns ("metrics"), "monitored", "about" and "rows". Each row has a
        "name", "cells" (None where there is no figure), and a "kind": "all", "reference" (not this
        model with other inputs) or "".
    """
    figures, monitored = results.figures(), results.monitored
    headings = results.headings()
    metrics = [name for name in results.shown if any(name in figures[row] for row in headings)]
    scale = _scale({row: figures[row] for row in headings}, monitored, results.interval)
    rows: list[dict[str, Any]] = []
    for row, heading in headings.items():
        cells = [
            _cell(
                figures[row].get(name),
                results.interval(row, name),
                scale if name == monitored else None,
                results.largest(name),
            )
            for name in metrics
        ]
        kind = "all" if row == ALL else "reference" if row in results.references else ""
        rows.append({"name": heading, "cells": cells, "kind": kind})
    return {"metrics": metrics, "monitored": monitored, "rows": rows, "about": about}


def class_rows(figures: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of the table of classes, and the number of classes that are left out."""
    shown = list(figures)
    if len(shown) > MAX_CLASSES:
        shown.sort(key=lambda figure: (math.isnan(figure["f1"]), figure["f1"]))
        shown = shown[:MAX_CLASSES]
    rows = [
        {
            "name": figure["name"],
            "rows": f"{figure['rows']:,}",
            "precision": share(figure["precision"]),
            "recall": share(figure["recall"]),
            "f1": _cell(figure["f1"], figure["interval"], (0.0, 1.0), 1.0),
        }
        for figure in shown
    ]
    return rows, len(figures) - len(rows)


def matrix(counts: np.ndarray, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the confusion matrix; None if it has too many classes.

    Args:
        counts: (K, K) or (K + 1, K), see `dxn.report.classes.confusion_counts`.
        names: Names of the K classes.
    """
    if len(names) > MAX_MATRIX:
        return None
    totals = counts.sum(1)
    rows = []
    for i, name in enumerate([*names, UNSEEN][: len(counts)]):
        cells = []
        for j, other in enumerate(names):
            part = counts[i, j] / max(totals[i], 1)
            cells.append(
                {
                    "rows": int(counts[i, j]),
                    "share": f"{part:.3f}",
                    "kind": "right" if i == j else "wrong",
                    "title": f"{name} predicted as {other}: {counts[i, j]:,} ({percent(part)})",
                }
            )
        rows.append({"name": name, "cells": cells})
    return {"names": list(names), "rows": rows}


def class_bars(counts: Mapping[str, Mapping[str, int]]) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of each class by split, and the number of classes that are left out."""
    first = next(iter(counts.values()), {})
    names = list(dict.fromkeys(name for split in counts.values() for name in split))
    if len(names) > MAX_CLASSES:
        names = sorted(names, key=lambda name: -first.get(name, 0))[:MAX_CLASSES]
    largest = {split: max(values.values(), default=1) for split, values in counts.items()}
    rows = []
    for name in names:
        cells = []
        for split, values in counts.items():
            value, total = values.get(name, 0), max(sum(values.values()), 1)
            width = 100 * value / max(largest[split], 1)
            cells.append(
                {"rows": f"{value:,}", "share": percent(value / total), "width": round(width, 1)}
            )
        rows.append({"name": name, "cells": cells})
    total = len({name for split in counts.values() for name in split})
    return rows, total - len(rows)


def share(value: float) -> str:
    """Return a share, "–" if it is not defined."""
    return "–" if math.isnan(value) else number(value, 1)


def interval_text(ends: Interval | None, largest: float) -> str:
    """Return an interval, such as "0.9123 to 0.9409"; "" if there is none.

    Args:
        ends: The interval.
        largest: The largest number beside it, which has as many decimals.
    """
    return "" if ends is None else f"{number(ends[0], largest)} to {number(ends[1], largest)}"


def _cell(
    value: float | None,
    ends: Interval | None,
    scale: tuple[float, float] | None,
    largest: float,
) -> Cell | None:
    if value is None or not math.isfinite(value):
        return None
    shown = number(value, largest)
    cell: Cell = {"value": shown, "interval": interval_text(ends, largest), "position": None}
    if scale is None:
        return cell

    def position(number: float) -> float:
        low, high = scale
        return round(100 * min(max((number - low) / (high - low or 1), 0), 1), 1)

    low, high = ends or (value, value)
    return {**cell, "position": position(value), "low": position(low), "high": position(high)}


def _scale(figures: Figures, metric: str, interval: FindInterval) -> tuple[float, float]:
    """Return the ends of the scale of a column: 0 and the largest value."""
    values = [row[metric] for row in figures.values() if math.isfinite(row.get(metric, math.nan))]
    intervals = filter(None, (interval(name, metric) for name in figures))
    values += [end for ends in intervals for end in ends]
    high = max(values, default=1.0)
    low = min([0.0, *values])
    return low, 1.0 if 0.5 < high <= 1 else high
