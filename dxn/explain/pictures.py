"""A picture of one sample: the raw inputs with their tokens marked, and the D×N matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dxn.explain.drawers import Shown
from dxn.explain.figures import save, set_title, wrapped
from dxn.explain.fonts import text_width
from dxn.explain.labels import shortened
from dxn.explain.packing import SPACE, packed_axes
from dxn.explain.spans import drawn_inputs
from dxn.tokens import Tokens

MATRIX_INCHES = (3.9, 2.9)
NAME_SIZE = 9  # points
TITLE_SIZE = 9
# The color scale ends at this quantile, because a single large value would make all others pale.
SCALE_QUANTILE = 0.99


def token_picture(
    inputs: Mapping[str, Shown], tokens: Tokens, path: Path, *, about: str = ""
) -> None:
    """Write a PNG of the first sample: each input with its tokens marked, and the matrix.

    Args:
        inputs: The inputs by name. Columns of an input that is missing here are only in the matrix.
        tokens: Tokens of the sample.
        path: File to write.
        about: Name of the sample or the model, below the title.
    """
    parts = drawn_inputs(tokens, inputs)
    sizes = [part.drawer.size(part.shown, shaded=False) for part in parts]
    figure, axes = packed_axes([*sizes, MATRIX_INCHES], stretch_last=True)
    for axis, part in zip(axes, parts, strict=False):
        note = part.drawer.draw_tokens(axis, part.shown, part.placed)
        special = len(part.columns) - len(part.placed)
        without = f", {special} without a position" if special else ""
        noun = "token" if len(part.columns) == 1 else "tokens"
        (name,) = shortened([part.name])
        title = f"{name}: {len(part.columns)} {noun}{without}{note}"
        _title_above(axis, title, part.drawer.size(part.shown, shaded=False)[0])
    _draw_matrix(axes[-1], tokens)
    count = int(tokens.mask[0].sum())
    set_title(figure, f"One sample as {count} tokens of {tokens.x.shape[2]} numbers", about)
    save(figure, path)


def _title_above(axis: Axes, title: str, inches: float) -> None:
    """Write a title above an axis of this width; a long one has several lines."""
    lines = wrapped(title, TITLE_SIZE, 72 * (inches + SPACE[0] / 2))
    axis.set_title("\n".join(lines), loc="left", fontsize=TITLE_SIZE)


def _draw_matrix(axis: Axes, tokens: Tokens) -> None:
    """Draw the D×N matrix, one column per real token. Negative values are blue, positive ones red.

    Each input has its own color scale, because the scales differ: embeddings of subwords have much
    smaller values than projected pixels.
    """
    # part[0] is the matrix (D, n) of the first sample, without padding.
    parts = [_scaled(part[0].float().cpu().numpy()) for part in (tokens.split() or [tokens])]
    matrix = np.concatenate(parts, 1)
    style: dict[str, Any] = {"aspect": "auto", "cmap": "RdBu_r", "interpolation": "nearest"}
    image = axis.imshow(matrix, vmin=-1, vmax=1, **style)
    # Class tokens are a part with its own scale too.
    several = len([part for part in parts if part.shape[1]]) > 1
    label = "value, each input on its own scale" if several else "value, scaled"
    bar = axis.figure.colorbar(image, ax=axis, pad=0.02, fraction=0.04)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    width = matrix.shape[1]
    summary: list[str] = []
    names: list[str] = []
    middles: list[float] = []
    start = 0
    for span in tokens.spans:
        count = int(tokens.mask[0, span.start : span.stop].sum())
        (name,) = shortened([span.name])
        summary.append(f"{name} {count}")
        if start:
            axis.axvline(start - 0.5, color="black", linewidth=1.2)
        if count:
            names.append(name)
            middles.append(start + (count - 1) / 2)
        start += count
    _name_columns(axis, names, middles, width)
    axis.set(xlabel="N tokens", ylabel="D")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    title = f"matrix D×N = {len(matrix)}×{width}: {' + '.join(summary)}"
    _title_above(axis, title, MATRIX_INCHES[0])


def _name_columns(axis: Axes, names: list[str], middles: list[float], width: int) -> None:
    """Write the name of each input above its columns; upright if they would overlap otherwise."""
    inches = [text_width(name, NAME_SIZE) / 72 for name in names]
    # Positions in inches. 0.1 is the space between two names.
    places = [middle / width * MATRIX_INCHES[0] for middle in middles]
    pairs = zip(places, inches, places[1:], inches[1:], strict=False)
    overlap = any(b - a < (one + two) / 2 + 0.1 for a, one, b, two in pairs)
    top = axis.secondary_xaxis("top")
    top.set_xticks(middles, names, rotation=90 if overlap else 0, fontsize=NAME_SIZE)
    top.tick_params(length=0)


def _scaled(matrix: np.ndarray) -> np.ndarray:
    """Divide a matrix by a high quantile of its absolute values."""
    if not matrix.size:
        return matrix
    return matrix / (np.quantile(np.abs(matrix), SCALE_QUANTILE) or 1.0)
