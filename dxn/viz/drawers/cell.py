"""Draw the cells of a table as a list of boxes, one per token: "column = value"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from dxn.viz.drawers.drawer import InputAttention, Shown, Thumbnails
from dxn.viz.drawers.html import cell
from dxn.viz.drawers.text import draw_alignment
from dxn.viz.figures import heat_colors

PER_COLUMN = 25  # boxes below each other
BOX = (2.6, 0.24)  # inches
MAX_NAME = 22  # characters of a column name
MAX_VALUE = 18  # characters of a value
CELL_COLOR = "#bee3f8"


@dataclass(frozen=True)
class Cells:
    """Cells that are drawn in one panel, in place of the raw value of a single input.

    Args:
        labels: One label per token.
    """

    labels: tuple[str, ...]


class CellDrawer:
    """Draws the cells of all columns together, because each of them has only one or few tokens."""

    unit = "cell"
    reads_words = False
    reading_file = "cells.png"
    thumbnails = Thumbnails(width=2.0, height=1.2, per_row=4)

    def join(self, inputs: Mapping[str, Shown]) -> Shown:
        """Return the inputs as one input, whose tokens are those of the inputs in order."""
        labels: list[str] = []
        for name, shown in inputs.items():
            labels += _labels(replace(shown, name=name))
        first = next(iter(inputs.values()))
        return Shown(first.modality, Cells(tuple(labels)), first.preprocessor, first.adapter)

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        count = len(_labels(shown))
        columns = -(-count // PER_COLUMN)
        return BOX[0] * columns, max(BOX[1] * min(count, PER_COLUMN), 0.6)

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        _draw_boxes(axis, _labels(shown), [CELL_COLOR] * len(coords))
        return ""

    def draw_shares(
        self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray, scale: Normalize
    ) -> None:
        _draw_boxes(axis, _labels(shown), list(heat_colors()(scale(shares))))

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray, scale: Normalize
    ) -> None:
        colors = list(heat_colors()(scale(weights)))
        _draw_boxes(axis, [""] * len(colors), colors)

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
        names: list[str | None] = list(_labels(shown))
        return names + [""] * (len(coords) - len(names))  # padding

    def page(self, shown: Shown) -> dict[str, Any]:
        return {"kind": "list"}

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        return np.zeros((len(coords), 0))

    def fragment(self, shown: Shown) -> str:
        """Return the value as HTML."""
        value = shown.raw if shown.source is None else shown.source
        # As it was typed in the table: a date, for example, is a number to the model.
        return cell(_text(value))


def _labels(shown: Shown) -> list[str]:
    """Return one label per token: the name of the column and a value."""
    if isinstance(shown.raw, Cells):
        return list(shown.raw.labels)
    values = shown.raw if isinstance(shown.raw, tuple) else (shown.raw,)
    name = _cut(shown.name or shown.modality, MAX_NAME)
    return [f"{name} = {_cut(_text(value), MAX_VALUE)}" for value in values]


def _text(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _draw_boxes(axis: Axes, labels: Sequence[str], colors: Sequence[Any]) -> None:
    """Draw one box per color, in columns of PER_COLUMN boxes."""
    for i, (label, color) in enumerate(zip(labels, colors, strict=True)):
        column, row = divmod(i, PER_COLUMN)
        style: dict[str, Any] = {"edgecolor": "#a0aec0", "linewidth": 0.5}
        axis.add_patch(Rectangle((column, row), 1, 1, facecolor=color, **style))
        axis.text(column + 0.03, row + 0.5, label, va="center", ha="left", fontsize=7)
    # Reversed limits: the first row is at the top.
    columns = max(-(-len(colors) // PER_COLUMN), 1)
    axis.set(xlim=(0, columns), ylim=(max(min(len(colors), PER_COLUMN), 1), 0))
    axis.set_axis_off()
