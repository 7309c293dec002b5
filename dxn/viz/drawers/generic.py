"""Draw the inputs of any other modality as one cell per token, in the order of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from dxn.viz.drawers.drawer import InputAttention, Shown, Thumbnails
from dxn.viz.drawers.text import draw_alignment
from dxn.viz.figures import heat_colors

PER_ROW = 32  # cells per row
MIN_COLUMNS = 8  # cells that fit in the width at least, so that few cells are not stretched
MAX_NUMBERED = 256  # cells; with more, the numbers would be too small to read
CELL_COLOR = "#bee3f8"


class GenericDrawer:
    """Draws a strip of numbered cells. It does not use the raw input and the coordinates."""

    unit = "token"
    reads_words = False
    reading_file = "strip.png"
    thumbnails = Thumbnails(width=2.6, height=0.6, per_row=4)

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        return 5.2, 1.0

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        _draw_strip(axis, [CELL_COLOR] * len(coords))
        return ""

    def draw_shares(
        self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray, scale: Normalize
    ) -> None:
        _draw_strip(axis, list(heat_colors()(scale(shares))))

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray, scale: Normalize
    ) -> None:
        _draw_strip(axis, list(heat_colors()(scale(weights))), numbered=False)

    def draw_reading(
        self,
        shown: Shown,
        attention: InputAttention,
        path: Path,
        *,
        title: str = "",
        about: str = "",
    ) -> None:
        weights, words, names = attention.weights, attention.words, attention.names
        draw_alignment(weights, words, names, path, title=title, about=about)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        return [None] * len(coords)

    def page(self, shown: Shown) -> dict[str, Any]:
        return {"kind": "list"}

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        return np.zeros((len(coords), 0))


def _draw_strip(axis: Axes, colors: Sequence[Any], *, numbered: bool = True) -> None:
    """Draw one cell per color, in rows of PER_ROW cells."""
    columns = min(PER_ROW, max(len(colors), MIN_COLUMNS))
    rows = max(-(-len(colors) // columns), 1)
    for i, color in enumerate(colors):
        row, column = divmod(i, columns)
        box = Rectangle((column, row), 1, 1, facecolor=color, edgecolor="#a0aec0", linewidth=0.5)
        axis.add_patch(box)
        if numbered and len(colors) <= MAX_NUMBERED:
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
            axis.text(column + 0.5, row + 0.5, str(i + 1), **style)
    # Reversed limits: the first row is at the top.
    axis.set(xlim=(0, columns), ylim=(rows, 0))
    axis.set_axis_off()
