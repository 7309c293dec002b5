"""Charts as SVG in the colors of the page, so that they are readable in light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from dxn.report.classes import THRESHOLDS, Calibration, ThresholdEffect
from dxn.viz.curves import draw_family, families_of
from dxn.viz.drawers.html import escaped
from dxn.viz.figures import GREY, new_figure, plain_numbers

# Inches. On the screen of a phone, a chart of this width has letters of normal size.
SIZE = (4.3, 2.9)
MAX_DOTS = 1500  # of a scatter plot; more would make the page large
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")  # the cycle of matplotlib
# Colors in the files of matplotlib, and those of the page that replace them (style.css).
REPLACED = {
    **{color: f"var(--chart-{i + 1})" for i, color in enumerate(COLORS)},
    GREY: "var(--muted)",
    "#e2e8f0": "var(--line)",
    "#000000": "currentColor",
}
# Ids of groups repeat in every chart, and nothing refers to them.
GROUP_ID = re.compile(r' id="(?:figure|axes|patch|text|line2d|matplotlib|xtick|ytick|legend)[^"]*"')
FONT = re.compile(r"font(?:-family)?: [^;\"]*")
SIZE_OF_FONT = re.compile(r"font: (?:[a-z]+ )*?([\d.]+)px")


def svg(figure: Figure, alt: str) -> Markup:
    """Return a figure as an SVG element.

    Args:
        figure: The figure.
        alt: Description for readers who do not see the chart.
    """
    file = io.StringIO()
    # Text stays text, so that a screen reader and the search of the browser find it. A constant
    # salt makes equal charts equal files.
    labels: list[Text] = figure.findobj(Text)  # pyright: ignore[reportAssignmentType]
    for label in labels:
        label.set_parse_math(False)  # a name with two dollar signs is no formula
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "dxn"}
    with mpl.rc_context(options):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = GROUP_ID.sub("", text)
    text = FONT.sub(_font, text)
    for color, variable in REPLACED.items():
        text = text.replace(color, variable)
    # The size is that of the box around it, and the ratio that of the figure.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
    # Escaped by matplotlib (names of metrics) and by `escaped`.
    return Markup(
        text.replace("<svg", f'<svg role="img" aria-label="{escaped(alt)}" class="chart"', 1)
    )


def curve_charts(
    rows: Sequence[Mapping[str, Any]], best: tuple[int, str] | None
) -> list[tuple[str, Markup]]:
    """Return the learning curves, one chart per family of metrics.

    Args:
        rows: Rows of metrics.jsonl.
        best: Epoch of the weights that were saved, and the metric that selected it.
    """
    charts: list[tuple[str, Markup]] = []
    for family in families_of(rows):
        figure = new_figure(*SIZE)
        axis = figure.subplots()
        draw_family(axis, rows, family, best=best)
        title = axis.get_title(loc="left")
        axis.set_title("", loc="left")
        charts.append((title, svg(figure, f"learning curves: {title}")))
    return charts


def calibration_chart(found: Calibration) -> Markup:
    """Draw the accuracy over the probability, with the interval of each bin."""
    figure, axis = _axes("probability", "share that is right")
    axis.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
    x = [each.confidence for each in found.bins]
    y = [each.accuracy for each in found.bins]
    below = [max(each.accuracy - each.interval[0], 0) for each in found.bins]
    above = [max(each.interval[1] - each.accuracy, 0) for each in found.bins]
    style: dict[str, Any] = {"fmt": "o", "color": COLORS[0], "capsize": 3, "markersize": 4}
    axis.errorbar(x, y, yerr=[below, above], label="this model, 95% interval", **style)
    _finish(axis, limits=(-0.02, 1.02))
    gap = found.confidence - found.accuracy
    tendency = "too confident" if gap > 0 else "too cautious"
    return svg(
        figure,
        f"calibration: mean probability {found.confidence:.3f}, share that is right "
        f"{found.accuracy:.3f}, so the model is {tendency} by {abs(gap):.3f}",
    )


def threshold_chart(effect: ThresholdEffect) -> Markup:
    """Draw the lines of a threshold, and the threshold that the model uses."""
    figure, axis = _axes("threshold", "")
    for color, (name, values) in zip(COLORS, effect.lines.items(), strict=False):
        axis.plot(THRESHOLDS, values, color=color, linewidth=1.6, label=name)
    if effect.current is not None:
        axis.axvline(effect.current, color=GREY, linestyle=":", linewidth=1)
    _finish(axis, limits=(-0.02, 1.02))
    return svg(figure, f"{effect.title}: {', '.join(effect.lines)} over the threshold")


def scatter_chart(predicted: Sequence[float], true: Sequence[float]) -> Markup:
    """Draw predictions over true values."""
    points = np.stack([np.asarray(true, dtype=float), np.asarray(predicted, dtype=float)], 1)
    points = points[np.isfinite(points).all(1)]
    step = max(-(-len(points) // MAX_DOTS), 1)
    figure, axis = _axes("true value", "prediction")
    low, high = (float(points.min()), float(points.max())) if len(points) else (0.0, 1.0)
    axis.plot([low, high], [low, high], "--", color=GREY, linewidth=1, label="predicted = true")
    label = f"rows (every {step}th)" if step > 1 else "rows"
    style: dict[str, Any] = {"markersize": 3, "alpha": 0.55, "color": COLORS[0], "label": label}
    axis.plot(*points[::step].T, "o", **style)
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_locator(MaxNLocator(5))
        one.set_major_formatter(plain_numbers(max(abs(low), abs(high))))
    _finish(axis)
    return svg(figure, "predictions over true values, with a line where both are equal")


def error_chart(errors: Sequence[float]) -> Markup:
    """Draw the distribution of prediction minus true value."""
    values = np.asarray(errors, dtype=float)
    values = values[np.isfinite(values)]
    figure, axis = _axes("prediction minus true value", "rows")
    axis.hist(values, bins=min(40, max(len(values) // 5, 5)), color=COLORS[0])
    axis.axvline(0, color=GREY, linestyle="--", linewidth=1)
    axis.xaxis.set_major_locator(MaxNLocator(5))
    if len(values):
        axis.xaxis.set_major_formatter(plain_numbers(float(np.abs(values).max())))
    _finish(axis, legend=False)
    mean = float(values.mean()) if len(values) else 0.0
    return svg(figure, f"distribution of the errors, mean {mean:.4g}")


def overlay_chart(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], y: str) -> Markup:
    """Draw one line per run.

    Args:
        lines: Epochs and values by name of the run.
        y: Name of the metric.
    """
    figure, axis = _axes("epoch", y)
    for i, (name, (epochs, values)) in enumerate(lines.items()):
        marker = "." if len(epochs) < 30 else ""
        color = COLORS[i % len(COLORS)]
        axis.plot(epochs, values, marker=marker, linewidth=1.4, color=color, label=name)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _finish(axis)
    return svg(figure, f"validation {y} of {', '.join(lines)} over the epochs")


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = new_figure(*SIZE)
    axis = figure.subplots()
    axis.set(xlabel=x, ylabel=y)
    return figure, axis


def _finish(axis: Axes, *, limits: tuple[float, float] | None = None, legend: bool = True) -> None:
    if limits is not None:
        axis.set(ylim=limits, xlim=(-0.02, 1.02))
    axis.grid(color="#e2e8f0", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if legend:
        axis.legend(frameon=False, fontsize=8.5)


def _font(match: re.Match[str]) -> str:
    """Return the size of a font without its family, which is that of the page."""
    size = SIZE_OF_FONT.match(match[0])
    return f"font-size: {size[1]}px" if size else "font-family: inherit"
