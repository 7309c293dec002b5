"""Pictures of the encoder's attention: by head, by input, between words, from words to inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from torch import Tensor

from dxn.explain.drawers import Shown, Thumbnails
from dxn.explain.labels import file_names, fonts, shortened
from dxn.explain.plots import BLUE, new_figure, save
from dxn.explain.spans import InputTokens, drawn_inputs
from dxn.tokens import Tokens

MAX_LABELS = 24  # tokens; with more, the ticks show the names of the inputs instead
MAX_ARC_WORDS = 40  # words; with more, the line of words would be wider than a screen
MAX_COLORS = 8  # heads; with more, their colors could not be distinguished
MIN_ARC = 0.1  # smallest weight that is drawn, relative to the largest one of the block
ARCS_PER_WORD = 4  # a block has at most this number of arcs per word, so that arcs stay visible
MAX_COPIES = 16  # words; each one has its own copy of an input


def heads_picture(
    maps: Sequence[Tensor], names: Sequence[str], path: Path, *, parts: Mapping[str, int]
) -> None:
    """Write a PNG with the attention maps of the first sample: a grid of blocks and heads.

    Args:
        maps: One tensor (B, H, N, N) per block. Rows are queries, columns keys. Each map has its
            own color scale.
        names: Names of the N tokens.
        path: File to write.
        parts: Number of tokens of each input, in the order of the columns.
    """
    n = len(names)
    depth = len(maps)
    heads = maps[0].shape[1]
    # A map with labels needs 0.17 inches per label.
    side = 1.5 if n > MAX_LABELS else max(1.5, 0.17 * n)
    figure = new_figure(side * heads + 1.6, side * depth + 0.9)
    grid = figure.subplots(depth, heads, squeeze=False)
    for block, row in enumerate(grid):
        for head, axis in enumerate(row):
            # NumPy has no bf16, so convert to float32.
            weights = maps[block][0, head, :n, :n].float().cpu().numpy()
            axis.imshow(weights, cmap="Blues", vmin=0)
            _separate(axis, parts)
            if block == 0:
                axis.set_title(f"head {head + 1}", fontsize=8)
            if head == 0:
                axis.set_ylabel(f"block {block + 1}", fontsize=8)
                _label_ticks(axis.set_yticks, names, parts)
            if block == depth - 1:
                _label_ticks(axis.set_xticks, names, parts, rotation=90)
    save(figure, path)


def shares_picture(
    inputs: Mapping[str, Shown], tokens: Tokens, shares: np.ndarray, path: Path
) -> None:
    """Write a PNG of the inputs of the first sample, each token shaded by its attention share.

    Args:
        inputs: The inputs by name.
        tokens: Encoded tokens.
        shares: (N,). Shares of all columns, see `token_shares`. Each input is shaded on its own
            scale. Its title contains the sum of its shares.
        path: File to write.
    """
    parts = drawn_inputs(tokens, inputs)
    heights = [part.drawer.height(part.shown) for part in parts]
    figure = new_figure(9, sum(heights) + 0.6)
    axes = figure.subplots(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axis, part in zip(axes, parts, strict=True):
        values = shares[part.columns]
        # The divisor includes tokens without a position, which are not drawn.
        scaled = values[part.is_placed] / (float(values.max()) or 1.0)
        part.drawer.draw_shares(axis, part.shown, part.placed, scaled)
        title = f"{part.name}: {values.sum():.0%} of the attention"
        axis.set_title(title, loc="left", fontsize=10, parse_math=False)
    save(figure, path)


def arcs_picture(maps: Sequence[Tensor], words: Sequence[str], path: Path) -> None:
    """Write a PNG of the attention between words: one line of words with arcs per block.

    An arc connects a word with a word that it attends to. Arcs to earlier words are above the line,
    arcs to later words are below it. An arc is thicker for a larger weight and has the color of its
    head. With more than MAX_COLORS heads, the mean over the heads is drawn. The box behind a word
    is darker if the word attends to itself more. Only the largest weights of a block are drawn.

    Args:
        maps: One tensor (B, H, N, N) per block, for these words only.
        words: The N words.
        path: File to write.
    """
    heads = maps[0].shape[1]
    colored = heads <= MAX_COLORS
    colors = [f"C{head}" for head in range(heads)] if colored else [BLUE]
    labels = shortened(words)
    # Widths and centers are in characters. 1.5 characters separate two words.
    widths = np.array([max(len(label), 2) + 1.5 for label in labels])
    centers = np.cumsum(widths) - widths / 2
    figure = new_figure(max(0.095 * widths.sum() + 0.6, 5), 2.3 * len(maps) + 0.7)
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
    title = "largest weights; above: to earlier words, below: to later words, box: to itself"
    figure.suptitle(title, fontsize=9, x=0.02, ha="left")
    save(figure, path)


def across_picture(
    weights: np.ndarray, words: Sequence[str], parts: Sequence[InputTokens], path: Path
) -> None:
    """Write a PNG of the attention of words to other inputs: one copy of each input per word.

    Args:
        weights: (T, N). Attention weights of each word on all columns. Each copy is colored on its
            own scale. Its title contains the sum of the weights of the word on the input.
        words: The T words.
        parts: The inputs. Their drawers must have thumbnails.
        path: File to write.
    """
    sizes = [_thumbnails(part) for part in parts]
    # One panel per input, with its own numbers of columns and rows.
    columns = [min(size.per_row, len(words)) for size in sizes]
    rows = [-(-len(words) // count) for count in columns]
    heights = [size.height * count + 0.3 for size, count in zip(sizes, rows, strict=True)]
    width = max(size.width * count for size, count in zip(sizes, columns, strict=True))
    figure = new_figure(width, sum(heights) + 0.3)
    title = "attention of each word in the last block, mean over its heads"
    figure.suptitle(title, fontsize=10, x=0.02, ha="left")
    panels = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for i, (panel, part) in enumerate(zip(panels, parts, strict=True)):
        axes = list(panel.subplots(rows[i], columns[i], squeeze=False).flat)
        # The last row may have more axes than words.
        for axis in axes[len(words) :]:
            axis.set_axis_off()
        part_weights = weights[:, part.columns]
        for axis, word, row in zip(axes, shortened(words), part_weights, strict=False):
            part.drawer.draw_thumbnail(axis, part.shown, part.coords, row)
            label = f"{word}: {row.sum():.0%}"
            axis.set_title(label, fontsize=8, family=fonts(), parse_math=False)
        caption = [sizes[i].caption, f"input: {part.name}" if len(parts) > 1 else ""]
        panel.supxlabel("; ".join(filter(None, caption)), fontsize=7, parse_math=False)
    save(figure, path)


def word_pictures(
    maps: Sequence[Tensor],
    tokens: Tokens,
    names: Sequence[str],
    inputs: Mapping[str, Shown],
    folder: Path,
) -> tuple[list[Path], list[str]]:
    """Write arcs.png and across.png of the first sample for each input that is a text.

    Args:
        maps: One tensor (B, H, N, N) per block, of all columns.
        tokens: Encoded tokens.
        names: Names of the N columns, see `token_names`.
        inputs: The inputs by name.
        folder: Folder to write to.

    Returns:
        The files that were written, and notes about what was left out.
    """
    parts = drawn_inputs(tokens, inputs)
    texts = [_named(part, names) for part in parts if part.drawer.reads_words]
    others = [part for part in parts if part.drawer.thumbnails is not None]
    written: list[Path] = []
    notes: list[str] = []
    arcs_files = file_names([text.name for text in texts], "arcs.png")
    across_files = file_names([text.name for text in texts], "across.png")
    for text in texts:
        file = arcs_files[text.name]
        _write_arcs(maps, text, names, folder / file, written, notes)
        if others:
            file = across_files[text.name]
            _write_across(maps, text, names, others, folder / file, written, notes)
    return written, notes


def _write_arcs(
    maps: Sequence[Tensor],
    text: InputTokens,
    names: Sequence[str],
    path: Path,
    written: list[Path],
    notes: list[str],
) -> None:
    """Draw the attention between the words of a text, unless there are too many words."""
    count = len(text.columns)
    if count > MAX_ARC_WORDS:
        notes.append(
            f"no {path.name}: it has room for {MAX_ARC_WORDS} tokens, the input has {count}"
        )
        return
    columns = text.columns
    block_maps = [block[:1, :, columns][..., columns] for block in maps]
    arcs_picture(block_maps, [names[int(i)] for i in columns], path)
    written.append(path)


def _write_across(
    maps: Sequence[Tensor],
    text: InputTokens,
    names: Sequence[str],
    others: Sequence[InputTokens],
    path: Path,
    written: list[Path],
    notes: list[str],
) -> None:
    """Draw the attention of the words of a text to the other inputs."""
    # Special tokens, such as the end of the text, have no position in the text and are left out.
    columns = text.columns[text.is_placed]
    drawn = columns[:MAX_COPIES]
    if not len(drawn):
        return
    weights = maps[-1][0].float().mean(0).cpu().numpy()[drawn]
    across_picture(weights, [names[int(i)] for i in drawn], others, path)
    written.append(path)
    if len(columns) > MAX_COPIES:
        notes.append(f"{path.name}: the first {MAX_COPIES} of {len(columns)} tokens")


def _named(part: InputTokens, names: Sequence[str]) -> InputTokens:
    """Return the tokens of an input that have a name."""
    has_name = np.array([bool(names[int(i)]) for i in part.columns], dtype=bool)
    return replace(part, columns=part.columns[has_name], coords=part.coords[has_name])


def _separate(axis: Axes, parts: Mapping[str, int]) -> None:
    """Draw lines between the inputs, and remove the ticks."""
    axis.set_xticks([])
    axis.set_yticks([])
    for edge in np.cumsum(list(parts.values()))[:-1]:
        axis.axhline(edge - 0.5, color="black", linewidth=0.4)
        axis.axvline(edge - 0.5, color="black", linewidth=0.4)
    axis.tick_params(length=0)
    axis.spines[:].set_linewidth(0.5)


def _label_ticks(
    set_ticks: Callable[..., Any], names: Sequence[str], parts: Mapping[str, int], **style: Any
) -> None:
    """Label the ticks with the tokens if there is room, otherwise with the inputs."""
    style |= {"family": fonts(), "parse_math": False}
    if len(names) <= MAX_LABELS:
        set_ticks(range(len(names)), shortened(names), fontsize=6, **style)
    else:
        counts = np.array(list(parts.values()))
        # The first token is at 0 and is one unit wide, so its left edge is at -0.5.
        middles = np.cumsum(counts) - counts / 2 - 0.5
        set_ticks(middles, shortened(list(parts)), fontsize=7, **style)


def _draw_words(
    axis: Axes, labels: Sequence[str], centers: np.ndarray, self_weights: np.ndarray
) -> None:
    """Draw a line of words. The box behind a word is darker for a larger weight (N,) on itself."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "family": fonts()}
    for label, center, weight in zip(labels, centers, self_weights, strict=True):
        color = to_rgba(BLUE, 0.45 * float(weight))  # black text stays readable on it
        box = {"boxstyle": "round,pad=0.2", "facecolor": color, "edgecolor": "none"}
        axis.text(center, 0, label, bbox=box, parse_math=False, **style)


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
        shift = 0.35 * (head - (len(weights) - 1) / 2)  # so that heads do not cover each other
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


def _thumbnails(part: InputTokens) -> Thumbnails:
    size = part.drawer.thumbnails
    assert size is not None, f"{part.name} has no thumbnails"
    return size
