"""Pictures of boxes and weights: a picture with its tokens marked, colored or read by words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dxn.viz.figure import (
    ORANGE,
    color_bar,
    font_size,
    heat_colors,
    heat_scale,
    new_figure,
    separate_cells,
    shortened,
)
from dxn.viz.fonts import text_width

SHADED_SIDE = 400  # pixels of the longer side, at least, of a picture that is colored by attention
# Black becomes this brightness (0 to 1) below the colors of attention, and would hide them.
DARKEST = 0.5
MAX_DOTS = 100  # centers of overlapping patches; with more, dots would cover the picture
MAX_RATIO = 4.0  # pictures that are longer than this get less than their share of the figure
MAX_INCHES = 20.0  # longest side of a picture, about 2200 pixels
COLUMNS = 800  # resolution of a drawn time axis, about one column per pixel

Ticks = Sequence[tuple[float, str]]  # position and label


@dataclass(frozen=True)
class Panel:
    """A picture, and the size of it in the units of the boxes.

    Args:
        pixels: uint8 (H, W, 3).
        width: Width in the units of the boxes: pixels, seconds or time steps.
        height: Height in the units of the boxes: pixels, frequency bins or channels.
        x_ticks: Positions and labels on the horizontal axis. Empty: the axes are not drawn.
        y_ticks: Positions and labels on the vertical axis, which points down.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
    """

    pixels: np.ndarray
    width: float
    height: float
    x_ticks: Ticks = ()
    y_ticks: Ticks = ()
    x_label: str = ""
    y_label: str = ""


def round_steps(stop: float, *, count: int) -> list[float]:
    """Return 0 and multiples of 1, 2 or 5 times a power of ten up to `stop`: about `count`."""
    size = 10.0 ** math.floor(math.log10(stop / count))
    step = next(size * k for k in (1, 2, 5, 10) if size * k * count >= stop)
    # Rounded, because multiples of 0.1 are not exact.
    return [round(i * step, 9) for i in range(int(stop / step + 1e-9) + 1)]


def draw_panel(axis: Axes, panel: Panel, pixels: np.ndarray | None = None) -> None:
    """Draw the picture of a panel, or other pixels (H, W, 3) in its place."""
    extent = (0, panel.width, panel.height, 0)
    has_axes = bool(panel.x_ticks)
    axis.imshow(
        panel.pixels if pixels is None else pixels,
        extent=extent,
        aspect="auto" if has_axes else "equal",
        interpolation="nearest" if max(panel.pixels.shape[:2]) < SHADED_SIDE else "antialiased",
    )
    if not has_axes:
        axis.set_axis_off()
        return
    axis.set_xticks([x for x, _ in panel.x_ticks], [label for _, label in panel.x_ticks])
    axis.set_yticks([y for y, _ in panel.y_ticks], [label for _, label in panel.y_ticks])
    axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axis.tick_params(labelsize=8)


def draw_boxes(axis: Axes, panel: Panel, boxes: np.ndarray) -> str:
    """Draw a panel with the outline of each box (N, 4).

    Overlapping boxes look like more and smaller ones, so the first one is filled, and each of them
    has a dot in its center.

    Returns:
        A note about overlapping boxes, otherwise "".
    """
    draw_panel(axis, panel)
    outlines = [_rectangle(box) for box in boxes]
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": ORANGE, "linewidth": 0.8}
    # One collection, because a matplotlib object per box would be slow. autolim=False keeps the
    # limits of the picture.
    axis.add_collection(PatchCollection(outlines, **style), autolim=False)
    if not overlaps(boxes):
        return ""
    axis.add_patch(_rectangle(boxes[0], facecolor=ORANGE, alpha=0.45, linewidth=0))
    if len(boxes) > MAX_DOTS:
        return ", they overlap; the first one is filled"
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    axis.plot(middle[:, 1], middle[:, 0], ".", color=ORANGE, markersize=4)
    return ", they overlap; the first one is filled, a dot marks the center of each"


def draw_heat(
    axis: Axes, panel: Panel, boxes: np.ndarray, weights: np.ndarray, scale: Normalize
) -> None:
    """Draw a panel in grey, with each box (N, 4) colored by its weight (N,)."""
    draw_panel(axis, panel, heat_pixels(panel, boxes, weights, scale))


def heat_pixels(
    panel: Panel, boxes: np.ndarray, weights: np.ndarray, scale: Normalize
) -> np.ndarray:
    """Return the picture in grey, multiplied by the color of the weight at each pixel.

    A product keeps the details of the picture visible, and hues differ on white as well as on
    black. Where boxes overlap, the largest weight counts. Pixels outside of all boxes stay grey.

    Returns:
        float (H, W, 3), 0 to 1.
    """
    height, width = panel.pixels.shape[:2]
    # Boxes may end between two pixels of a small picture.
    factor = max(-(-SHADED_SIDE // max(height, width)), 1)
    grey = np.kron(panel.pixels.mean(2) / 255, np.ones((factor, factor)))
    heat = np.full(grey.shape, np.nan)
    rows = boxes[:, [0, 2]] * (len(grey) / panel.height)
    columns = boxes[:, [1, 3]] * (grey.shape[1] / panel.width)
    for (top, bottom), (left, right), weight in zip(rows, columns, weights, strict=True):
        if not np.isnan(top):
            area = (_pixels(top, bottom), _pixels(left, right))
            heat[area] = np.fmax(heat[area], weight)
    light = DARKEST + (1 - DARKEST) * grey[..., None]
    colors = heat_colors()(scale(np.nan_to_num(heat)))[..., :3]
    return np.where(np.isnan(heat)[..., None], light, light * colors)


def overlaps(boxes: np.ndarray) -> bool:
    """Return whether boxes (N, 4) overlap along an axis by more than a rounding error."""
    for start, stop in ((boxes[:, 0], boxes[:, 2]), (boxes[:, 1], boxes[:, 3])):
        starts = np.unique(start)
        if len(starts) > 1:
            step = np.diff(starts).min()
            if (stop - start).max() > 1.01 * step:
                return True
    return False


def draw_alignment(
    weights: np.ndarray,
    words: Sequence[str],
    read: Sequence[str],
) -> Figure:
    """Draw attention between words: one row per query, one column per key.

    Args:
        weights: (T, N). Attention weights.
        words: Labels of the T rows, the words that attend.
        read: Labels of the N columns, the words that are attended to.
    """
    rows = shortened(words)
    columns = shortened(read)
    cell = min(0.3, MAX_INCHES / max(len(words), len(read)))
    size = font_size(cell * 1.1)
    left = max(text_width(row, size) for row in rows) / 72 + 0.3
    top = max(text_width(column, size) for column in columns) / 72 + 0.3
    # The last inch is for the color bar; 0.8 inches are for the title.
    width = max(cell * len(read) + left, 4) + 1.0
    figure = new_figure(width, max(cell * len(words) + top, 1.6) + 0.8)
    axis = figure.subplots()
    scale = heat_scale(weights)
    style: dict[str, Any] = {"cmap": heat_colors(), "norm": scale, "interpolation": "nearest"}
    axis.imshow(weights, aspect="equal", **style)
    axis.set_yticks(range(len(rows)), rows, fontsize=size)
    axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    separate_cells(axis, len(columns), len(rows))
    color_bar(figure, axis, scale, "attention\nweight")
    return figure


def draw_copies(
    weights: np.ndarray,
    words: Sequence[str],
    panel: Panel,
    boxes: np.ndarray,
    *,
    per_row: int,
    width: float,
) -> Figure:
    """Draw one small copy of a picture per word (arXiv:1502.03044, figure 3).

    Args:
        weights: (T, N). Attention weights. All copies have the same color scale.
        words: Titles of the T copies.
        panel: The picture.
        boxes: (N, 4). Top, left, bottom and right of each token, or NaN.
        per_row: Maximum number of copies per row.
        width: Width of a copy in inches.
    """
    columns = min(per_row, len(words))
    rows = -(-len(words) // columns)
    # Extreme aspect ratios are limited. The 0.3 inches are for the title of a copy, the last inch
    # for the color bar.
    copy_height = width * min(max(panel.height / panel.width, 1 / MAX_RATIO), MAX_RATIO) + 0.3
    figure = new_figure(width * columns + 1, copy_height * rows + 0.7)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    # All axes, because the last row may have empty ones.
    for axis in axes:
        axis.set_axis_off()
    scale = heat_scale(weights)
    for axis, word, row in zip(axes, shortened(words), weights, strict=False):
        draw_heat(axis, panel, boxes, row, scale)
        axis.set_title(word, fontsize=9)
    color_bar(figure, axes, scale, "attention\nper patch")
    return figure


def draw_rows(
    weights: np.ndarray,
    words: Sequence[str],
    panel: Panel,
    coords: np.ndarray,
) -> Figure:
    """Draw a panel over time with one row of attention weights per word below it.

    Args:
        weights: (T, N). Attention weights.
        words: Labels of the T rows.
        panel: The picture. Its width is a time.
        coords: (N, 2). Start and stop of each token in the same unit, or NaN.
    """
    # Heights in inches: 1.9 for the picture, 1.3 for the title and the labels of the time axis.
    row_height = min(0.22, MAX_INCHES / len(words))
    rows_height = max(row_height * len(words), 0.4)
    figure = new_figure(9, 1.9 + rows_height + 1.3)
    top, bottom = figure.subplots(2, 1, height_ratios=[1.9, rows_height], sharex=True)
    draw_panel(top, panel)
    top.set(xlabel="")
    rows = timeline(weights, coords, panel.width)
    scale = heat_scale(rows)
    bottom.imshow(
        rows,
        cmap=heat_colors(),
        norm=scale,
        aspect="auto",
        interpolation="nearest",
        extent=(0, panel.width, len(words) - 0.5, -0.5),
    )
    bottom.set_yticks(range(len(words)), shortened(words), fontsize=font_size(row_height))
    bottom.tick_params(axis="y", length=0)
    bottom.set(xlabel=panel.x_label, xlim=(0, panel.width))
    color_bar(figure, [top, bottom], scale, "attention\nweight")
    return figure


def timeline(weights: np.ndarray, coords: np.ndarray, duration: float) -> np.ndarray:
    """Convert the weights of tokens to rows over time.

    The weights of tokens with the same interval, such as the frequency bands of one frame, are
    added up. Where different intervals overlap, the result is the maximum.

    Args:
        weights: (T, N). Attention weights of N tokens.
        coords: (N, 2). Start and stop of each token, or NaN.
        duration: Duration of the rows in the same unit.

    Returns:
        (T, COLUMNS).
    """
    is_placed = ~np.isnan(coords).any(1)
    intervals, index = np.unique(coords[is_placed], axis=0, return_inverse=True)
    summed = np.zeros((len(weights), len(intervals)))
    # `summed.T[index] += ...` would count each interval only once; add.at adds up repeated indices.
    # Some versions of NumPy return an index of shape (N, 1).
    np.add.at(summed.T, index.reshape(-1), weights[:, is_placed].T)
    rows = np.zeros((len(weights), COLUMNS))
    for i, (start, stop) in enumerate(intervals * COLUMNS / duration):
        # A token that is shorter than a column still fills one column.
        part = rows[:, int(start) : max(round(stop), int(start) + 1)]
        np.maximum(part, summed[:, i : i + 1], out=part)
    return rows


def _pixels(start: float, stop: float) -> slice:
    """Return the pixels from start to stop, at least one."""
    first = max(round(start), 0)
    return slice(first, max(round(stop), first + 1))


def _rectangle(box: np.ndarray, **style: Any) -> Rectangle:
    top, left, bottom, right = (float(edge) for edge in box)
    return Rectangle((left, top), right - left, bottom - top, **style)
