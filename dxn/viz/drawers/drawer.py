"""The protocol of a drawer, which draws the raw inputs of one modality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize


MAX_PATH = 500  # characters


@dataclass(frozen=True)
class Shown:
    """One input of a sample, to be drawn.

    Args:
        modality: Modality of the input. It selects the drawer.
        raw: Raw value, as returned by `Preprocessor.read`.
        preprocessor: Preprocessor of the input's adapter. A drawer may need its attributes, such as
            the sample rate or the tokenizer.
        adapter: The input's adapter, which knows the size of a patch.
        source: What `raw` was read from, such as the path of a file.
        name: Name of the input.
    """

    modality: str
    raw: Any
    preprocessor: Any
    adapter: Any = None
    source: Any = None
    name: str = ""


@dataclass(frozen=True)
class Thumbnails:
    """Size of the small copies of an input, one per word of a text.

    Args:
        width: Width of a copy in inches.
        height: Height of a copy in inches.
        per_row: Maximum number of copies per row.
        caption: Text below all copies, such as the units of their axes.
    """

    width: float
    height: float
    per_row: int
    caption: str = ""


@dataclass(frozen=True)
class InputAttention:
    """The attention of a generated text to one input.

    Args:
        weights: (T, N). Attention weight of each generated token on each token of the input.
        words: The T generated tokens as strings.
        names: Names of the N tokens of the input.
        coords: (N, k). Position of each token in the raw input, see `Drawer`.
    """

    weights: np.ndarray
    words: Sequence[str]
    names: Sequence[str]
    coords: np.ndarray


class Drawer(Protocol):
    """Draws the raw inputs of one modality, with their tokens marked or colored.

    In all methods, `coords` (N, k) is the position of each of N tokens in the raw input, in the
    units of `Span.coords`. Tokens without a position, such as an end-of-text token, have a row of
    NaN. `draw_tokens` and `draw_shares` are called without these tokens.

    `scale` maps shares and weights to the colors of `dxn.viz.figures.heat_colors`. The caller
    draws the color bar.

    The properties may be class attributes. A drawer that draws several inputs in one panel also has
    the method `join(inputs: Mapping[str, Shown]) -> Shown`, which returns them as one input. The
    method `fragment(shown: Shown) -> str` is optional too: it returns the input as HTML for the
    report of a run, in which everything from data is escaped (`dxn.viz.drawers.html`).
    The optional method `file(shown: Shown) -> bytes` returns the input as the content of a file
    that its preprocessor can read.
    """

    @property
    def unit(self) -> str:
        """Name of a token in the label of a color bar, such as "patch"."""
        ...

    @property
    def reads_words(self) -> bool:
        """Whether the tokens are parts of a text, so that attention between them is drawn too."""
        ...

    @property
    def reading_file(self) -> str:
        """Name of the file that `draw_reading` writes."""
        ...

    @property
    def thumbnails(self) -> Thumbnails | None:
        """Size of the copies that `draw_thumbnail` draws. None: no copies are drawn."""
        ...

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        """Return the width and height in inches of what `draw_tokens` draws.

        With `shaded`, of what `draw_shares` draws.
        """
        ...

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        """Draw the input with its tokens marked.

        Returns:
            A note about the tokens or about parts that are not drawn, which continues the title. ""
            if there is nothing to say.
        """
        ...

    def draw_shares(
        self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray, scale: Normalize
    ) -> None:
        """Draw the input with each token colored by its share (N,) of the attention."""
        ...

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray, scale: Normalize
    ) -> None:
        """Draw a small copy of the input, colored by the weights (N,) of its tokens."""
        ...

    def draw_reading(
        self,
        shown: Shown,
        attention: InputAttention,
        path: Path,
        *,
        title: str = "",
        about: str = "",
    ) -> None:
        """Write a PNG of the tokens of the input that each generated token attends to.

        Args:
            shown: The input.
            attention: Attention of the generated text to this input.
            path: File to write.
            title: Title of the picture.
            about: Line below the title, such as the answer of the model.
        """
        ...

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        """Return the names of all N columns of the input, padding included.

        None: the caller numbers the token. "": the token has no name, and it is not drawn in
        pictures of words.
        """
        ...

    def page(self, shown: Shown) -> dict[str, Any]:
        """Return the data that the HTML page needs to show the input. It must be JSON data.

        The value of "kind" decides how the page shows the input:

        - "characters": a text, with the key "text". `Span.coords` are characters of it.
        - "boxes": a picture, with the keys "source" (a data URL), "width" and "height". The
          optional keys "x_ticks" and "y_ticks" are lists of (position, label), and "sound" is the
          data URL of a sound. `boxes` places the tokens on it.
        - "list": the names of the tokens.
        """
        ...

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        """Return the position of each token in what `page` shows, NaN for tokens without one.

        (N, 2), start and stop in characters; or (N, 4), top, left, bottom and right in the units of
        "width" and "height"; or (N, 0) for a list.
        """
        ...


def is_file(source: Any) -> bool:
    """Return whether the source of an input is the path of a file."""
    # A text is longer than a path; the file system refuses some texts with an error.
    if not isinstance(source, str | Path) or len(str(source)) > MAX_PATH:
        return False
    try:
        return Path(source).is_file()
    except (OSError, ValueError):
        return False


def check_weights(
    weights: np.ndarray,
    words: Sequence[str],
    num_tokens: int,
    *,
    coords: np.ndarray | None = None,
    coords_width: int = 0,
) -> None:
    """Check the shapes of the arguments of a picture.

    Raises:
        ValueError: If `weights` is not (len(words), num_tokens) with at least one row and one
            column, or `coords` is not (num_tokens, coords_width).
    """
    if coords is not None and (coords.ndim != 2 or coords.shape[1] != coords_width):
        raise ValueError(f"coords must be (N, {coords_width}), got {coords.shape}")
    expected = (len(words), num_tokens)
    if weights.shape != expected or 0 in expected:
        raise ValueError(
            f"weights must be {expected}, one row per word and at least one, got {weights.shape}"
        )
