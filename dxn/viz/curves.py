"""The learning curves of a run: one chart for each family of metrics, over the epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dxn.core.display import number
from dxn.viz.figure import COLORS, GREY, Chart, finish, plain_numbers

Row = Mapping[str, Any]

PREFIX = "validation/"
TRAIN_LOSS = "train/loss"  # mean of the last few batches
EPOCH_LOSS = "train/epoch_loss"  # mean of an epoch
LABELS = {PREFIX + "loss": "validation loss", TRAIN_LOSS: "train loss", EPOCH_LOSS: "train loss"}
# Families of metrics by name, because a scale of their own makes them readable: BLEU is between 0
# and 100 and hides an accuracy, and errors have the unit of the target. The rest is 0 to 1.
FAMILIES = {
    "bleu": "score, 0 to 100",
    "chrf": "score, 0 to 100",
    "wer": "error rate",
    "cer": "error rate",
    "rmse": "error, unit of the target",
    "mae": "error, unit of the target",
    "median_absolute_error": "error, unit of the target",
    "crps": "error, unit of the target",
    "mse": "squared error",
    "skill": "skill",
    "mase": "error, 1: repeat the last season",
    "log_loss": "log loss",
    "perplexity": "perplexity",
    "r2": "R²",
    "psnr": "decibels",
    "snr": "decibels",
    "bits": "bits",
    "entropy": "bits of a code",
}
UNIT = "metrics from 0 to 1"
LOSS = "loss"
MARKED_POINTS = 40  # with more points, dots would hide the line


def curve_charts(rows: Sequence[Row], *, best: tuple[int, str] | None = None) -> list[Chart]:
    """Return the losses and the validation metrics over the epochs, one chart per family.

    Args:
        rows: Rows of metrics.jsonl.
        best: Epoch of the weights that were saved, and the metric that selected it.
    """
    charts: list[Chart] = []
    for family in families_of(rows):
        title = LOSS if family == LOSS else f"validation: {family}"
        draw = partial(_draw_family, rows=rows, family=family, best=best)
        charts.append(Chart(title, f"learning curves: {title}", draw))
    return charts


def _draw_family(
    axis: Axes, *, rows: Sequence[Row], family: str, best: tuple[int, str] | None
) -> None:
    """Plot the losses or a family of metrics over the epochs."""
    per_epoch = _steps_per_epoch(rows)
    for i, name in enumerate(families_of(rows)[family]):
        # The loss of the training is in each chart's first color, that of the validation next.
        _draw_line(axis, rows, name, per_epoch, color=COLORS[i % len(COLORS)])
    _finish(axis, family, in_epochs=per_epoch is not None, best=best)


def best_epoch(rows: Sequence[Row], task: Any) -> tuple[int, str] | None:
    """Return the epoch with the best value of the metric that the task monitors, and its name.

    With equal values, and without any value of the metric, the epoch with the lower loss is better,
    as in `dxn.training.state.State`.
    """
    name = (
        task.metric.monitored
        if any(PREFIX + task.metric.monitored in row for row in rows)
        else LOSS
    )
    best: tuple[float, float, int] | None = None
    for row in rows:
        value = row.get(PREFIX + name)
        if value is None or "epoch" not in row:
            continue
        loss = row.get(PREFIX + "loss", math.nan)
        # A comparison with NaN is False.
        is_lower = best is not None and value == best[0] and loss < best[1]
        old = None if best is None else best[0]
        is_better = (
            old is None or value < old if name == LOSS else task.metric.is_better(value, old)
        )
        if is_lower or (is_better and not math.isnan(value)):
            best = value, loss, row["epoch"]
    return None if best is None else (best[2], name)


def shown_rows(rows: Sequence[Row], task: Any) -> list[Row]:
    """Return the rows without the metrics that the task does not show."""
    names = {key: key.removeprefix(PREFIX) for row in rows for key in row if key.startswith(PREFIX)}
    shown = set(task.metric.shown(names.values()))
    return [
        {key: value for key, value in row.items() if names.get(key) in {None, *shown}}
        for row in rows
    ]


def families_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns of each family: the loss first, and the others in the order of rows."""
    # A short epoch has no other training loss than its mean.
    train = TRAIN_LOSS if any(TRAIN_LOSS in row for row in rows) else EPOCH_LOSS
    panels: dict[str, list[str]] = {LOSS: [train, PREFIX + "loss"]}
    for row in rows:
        for key in row:
            name = key.removeprefix(PREFIX)
            if key.startswith(PREFIX) and name != "loss":
                family = LOSS if name.startswith("loss") else FAMILIES.get(name, UNIT)
                names = panels.setdefault(family, [])
                if key not in names:
                    names.append(key)
    return panels


def _steps_per_epoch(rows: Sequence[Row]) -> float | None:
    """Return the number of steps of an epoch; None without validation at the end of an epoch."""
    ends = [row for row in rows if any(key.startswith(PREFIX) for key in row)]
    ratios = [row["step"] / row["epoch"] for row in ends if row.get("epoch") and row.get("step")]
    return ratios[-1] if ratios else None


def _draw_line(
    axis: Axes, rows: Sequence[Row], name: str, per_epoch: float | None, *, color: str
) -> None:
    points = [(row, row[name]) for row in rows if row.get(name) is not None]
    if not points:
        return
    if per_epoch is None:
        x = [row["step"] for row, _ in points]
    elif name.startswith(PREFIX):
        x = [row["epoch"] for row, _ in points]
    else:  # training is logged within epochs
        x = [row["step"] / per_epoch for row, _ in points]
    # A line through a single point is invisible, so few points also have dots.
    marker = "." if len(points) <= MARKED_POINTS else ""
    label = LABELS.get(name) or name.removeprefix(PREFIX).replace("/", " ")
    y = [value for _, value in points]
    axis.plot(x, y, marker=marker, linewidth=1.2, color=color, label=label)


def _finish(axis: Axes, family: str, *, in_epochs: bool, best: tuple[int, str] | None) -> None:
    """Add the labels of a panel, and the line at the best epoch."""
    if best is not None and in_epochs:
        epoch, metric = best
        axis.axvline(epoch, color=GREY, linewidth=1, linestyle="--", zorder=0)
        value = next((v for line in axis.lines for v in _value(line, metric, epoch)), None)
        if value is not None:
            axis.plot([epoch], [value], "o", color="black", markersize=5, fillstyle="none")
        label = f"saved: epoch {epoch}" + ("" if value is None else f", {metric} {number(value)}")
        axis.plot([], [], "--", color=GREY, linewidth=1, label=label)
    axis.set_xlabel("epoch" if in_epochs else "step")
    if family == UNIT:
        axis.set_ylim(-0.02, 1.02)
    elif family != LOSS and family != "R²" and axis.dataLim.ymin >= 0:  # decibels can be negative
        axis.set_ylim(bottom=0)
    # Epochs are whole numbers; half an epoch would be misleading.
    axis.yaxis.set_major_formatter(plain_numbers(max(map(abs, axis.get_ylim()))))
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    finish(axis, grid="y", legend="best" if axis.lines else None)


def _value(line: Any, metric: str, epoch: int) -> list[float]:
    """Return the value of a metric at an epoch, if a line shows this metric."""
    is_metric = line.get_label() in (metric, f"validation {metric}")
    return [float(y) for x, y in line.get_xydata() if is_metric and x == epoch]
