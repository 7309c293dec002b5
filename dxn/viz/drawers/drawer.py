"""The base class of drawers, which draw the raw inputs of one modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dxn.core.marks import Areas, Mark
from dxn.viz.drawers.heat import draw_alignment
from dxn.viz.figure import heat_colors
from dxn.viz.html import escaped

COPIES = (2.6, 0.6, 4)  # width and height in inches of the copies of an input, and number per row
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
    """Draws the raw inputs of one modality, with their tokens marked or colored.

    This class draws one numbered cell per token, for any modality. A subclass replaces what it can
    draw better.

    In all methods, `coords` (N, k) is the position of each of N tokens in the raw input, in the
    units of `Span.coords`. Tokens without a position, such as an end-of-text token, have a row of
    NaN. `draw_tokens` and `draw_shares` are called without these tokens.

    `scale` maps shares and weights to the colors of `dxn.viz.figure.heat_colors`. The caller draws
    the color bar.

    Attributes:
        unit: Name of a token in the label of a color bar, such as "patch".
        reads_words: Whether the tokens are parts of a text, so that attention between them is drawn
            too.
        joins_inputs: Whether neighboring inputs of this drawer are drawn together, see `join`.
        reading_file: Name of the file of `draw_reading`.
        copies: Width and height in inches of the small copies of the input, one per word of a text,
            and their maximum number per row. None: the input has no copies.
        copy_units: Text below the copies, such as the units of their axes.
    """

    unit: str = "token"
    reads_words: bool = False
    joins_inputs: bool = False
    reading_file: str = "strip.png"
    copies: tuple[float, float, int] | None = COPIES
    copy_units: str = ""

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        """Return the width and height in inches of what `draw_tokens` draws.

        With `shaded`, of what `draw_shares` draws.
        """
        return 5.2, 1.0

    def paint(
        self,
        axis: Axes,
        shown: Shown,
        coords: np.ndarray,
        colors: Sequence[Any],
        *,
        small: bool = False,
    ) -> str:
        """Draw the input with each token in its color, see `draw_tokens` and `draw_shares`."""
        columns = min(PER_ROW, max(len(colors), MIN_COLUMNS))
        rows = max(-(-len(colors) // columns), 1)
        for i, color in enumerate(colors):
            row, column = divmod(i, columns)
            draw_cell(axis, column, row, color)
            if not small and len(colors) <= MAX_NUMBERED:
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
                axis.text(column + 0.5, row + 0.5, str(i + 1), **style)
        # Reversed limits: the first row is at the top.
        axis.set(xlim=(0, columns), ylim=(rows, 0))
        axis.set_axis_off()
        return ""

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        """Draw the input with its tokens marked.

        Returns:
            A note about the tokens or about parts that are not drawn, which continues the title. ""
            if there is nothing to say.
        """
        return self.paint(axis, shown, coords, [CELL_COLOR] * len(coords))

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
        """Draw the input with each token colored by its share (N,) of the attention.

        With `small`, draw a small copy without anything beside it.
        """
        self.paint(axis, shown, coords, list(heat_colors()(scale(shares))), small=small)

    def draw_reading(
        self,
        shown: Shown,
        weights: np.ndarray,
        words: Sequence[str],
        names: Sequence[str],
        coords: np.ndarray,
    ) -> Figure:
        """Draw the tokens of the input that each generated token attends to.

        Args:
            shown: The input.
            weights: (T, N). Attention weight of each generated token on each token of the input.
            words: The T generated tokens as strings.
            names: Names of the N tokens of the input.
            coords: (N, k). Their positions.
        """
        return draw_alignment(weights, words, names)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        """Return the names of all N columns of the input, padding included.

        None: the caller numbers the token. "": the token has no name, and it is not drawn in
        pictures of words.
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


def draw_cell(axis: Axes, column: float, row: float, color: Any) -> None:
    """Draw a cell of width and height 1."""
    style: dict[str, Any] = {"edgecolor": CELL_EDGE, "linewidth": 0.5}
    axis.add_patch(Rectangle((column, row), 1, 1, facecolor=color, **style))


def is_file(source: Any) -> bool:
    """Return whether the source of an input is the path of a file."""
    # A text is longer than a path; the file system refuses some texts with an error.
    if not isinstance(source, str | Path) or len(str(source)) > MAX_PATH:
        return False
    try:
        return Path(source).is_file()
    except (OSError, ValueError):
        return False
