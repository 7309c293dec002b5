"""Drawers whose picture has one box per token: images, spectrograms, frames and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.core.marks import Areas, Mark
from dxn.viz.drawers.drawer import Drawer, Shown
from dxn.viz.figure import ORANGE
from dxn.viz.html import data_url
from dxn.viz.media import encoded, picture
from dxn.viz.timeline import timeline

SMALL_SIDE = 400  # pixels of the longer side; a smaller picture is enlarged without smoothing
MAX_DOTS = 100  # centers of overlapping patches; with more, dots would cover the picture
MAX_RATIO = 4.0  # pictures that are longer than this get less than their share of the figure
COLUMNS = 800  # resolution of a drawn time axis, about one column per pixel

Ticks = Sequence[tuple[float, str]]  # position and label
PAGE_SIDE = 640  # pixels of the longer side of a picture in an HTML page, which embeds it


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


def draw_panel(axis: Axes, panel: Panel) -> None:
    """Draw the picture of a panel."""
    extent = (0, panel.width, panel.height, 0)
    has_axes = bool(panel.x_ticks)
    axis.imshow(
        panel.pixels,
        extent=extent,
        aspect="auto" if has_axes else "equal",
        interpolation="nearest" if max(panel.pixels.shape[:2]) < SMALL_SIDE else "antialiased",
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


def overlaps(boxes: np.ndarray) -> bool:
    """Return whether boxes (N, 4) overlap along an axis by more than a rounding error."""
    for start, stop in ((boxes[:, 0], boxes[:, 2]), (boxes[:, 1], boxes[:, 3])):
        starts = np.unique(start)
        if len(starts) > 1:
            step = np.diff(starts).min()
            if (stop - start).max() > 1.01 * step:
                return True
    return False


def _rectangle(box: np.ndarray, **style: Any) -> Rectangle:
    top, left, bottom, right = (float(edge) for edge in box)
    return Rectangle((left, top), right - left, bottom - top, **style)


class PanelDrawer(Drawer):
    """Draws a picture with a box around each token. A subclass makes the picture in `panel`.

    Attributes:
        max_marks: Number of different starts of tokens that are outlined, because more outlines
            would be narrower than a few pixels. None: all.
        is_drawing: Whether the picture has few colors.
        time_unit: Unit of the places of events.
    """

    max_marks: int | None = None
    is_drawing: bool = False
    time_unit: str = "seconds"

    def panel(self, shown: Shown) -> Panel:
        """Return the picture."""
        raise NotImplementedError

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the boxes (N, 4) of tokens in the units of the panel, NaN for padding."""
        return coords

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        """Return a note about the tokens, which continues the title."""
        return ""

    def length(self, shown: Shown) -> float:
        """Return the end of the time axis of events. Default: that of the picture."""
        return self.panel(shown).width

    def describe(self, shown: Shown) -> str:
        """Return a description for readers who do not see the picture."""
        return f"{shown.name or shown.modality} of the sample"

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        boxes = self.boxes(shown, coords)
        is_marked, unmarked = thinned(coords[:, 0], self.max_marks)
        overlap = draw_boxes(axis, self.panel(shown), boxes[is_marked & ~np.isnan(boxes[:, 0])])
        axis.set_anchor("W")
        return f"{self.note(shown, coords)}{unmarked}{overlap}"

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

    def marked_fragment(self, shown: Shown, marks: Sequence[Mark | Areas]) -> str:
        """Return the input as HTML with the true and the predicted events below it."""
        events = [mark for mark in marks if isinstance(mark, Mark)]
        bars = timeline(events, self.length(shown), self.time_unit)
        return f'<div class="timed">{self.fragment(shown)}{bars}</div>'


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
