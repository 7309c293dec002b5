"""Drawers whose picture has one box per token: images, spectrograms, frames and curves."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from dxn.viz.drawers.boxes import Panel, draw_boxes
from dxn.viz.drawers.drawer import Drawer, Shown
from dxn.viz.html import data_url
from dxn.viz.media import encoded, picture

PAGE_SIDE = 640  # pixels of the longer side of a picture in an HTML page, which embeds it


class PanelDrawer(Drawer):
    """Draws a picture with a box around each token. A subclass makes the picture in `panel`.

    Attributes:
        max_marks: Number of different starts of tokens that are outlined, because more outlines
            would be narrower than a few pixels. None: all.
        is_drawing: Whether the picture has few colors.
    """

    max_marks: int | None = None
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
