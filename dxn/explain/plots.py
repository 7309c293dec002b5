"""Plots of a run as PNG files, and functions that all pictures of this package use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

from dxn.tasks.task import Task

BLUE = "#2b6cb0"
ORANGE = "#dd6b20"
GREY = "#718096"

NUMBERED_CLASSES = 20  # with more classes, the cells are too small for numbers
MAX_TICKS = 40  # labels along one side of a confusion matrix that do not overlap
LABEL_LENGTH = 24  # characters of a class name
SET_LENGTH = 40  # characters of the name of a set of inputs, which is longer than a class name
MARKED_POINTS = 30  # with more points, dots would hide the line


def new_figure(width: float, height: float) -> Figure:
    """Create a figure with this size in inches."""
    # Without pyplot: pyplot keeps every figure in memory until it is closed.
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG."""
    with warnings.catch_warnings():
        # No font has all scripts. For a missing character, matplotlib draws a box, which is enough.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(path)


def set_title(figure: Figure | SubFigure, title: str) -> None:
    """Add a left-aligned title, unless it is empty."""
    if title:
        figure.suptitle(title, fontsize=10, x=0.02, ha="left")


def curves(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the losses over the steps, and the validation metrics, if any, over the epochs.

    Args:
        rows: Rows of metrics.jsonl.
        path: File to write.
    """
    names: dict[str, None] = {}  # a set that keeps the order of insertion
    for row in rows:
        for key in row:
            if key.startswith("validation/") and key != "validation/loss":
                names[key] = None
    figure = new_figure(9 if names else 4.5, 3.4)
    axes = figure.subplots(1, 2 if names else 1, squeeze=False)[0]
    for name, color in (("train/loss", BLUE), ("validation/loss", ORANGE)):
        _line(axes[0], rows, "step", name, label=name.replace("/", " "), color=color)
    axes[0].set(xlabel="step", ylabel="loss")
    for name in names:
        _line(axes[1], rows, "epoch", name, label=name.partition("/")[2])
        axes[1].set(xlabel="epoch", ylabel="validation")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines:
            axis.legend(frameon=False)
    save(figure, path)


def draw_task(
    task: Task, predicted: Sequence[Any], truths: Sequence[Any], folder: Path
) -> Path | None:
    """Draw the plot that `task.plots` names.

    Args:
        task: The task. Its method `answer` converts predictions to class names or numbers.
        predicted: Predictions, in the format of `Task.predict`.
        truths: Parsed targets of the same rows.
        folder: Folder to write to.

    Returns:
        The file that was written, or None if the task has no plot or there are no rows.

    Raises:
        ValueError: If there is no plot of that name.
    """
    if task.plots is None or not len(truths):
        return None
    if task.plots not in TASK_PLOTS:
        names = ", ".join(TASK_PLOTS)
        raise ValueError(f"{task.name}.plots must be one of {names}, got {task.plots!r}")
    file, draw = TASK_PLOTS[task.plots]
    answers = [task.answer(prediction)["prediction"] for prediction in predicted]
    draw(task, answers, truths, folder / file)
    return folder / file


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


def confusion(counts: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """Plot a confusion matrix. The color of a cell is its share of the true class.

    Args:
        counts: (K, K). Rows are true classes, columns predicted ones.
        labels: Names of the K classes.
        path: File to write.
    """
    k = len(labels)
    names = _cut(labels, LABEL_LENGTH)
    label_inches = 0.09 * max(map(len, names))
    size = min(max(2.5, 0.42 * k), 12)  # inches; 0.42 per class leaves room for four digits
    figure = new_figure(size + label_inches + 1.4, size + label_inches + 0.6)
    axes = figure.subplots()
    # maximum: a class without samples has a row of zeros.
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03, label="share of the true class")
    # With many classes, only every n-th one has a label.
    ticks = list(range(0, k, -(-k // MAX_TICKS)))
    shown = [names[i] for i in ticks]
    rotation = 90 if len(max(shown, key=len)) > 3 else 0
    axes.set_xticks(ticks, shown, rotation=rotation, parse_math=False)
    axes.set_yticks(ticks, shown, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    for i, j in np.argwhere(counts) if k <= NUMBERED_CLASSES else ():
        color = "white" if shares[i, j] > 0.5 else "black"
        text = str(int(counts[i, j]))
        axes.text(j, i, text, ha="center", va="center", color=color, fontsize=8)
    save(figure, path)


def scatter(predicted: Sequence[float], true: Sequence[float], path: Path) -> None:
    """Plot predictions over true values, with a line where both are equal.

    Args:
        predicted: The n predictions.
        true: The n true values.
        path: File to write.
    """
    figure = new_figure(4.4, 4.2)
    axes = figure.subplots()
    axes.axline((true[0], true[0]), slope=1, color=GREY, linewidth=1)
    axes.scatter(true, predicted, s=9, alpha=0.5, color=BLUE, edgecolors="none")
    axes.set(xlabel="true", ylabel="predicted")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def input_bars(scores: Mapping[str, float], metric: str, path: Path) -> None:
    """Plot a metric by set of inputs as bars: single inputs at the bottom, all inputs at the top.

    Args:
        scores: Value of the metric by set of inputs. A set is "all", "all but c", "a+b" or "a".
        metric: Name of the metric.
        path: File to write.
    """
    order = sorted(scores, key=lambda name: (_set_rank(name), scores[name]))
    figure = new_figure(6, 0.42 * len(order) + 1.2)
    axes = figure.subplots()
    colors = [(GREY, BLUE, ORANGE)[_set_rank(name)] for name in order]
    bars = axes.barh(range(len(order)), [scores[name] for name in order], color=colors)
    axes.set_yticks(range(len(order)), _cut(order, SET_LENGTH), parse_math=False)
    axes.bar_label(bars, [f"{scores[name]:.3f}" for name in order], padding=3)
    low = min(0.0, *scores.values())
    high = max(0.0, *scores.values())
    margin = 0.15 * (high - low or 1)  # room for the value next to the bar
    axes.set(xlabel=metric, xlim=(low - margin if low else 0, high + margin))
    axes.axvline(0, color="black", linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    save(figure, path)


def _cut(names: Sequence[str], length: int) -> list[str]:
    """Cut names that are longer than `length` characters, and mark them with an ellipsis."""
    return [n if len(n) <= length else n[: length - 1] + "…" for n in names]


def _set_rank(name: str) -> int:
    """Return the rank of a set of inputs: 0 for a single input, 1 for several, 2 for all."""
    if name == "all":
        return 2
    return 1 if "+" in name or name.startswith("all but ") else 0


def _line(axis: Axes, rows: Sequence[Mapping[str, Any]], x: str, y: str, **style: Any) -> None:
    """Plot column y over column x, for the rows that have y."""
    points = [(row[x], row[y]) for row in rows if y in row]
    if points:
        # A line through a single point is invisible, so few points also have dots.
        marker = "." if len(points) <= MARKED_POINTS else ""
        axis.plot(*zip(*points, strict=True), marker=marker, linewidth=1.2, **style)


def _draw_confusion(task: Task, answers: Sequence[Any], truths: Sequence[Any], path: Path) -> None:
    labels = task.labels or ()
    confusion(confusion_counts(labels, answers, truths), labels, path)


def _draw_scatter(task: Task, answers: Sequence[Any], truths: Sequence[Any], path: Path) -> None:
    scatter([float(answer) for answer in answers], [float(truth) for truth in truths], path)


TaskPlot = Callable[[Task, Sequence[Any], Sequence[Any], Path], None]

# Values of `Task.plots`: the name of the file, and the function that draws it.
TASK_PLOTS: dict[str, tuple[str, TaskPlot]] = {
    "confusion": ("confusion.png", _draw_confusion),
    "scatter": ("predicted_vs_true.png", _draw_scatter),
}
