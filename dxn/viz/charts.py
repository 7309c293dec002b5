"""The charts of an evaluation: predictions against targets, forecasts, and codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dxn.core.randomness import spaced_rows
from dxn.tasks.space import SHOWN_HORIZONS, AnswerKind
from dxn.viz.drawers.strip import CELLS_GAP, draw_frame, value_range
from dxn.viz.figure import BLUE, COLORS, GREY, ORANGE, Chart, finish, plain_numbers

MAX_DOTS = 1500  # of a scatter plot; with more points, their density is drawn
MAX_FORECASTS = 3
MAX_FRAMES = 6  # of a forecast
BAND_ALPHAS = (0.16, 0.3)  # of the widest band, and of each one inside
Answer = Mapping[str, Any]  # result of `Task.answer`


def task_charts(task: Any, predicted: Sequence[Any], truths: Sequence[Any]) -> list[Chart]:
    """Return the charts of the answers of a task; [] if it has none, or there are no rows.

    Args:
        task: The task. Its method `answer` converts predictions to class names or numbers.
        predicted: Predictions, in the format of `Task.predict`.
        truths: Parsed targets of the same rows.
    """
    charts = CHARTS.get(task.answer_kind)
    if charts is None or not len(truths if task.is_supervised else predicted):
        return []
    answers = [task.answer(prediction) for prediction in predicted]
    return charts(answers, truths)


def scatter_chart(predicted: Sequence[float], true: Sequence[float]) -> Chart:
    """Return predictions over true values, with a line where both are equal.

    Both axes have the same range and the same scale. Many points are drawn as their density.
    """
    points = np.stack([np.asarray(true, dtype=float), np.asarray(predicted, dtype=float)], 1)
    points = points[np.isfinite(points).all(1)]
    many = len(points) > MAX_DOTS

    def draw(axis: Axes) -> None:
        low = float(points.min(initial=0 if not len(points) else np.inf))
        high = float(points.max(initial=1 if not len(points) else -np.inf))
        margin = 0.04 * (high - low) or 0.5  # a single point gets an axis of length 1
        limits = (low - margin, high + margin)
        axis.plot(limits, limits, color=ORANGE, linewidth=1.2, label="predicted = true", zorder=3)
        if many:
            style: dict[str, Any] = {"gridsize": 40, "cmap": "Blues", "norm": LogNorm()}
            extent = (*limits, *limits)
            cells = axis.hexbin(*points.T, extent=extent, mincnt=1, linewidths=0.1, **style)
            bar = axis.figure.colorbar(cells, ax=axis, shrink=0.8, label="rows")
            bar.formatter = FuncFormatter(lambda value, _: f"{value:,.0f}")
        else:
            # Dots of few points are solid, dots of many let those below them show.
            alpha = 0.8 if len(points) < 100 else 0.4
            axis.scatter(*points.T, s=14, alpha=alpha, color=BLUE, edgecolors="none")
        axis.set(xlabel="true", ylabel="predicted", xlim=limits, ylim=limits, aspect="equal")
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(6))
            side.set_major_formatter(plain_numbers(max(abs(low), abs(high))))
        finish(axis, grid=None, legend="upper left")

    alt = "predictions over true values, with a line where both are equal"
    return Chart("Predicted and true values", alt, draw, (5.8 if many else 5, 4.6))


def error_chart(errors: Sequence[float]) -> Chart:
    """Return the distribution of prediction minus true value."""
    values = np.asarray(errors, dtype=float)
    values = values[np.isfinite(values)]

    def draw(axis: Axes) -> None:
        axis.hist(values, bins=min(40, max(len(values) // 5, 5)), color=COLORS[0])
        axis.axvline(0, color=GREY, linestyle="--", linewidth=1)
        axis.set(xlabel="prediction minus true value", ylabel="rows")
        axis.xaxis.set_major_locator(MaxNLocator(5))
        if len(values):
            axis.xaxis.set_major_formatter(plain_numbers(float(np.abs(values).max())))
        finish(axis, legend=None)

    mean = float(values.mean()) if len(values) else 0.0
    return Chart("Errors", f"distribution of the errors, mean {mean:.4g}", draw, (5, 4.6))


def line_chart(
    title: str,
    alt: str,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    labels: tuple[str, str],
    *,
    vertical: float | None = None,
    is_share: bool = False,
    is_log: bool = False,
) -> Chart:
    """Return one line per name, such as a metric of several runs over the epochs.

    Args:
        title: Title of the chart.
        alt: Description.
        lines: Horizontal and vertical values by name.
        labels: Labels of the horizontal and vertical axis.
        vertical: Position of a dotted vertical line.
        is_share: Whether both axes are from 0 to 1; otherwise the horizontal one has integers.
        is_log: Whether the vertical axis is logarithmic.
    """

    def draw(axis: Axes) -> None:
        for i, (name, (x, y)) in enumerate(lines.items()):
            marker = "." if len(x) < 30 else ""
            color = COLORS[i % len(COLORS)]
            axis.plot(x, y, marker=marker, linewidth=1.5, color=color, label=name)
        if vertical is not None:
            axis.axvline(vertical, color=GREY, linestyle=":", linewidth=1)
        axis.set(xlabel=labels[0], ylabel=labels[1])
        if is_share:
            axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        else:
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if is_log:
            axis.set_yscale("log")
            # Without powers, which pages cannot show.
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("")
        finish(axis)

    return Chart(title, alt, draw)


def forecast_charts(answers: Sequence[Answer], truths: Sequence[Any]) -> list[Chart]:
    """Return a few forecasts, evenly spaced over all of them: the median and bands of quantiles.

    The history and the true values are drawn, too. Only the first channel is drawn, and frames of
    cells as pictures, see `frame_charts`.

    Args:
        answers: Results of `Forecast.answer`: the values of each quantile by its probability.
        truths: The `Future` of each forecast, with its history.
    """
    if truths[0].frame is not None:
        return frame_charts(answers, truths)
    charts = []
    for i in spaced_rows(len(truths), MAX_FORECASTS):
        title = _forecast_title(truths[i], i)
        draw = _forecast(answers[i]["quantiles"], truths[i])
        charts.append(Chart(title, f"forecast of {title}", draw))
    return charts


def _forecast_title(truth: Any, number: int) -> str:
    """Return the series, the channel that is drawn, and the times of a forecast."""
    name = "" if truth.series is None else str(truth.series)
    names = [part for part in (name, *truth.names[:1]) if part]
    times = f"{truth.start} to {truth.stop}" if truth.start else f"forecast {number + 1}"
    return ", ".join([*names, times])


def frame_charts(answers: Sequence[Answer], truths: Sequence[Any]) -> list[Chart]:
    """Return a few forecasts of frames: the end of the history, the true frames, the forecast.

    Args:
        answers: Results of `Forecast.answer`.
        truths: The `Future` of each forecast, with its history.
    """
    charts = []
    for i in spaced_rows(len(truths), MAX_FORECASTS):
        forecast = np.array(answers[i]["quantiles"]["0.5"], dtype=float)[:MAX_FRAMES]
        true = truths[i].values.unflatten(1, truths[i].frame).numpy()[: len(forecast)]
        history = truths[i].past[-len(forecast) :].unflatten(1, truths[i].frame).numpy()
        rows = {"history": history, "true": true, "forecast": forecast}
        height = 0.5 + 3 * 3.7 / max(len(forecast), 4) * true.shape[1] / true.shape[2]
        alt = f"forecast {i + 1}: the last frames of the history, the true ones and the forecast"
        charts.append(Chart(f"forecast {i + 1}", alt, _frames(rows), (4.6, height)))
    return charts


def _frames(rows: Mapping[str, np.ndarray]) -> Callable[[Axes], None]:
    """Return the function that draws rows of frames (S, H, W), all in the same colors."""

    def draw(axis: Axes) -> None:
        limits = value_range(*rows.values())
        height, width = rows["true"].shape[1:]
        gap = max(round(CELLS_GAP * width), 1)
        count = len(rows["forecast"])
        for i, frames in enumerate(rows.values()):
            for j, frame in enumerate(frames, start=count - len(frames) if i == 0 else 0):
                left, top = j * (width + gap), i * (height + gap)
                extent = (left, left + width, top + height, top)
                axis.imshow(draw_frame(frame, limits), extent=extent, interpolation="nearest")
        columns = max(count, 4)
        axis.set(
            xlim=(0, columns * (width + gap) - gap), ylim=(3 * (height + gap) - gap, 0), aspect=1
        )
        middles = [j * (width + gap) + width / 2 for j in range(count)]
        axis.set_xticks(middles, [str(j + 1) for j in range(count)])
        axis.set_yticks([i * (height + gap) + height / 2 for i in range(3)], list(rows))
        axis.tick_params(length=0, labelsize=8)
        axis.set_xlabel("future time step (true, forecast)", fontsize=8)
        axis.spines[:].set_visible(False)
        colors = ScalarMappable(Normalize(*limits), "viridis")
        bar = axis.figure.colorbar(colors, ax=axis, fraction=0.03, pad=0.02)
        bar.ax.tick_params(labelsize=7)
        bar.outline.set_visible(False)
        bar.formatter = plain_numbers(max(abs(limit) for limit in limits))

    return draw


def _forecast(quantiles: Mapping[str, Any], truth: Any) -> Callable[[Axes], None]:
    by_level = {float(level): _first_channel(values) for level, values in quantiles.items()}

    def draw(axis: Axes) -> None:
        levels = sorted(by_level)
        horizon = len(by_level[levels[0]])
        history = truth.past[-SHOWN_HORIZONS * horizon :, 0].numpy()
        true = truth.values[:, 0].numpy()
        ahead = np.arange(1, horizon + 1)
        axis.plot(np.arange(1 - len(history), 1), history, color=GREY, label="history")
        # With the last value of the history in front, both lines are connected.
        x, y = np.r_[0, ahead[: len(true)]], np.r_[history[-1], true]
        axis.plot(x, y, color="black", label="true")
        pairs = [(low, high) for low, high in zip(levels, levels[::-1], strict=True) if low < high]
        for k, (low, high) in enumerate(pairs):
            label = f"{100 * low:g}% to {100 * high:g}%"
            alpha = BAND_ALPHAS[min(k, 1)]
            style = {"color": BLUE, "alpha": alpha, "linewidth": 0, "label": label}
            axis.fill_between(ahead, by_level[low], by_level[high], **style)
        axis.plot(ahead, by_level[0.5], color=ORANGE, linewidth=1.6, label="median")
        axis.axvline(0.5, color=GREY, linewidth=0.6, linestyle=":")
        axis.yaxis.set_major_formatter(plain_numbers(max(abs(low) for low in axis.get_ylim())))
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("time steps after the end of the history", fontsize=8)
        axis.margins(x=0.01)
        finish(axis, grid=None, legend=None)
        # Below the curves: no corner of a chart is free for every series.
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 3}
        axis.legend(frameon=False, fontsize=8, **below)

    return draw


def _scatter(answers: Sequence[Answer], truths: Sequence[Any]) -> list[Chart]:
    numbers = [float(answer["prediction"]) for answer in answers]
    true = [float(truth) for truth in truths]
    errors = [a - t for a, t in zip(numbers, true, strict=True)]
    return [scatter_chart(numbers, true), error_chart(errors)]


def _codes(answers: Sequence[Answer], truths: Sequence[Any]) -> list[Chart]:
    size = answers[0]["num_codes"]
    stages = np.concatenate([answer["prediction"] for answer in answers]).T
    lines: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for i, codes in enumerate(stages, start=1):
        counts = np.sort(np.bincount(codes, minlength=size))[::-1]
        name = f"stage {i}" if len(stages) > 1 else "codes"
        lines[name] = (range(1, size + 1), (counts / len(codes)).tolist())
    used = ", ".join(
        f"{name}: {np.count_nonzero(y):,} of {size:,}" for name, (_, y) in lines.items()
    )
    axes = "codes, the most frequent first", "share of the tokens"
    about = f"codes that occur: {used}"
    return [line_chart("Use of the codes", about, lines, axes, is_log=True)]


# By the kind of the answers of a task.
CHARTS: dict[AnswerKind | None, Callable[..., list[Chart]]] = {
    AnswerKind.NUMBER: _scatter,
    AnswerKind.QUANTILES: forecast_charts,
    AnswerKind.CODES: _codes,
}


def _first_channel(values: Sequence[Any]) -> np.ndarray:
    array = np.array(values, dtype=float)
    return array if array.ndim == 1 else array[:, 0]
