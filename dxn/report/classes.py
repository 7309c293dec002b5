"""Metrics of single classes: confusions, F1, calibration, and the effect of a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from dxn.report.intervals import (
    MAX_ROWS,
    MIN_ROWS,
    Interval,
    draw_counts,
    draw_rows,
    interval_of,
    sample_rows,
)
from dxn.tasks.metric import ClassScores, f1_scores

BINS = 10  # of a reliability diagram
THRESHOLDS = [i / 100 for i in range(100)]
Z = 1.96  # quantile of the normal distribution for a 95% interval
MAX_MATRIX = 30  # classes; a larger table is too wide to read


@dataclass(frozen=True)
class ClassFigures:
    """The metrics of one class. A figure is NaN where it is not defined.

    Args:
        name: Name of the class.
        rows: Number of rows of the class.
        precision: Share of the rows with this prediction that have the class.
        recall: Share of the rows of the class with this prediction.
        f1: F1 score.
        interval: 95% interval of the F1 score. None: there are too few rows.
    """

    name: str
    rows: int
    precision: float
    recall: float
    f1: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram.

    Args:
        rows: Number of predictions in the bin.
        confidence: Their mean probability.
        accuracy: Share of them that is right.
        interval: 95% interval of the accuracy (Wilson 1927).
    """

    rows: int
    confidence: float
    accuracy: float
    interval: Interval


@dataclass(frozen=True)
class Calibration:
    """How well probabilities agree with frequencies.

    Args:
        bins: The bins that have rows, from low to high probabilities.
        error: Expected calibration error: mean difference of confidence and accuracy, weighted by
            the rows of the bins (arXiv:1706.04599, section 2).
        confidence: Mean probability.
        accuracy: Share of all predictions that is right.
    """

    bins: Sequence[Bin]
    error: float
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class ThresholdEffect:
    """What changes with a threshold of the probability.

    Args:
        title: What the threshold decides.
        about: How to read it.
        lines: Values from 0 to 1 at each of THRESHOLDS, by name. NaN where they are not defined.
        current: The threshold that the model uses. None: it uses none.
        best: The threshold with the highest F1, or at which half of the rows are answered. None:
            there is none.
    """

    title: str
    about: str
    lines: dict[str, list[float]] = field(default_factory=dict)
    current: float | None = None
    best: float | None = None


def class_figures(scores: ClassScores, names: Sequence[str]) -> list[ClassFigures]:
    """Return the metrics of each class, in the order of the names."""
    predicted, true = scores.predicted.bool(), scores.true.bool()
    parts = (predicted & true, predicted, true)
    sums = [each.sum(0).double() for each in parts]
    f1 = f1_scores(*sums)
    rows = sample_rows(len(true), MAX_ROWS)
    draws = draw_rows(len(rows))
    counts = draw_counts(draws, len(rows))
    drawn = f1_scores(*(counts @ each[rows].to(counts.dtype) for each in parts)).numpy()
    scale = math.sqrt(draws.shape[1] / len(true))
    figures: list[ClassFigures] = []
    for k, name in enumerate(names):
        right, num_predicted, num_true = (float(each[k]) for each in sums)
        values = drawn[:, k][np.isfinite(drawn[:, k])]
        # In most resamples, a rare class has no row, and its F1 is not defined.
        is_reliable = num_true >= MIN_ROWS and len(values) > len(drawn) / 2
        figures.append(
            ClassFigures(
                name,
                int(num_true),
                right / num_predicted if num_predicted else math.nan,
                right / num_true if num_true else math.nan,
                float(f1[k]),
                interval_of(values, float(f1[k]), scale) if is_reliable else None,
            )
        )
    return figures


def calibration(scores: ClassScores) -> Calibration:
    """Compare probabilities with frequencies.

    With one class per row, these are the probabilities of the predicted classes. Otherwise these
    are the probabilities of all classes.
    """
    probabilities, right = _decisions(scores)
    index = (probabilities * BINS).long().clamp(max=BINS - 1)
    bins: list[Bin] = []
    error = 0.0
    for k in range(BINS):
        inside = index == k
        rows = int(inside.sum())
        if not rows:
            continue
        confidence = float(probabilities[inside].mean())
        accuracy = float(right[inside].mean())
        bins.append(Bin(rows, confidence, accuracy, wilson(accuracy, rows)))
        error += rows / len(right) * abs(confidence - accuracy)
    return Calibration(bins, error, float(probabilities.mean()), float(right.mean()))


def threshold_effects(scores: ClassScores, names: Sequence[str]) -> list[ThresholdEffect]:
    """Return what a threshold changes: of the answers that are given, and of a class."""
    if scores.threshold is not None:
        lines = _detection(scores.probabilities.flatten(), scores.true.flatten())
        about = (
            "A class is predicted if its probability reaches the threshold. A high threshold finds "
            "fewer classes, and more of those found are right."
        )
        title = "Threshold of all classes"
        return [ThresholdEffect(title, about, lines, scores.threshold, _best(lines["F1"]))]
    probabilities, right = _decisions(scores)
    lines = _selective(probabilities, right)
    half = [t for t, rows in zip(THRESHOLDS, lines["answered rows"], strict=True) if rows >= 0.5]
    about = (
        "The model answers a row only if the probability of its answer reaches the threshold. The "
        "other rows are left to a person."
    )
    effects = [ThresholdEffect("Answering only when confident", about, lines, None, half[-1])]
    if len(names) == 2:
        # The rarer class is usually the one to find.
        k = int(scores.true.sum(0).argmin())
        lines = _detection(scores.probabilities[:, k], scores.true[:, k])
        about = (
            f"{names[k]} is predicted if its probability reaches the threshold. A high threshold "
            "finds fewer of its rows, and more of those found are right."
        )
        effects.append(
            ThresholdEffect(f"Threshold of {names[k]}", about, lines, 0.5, _best(lines["F1"]))
        )
    return effects


def wilson(share: float, rows: int) -> Interval:
    """Return the 95% interval of a share (Wilson 1927)."""
    size = 1 + Z**2 / rows
    center = (share + Z**2 / (2 * rows)) / size
    half = Z / size * math.sqrt(share * (1 - share) / rows + Z**2 / (4 * rows**2))
    return max(center - half, 0.0), min(center + half, 1.0)


def _decisions(scores: ClassScores) -> tuple[Tensor, Tensor]:
    """Return the probability of each decision, and whether it is right (float)."""
    if scores.threshold is not None:
        return scores.probabilities.flatten().double(), scores.true.flatten().double()
    best = scores.probabilities.max(1)
    right = scores.true.gather(1, best.indices[:, None])[:, 0]
    return best.values.double(), right.double()


def _selective(probabilities: Tensor, right: Tensor) -> dict[str, list[float]]:
    """Return the share of rows above each threshold, and the accuracy of these rows."""
    answered: list[float] = []
    accuracy: list[float] = []
    for threshold in THRESHOLDS:
        kept = right[probabilities >= threshold]
        answered.append(len(kept) / len(right))
        accuracy.append(float(kept.mean()) if len(kept) else math.nan)
    return {"answered rows": answered, "right answers among them": accuracy}


def _detection(probabilities: Tensor, true: Tensor) -> dict[str, list[float]]:
    """Return precision, recall and F1 of a class at each threshold."""
    lines: dict[str, list[float]] = {"precision": [], "recall": [], "F1": []}
    for threshold in THRESHOLDS:
        predicted = probabilities >= threshold
        right = float((predicted & true).sum())
        found, rows = float(predicted.sum()), float(true.sum())
        lines["precision"].append(right / found if found else math.nan)
        lines["recall"].append(right / rows if rows else math.nan)
        lines["F1"].append(2 * right / (found + rows) if found + rows else math.nan)
    return lines


def _best(values: Sequence[float]) -> float | None:
    finite = [(value, t) for value, t in zip(values, THRESHOLDS, strict=True) if value == value]
    if not finite:
        return None
    # Of equal values, the threshold that is nearest to 0.5.
    return max(finite, key=lambda pair: (pair[0], -abs(pair[1] - 0.5)))[1]
