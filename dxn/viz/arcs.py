"""A picture of the attention between words: one line of words with arcs per block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from torch import Tensor

from dxn.viz.figure import BLUE, new_figure, save, set_title, shortened
from dxn.viz.fonts import text_width

MAX_COLORS = 8  # heads; with more, their colors could not be distinguished
MIN_ARC = 0.1  # smallest weight that is drawn, relative to the largest one of the block
ARCS_PER_WORD = 4  # a block has at most this number of arcs per word, so that arcs stay visible
WORD_SIZE = 9.0  # points


def arcs_picture(
    maps: Sequence[Tensor], words: Sequence[str], path: Path, *, about: str = ""
) -> None:
    """Write a PNG of the attention between words: one line of words with arcs per block.

    An arc connects a word with a word that it attends to. Arcs to earlier words are above the line,
    arcs to later words are below it. An arc is thicker for a larger weight and has the color of its
    head. With more than MAX_COLORS heads, the mean over the heads is drawn. The box behind a word
    is darker if the word attends to itself more. Only the largest weights of a block are drawn.

    Args:
        maps: One tensor (B, H, N, N) per block, for these words only.
        words: The N words.
        path: File to write.
        about: Line below the title, such as the answer of the model.
    """
    heads = maps[0].shape[1]
    colored = heads <= MAX_COLORS
    colors = [f"C{head}" for head in range(heads)] if colored else [BLUE]
    labels = shortened(words)
    # Widths and centers are in points. 14 points separate two words.
    widths = np.array([max(text_width(label, WORD_SIZE), WORD_SIZE) + 14 for label in labels])
    centers = np.cumsum(widths) - widths / 2
    figure = new_figure(max(widths.sum() / 72 + 0.3, 6), 2.2 * len(maps) + 1.2)
    axes = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
    for block, (axis, block_maps) in enumerate(zip(axes, maps, strict=True), 1):
        weights = block_maps[0].float().cpu().numpy()  # (H, N, N) of the first sample
        _draw_arcs(axis, weights if colored else weights.mean(0, keepdims=True), centers, colors)
        _draw_words(axis, labels, centers, np.diagonal(weights.mean(0)))
        axis.set_title(f"block {block}", loc="left", fontsize=9)
        axis.set(xlim=(0, widths.sum()), ylim=(-1.25, 1.25))
        axis.set_axis_off()
    if colored:
        # A legend needs one object per color, but all arcs are one collection. Empty lines serve as
        # the objects of the legend.
        handles = [
            axes[0].plot([], color=color, label=f"head {head}")[0]
            for head, color in enumerate(colors, 1)
        ]
        style: dict[str, Any] = {"ncols": 4, "frameon": False, "fontsize": 8}
        figure.legend(handles=handles, loc="outside lower left", **style)
    else:
        figure.supxlabel(f"mean of {heads} heads", fontsize=8, x=0.02, ha="left")
    title = "Attention between words: the largest weights of each block"
    how = "arcs above: to earlier words; below: to later words; box: to itself"
    set_title(figure, title, f"{about}{'; ' if about else ''}{how}")
    save(figure, path)


def _draw_words(
    axis: Axes, labels: Sequence[str], centers: np.ndarray, self_weights: np.ndarray
) -> None:
    """Draw a line of words. The box behind a word is darker for a larger weight (N,) on itself."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": WORD_SIZE}
    for label, center, weight in zip(labels, centers, self_weights, strict=True):
        color = to_rgba(BLUE, 0.45 * float(weight))  # black text stays readable on it
        box = {"boxstyle": "round,pad=0.2", "facecolor": color, "edgecolor": "none"}
        axis.text(center, 0, label, bbox=box, **style)


def _draw_arcs(axis: Axes, weights: np.ndarray, centers: np.ndarray, colors: Sequence[str]) -> None:
    """Draw the largest weights between different words as arcs.

    Args:
        axis: Axis to draw in.
        weights: (H, N, N). Attention weights: rows are queries, columns keys.
        centers: (N,). Horizontal positions of the words.
        colors: Colors of the H heads.
    """
    others = weights * (1 - np.eye(len(centers)))
    largest = others.max() or 1.0
    index = np.argwhere(others >= MIN_ARC * largest)  # rows (head, query, key)
    strength = others[tuple(index.T)]
    # Ascending order: the largest weights come last, so they are drawn on top of the others.
    index = index[np.argsort(strength)][-ARCS_PER_WORD * len(centers) :]
    angle = np.linspace(0, np.pi, 33)  # 33 points look smooth
    longest = np.ptp(centers) or 1.0
    lines: list[np.ndarray] = []
    shades: list[Any] = []
    widths: list[float] = []
    for head, query, key in index:
        start = centers[query]
        stop = centers[key]
        side = 1.0 if stop < start else -1.0
        shift = 2.5 * (head - (len(weights) - 1) / 2)  # so that heads do not cover each other
        x = (start + stop) / 2 + (start - stop) / 2 * np.cos(angle) + shift
        # The power flattens long arcs, so that short ones stay visible.
        height = 0.2 + np.sin(angle) * (abs(stop - start) / longest) ** 0.6
        lines.append(np.stack([x, side * height], 1))
        share = float(others[head, query, key] / largest)
        # Smaller weights are more transparent and thinner.
        shades.append(to_rgba(colors[int(head)], 0.15 + 0.75 * share))
        widths.append(0.4 + 2.6 * share)
    arcs = LineCollection(lines, colors=shades, linewidths=widths, capstyle="round")
    axis.add_collection(arcs)
