"""Drawers whose picture has one box per token: images, spectrograms, frames and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.viz.drawers.drawer import MAX_INCHES, Drawer, Shown
from dxn.viz.figure import (
    ORANGE,
    color_bar,
    font_size,
    heat_colors,
    heat_scale,
    new_figure,
    save,
    set_title,
    shortened,
)
from dxn.viz.html import data_url
from dxn.viz.media import encoded, picture

PAGE_SIDE = 640  # pixels of the longer side of a picture in an HTML page, which embeds it
SHADED_SIDE = 400  # pixels of the longer side, at least, of a picture that is colored by attention
# Black becomes this brightness (0 to 1) below the colors of attention, and would hide them.
DARKEST = 0.5
MAX_DOTS = 100  # centers of overlapping patches; with more, dots would cover the picture
GAP = 0.06  # between a picture and its colored copy, relative to the picture
MAX_RATIO = 4.0  # pictures that are longer than this get less than their share of the figure
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


class PanelDrawer(Drawer):
    """Draws a picture with a box around each token. A subclass makes the picture in `panel`.

    Attributes:
        original: Where `draw_shares` draws the picture without colors, which hide some of it:
            "left", "above", or "" for nowhere.
        max_marks: Number of different starts of tokens that are outlined, because more outlines
            would be narrower than a few pixels. None: all.
        copy_inches: Width of a copy of the picture, one for each word that a model writes.
        copies_per_row: Maximum number of copies per row.
        is_drawing: Whether the picture has few colors.
    """

    original: str = ""
    max_marks: int | None = None
    copy_inches: float = 1.7
    copies_per_row: int = 6
    is_drawing: bool = False

    def panel(self, shown: Shown) -> Panel:
        """Return the picture."""
        raise NotImplementedError

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens in the units of the panel, NaN for padding."""
        return coords

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        """Return a note about the tokens, which continues the title."""
        return ""

    def describe(self, shown: Shown) -> str:
        """Return a description for readers who do not see the picture."""
        return f"{shown.name or shown.modality} of the sample"

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        boxes = self.boxes(shown, coords)
        is_marked, unmarked = thinned(coords[:, 0], self.max_marks)
        overlap = draw_boxes(axis, self.panel(shown), boxes[is_marked & ~np.isnan(boxes[:, 0])])
        axis.set_anchor("W")
        return f"{self.note(shown, coords)}{unmarked}{overlap}"

    def draw_shares(
        self,
        axis: Axes,
        shown: Shown,
        coords: np.ndarray,
        shares: np.ndarray,
        scale: Normalize,
        *,
        small: bool = False,
    ) -> None:
        panel = self.panel(shown)
        draw_heat(axis, panel, self.boxes(shown, coords), shares, scale)
        if small:
            axis.set(xlabel="", ylabel="")
            axis.tick_params(labelsize=6, length=2)
        elif self.original:
            left, top = 0.0, 0.0
            right, bottom = float(panel.width), float(panel.height)
            if self.original == "left":
                left, right = -(1 + GAP) * panel.width, -GAP * panel.width
            else:
                top, bottom = -(1 + GAP) * panel.height, -GAP * panel.height
            axis.imshow(panel.pixels, extent=(left, right, bottom, top))
            axis.set(xlim=(left, panel.width), ylim=(panel.height, top), anchor="W")

    def draw_reading(
        self,
        shown: Shown,
        weights: np.ndarray,
        words: Sequence[str],
        names: Sequence[str],
        coords: np.ndarray,
        path: Path,
        *,
        title: str = "",
        about: str = "",
    ) -> None:
        panel = self.panel(shown)
        if panel.x_ticks:
            draw_rows(weights, words, panel, coords[:, :2], path, title=title, about=about)
            return
        draw_copies(
            weights,
            words,
            panel,
            self.boxes(shown, coords),
            path,
            per_row=self.copies_per_row,
            width=self.copy_inches,
            title=title,
            about=about,
        )

    def page(self, shown: Shown) -> dict[str, Any]:
        panel = self.panel(shown)
        image = Image.fromarray(np.ascontiguousarray(panel.pixels))
        image.thumbnail((PAGE_SIDE, PAGE_SIDE))
        return {
            "kind": "boxes",
            "source": data_url("image/png", encoded(image, "PNG", optimize=True)),
            "width": panel.width,
            "height": panel.height,
            "x_ticks": list(panel.x_ticks),
            "y_ticks": list(panel.y_ticks),
            "x_label": panel.x_label,
            "y_label": panel.y_label,
        }

    def fragment(self, shown: Shown) -> str:
        return picture(self.panel(shown).pixels, self.describe(shown), drawing=self.is_drawing)


def thinned(starts: np.ndarray, max_marks: int | None) -> tuple[np.ndarray, str]:
    """Return which tokens to outline, so that not too many of them cover a picture.

    Args:
        starts: Start of each token (N,). Tokens with the same start are outlined together.
        max_marks: Number of different starts that may be outlined. None: all.

    Returns:
        A mask (N,), and a note about the tokens that are left out.
    """
    if max_marks is None:
        return np.ones(len(starts), dtype=bool), ""
    unique = np.unique(starts)
    every = -(-len(unique) // max_marks) or 1
    note = f", every {every}th is outlined" if every > 1 else ""
    return np.isin(starts, unique[::every]), note


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


def draw_copies(
    weights: np.ndarray,
    words: Sequence[str],
    panel: Panel,
    boxes: np.ndarray,
    path: Path,
    *,
    per_row: int,
    width: float,
    title: str = "",
    about: str = "",
) -> None:
    """Write a PNG with one small copy of a picture per word (arXiv:1502.03044, figure 3).

    Args:
        weights: (T, N). Attention weights. All copies have the same color scale.
        words: Titles of the T copies.
        panel: The picture.
        boxes: (N, 4). Top, left, bottom and right of each token, or NaN.
        path: File to write.
        per_row: Maximum number of copies per row.
        width: Width of a copy in inches.
        title: Title of the picture.
        about: Line below the title.
    """
    columns = min(per_row, len(words))
    rows = -(-len(words) // columns)
    # Extreme aspect ratios are limited. The 0.3 inches are for the title of a copy, the last inch
    # for the color bar.
    copy_height = width * min(max(panel.height / panel.width, 1 / MAX_RATIO), MAX_RATIO) + 0.3
    figure = new_figure(width * columns + 1, copy_height * rows + 0.7)
    set_title(figure, title, about)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    # All axes, because the last row may have empty ones.
    for axis in axes:
        axis.set_axis_off()
    scale = heat_scale(weights)
    for axis, word, row in zip(axes, shortened(words), weights, strict=False):
        draw_heat(axis, panel, boxes, row, scale)
        axis.set_title(word, fontsize=9)
    color_bar(figure, axes, scale, "attention\nper patch")
    save(figure, path)


def draw_rows(
    weights: np.ndarray,
    words: Sequence[str],
    panel: Panel,
    coords: np.ndarray,
    path: Path,
    *,
    title: str = "",
    about: str = "",
) -> None:
    """Write a PNG of a panel over time with one row of attention weights per word below it.

    Args:
        weights: (T, N). Attention weights.
        words: Labels of the T rows.
        panel: The picture. Its width is a time.
        coords: (N, 2). Start and stop of each token in the same unit, or NaN.
        path: File to write.
        title: Title of the picture.
        about: Line below the title.
    """
    # Heights in inches: 1.9 for the picture, 1.3 for the title and the labels of the time axis.
    row_height = min(0.22, MAX_INCHES / len(words))
    rows_height = max(row_height * len(words), 0.4)
    figure = new_figure(9, 1.9 + rows_height + 1.3)
    set_title(figure, title, about)
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
    save(figure, path)


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
