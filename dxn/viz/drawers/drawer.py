"""The base class of drawers, which draw the raw inputs of one modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from dxn.core.marks import Areas, Mark
from dxn.viz.html import escaped

MAX_PATH = 500  # characters
CELL_COLOR = "#bee3f8"
CELL_EDGE = "#a0aec0"
PER_ROW = 32  # cells per row
MIN_COLUMNS = 8  # cells that fit in the width at least, so that few cells are not stretched
MAX_NUMBERED = 256  # cells; with more, the numbers would be too small to read


@dataclass(frozen=True)
class Shown:
    """One input of a sample, to be drawn.

    Args:
        modality: Modality of the input. It selects the drawer.
        raw: Raw value, as returned by `Reader.read`.
        preprocessor: Tokenizer of the input's adapter. A drawer may need its attributes, such as
            the sample rate or the tokenizer.
        adapter: The input's adapter, which knows the size of a patch.
        source: What `raw` was read from, such as the path of a file.
        name: Name of the input.
        like: Raw values that are drawn in the same range, so that series, frames and sounds can be
            compared by eye.
        max_sound: Maximum number of bytes of a sound in a page. None: it is only limited in
            seconds.
    """

    modality: str
    raw: Any
    preprocessor: Any
    adapter: Any = None
    source: Any = None
    name: str = ""
    like: Sequence[Any] = ()
    max_sound: int | None = None


class Drawer:
    """Draws the raw inputs of one modality, with their tokens marked.

    This class draws one numbered cell per token, for any modality. A subclass replaces what it can
    draw better.

    In all methods, `coords` (N, k) is the position of each of N tokens in the raw input, in the
    units of `Span.coords`. Tokens without a position, such as an end-of-text token, have a row of
    NaN. `draw_tokens` is called without these tokens.

    Attributes:
        unit: Name of a token beside a scale of colors, such as "patch".
        joins_inputs: Whether neighboring inputs of this drawer are drawn together, see `join`.
    """

    unit: str = "token"
    joins_inputs: bool = False

    def size(self, shown: Shown) -> tuple[float, float]:
        """Return the width and height in inches of what `draw_tokens` draws."""
        return 5.2, 1.0

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        """Draw the input with its tokens marked.

        Returns:
            A note about the tokens or about parts that are not drawn, which continues the title. ""
            if there is nothing to say.
        """
        count = len(coords)
        columns = min(PER_ROW, max(count, MIN_COLUMNS))
        rows = max(-(-count // columns), 1)
        for i in range(count):
            row, column = divmod(i, columns)
            draw_cell(axis, column, row)
            if count <= MAX_NUMBERED:
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
                axis.text(column + 0.5, row + 0.5, str(i + 1), **style)
        # Reversed limits: the first row is at the top.
        axis.set(xlim=(0, columns), ylim=(rows, 0))
        axis.set_axis_off()
        return ""

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        """Return the names of all N columns of the input, padding included.

        None: the caller numbers the token. "": the token has no name.
        """
        return [None] * len(coords)

    def page(self, shown: Shown) -> dict[str, Any]:
        """Return the data with which attention.js shows the input. It must be JSON data.

        The value of "kind" decides how the page shows the input:

        - "characters": a text, with the key "text". `Span.coords` are characters of it.
        - "boxes": a picture, with the keys "source" (a data URL), "width" and "height". The
          optional keys "x_ticks" and "y_ticks" are lists of (position, label), and "sound" is the
          data URL of a sound. `boxes` places the tokens on it.
        - "list": the names of the tokens.
        """
        return {"kind": "list"}

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the position of each token in what `page` shows, NaN for tokens without one.

        (N, 2), start and stop in characters; or (N, 4), top, left, bottom and right in the units of
        "width" and "height"; or (N, 0) for a list.
        """
        return np.zeros((len(coords), 0))

    def fragment(self, shown: Shown) -> str:
        """Return the input as HTML without scripts, in which everything from data is escaped."""
        return f'<p class="note">no preview of the kind {escaped(shown.modality)}</p>'

    def marked_fragment(self, shown: Shown, marks: Sequence[Mark | Areas]) -> str:
        """Return the input as HTML with its marks. Default: without them, see `fragment`."""
        return self.fragment(shown)

    def file(self, shown: Shown) -> bytes | None:
        """Return the input as the content of a file that its preprocessor can read; None: none."""
        return None

    def join(self, inputs: Mapping[str, Shown]) -> Shown:
        """Return neighboring inputs as one, for a drawer with `joins_inputs`."""
        raise NotImplementedError


def draw_cell(axis: Axes, column: float, row: float) -> None:
    """Draw a cell of width and height 1."""
    style: dict[str, Any] = {"facecolor": CELL_COLOR, "edgecolor": CELL_EDGE, "linewidth": 0.5}
    axis.add_patch(Rectangle((column, row), 1, 1, **style))


def is_file(source: Any) -> bool:
    """Return whether the source of an input is the path of a file."""
    # A text is longer than a path; the file system refuses some texts with an error.
    if not isinstance(source, str | Path) or len(str(source)) > MAX_PATH:
        return False
    try:
        return Path(source).is_file()
    except (OSError, ValueError):
        return False
