"""Pictures of the encoder's attention: by head, by input, and from words to other inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from torch import Tensor

from dxn.core.tokens import Tokens
from dxn.viz.arcs import arcs_picture
from dxn.viz.drawers import Shown, Thumbnails
from dxn.viz.figures import (
    color_bar,
    heat_colors,
    heat_scale,
    new_figure,
    save,
    set_title,
)
from dxn.viz.labels import file_names, shortened
from dxn.viz.numbers import percent
from dxn.viz.packing import packed_axes
from dxn.viz.spans import InputTokens, drawn_inputs

LABEL_INCHES = 0.11  # room for the name of a token beside a map
MAX_SIDE = 3.0  # inches of a map; with more tokens than fit, only some have their name
MIN_SIDE = 1.5
MAX_INCHES = 20.0  # of all maps side by side
MAX_ARC_WORDS = 40  # words; with more, the line of words would be wider than a screen
MAX_COPIES = 16  # words; each one has its own copy of an input


def heads_picture(
    maps: Sequence[Tensor],
    names: Sequence[str],
    path: Path,
    *,
    parts: Mapping[str, int],
    about: str = "",
) -> None:
    """Write a PNG with the attention maps of the first sample: a grid of blocks and heads.

    All maps have the same color scale. It is a square root, because the weights of a map that
    attends to many tokens are small beside the largest weight of the figure.

    Args:
        maps: One tensor (B, H, N, N) per block. Rows are queries, columns keys.
        names: Names of the N tokens.
        path: File to write.
        parts: Number of tokens of each input, in the order of the columns.
        about: Line below the title, such as the answer of the model.
    """
    n = len(names)
    depth = len(maps)
    heads = maps[0].shape[1]
    # NumPy has no bf16, so convert to float32.
    weights = np.stack([block[0, :, :n, :n].float().cpu().numpy() for block in maps])
    # At least three times the weight of uniform attention, which has a light color then.
    scale = PowerNorm(0.5, 0, max(float(weights.max()), 3 / n))
    # A large model has many heads and blocks.
    room = MAX_INCHES / max(heads, depth)
    side = min(max(MIN_SIDE, LABEL_INCHES * n), max(MIN_SIDE, min(MAX_SIDE, room)))
    figure = new_figure(max(side * heads + 2.6, 6), side * depth + 2.2)
    grid = figure.subplots(depth, heads, squeeze=False)
    for block, row in enumerate(grid):
        for head, axis in enumerate(row):
            axis.imshow(weights[block, head], cmap=heat_colors(), norm=scale)
            _separate(axis, parts)
            if block == 0:
                axis.set_title(f"head {head + 1}", fontsize=9)
            if head == 0:
                axis.set_ylabel(f"block {block + 1}", fontsize=9)
                _label_tokens(axis.set_yticks, names, parts, side)
            if block == depth - 1:
                _label_tokens(axis.set_xticks, names, parts, side, rotation=90)
    color_bar(figure, grid, scale, "attention\nweight")
    title = "Attention of each head: a row shows what its token attends to"
    set_title(figure, title, f"{about}{'; ' if about else ''}all maps have the same color scale")
    save(figure, path)


def shares_picture(
    inputs: Mapping[str, Shown],
    tokens: Tokens,
    shares: np.ndarray,
    path: Path,
    *,
    about: str = "",
) -> None:
    """Write a PNG of the inputs of the first sample, each token colored by its attention share.

    Args:
        inputs: The inputs by name.
        tokens: Encoded tokens.
        shares: (N,). Shares of all columns, see `token_shares`. Each input has its own color scale
            beside it, because an image has many more tokens than a text, with smaller shares. Its
            title contains the sum of its shares.
        path: File to write.
        about: Line below the title, such as the answer of the model.
    """
    parts = drawn_inputs(tokens, inputs)
    sizes = [part.drawer.size(part.shown, shaded=True) for part in parts]
    figure, axes = packed_axes(sizes)
    for axis, part in zip(axes, parts, strict=True):
        values = shares[part.columns]
        # The scale includes tokens without a position, which are not drawn.
        scale = heat_scale(values)
        part.drawer.draw_shares(axis, part.shown, part.placed, values[part.is_placed], scale)
        title = f"{part.name}: {percent(float(values.sum()))} of the attention"
        axis.set_title(title, loc="left", fontsize=10)
        color_bar(figure, axis, scale, f"% of all,\nper {part.drawer.unit}")
    scales = "; each input has its own color scale" if len(parts) > 1 else ""
    set_title(figure, "What the model attends to", f"{about}{scales}")
    save(figure, path)


def across_picture(
    weights: np.ndarray,
    words: Sequence[str],
    parts: Sequence[InputTokens],
    path: Path,
    *,
    about: str = "",
) -> None:
    """Write a PNG of the attention of words to other inputs: one copy of each input per word.

    Args:
        weights: (T, N). Attention weights of each word on all columns. The copies of an input have
            the same color scale. Their titles contain the sum of the weights of the word on it.
        words: The T words.
        parts: The inputs. Their drawers must have thumbnails.
        path: File to write.
        about: Line below the title, such as the answer of the model.
    """
    sizes = [_thumbnails(part) for part in parts]
    # One panel per input, with its own numbers of columns and rows.
    columns = [min(size.per_row, len(words)) for size in sizes]
    rows = [-(-len(words) // count) for count in columns]
    heights = [size.height * count + 0.4 for size, count in zip(sizes, rows, strict=True)]
    width = max(size.width * count for size, count in zip(sizes, columns, strict=True)) + 1
    figure = new_figure(max(width, 6), sum(heights) + 0.8)
    title = "What each word attends to in the last block, mean over its heads"
    set_title(figure, title, about)
    panels = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for i, (panel, part) in enumerate(zip(panels, parts, strict=True)):
        axes = list(panel.subplots(rows[i], columns[i], squeeze=False).flat)
        # The last row may have more axes than words.
        for axis in axes[len(words) :]:
            axis.set_axis_off()
        part_weights = weights[:, part.columns]
        scale = heat_scale(part_weights)
        for axis, word, row in zip(axes, shortened(words), part_weights, strict=False):
            part.drawer.draw_thumbnail(axis, part.shown, part.coords, row, scale)
            axis.set_title(f"{word}: {percent(float(row.sum()))}", fontsize=8)
        color_bar(panel, axes, scale, f"attention\nper {part.drawer.unit}")
        caption = [f"{part.name}: share of the attention of each word", sizes[i].caption]
        panel.supxlabel("; ".join(filter(None, caption)), fontsize=8, x=0.02, ha="left")
    save(figure, path)


def word_pictures(
    maps: Sequence[Tensor],
    tokens: Tokens,
    names: Sequence[str],
    inputs: Mapping[str, Shown],
    folder: Path,
    *,
    about: str = "",
) -> tuple[list[Path], list[str]]:
    """Write arcs.png and across.png of the first sample for each input that is a text.

    Args:
        maps: One tensor (B, H, N, N) per block, of all columns.
        tokens: Encoded tokens.
        names: Names of the N columns, see `token_names`.
        inputs: The inputs by name.
        folder: Folder to write to.
        about: Line below the titles, such as the answer of the model.

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
        if len(text.columns) > MAX_ARC_WORDS:
            notes.append(
                f"no {file}: it has room for {MAX_ARC_WORDS} tokens, "
                f"the input has {len(text.columns)}"
            )
        else:
            _write_arcs(maps, text, names, folder / file, about)
            written.append(folder / file)
        # Special tokens, such as the end of the text, have no position in it and are left out.
        columns = text.columns[text.is_placed]
        drawn = columns[:MAX_COPIES]
        if others and len(drawn):
            file = across_files[text.name]
            weights = maps[-1][0].float().mean(0).cpu().numpy()[drawn]
            across_picture(
                weights, [names[int(i)] for i in drawn], others, folder / file, about=about
            )
            written.append(folder / file)
            if len(columns) > MAX_COPIES:
                notes.append(f"{file}: the first {MAX_COPIES} of {len(columns)} tokens")
    return written, notes


def _write_arcs(
    maps: Sequence[Tensor], text: InputTokens, names: Sequence[str], path: Path, about: str
) -> None:
    """Draw the attention between the words of a text."""
    columns = text.columns
    block_maps = [block[:1, :, columns][..., columns] for block in maps]
    arcs_picture(block_maps, [names[int(i)] for i in columns], path, about=about)


def _named(part: InputTokens, names: Sequence[str]) -> InputTokens:
    """Return the tokens of an input that have a name."""
    has_name = np.array([bool(names[int(i)]) for i in part.columns], dtype=bool)
    return replace(part, columns=part.columns[has_name], coords=part.coords[has_name])


def _separate(axis: Axes, parts: Mapping[str, int]) -> None:
    """Draw lines between the inputs, and remove the ticks."""
    axis.set_xticks([])
    axis.set_yticks([])
    for edge in np.cumsum(list(parts.values()))[:-1]:
        axis.axhline(edge - 0.5, color="black", linewidth=0.5)
        axis.axvline(edge - 0.5, color="black", linewidth=0.5)
    axis.tick_params(length=2)
    axis.spines[:].set_linewidth(0.5)


def _label_tokens(
    set_ticks: Callable[..., Any],
    names: Sequence[str],
    parts: Mapping[str, int],
    side: float,
    **style: Any,
) -> None:
    """Label the rows or columns of a map with their tokens.

    If there is no room for all tokens, the first one of each input and every k-th one after it have
    a label. With several inputs, the label contains the name of the input.
    """
    every = -(-len(names) // int(side / LABEL_INCHES))
    ticks: list[int] = []
    labels: list[str] = []
    start = 0
    for part, count in parts.items():
        for i in range(start, start + count, every):
            # The first label of an input needs room for itself, too.
            if not ticks or i == start or i - ticks[-1] >= every:
                ticks.append(i)
                is_named = len(parts) == 1 or names[i].startswith(part)
                labels.append(names[i] if is_named else f"{part}: {names[i]}")
        start += count
    set_ticks(ticks, shortened(labels, 32), fontsize=6.5, **style)


def _thumbnails(part: InputTokens) -> Thumbnails:
    size = part.drawer.thumbnails
    assert size is not None, f"{part.name} has no thumbnails"
    return size
