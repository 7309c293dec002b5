"""A picture of one sample: the raw inputs with their tokens marked, and the D×N matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dxn.explain.drawers import Shown
from dxn.explain.plots import new_figure, save
from dxn.explain.spans import drawn_inputs
from dxn.tokens import Tokens

# An input has its name above its columns if it has at least this share of all columns. The name of
# a narrower input would overlap with the next one.
MIN_LABEL_WIDTH = 0.08
# The color scale ends at this quantile, because a single large value would make all others pale.
SCALE_QUANTILE = 0.99


def token_picture(inputs: Mapping[str, Shown], tokens: Tokens, path: Path) -> None:
    """Write a PNG of the first sample: each input with its tokens marked, and below it the matrix.

    Args:
        inputs: The inputs by name. Columns of an input that is missing here are only in the matrix.
        tokens: Tokens of the sample.
        path: File to write.
    """
    parts = drawn_inputs(tokens, inputs)
    heights = [part.drawer.height(part.shown) for part in parts]
    # In inches: 3 for the matrix, and 0.2 for the margins.
    figure = new_figure(9, sum(heights) + 3.2)
    ratios = [*heights, 3]
    axes = figure.subplots(len(parts) + 1, 1, height_ratios=ratios, squeeze=False)[:, 0]
    for axis, part in zip(axes, parts, strict=False):
        note = part.drawer.draw_tokens(axis, part.shown, part.placed)
        title = f"{part.name}: {len(part.columns)} tokens{note}"
        axis.set_title(title, loc="left", fontsize=10, parse_math=False)
    _draw_matrix(axes[-1], tokens)
    save(figure, path)


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
    axis.figure.colorbar(image, ax=axis, pad=0.01, fraction=0.03, label=label)
    width = matrix.shape[1]
    start = 0
    summary: list[str] = []
    for span in tokens.spans:
        count = int(tokens.mask[0, span.start : span.stop].sum())
        summary.append(f"{span.name} {count}")
        if start:
            axis.axvline(start - 0.5, color="black", linewidth=1.2)
        if count >= MIN_LABEL_WIDTH * width:
            center = start + (count - 1) / 2
            name: dict[str, Any] = {
                "ha": "center",
                "va": "bottom",
                "fontsize": 9,
                "parse_math": False,
            }
            axis.text(center, -0.6, span.name, **name)
        start += count
    axis.set(xlabel="N tokens", ylabel="D")
    title = f"matrix D×N = {len(matrix)}×{width}: {' + '.join(summary)}"
    axis.set_title(title, loc="left", fontsize=10, pad=16, parse_math=False)


def _scaled(matrix: np.ndarray) -> np.ndarray:
    """Divide a matrix by a high quantile of its absolute values."""
    if not matrix.size:
        return matrix
    return matrix / (np.quantile(np.abs(matrix), SCALE_QUANTILE) or 1.0)
