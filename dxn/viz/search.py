"""The picture of a search: the metric of each trial by the values of each option."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from dxn.viz.figure import BLUE, ORANGE, finish, packed_axes, save, set_title, shortened

SIZE = (2.7, 2.2)  # inches of the panel of an option
Trial = tuple[Mapping[str, Any], float]  # values by option, and the metric


def draw_search(
    trials: Sequence[Trial],
    options: Sequence[str],
    metric: str,
    path: Path,
    *,
    logs: Collection[str],
) -> None:
    """Write a PNG with one panel per option.

    Args:
        trials: The complete trials, the best one first.
        options: Options that were searched.
        metric: Name of the metric.
        path: File to write.
        logs: Options whose axis is logarithmic.
    """
    figure, axes = packed_axes([SIZE] * len(options))
    for axis, option in zip(axes, options, strict=True):
        points = [(values[option], y) for values, y in trials]
        _draw_option(axis, points, is_log=option in logs)
        axis.set(xlabel=option, ylabel=metric)
        finish(axis, grid="y", legend=None)
    set_title(figure, f"{metric} of each trial", "the best trial is orange")
    save(figure, path)


def _draw_option(axis: Axes, points: Sequence[tuple[Any, float]], *, is_log: bool) -> None:
    x: list[Any] = [value for value, _ in points]
    if any(isinstance(value, str) for value in x):  # words in a list, in their order
        names = sorted(set(x), key=_number_first)
        axis.set_xticks(range(len(names)), shortened(names))
        axis.margins(x=0.3)
        x = [names.index(value) for value in x]
    elif is_log:
        axis.set_xscale("log")
        # Without powers, which are formulas.
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    colors = [ORANGE, *[BLUE] * (len(points) - 1)]
    # The best one last, so that it is on top.
    y = [value for _, value in points]
    axis.scatter(x[::-1], y[::-1], c=colors[::-1], s=22, linewidths=0)


def _number_first(word: str) -> tuple[bool, float, str]:
    try:
        return False, float(word), word
    except ValueError:
        return True, 0.0, word
