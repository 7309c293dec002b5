"""The plot of forecasts: the history, the true values, the median and bands of quantiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from dxn.viz.figures import BLUE, GREY, ORANGE, new_figure, plain_numbers, save, set_title

MAX_PANELS = 3
# A longer history is cut: the forecast would be too narrow to see.
HISTORY_HORIZONS = 4
BAND_ALPHAS = (0.16, 0.3)  # of the widest band, and of each one inside


def draw_forecasts(
    answers: Sequence[Mapping[str, Any]], truths: Sequence[Any], path: Path, *, about: str = ""
) -> None:
    """Plot a few forecasts, evenly spaced over all of them, one below the other.

    Only the first channel is drawn.

    Args:
        answers: Results of `Forecast.answer`: the values of each quantile by its probability.
        truths: The `Future` of each forecast, with its history.
        path: File to write.
        about: Name of the run and the split, below the title.
    """
    chosen = np.unique(np.linspace(0, len(truths) - 1, MAX_PANELS).round().astype(int))
    figure = new_figure(8, 1.9 * len(chosen) + 0.9)
    channel = truths[0].names[0] if truths[0].names else ""
    set_title(figure, f"Forecasts of {channel}" if channel else "Forecasts", about)
    axes = figure.subplots(len(chosen), squeeze=False)[:, 0]
    for axis, i in zip(axes, chosen, strict=True):
        _draw_panel(axis, answers[i]["quantiles"], truths[i])
    axes[-1].set_xlabel("time steps after the end of the history", fontsize=8)
    # Below the panels: no corner of a panel is free for every series.
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, frameon=False, fontsize=8, loc="outside lower center", ncols=6)
    save(figure, path)


def _draw_panel(axis: Any, quantiles: Mapping[str, Any], truth: Any) -> None:
    by_level = {float(level): _first_channel(values) for level, values in quantiles.items()}
    levels = sorted(by_level)
    horizon = len(by_level[levels[0]])
    history = truth.history[-HISTORY_HORIZONS * horizon :, 0].numpy()
    true = truth.values[:, 0].numpy()
    ahead = np.arange(1, horizon + 1)
    past = np.arange(1 - len(history), 1)
    axis.plot(past, history, color=GREY, linewidth=1.2, label="history")
    # With the last value of the history in front, both lines are connected.
    axis.plot(np.r_[0, ahead[: len(true)]], np.r_[history[-1], true], color="black", label="true")
    pairs = [(low, high) for low, high in zip(levels, levels[::-1], strict=True) if low < high]
    for k, (low, high) in enumerate(pairs):
        label = f"{100 * low:g}% to {100 * high:g}%"
        alpha = BAND_ALPHAS[min(k, 1)]
        style = {"color": BLUE, "alpha": alpha, "linewidth": 0, "label": label}
        axis.fill_between(ahead, by_level[low], by_level[high], **style)
    axis.plot(ahead, by_level[0.5], color=ORANGE, linewidth=1.6, label="median")
    axis.axvline(0.5, color=GREY, linewidth=0.6, linestyle=":")
    if truth.start:
        axis.set_title(f"from {truth.start}", fontsize=8, loc="right", pad=2)
    largest = max(abs(low) for low in axis.get_ylim())
    axis.yaxis.set_major_formatter(plain_numbers(largest))
    axis.tick_params(labelsize=8)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.margins(x=0.01)
    axis.spines[["top", "right"]].set_visible(False)


def _first_channel(values: Sequence[Any]) -> np.ndarray:
    array = np.array(values, dtype=float)
    return array if array.ndim == 1 else array[:, 0]
