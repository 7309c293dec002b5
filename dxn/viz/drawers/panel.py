"""A panel: a picture with one box per token, such as an image or a spectrogram."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.viz.figures import ORANGE, heat_colors

PAGE_SIDE = 640  # pixels of the longer side of a picture in the HTML page, which embeds it
SHADED_SIDE = 400  # pixels of the longer side, at least, of a picture that is colored by attention
# Black becomes this brightness (0 to 1) below the colors of attention, and would hide them.
DARKEST = 0.5
MAX_DOTS = 100  # centers of overlapping patches; with more, dots would cover the picture

Ticks = Sequence[tuple[float, str]]  # position and label


@dataclass(frozen=True)
class Panel:
    """A picture, and the size of it in the units of the boxes.

    Args:
        pixels: uint8 (H, W, 3).
        width: Width in the units of the boxes: pixels or seconds.
        height: Height in the units of the boxes: pixels or frequency bins.
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


def shrink_axes(axis: Axes) -> None:
    """Adapt the axes to a thumbnail: no labels, and small ticks."""
    axis.set(xlabel="", ylabel="")
    axis.tick_params(labelsize=6, length=2)


def thinned(starts: np.ndarray, max_marks: int) -> tuple[np.ndarray, str]:
    """Return which tokens to outline, so that not too many of them cover a picture.

    Args:
        starts: Start of each token (N,). Tokens with the same start are outlined together.
        max_marks: Number of different starts that may be outlined.

    Returns:
        A mask (N,), and a note about the tokens that are left out.
    """
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


def page_panel(panel: Panel) -> dict[str, Any]:
    """Return the data of a panel for the HTML page."""
    picture = Image.fromarray(np.ascontiguousarray(panel.pixels))
    picture.thumbnail((PAGE_SIDE, PAGE_SIDE))
    return {
        "kind": "boxes",
        "source": png_source(picture),
        "width": panel.width,
        "height": panel.height,
        "x_ticks": list(panel.x_ticks),
        "y_ticks": list(panel.y_ticks),
        "x_label": panel.x_label,
        "y_label": panel.y_label,
    }


def png_source(picture: Image.Image) -> str:
    """Encode a picture as a data URL, so that the HTML page needs no other file."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _pixels(start: float, stop: float) -> slice:
    """Return the pixels from start to stop, at least one."""
    first = max(round(start), 0)
    return slice(first, max(round(stop), first + 1))


def _rectangle(box: np.ndarray, **style: Any) -> Rectangle:
    top, left, bottom, right = (float(edge) for edge in box)
    return Rectangle((left, top), right - left, bottom - top, **style)
