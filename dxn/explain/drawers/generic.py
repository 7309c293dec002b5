"""Draw the inputs of any other modality as one cell per token, in the order of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from dxn.explain.drawers.drawer import InputAttention, Shown, Thumbnails
from dxn.explain.drawers.text import draw_alignment
from dxn.explain.plots import ORANGE

PER_ROW = 32  # cells per row
MIN_COLUMNS = 8  # cells that fit in the width at least, so that few cells are not stretched
MAX_NUMBERED = 256  # cells; with more, the numbers would be too small to read
CELL_COLOR = "#bee3f8"
MAX_ALPHA = 0.9  # the number of a cell stays readable


class GenericDrawer:
    """Draws a strip of numbered cells. It does not use the raw input and the coordinates."""

    reads_words = False
    reading_file = "strip.png"
    thumbnails = Thumbnails(width=2.6, height=0.6, per_row=4)

    def height(self, shown: Shown) -> float:
        return 1.2

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        _draw_strip(axis, [CELL_COLOR] * len(coords))
        return ""

    def draw_shares(self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray) -> None:
        _draw_strip(axis, _shades(shares))

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray
    ) -> None:
        # initial: an input may have no tokens. A divisor of 1 leaves weights of 0 unchanged.
        largest = float(weights.max(initial=0)) or 1.0
        _draw_strip(axis, _shades(weights / largest), numbered=False)

    def draw_reading(
        self, shown: Shown, attention: InputAttention, path: Path, *, title: str = ""
    ) -> None:
        draw_alignment(attention.weights, attention.words, attention.names, path, title=title)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        return [None] * len(coords)

    def page(self, shown: Shown) -> dict[str, Any]:
        return {"kind": "list"}


def _shades(values: np.ndarray) -> list[tuple[float, ...]]:
    """Return one RGBA color per value (N,); it is more opaque for a larger value."""
    return [(*to_rgb(ORANGE), MAX_ALPHA * float(value)) for value in values]


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
