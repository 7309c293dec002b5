"""A run's plots, a PNG each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, in inches, that no global state knows of."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def curves(rows: Sequence[Mapping], path: Path) -> None:
    """Losses by step on the left, the validation figures on the right; rows of metrics.jsonl."""
    figure = new_figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    for name, colour in (("train/loss", BLUE), ("validation/loss", ORANGE)):
        found = [(row["step"], row[name]) for row in rows if name in row]
        if found:
            left.plot(*zip(*found, strict=True), color=colour, label=name.replace("/", " "), linewidth=1.2)
    left.set(xlabel="step", ylabel="loss")
    left.legend(frameon=False)
    names = dict.fromkeys(k for row in rows for k in row if k.startswith("validation/") and k != "validation/loss")
    for name in names:
        found = [(row["epoch"], row[name]) for row in rows if name in row]
        right.plot(*zip(*found, strict=True), label=name.partition("/")[2], marker=".", linewidth=1.2)
    right.set(xlabel="epoch", ylabel="validation")
    if names:
        right.legend(frameon=False)
    _finish(figure, path)


def confusion(counts: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """counts (K, K), a row a true class: coloured by share of the row, with numbers up to 20 classes."""
    k = len(labels)
    size = min(max(3.5, 0.42 * k + 1.5), 14)
    figure = new_figure(size + 0.8, size)
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    every = -(-k // 40)
    ticks = list(range(0, k, every))
    axes.set_xticks(ticks, [labels[i] for i in ticks], rotation=90 if k > 5 else 0)
    axes.set_yticks(ticks, [labels[i] for i in ticks])
    axes.set(xlabel="predicted", ylabel="true")
    if k <= 20:
        for i in range(k):
            for j in range(k):
                if counts[i, j]:
                    colour = "white" if shares[i, j] > 0.5 else "black"
                    axes.text(j, i, str(int(counts[i, j])), ha="center", va="center", color=colour, fontsize=8)
    _finish(figure, path)


def modality_bars(scores: Mapping[str, float], metric: str, path: Path) -> None:
    """What each modality adds: a bar for each set of modalities shown, few before many."""
    order = sorted(scores, key=lambda name: (name == "all", name.count("+"), scores[name]))
    figure = new_figure(6, 0.42 * len(order) + 1.2)
    axes = figure.subplots()
    colours = [ORANGE if name == "all" else BLUE if "+" in name else GREY for name in order]
    bars = axes.barh(order, [scores[n] for n in order], color=colours)
    axes.bar_label(bars, [f"{scores[n]:.3f}" for n in order], padding=3)
    axes.set(xlabel=metric, xlim=(0, max(*scores.values(), 1e-9) * 1.12))
    axes.spines[["top", "right"]].set_visible(False)
    _finish(figure, path)


def predicted_vs_true(predicted: Sequence[float], true: Sequence[float], path: Path) -> None:
    """A dot a row, and the line where both are equal."""
    figure = new_figure(4.4, 4.2)
    axes = figure.subplots()
    axes.scatter(true, predicted, s=9, alpha=0.5, color=BLUE, edgecolors="none")
    low, high = min(*true, *predicted), max(*true, *predicted)
    axes.plot([low, high], [low, high], color=GREY, linewidth=1)
    axes.set(xlabel="true", ylabel="predicted")
    _finish(figure, path)


def _finish(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
