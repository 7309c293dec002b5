"""A picture of one sample: the raw inputs with their tokens marked, and the D×N matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dxn.core.tokens import Span, Tokens
from dxn.viz.figure import SPACE, packed_axes, save, set_title, shortened, wrapped
from dxn.viz.fonts import text_width
from dxn.viz.sample import InputTokens, SampleView

MATRIX_INCHES = (3.9, 2.9)
NAME_SIZE = 9  # points
TITLE_SIZE = 9
LINE_INCHES = 0.17  # height of a line of a title
MAX_LABELS = 12  # labels of the columns of one panel; more of them would cover the picture
# The color scale ends at this quantile, because a single large value would make all others pale.
SCALE_QUANTILE = 0.99


@dataclass(frozen=True)
class _Label:
    """The label of neighboring columns of the matrix.

    Args:
        name: Above the columns.
        text: In the title, such as "text 7".
        count: Number of columns.
    """

    name: str
    text: str
    count: int


def token_picture(view: SampleView, path: Path, *, about: str = "") -> None:
    """Write a PNG of a sample: each input with its tokens marked, and the D×N matrix.

    Args:
        view: The sample. Columns that belong to no input are only in the matrix.
        path: File to write.
        about: Name of the sample or the model, below the title.
    """
    panels, tokens = view.panels, view.tokens
    sizes = [panel.drawer.size(panel.shown) for panel in panels]
    labels = _labels(tokens, panels)
    upright = _need_upright(labels)
    size = _matrix_size(tokens, labels, upright=upright)
    figure, axes = packed_axes([*sizes, size], stretch_last=True)
    for axis, panel in zip(axes, panels, strict=False):
        note = panel.drawer.draw_tokens(axis, panel.shown, panel.placed)
        special = len(panel.columns) - len(panel.placed)
        without = f", {special} without a position" if special else ""
        noun = "token" if len(panel.columns) == 1 else "tokens"
        (name,) = shortened([panel.name])
        title = f"{name}: {len(panel.columns)} {noun}{without}{note}"
        width, _ = panel.drawer.size(panel.shown)
        axis.set_title(_wrapped_title(title, width), loc="left", fontsize=TITLE_SIZE)
    _draw_matrix(axes[-1], tokens, labels, upright=upright)
    count = int(tokens.mask[0].sum())
    set_title(figure, f"One sample as {count} tokens of {tokens.x.shape[2]} numbers", about)
    save(figure, path)


def _wrapped_title(title: str, inches: float) -> str:
    """Break a long title above an axis of this width into several lines."""
    return "\n".join(wrapped(title, TITLE_SIZE, 72 * (inches + SPACE[0] / 2)))


def _matrix_title(tokens: Tokens, labels: Sequence[_Label]) -> str:
    shape = f"{tokens.x.shape[2]}×{sum(label.count for label in labels)}"
    title = f"matrix D×N = {shape}: {' + '.join(label.text for label in labels)}"
    return _wrapped_title(title, MATRIX_INCHES[0])


def _labels(tokens: Tokens, panels: Sequence[InputTokens]) -> list[_Label]:
    """Return the labels of the matrix. Many columns of a table have a common one."""
    names = [span.name for span in tokens.spans]
    counts = [int(tokens.mask[0, span.start : span.stop].sum()) for span in tokens.spans]
    owners = [_owner(span, panels) for span in tokens.spans]
    labels: list[_Label] = []
    for owner, group in groupby(range(len(names)), key=lambda i: owners[i]):
        members = list(group)
        if owner is not None and len(members) > MAX_LABELS:
            total = sum(counts[i] for i in members)
            labels.append(_Label(panels[owner].name, panels[owner].name, total))
            continue
        for i in members:
            (name,) = shortened([names[i]])
            labels.append(_Label(name, f"{name} {counts[i]}", counts[i]))
    return labels


def _owner(span: Span, panels: Sequence[InputTokens]) -> int | None:
    """Return the index of the panel that shows the tokens of a span."""
    for i, panel in enumerate(panels):
        if ((panel.columns >= span.start) & (panel.columns < span.stop)).any():
            return i
    return None


def _need_upright(labels: Sequence[_Label]) -> bool:
    """Return whether names above the columns would overlap if they were horizontal."""
    labels = [label for label in labels if label.count]
    inches = [text_width(label.name, NAME_SIZE) / 72 for label in labels]
    # Positions in inches. 0.1 is the space between two names.
    width = sum(label.count for label in labels)
    places = [middle / width * MATRIX_INCHES[0] for middle in _middles(labels)]
    pairs = zip(places, inches, places[1:], inches[1:], strict=False)
    return any(b - a < (first + second) / 2 + 0.1 for a, first, b, second in pairs)


def _middles(labels: Sequence[_Label]) -> list[float]:
    """Return the middle of the columns of each label."""
    stops = list(accumulate(label.count for label in labels))
    return [stop - (label.count + 1) / 2 for stop, label in zip(stops, labels, strict=True)]


def _matrix_size(tokens: Tokens, labels: Sequence[_Label], *, upright: bool) -> tuple[float, float]:
    """Return the width and height of the matrix in inches, with all that is written above it."""
    width, height = MATRIX_INCHES
    if upright:
        height += max(text_width(label.name, NAME_SIZE) for label in labels) / 72
    more_lines = _matrix_title(tokens, labels).count("\n")
    return width, height + more_lines * LINE_INCHES


def _draw_matrix(axis: Axes, tokens: Tokens, labels: Sequence[_Label], *, upright: bool) -> None:
    """Draw the D×N matrix, one column per real token. Negative values are blue, positive ones red.

    Each input has its own color scale, because the scales differ: embeddings of subwords have much
    smaller values than projected pixels.
    """
    # columns[0] is the matrix (D, n) of the first sample, without padding.
    matrices = [
        _scaled(columns[0].float().cpu().numpy()) for columns in (tokens.split() or [tokens])
    ]
    matrix = np.concatenate(matrices, 1)
    style: dict[str, Any] = {"aspect": "auto", "cmap": "RdBu_r", "interpolation": "nearest"}
    image = axis.imshow(matrix, vmin=-1, vmax=1, **style)
    # Class tokens are a part with its own scale too.
    several = len([columns for columns in matrices if columns.shape[1]]) > 1
    label = "value, each input on its own scale" if several else "value, scaled"
    bar = axis.figure.colorbar(image, ax=axis, pad=0.02, fraction=0.04)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    stops = list(accumulate(label.count for label in labels))
    for stop in stops[:-1]:
        if stop:
            axis.axvline(stop - 0.5, color="black", linewidth=1.2)
    named = [
        (middle, label.name)
        for middle, label in zip(_middles(labels), labels, strict=True)
        if label.count
    ]
    top = axis.secondary_xaxis("top")
    top.set_xticks(
        [middle for middle, _ in named],
        [name for _, name in named],
        rotation=90 if upright else 0,
        fontsize=NAME_SIZE,
    )
    top.tick_params(length=0)
    axis.set(xlabel="N tokens", ylabel="D")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axis.set_title(_matrix_title(tokens, labels), loc="left", fontsize=TITLE_SIZE)


def _scaled(matrix: np.ndarray) -> np.ndarray:
    """Divide a matrix by a high quantile of its absolute values."""
    if not matrix.size:
        return matrix
    return matrix / (np.quantile(np.abs(matrix), SCALE_QUANTILE) or 1.0)
