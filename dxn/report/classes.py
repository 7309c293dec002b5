"""Classes and probabilities in a report: figures of each class, calibration, thresholds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from dxn.core.display import count, percent
from dxn.core.results import UNSEEN, Interval
from dxn.report import tables
from dxn.report.answers import Answers
from dxn.report.intervals import MIN_ROWS, Z, interval_of, resample
from dxn.tasks import Task
from dxn.tasks.metric import MIN_BLOCKS, Blocks, ClassScores, f1_scores
from dxn.viz.charts import line_chart
from dxn.viz.figure import COLORS, GREY, Chart, finish

BINS = 10  # of a reliability diagram
THRESHOLDS = [i / 100 for i in range(100)]
MIN_GAP = 0.02  # between probability and accuracy, to say that a model is too confident
MAX_PAIRS = 12  # confused classes that are listed


def class_figures(
    scores: ClassScores, names: Sequence[str], blocks: Blocks | None = None
) -> list[dict[str, Any]]:
    """Return the metrics of each class, in the order of the names.

    Args:
        scores: Probabilities and true classes of the rows.
        names: Names of the classes.
        blocks: Which rows depend on each other. None: they are independent.

    Returns:
        "name" of the class, its number of "rows", "precision", "recall", "f1" (NaN where a figure
        is not defined) and the 95% "interval" of the F1 score (None: there are too few rows or
        blocks, or all resamples are equal).
    """
    predicted, true = scores.predicted.bool(), scores.true.bool()
    parts = (predicted & true, predicted, true)
    sums = [flags.sum(0).double() for flags in parts]
    f1 = f1_scores(*sums)
    rows, counts, scale, num_blocks = resample(len(true), blocks)
    has_few = blocks is not None and num_blocks < MIN_BLOCKS
    drawn = f1_scores(*(counts @ flags[rows].to(counts.dtype) for flags in parts)).numpy()
    figures: list[dict[str, Any]] = []
    for k, name in enumerate(names):
        right, num_predicted, num_true = (float(flags[k]) for flags in sums)
        values = drawn[:, k][np.isfinite(drawn[:, k])]
        # In most resamples, a rare class has no row, and its F1 is not defined. If all rows are
        # right, all resamples are equal, which does not mean that other rows are right too.
        is_reliable = (
            num_true >= MIN_ROWS
            and not has_few
            and len(values) > len(drawn) / 2
            and values.min() < values.max()
        )
        figures.append(
            {
                "name": name,
                "rows": int(num_true),
                "precision": right / num_predicted if num_predicted else math.nan,
                "recall": right / num_true if num_true else math.nan,
                "f1": float(f1[k]),
                "interval": interval_of(values, float(f1[k]), scale) if is_reliable else None,
            }
        )
    return figures


def calibration(scores: ClassScores) -> dict[str, Any]:
    """Compare probabilities with frequencies.

    With one class per row, these are the probabilities of the predicted classes. Otherwise these
    are the probabilities of all classes.

    Returns:
        The mean probability ("confidence"), the share that is right ("accuracy"), and the expected
        calibration error: mean difference of both, weighted by the rows of the bins
        (arXiv:1706.04599, section 2). "bins" are the bars of the reliability diagram that have
        rows, from low to high probabilities, with the 95% interval of their accuracy.
    """
    probabilities, right = _decisions(scores)
    index = (probabilities * BINS).long().clamp(max=BINS - 1)
    bins: list[dict[str, Any]] = []
    error = 0.0
    for k in range(BINS):
        inside = index == k
        rows = int(inside.sum())
        if not rows:
            continue
        confidence = float(probabilities[inside].mean())
        accuracy = float(right[inside].mean())
        bins.append(
            {
                "rows": rows,
                "confidence": confidence,
                "accuracy": accuracy,
                "interval": wilson(accuracy, rows),
            }
        )
        error += rows / len(right) * abs(confidence - accuracy)
    return {
        "bins": bins,
        "error": error,
        "confidence": float(probabilities.mean()),
        "accuracy": float(right.mean()),
    }


def threshold_effects(scores: ClassScores, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a threshold changes: of the answers that are given, and of a class.

    Returns:
        "title" (what the threshold decides), "about" (how to read it), "lines" (values from 0 to 1
        at each of THRESHOLDS by name, NaN where they are not defined), "current" (the threshold of
        the model; None: it has none) and "best" (the threshold with the highest F1, or at which
        half of the rows are answered; None: there is none).
    """
    if scores.threshold is not None:
        lines = _detection(scores.probabilities.flatten(), scores.true.flatten())
        about = (
            "A class is predicted if its probability reaches the threshold. A high threshold finds "
            "fewer classes, and more of those found are right."
        )
        best = _best(lines["F1"])
        return [_effect("Threshold of all classes", about, lines, scores.threshold, best)]
    probabilities, right = _decisions(scores)
    lines = _selective(probabilities, right)
    half = [t for t, rows in zip(THRESHOLDS, lines["answered rows"], strict=True) if rows >= 0.5]
    about = (
        "The model answers a row only if the probability of its answer reaches the threshold. The "
        "other rows are left to a person."
    )
    effects = [_effect("Answering only when confident", about, lines, None, half[-1])]
    if len(names) == 2:
        # The rarer class is usually the one to find.
        k = int(scores.true.sum(0).argmin())
        lines = _detection(scores.probabilities[:, k], scores.true[:, k])
        about = (
            f"{names[k]} is predicted if its probability reaches the threshold. A high threshold "
            "finds fewer of its rows, and more of those found are right."
        )
        effects.append(_effect(f"Threshold of {names[k]}", about, lines, 0.5, _best(lines["F1"])))
    return effects


def _effect(
    title: str,
    about: str,
    lines: dict[str, list[float]],
    current: float | None,
    best: float | None,
) -> dict[str, Any]:
    return {"title": title, "about": about, "lines": lines, "current": current, "best": best}


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
        answers = right[probabilities >= threshold]
        answered.append(len(answers) / len(right))
        accuracy.append(float(answers.mean()) if len(answers) else math.nan)
    return {"answered rows": answered, "right answers among them": accuracy}


def _detection(probabilities: Tensor, true: Tensor) -> dict[str, list[float]]:
    """Return precision, recall and F1 of a class at each threshold."""
    lines: dict[str, list[float]] = {"precision": [], "recall": [], "F1": []}
    for threshold in THRESHOLDS:
        predicted = probabilities >= threshold
        right = float((predicted & true).sum())
        num_predicted, rows = float(predicted.sum()), float(true.sum())
        lines["precision"].append(right / num_predicted if num_predicted else math.nan)
        lines["recall"].append(right / rows if rows else math.nan)
        lines["F1"].append(2 * right / (num_predicted + rows) if num_predicted + rows else math.nan)
    return lines


def _best(values: Sequence[float]) -> float | None:
    finite = [(value, t) for value, t in zip(values, THRESHOLDS, strict=True) if value == value]
    if not finite:
        return None
    # Of equal values, the threshold that is nearest to 0.5.
    return max(finite, key=lambda pair: (pair[0], -abs(pair[1] - 0.5)))[1]


def classes_and_probabilities(task: Task, last: Answers | None) -> dict[str, Any]:
    """Return the parts of the report about classes and probabilities."""
    empty: dict[str, Any] = {
        "per_class": [],
        "more_per_class": 0,
        "matrix": None,
        "pairs": [],
        "calibration": None,
        "thresholds": [],
    }
    names = task.target.labels or ()
    if last is None or not last.truths:
        return empty
    scores = task.metric.class_scores(last.predictions.predicted, last.truths)
    if scores is None or len(scores.true) < 2:
        return empty
    rows, left_out = tables.class_rows(class_figures(scores, names, last.blocks(task.metric)))
    calibrated = calibration(scores)
    content = {**empty, "per_class": rows, "more_per_class": left_out}
    if scores.threshold is None:
        answers = [task.answer(item)["prediction"] for item in last.predictions.predicted]
        counts = confusion_counts(names, answers, last.truths)
        content["matrix"] = tables.matrix(counts, names)
        content["pairs"] = [
            {
                "true": [*names, UNSEEN][i],
                "predicted": names[j],
                "rows": count(int(counts[i, j]), "row"),
            }
            for i, j in confused_pairs(counts)[:MAX_PAIRS]
        ]
    content["calibration"] = {
        "about": _calibrated(calibrated, is_exclusive=scores.threshold is None),
        "svg": _calibration_chart(calibrated).svg(),
        "rows": [
            (
                tables.share(item["confidence"]),
                tables.share(item["accuracy"]),
                tables.interval_text(item["interval"], 1.0),
                f"{item['rows']:,}",
            )
            for item in calibrated["bins"]
        ],
    }
    content["thresholds"] = [_threshold_content(item) for item in threshold_effects(scores, names)]
    return content


def _calibration_chart(calibrated: Mapping[str, Any]) -> Chart:
    """Return the accuracy over the probability, with the interval of each bin."""
    x = np.array([item["confidence"] for item in calibrated["bins"]])
    y = np.array([item["accuracy"] for item in calibrated["bins"]])
    low, high = np.array([item["interval"] for item in calibrated["bins"]]).T
    bars = [np.maximum(y - low, 0), np.maximum(high - y, 0)]

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
        style: dict[str, Any] = {"fmt": "o", "color": COLORS[0], "capsize": 3, "markersize": 4}
        axis.errorbar(x, y, yerr=bars, label="this model, 95% interval", **style)
        axis.set(xlabel="probability", ylabel="share that is right")
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        # This corner, of confident answers that are mostly wrong, is usually empty.
        finish(axis, legend="lower right")

    confidence, accuracy = calibrated["confidence"], calibrated["accuracy"]
    alt = (
        f"calibration: mean probability {confidence:.3f}, share that is right {accuracy:.3f}, so "
        f"the model is {_tendency(calibrated)} by {abs(confidence - accuracy):.3f}"
    )
    return Chart("Calibration", alt, draw)


def _calibrated(calibrated: Mapping[str, Any], *, is_exclusive: bool) -> str:
    mean, share = percent(calibrated["confidence"]), percent(calibrated["accuracy"])
    if is_exclusive:
        sentence = f"The mean probability of the answers is {mean}, and {share} of them are right"
        if abs(calibrated["confidence"] - calibrated["accuracy"]) >= MIN_GAP:
            sentence += f": the model is {_tendency(calibrated)}"
    else:
        sentence = f"The mean probability of all labels is {mean}, and {share} of them are true"
    return f"{sentence}. The expected calibration error is {calibrated['error']:.3f}."


def _tendency(calibrated: Mapping[str, Any]) -> str:
    return "too confident" if calibrated["confidence"] > calibrated["accuracy"] else "too cautious"


def _threshold_content(effect: Mapping[str, Any]) -> dict[str, Any]:
    title, current, best = effect["title"], effect["current"], effect["best"]
    lines = {
        name: [None if math.isnan(value) else round(value, 4) for value in values]
        for name, values in effect["lines"].items()
    }
    chart = line_chart(
        title,
        f"{title}: {', '.join(lines)} over the threshold",
        {name: (THRESHOLDS, values) for name, values in effect["lines"].items()},
        ("threshold", ""),
        vertical=current,
        is_share=True,
    )
    has_best = current is not None and best is not None
    return {
        "title": title,
        "about": effect["about"],
        "svg": chart.svg(),
        "lines": json.dumps(lines),
        "best": f"On these rows, F1 is highest at {best:.2f}." if has_best else "",
        "start": round(100 * (current if current is not None else best or 0.0)),
    }


def confusion_counts(
    labels: Sequence[str], predicted: Sequence[str], truths: Sequence[str]
) -> np.ndarray:
    """Compute a confusion matrix (K, K) of counts: rows are true classes, columns predicted ones.

    A further row (K + 1, K) counts the answers to classes that are not in `labels`, if there are
    any. They are wrong, as in the accuracy.
    """
    index = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels) + 1, len(labels)), dtype=int)
    for answer, truth in zip(predicted, truths, strict=True):
        counts[index.get(truth, len(labels)), index[answer]] += 1
    return counts if counts[-1].any() else counts[:-1]


def confused_pairs(counts: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs (true class, other predicted class) that occur, the most frequent first."""
    errors = counts * (1 - np.eye(*counts.shape, dtype=int))
    pairs = np.argwhere(errors)
    # A stable order: pairs of the same count are in the order of the classes.
    order = np.argsort(-errors[tuple(pairs.T)], kind="stable")
    return [(int(i), int(j)) for i, j in pairs[order]]
