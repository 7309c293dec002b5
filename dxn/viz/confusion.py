"""Charts of a classification: a confusion matrix, and the most confused pairs of many classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dxn.viz.chart import Chart
from dxn.viz.figure import BLUE, GREY, is_dark, separate_cells, shortened
from dxn.viz.fonts import text_width

NUMBERED_CLASSES = 20  # with more classes, the cells are too small for numbers
MATRIX_CLASSES = 60  # with more classes, there is no room for their names
MAX_PAIRS = 20  # of classes that are confused, listed above a matrix without numbers
FEW = 10  # a class with fewer samples has a grey name: its row is a poor estimate
NAME_SIZE = 8  # points; 6.5 for a matrix without numbers
CELL = 0.46  # inches; enough for four digits
SMALL_CELL = 0.15  # inches; enough for a name of 6.5 points


def confusion_counts(
    labels: Sequence[str], predicted: Sequence[str], truths: Sequence[str]
) -> np.ndarray:
    """Compute a confusion matrix (K, K) of counts: rows are true classes, columns predicted ones.

    Samples whose true class is not in `labels` are left out: the model cannot predict their class.
    """
    index = {label: i for i, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=int)
    for answer, truth in zip(predicted, truths, strict=True):
        if truth in index:
            counts[index[truth], index[answer]] += 1
    return counts


def about_counts(counts: np.ndarray) -> str:
    """Return a line about a confusion matrix, such as how many of the predictions are right."""
    about = f"{int(np.trace(counts)):,} of {int(counts.sum()):,} right"
    if len(counts) <= MATRIX_CLASSES and (counts.sum(1) < FEW).any():
        about += f"; grey: classes with fewer than {FEW} samples"
    return about


def confusion_charts(counts: np.ndarray, labels: Sequence[str]) -> list[Chart]:
    """Return the charts of a confusion matrix. The color of a cell is its share of the true class.

    Up to NUMBERED_CLASSES classes, the cells contain the counts. With more, the pairs of classes
    that are confused most are listed, and with more than MATRIX_CLASSES, only these.

    Args:
        counts: (K, K). Rows are true classes, columns predicted ones.
        labels: Names of the K classes.
    """
    k = len(labels)
    names = shortened(labels)
    alt = about_counts(counts)
    charts: list[Chart] = []
    if k > NUMBERED_CLASSES:
        rows = max(min(MAX_PAIRS, len(confused_pairs(counts))), 1)
        draw = partial(_draw_pairs, counts=counts, names=names)
        charts.append(Chart("Most confused classes", alt, draw, (8.5, 0.24 * rows + 0.9)))
    if k <= MATRIX_CLASSES:
        numbered = k <= NUMBERED_CLASSES
        size = _matrix_size(k, names, *((CELL, NAME_SIZE) if numbered else (SMALL_CELL, 6.5)))
        draw = partial(_draw_matrix, counts=counts, names=names, numbered=numbered)
        charts.append(Chart("Confusion matrix", alt, draw, size))
    return charts


def confused_pairs(counts: np.ndarray) -> list[tuple[int, int]]:
    """Return the pairs (true class, other predicted class) that occur, the most frequent first."""
    errors = counts * (1 - np.eye(len(counts), dtype=int))
    pairs = np.argwhere(errors)
    # A stable order: pairs of the same count are in the order of the classes.
    order = np.argsort(-errors[tuple(pairs.T)], kind="stable")
    return [(int(i), int(j)) for i, j in pairs[order]]


def _matrix_size(k: int, names: Sequence[str], cell: float, points: float) -> tuple[float, float]:
    """Return the width and height in inches of a figure with one matrix."""
    longest = max(text_width(name, points) for name in names) / 72
    side = max(cell * k, 2.2)
    # The room for the names with their counts, and the color bar.
    return side + longest + 2.1, side + longest + 0.9


def _draw_matrix(axis: Axes, counts: np.ndarray, names: Sequence[str], *, numbered: bool) -> None:
    totals = counts.sum(1)
    # maximum: a class without samples has a row of zeros.
    shares = counts / np.maximum(totals, 1)[:, None]
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    bar = axis.figure.colorbar(image, ax=axis, fraction=0.046, pad=0.03, shrink=0.8)
    bar.set_label("share of the true class", fontsize=NAME_SIZE)
    bar.ax.tick_params(labelsize=NAME_SIZE - 1)
    size = NAME_SIZE if numbered else 6.5
    k = len(names)
    rotation = 90 if max(map(len, names)) > 3 else 0
    axis.set_xticks(range(k), names, rotation=rotation, fontsize=size)
    rows = [f"{name}  (n={total:,})" for name, total in zip(names, totals, strict=True)]
    axis.set_yticks(range(k), rows, fontsize=size)
    for tick, total in zip(axis.get_yticklabels(), totals, strict=True):
        tick.set_color(GREY if total < FEW else "black")
    axis.set_xlabel("predicted class", fontsize=NAME_SIZE + 1)
    axis.set_ylabel("true class (n samples)", fontsize=NAME_SIZE + 1)
    axis.tick_params(length=0)
    # Without lines between the cells, a name is hard to follow to its cell.
    separate_cells(axis, k, k)
    if not numbered:
        return
    for i, j in np.argwhere(counts):
        color = "white" if is_dark(image.cmap(float(shares[i, j]))) else "black"
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": NAME_SIZE}
        axis.text(int(j), int(i), f"{counts[i, j]:,}", color=color, **style)


def _draw_pairs(axis: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
    """Draw the pairs of classes that are confused most, as bars."""
    pairs = confused_pairs(counts)[:MAX_PAIRS]
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("samples", fontsize=NAME_SIZE + 1)
    if not pairs:
        axis.set_title("no sample has a wrong class", loc="left", fontsize=10)
        return
    totals = counts.sum(1)
    values = [int(counts[pair]) for pair in pairs]
    bars = axis.barh(range(len(pairs)), values, color=BLUE)
    labels = [f"{names[i]} → {names[j]}" for i, j in pairs]
    axis.set_yticks(range(len(pairs)), labels, fontsize=NAME_SIZE)
    notes = [
        f"{value:,} ({value / totals[i]:.0%} of {totals[i]:,})"
        for value, (i, _) in zip(values, pairs, strict=True)
    ]
    axis.bar_label(bars, notes, padding=3, fontsize=NAME_SIZE)
    # Room for the note of the longest bar. The largest value is at the top.
    axis.set(xlim=(0, 1.25 * max(values)), ylim=(len(pairs) - 0.4, -0.6))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("most confused: true class → predicted class", loc="left", fontsize=10)
