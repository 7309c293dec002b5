"""The plots of an evaluation: predictions against targets, and the metric of each set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dxn.tasks.task import Task
from dxn.viz.confusion import confusion_counts, draw_confusion
from dxn.viz.figures import BLUE, GREY, ORANGE, new_figure, plain_numbers, save, set_title
from dxn.viz.forecasts import draw_forecasts
from dxn.viz.labels import shortened
from dxn.viz.numbers import number

SET_LENGTH = 40  # characters of the name of a set of inputs, which is longer than a class name
Answer = Mapping[str, Any]  # result of `Task.answer`
MAX_DOTS = 2000  # with more points, their density is drawn


def draw_task(
    task: Task,
    predicted: Sequence[Any],
    truths: Sequence[Any],
    folder: Path,
    *,
    about: str = "",
) -> Path | None:
    """Draw the plot that `task.plots` names.

    Args:
        task: The task. Its method `answer` converts predictions to class names or numbers.
        predicted: Predictions, in the format of `Task.predict`.
        truths: Parsed targets of the same rows.
        folder: Folder to write to.
        about: Name of the run and the split, below the title.

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
    answers = [task.answer(prediction) for prediction in predicted]
    draw(task, answers, truths, folder / file, about)
    return folder / file


def scatter(
    predicted: Sequence[float], true: Sequence[float], path: Path, *, about: str = ""
) -> None:
    """Plot predictions over true values, with a line where both are equal.

    Both axes have the same range and the same scale. Many points are drawn as their density.

    Args:
        predicted: The n predictions.
        true: The n true values.
        path: File to write.
        about: Name of the run and the split, below the title.
    """
    points = np.stack([np.asarray(true, dtype=float), np.asarray(predicted, dtype=float)], 1)
    points = points[np.isfinite(points).all(1)]
    many = len(points) > MAX_DOTS
    figure = new_figure(5.8 if many else 5, 5.2)
    set_title(figure, "Predicted and true values", about)
    axis = figure.subplots()
    low = float(points.min(initial=0 if not len(points) else np.inf))
    high = float(points.max(initial=1 if not len(points) else -np.inf))
    margin = 0.04 * (high - low) or 0.5  # a single point gets an axis of length 1
    limits = (low - margin, high + margin)
    axis.plot(limits, limits, color=ORANGE, linewidth=1.2, label="predicted = true", zorder=3)
    if many:
        style: dict[str, Any] = {"gridsize": 60, "cmap": "Blues", "norm": LogNorm()}
        cells = axis.hexbin(*points.T, extent=(*limits, *limits), mincnt=1, linewidths=0.1, **style)
        bar = figure.colorbar(cells, ax=axis, shrink=0.8, label="rows")
        bar.formatter = FuncFormatter(lambda value, _: f"{value:,.0f}")
    else:
        # Dots of few points are solid, dots of many let those below them show.
        alpha = 0.8 if len(points) < 100 else 0.4
        axis.scatter(*points.T, s=14, alpha=alpha, color=BLUE, edgecolors="none")
    axis.set(xlabel="true", ylabel="predicted", xlim=limits, ylim=limits, aspect="equal")
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(MaxNLocator(6))
        one.set_major_formatter(plain_numbers(max(abs(low), abs(high))))
    axis.legend(frameon=False, fontsize=8, loc="upper left")
    axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def input_bars(scores: Mapping[str, float], metric: str, path: Path, *, about: str = "") -> None:
    """Plot a metric by set of inputs as bars: single inputs at the bottom, all inputs at the top.

    Args:
        scores: Value of the metric by set of inputs. A set is "all", "all but c", "a+b" or "a".
        metric: Name of the metric.
        path: File to write.
        about: Name of the run and the split, below the title.
    """
    order = sorted(scores, key=lambda name: (_set_rank(name), scores[name]))
    figure = new_figure(7, 0.36 * len(order) + 1.5)
    set_title(figure, f"{metric} with each set of inputs", about)
    axis = figure.subplots()
    colors = [(GREY, BLUE, ORANGE)[_set_rank(name)] for name in order]
    bars = axis.barh(range(len(order)), [scores[name] for name in order], color=colors)
    axis.set_yticks(range(len(order)), shortened(order, SET_LENGTH))
    low = min(0.0, *scores.values())
    high = max(0.0, *scores.values())
    values = [f"{scores[name]:.3f}" if high < 10 else number(scores[name]) for name in order]
    axis.bar_label(bars, values, padding=3)
    margin = 0.15 * (high - low or 1)  # room for the value next to the bar
    axis.set(xlabel=metric, xlim=(low - margin if low else 0, high + margin))
    axis.axvline(0, color="black", linewidth=0.8)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    save(figure, path)


def _set_rank(name: str) -> int:
    """Return the rank of a set of inputs: 0 for a single input, 1 for several, 2 for all."""
    if name == "all":
        return 2
    return 1 if "+" in name or name.startswith("all but ") else 0


def _draw_confusion(
    task: Task, answers: Sequence[Answer], truths: Sequence[Any], path: Path, about: str
) -> None:
    labels = task.labels or ()
    named = [answer["prediction"] for answer in answers]
    draw_confusion(confusion_counts(labels, named, truths), labels, path, about=about)


def _draw_scatter(
    task: Task, answers: Sequence[Answer], truths: Sequence[Any], path: Path, about: str
) -> None:
    numbers = [float(answer["prediction"]) for answer in answers]
    scatter(numbers, [float(t) for t in truths], path, about=about)


def _draw_forecasts(
    task: Task, answers: Sequence[Answer], truths: Sequence[Any], path: Path, about: str
) -> None:
    draw_forecasts(answers, truths, path, about=about)


TaskPlot = Callable[[Task, Sequence[Answer], Sequence[Any], Path, str], None]

# Values of `Task.plots`: the name of the file, and the function that draws it.
TASK_PLOTS: dict[str, tuple[str, TaskPlot]] = {
    "confusion": ("confusion.png", _draw_confusion),
    "scatter": ("predicted_vs_true.png", _draw_scatter),
    "forecast": ("forecasts.png", _draw_forecasts),
}
