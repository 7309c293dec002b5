"""Pictures of attention: by head, by input, from words to other inputs, and of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from torch import Tensor

from dxn.core.display import percent
from dxn.viz.arcs import arcs_picture
from dxn.viz.drawers import COPIES
from dxn.viz.figure import (
    color_bar,
    file_names,
    heat_colors,
    heat_scale,
    new_figure,
    packed_axes,
    save,
    set_title,
    shortened,
)
from dxn.viz.sample import InputTokens, SampleView

LABEL_INCHES = 0.11  # room for the name of a token beside a map
MAX_SIDE = 3.0  # inches of a map; with more tokens than fit, only some have their name
MIN_SIDE = 1.5
MAX_INCHES = 20.0  # of all maps side by side
MAX_ARC_WORDS = 40  # words; with more, the line of words would be wider than a screen
MAX_COPIES = 16  # words; each one has its own copy of an input


def heads_picture(view: SampleView, maps: Sequence[Tensor], path: Path, *, about: str = "") -> None:
    """Write a PNG with the attention maps of a sample without padding: a grid of blocks and heads.

    All maps have the same color scale. It is a square root, because the weights of a map that
    attends to many tokens are small beside the largest weight of the figure.

    Args:
        view: The sample.
        maps: One tensor (1, H, N, N) per block. Rows are queries, columns keys.
        path: File to write.
        about: Line below the title, such as the answer of the model.
    """
    is_real = view.tokens.mask[0].cpu().numpy()
    names = [name for name, real in zip(view.names, is_real, strict=True) if real]
    parts: dict[str, int] = {}
    for span in view.tokens.spans:
        if count := int(is_real[span.start : span.stop].sum()):
            parts[span.name] = parts.get(span.name, 0) + count
    # NumPy has no bf16, so convert to float32.
    weights = np.stack([block[0].float().cpu().numpy() for block in maps])
    weights = weights[:, :, is_real][..., is_real]
    depth, heads, n, _ = weights.shape
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


def shares_picture(view: SampleView, shares: np.ndarray, path: Path, *, about: str = "") -> None:
    """Write a PNG of the inputs of a sample, each token colored by its attention share.

    Args:
        view: The sample.
        shares: (N,). Shares of all columns, see `token_shares`. Each input has its own color scale
            beside it, because an image has many more tokens than a text, with smaller shares. Its
            title contains the sum of its shares.
        path: File to write.
        about: Line below the title, such as the answer of the model.
    """
    parts = view.parts
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
        parts: The inputs. Their drawers must have copies.
        path: File to write.
        about: Line below the title, such as the answer of the model.
    """
    sizes = [part.drawer.copies or COPIES for part in parts]
    # One panel per input, with its own numbers of columns and rows.
    columns = [min(per_row, len(words)) for _, _, per_row in sizes]
    rows = [-(-len(words) // count) for count in columns]
    heights = [size[1] * count + 0.4 for size, count in zip(sizes, rows, strict=True)]
    width = max(size[0] * count for size, count in zip(sizes, columns, strict=True)) + 1
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
            shares = row[part.is_placed]
            part.drawer.draw_shares(axis, part.shown, part.placed, shares, scale, small=True)
            axis.set_title(f"{word}: {percent(float(row.sum()))}", fontsize=8)
        color_bar(panel, axes, scale, f"attention\nper {part.drawer.unit}")
        caption = [f"{part.name}: share of the attention of each word", part.drawer.copy_units]
        panel.supxlabel("; ".join(filter(None, caption)), fontsize=8, x=0.02, ha="left")
    save(figure, path)


def word_pictures(
    view: SampleView, maps: Sequence[Tensor], folder: Path, *, about: str = ""
) -> tuple[list[Path], list[str]]:
    """Write arcs.png and across.png of a sample for each input that is a text.

    Args:
        view: The sample.
        maps: One tensor (1, H, N, N) per block, of all columns.
        folder: Folder to write to.
        about: Line below the titles, such as the answer of the model.

    Returns:
        The files that were written, and notes about what was left out.
    """
    texts = [_named(part, view) for part in view.parts if part.drawer.reads_words]
    others = [part for part in view.parts if part.drawer.copies is not None]
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
            block_maps = [block[:1, :, text.columns][..., text.columns] for block in maps]
            arcs_picture(block_maps, view.names_of(text), folder / file, about=about)
            written.append(folder / file)
        # Special tokens, such as the end of the text, have no position in it and are left out.
        columns = text.columns[text.is_placed]
        drawn = columns[:MAX_COPIES]
        if others and len(drawn):
            file = across_files[text.name]
            weights = maps[-1][0].float().mean(0).cpu().numpy()[drawn]
            names = [view.names[int(i)] for i in drawn]
            across_picture(weights, names, others, folder / file, about=about)
            written.append(folder / file)
            if len(columns) > MAX_COPIES:
                notes.append(f"{file}: the first {MAX_COPIES} of {len(columns)} tokens")
    return written, notes


def reading_pictures(
    view: SampleView,
    weights: np.ndarray,
    words: Sequence[str],
    folder: Path,
    *,
    about: str = "",
) -> list[Path]:
    """Write one picture per input of what each generated token attends to.

    The drawer of an input chooses the kind of picture and its file name. If several inputs have the
    same file name, the name of the input is put in front.

    Args:
        view: The encoded sample, which the decoder attends to.
        weights: (T, N). Attention weight of each generated token on each column, padding included.
        words: The T generated tokens as strings.
        folder: Folder to write to.
        about: Line below the titles, such as the answer of the model.

    Returns:
        The files that were written.
    """
    inputs_by_file: dict[str, list[str]] = {}
    for part in view.parts:
        inputs_by_file.setdefault(part.drawer.reading_file, []).append(part.name)
    # Inputs of the same modality have the same drawer, and thus the same file name.
    files: dict[str, str] = {}
    for file, sharing in inputs_by_file.items():
        files |= file_names(sharing, file)
    # With several kinds of columns, such as a class token and an input, the title of each picture
    # says which share of the attention it shows.
    is_real = view.tokens.mask[0].cpu().numpy()
    num_spans = sum(is_real[span.start : span.stop].any() for span in view.tokens.spans)
    written: list[Path] = []
    for part in view.parts:
        part_weights = weights[:, part.columns]
        title = f"What each word of the answer attends to in {part.name}"
        if num_spans > 1:
            title += f" ({percent(float(part_weights.sum(1).mean()))} of its attention)"
        path = folder / files[part.name]
        names = view.names_of(part)
        drawer = part.drawer
        figure = drawer.draw_reading(part.shown, part_weights, words, names, part.coords)
        set_title(figure, title, about)
        save(figure, path)
        written.append(path)
    return written


def _named(part: InputTokens, view: SampleView) -> InputTokens:
    """Return the tokens of an input that have a name."""
    has_name = np.array([bool(name) for name in view.names_of(part)], dtype=bool)
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
