"""A run's plots, a PNG each."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, in inches, that no global state knows of."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font has every script; a box stands for it
        figure.savefig(path)


def curves(rows: Sequence[Mapping], path: Path) -> None:
    """Losses by step and, once there are any, validation figures by epoch; rows of metrics.jsonl."""
    names = dict.fromkeys(k for row in rows for k in row if k.startswith("validation/") and k != "validation/loss")
    figure = new_figure(9 if names else 4.5, 3.4)
    axes = figure.subplots(1, 2 if names else 1, squeeze=False)[0]
    for name, colour in (("train/loss", BLUE), ("validation/loss", ORANGE)):
        _line(axes[0], rows, "step", name, label=name.replace("/", " "), color=colour)
    axes[0].set(xlabel="step", ylabel="loss")
    for name in names:
        _line(axes[1], rows, "epoch", name, label=name.partition("/")[2])
        axes[1].set(xlabel="epoch", ylabel="validation")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines:
            axis.legend(frameon=False)
    save(figure, path)


def confusion(counts: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """counts (K, K), a row a true class: coloured by share of the row, with numbers up to 20 classes."""
    k = len(labels)
    names = [label if len(label) <= 24 else label[:23] + "…" for label in labels]
    room = 0.09 * max(map(len, names))  # inches the longest label takes, on both sides
    size = min(max(2.5, 0.42 * k), 12)
    figure = new_figure(size + room + 1.4, size + room + 0.6)
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03, label="share of the true class")
    ticks = list(range(0, k, -(-k // 40)))
    shown = [names[i] for i in ticks]
    axes.set_xticks(ticks, shown, rotation=90 if len(max(shown, key=len)) > 3 else 0, parse_math=False)
    axes.set_yticks(ticks, shown, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    for i, j in np.argwhere(counts) if k <= 20 else ():
        colour = "white" if shares[i, j] > 0.5 else "black"
        axes.text(j, i, str(int(counts[i, j])), ha="center", va="center", color=colour, fontsize=8)
    save(figure, path)


def modality_bars(scores: Mapping[str, float], metric: str, path: Path) -> None:
    """What each modality adds: a bar for each set of modalities, single ones lowest and "all" on top."""
    order = sorted(scores, key=lambda name: (name == "all", name.count("+"), scores[name]))
    figure = new_figure(6, 0.42 * len(order) + 1.2)
    axes = figure.subplots()
    colours = [ORANGE if name == "all" else BLUE if "+" in name else GREY for name in order]
    bars = axes.barh(order, [scores[n] for n in order], color=colours)
    axes.bar_label(bars, [f"{scores[n]:.3f}" for n in order], padding=3)
    low, high = min(0.0, *scores.values()), max(0.0, *scores.values())
    room = 0.15 * (high - low or 1)  # for the value written beside the bar
    axes.set(xlabel=metric, xlim=(low - room if low else 0, high + room))
    axes.axvline(0, color="black", linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    save(figure, path)


def predicted_vs_true(predicted: Sequence[float], true: Sequence[float], path: Path) -> None:
    """A dot a row, and the line where both are equal."""
    figure = new_figure(4.4, 4.2)
    axes = figure.subplots()
    axes.axline((true[0], true[0]), slope=1, color=GREY, linewidth=1)
    axes.scatter(true, predicted, s=9, alpha=0.5, color=BLUE, edgecolors="none")
    axes.set(xlabel="true", ylabel="predicted")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def _line(axis: Axes, rows: Sequence[Mapping], x: str, y: str, **style: Any) -> None:
    """The rows that have y, over x; dots too where there are few, so that a single one is seen."""
    points = [(row[x], row[y]) for row in rows if y in row]
    if points:
        axis.plot(*zip(*points, strict=True), marker="." if len(points) <= 30 else "", linewidth=1.2, **style)
