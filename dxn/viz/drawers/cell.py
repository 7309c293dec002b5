"""Draw the cells of a table as a list of boxes, one per token: "column = value"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dxn.core.display import cut
from dxn.viz.drawers.drawer import Drawer, Shown, draw_cell
from dxn.viz.html import escaped
from dxn.viz.media import MAX_SHOWN

PER_COLUMN = 25  # boxes below each other
BOX = (2.6, 0.24)  # inches
MAX_NAME = 22  # characters of a column name
MAX_VALUE = 18  # characters of a value


class CellDrawer(Drawer):
    """Draws the cells of all columns together, because each of them has only one or few tokens."""

    unit = "cell"
    joins_inputs = True

    def join(self, inputs: Mapping[str, Shown]) -> Shown:
        """Return the inputs as one input, whose tokens are those of the inputs in order."""
        labels: list[str] = []
        for name, shown in inputs.items():
            labels += _labels(replace(shown, name=name))
        first = next(iter(inputs.values()))
        return Shown(first.modality, labels, first.preprocessor, first.adapter)

    def size(self, shown: Shown) -> tuple[float, float]:
        count = len(_labels(shown))
        columns = -(-count // PER_COLUMN)
        return BOX[0] * columns, max(BOX[1] * min(count, PER_COLUMN), 0.6)

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        """Draw one box per token, in columns of PER_COLUMN boxes."""
        count = len(coords)
        for i, label in enumerate(_labels(shown)):
            column, row = divmod(i, PER_COLUMN)
            draw_cell(axis, column, row)
            axis.text(column + 0.03, row + 0.5, label, va="center", ha="left", fontsize=7)
        # Reversed limits: the first row is at the top.
        columns = max(-(-count // PER_COLUMN), 1)
        axis.set(xlim=(0, columns), ylim=(max(min(count, PER_COLUMN), 1), 0))
        axis.set_axis_off()
        return ""

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        names: list[str | None] = list(_labels(shown))
        return names + [""] * (len(coords) - len(names))  # padding

    def fragment(self, shown: Shown) -> str:
        """Return the value as HTML."""
        value = shown.raw if shown.source is None else shown.source
        # As it was typed in the table: a date, for example, is a number to the model.
        return f'<span class="cell" dir="auto">{escaped(_text(value)[:MAX_SHOWN])}</span>'


def _labels(shown: Shown) -> list[str]:
    """Return one label per token: the name of the column and a value."""
    if isinstance(shown.raw, list):  # of joined inputs; no cell has a list as its raw value
        return shown.raw
    values = shown.raw if isinstance(shown.raw, tuple) else (shown.raw,)
    name = cut(shown.name or shown.modality, MAX_NAME)
    return [f"{name} = {cut(_text(value), MAX_VALUE)}" for value in values]


def _text(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
