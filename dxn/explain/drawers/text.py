"""Draw text: characters at a fixed pitch with a box behind each token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from dxn.explain.drawers.drawer import InputAttention, Shown, check_weights
from dxn.explain.labels import font_size, fonts, shortened
from dxn.explain.plots import ORANGE, new_figure, save, set_title

SOFT_COLORS = ("#bee3f8", "#fefcbf", "#c6f6d5", "#fed7d7", "#e9d8fd")
COLUMNS = 64  # characters per line
MAX_LINES = 24  # longer texts are cut, because each character is a separate matplotlib object
MAX_INCHES = 20.0  # longest side of an alignment picture, about 2200 pixels
MAX_ALPHA = 0.9  # the characters in front of a box stay readable
INCHES_PER_CHARACTER = 0.085  # average width of a character in a label


class TextDrawer:
    """Draws text, a str or a list of words. Coordinates are (start, stop) in characters."""

    reads_words = True
    reading_file = "alignment.png"
    thumbnails = None  # a line of text is too wide for one copy per word

    def height(self, shown: Shown) -> float:
        lines = -(-len(joined(shown.raw)) // COLUMNS)
        return 0.5 + 0.42 * min(lines, MAX_LINES)

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        # Alternating colors show where a token ends and the next one starts.
        return _draw_text(axis, joined(shown.raw), coords, SOFT_COLORS)

    def draw_shares(self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray) -> None:
        colors = [(*to_rgb(ORANGE), MAX_ALPHA * float(share)) for share in shares]
        _draw_text(axis, joined(shown.raw), coords, colors)

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray
    ) -> None:
        self.draw_shares(axis, shown, coords, weights / (float(weights.max(initial=0)) or 1.0))

    def draw_reading(
        self, shown: Shown, attention: InputAttention, path: Path, *, title: str = ""
    ) -> None:
        draw_alignment(attention.weights, attention.words, attention.names, path, title=title)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        prepare = shown.preprocessor
        ids = prepare(shown.raw)["ids"].tolist()
        tokenizer = prepare.tokenizer
        # Each token is decoded separately. A token of whitespace only becomes a visible dot.
        pieces = [tokenizer.decode([i], skip_special_tokens=False).strip() or "·" for i in ids]
        # The columns after the subwords, such as n-grams, have no name.
        return [*pieces, *[""] * (len(coords) - len(pieces))]

    def page(self, shown: Shown) -> dict[str, Any]:
        return {"kind": "characters", "text": joined(shown.raw)}


def draw_alignment(
    weights: np.ndarray, words: Sequence[str], read: Sequence[str], path: Path, *, title: str = ""
) -> None:
    """Write a PNG of attention between words: one row per query, one column per key.

    Args:
        weights: (T, N). Attention weights. A cell is darker for a larger weight.
        words: Labels of the T rows, the words that attend.
        read: Labels of the N columns, the words that are attended to.
        path: File to write.
        title: Title of the picture. "": no title.

    Raises:
        ValueError: If the shapes do not match.
    """
    check_weights(weights, words, len(read))
    rows = shortened(words)
    columns = shortened(read)
    cell = min(0.3, MAX_INCHES / max(len(words), len(read)))
    left = INCHES_PER_CHARACTER * max(map(len, rows)) + 0.4
    top = INCHES_PER_CHARACTER * max(map(len, columns)) + 0.4
    # The last inch is for the color bar.
    width = max(cell * len(read) + left, 2.4) + 1.0
    figure = new_figure(width, max(cell * len(words) + top, 2.0))
    axis = figure.subplots()
    cells = axis.imshow(weights, cmap="Blues", vmin=0, aspect="equal", interpolation="nearest")
    style: dict[str, Any] = {
        "fontsize": font_size(cell * 1.1),
        "family": fonts(),
        "parse_math": False,
    }
    axis.set_yticks(range(len(rows)), rows, **style)
    axis.set_xticks(range(len(columns)), columns, rotation=90, **style)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    # The major ticks are at the centers of the cells. Minor ticks are between the cells, and their
    # grid separates the cells.
    axis.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="#e2e8f0", linewidth=0.5)
    axis.tick_params(which="minor", length=0)
    set_title(figure, title)
    shrink = min(1.0, 4 / (cell * len(words)))  # the color bar is at most 4 inches high
    figure.colorbar(cells, ax=axis, shrink=shrink, aspect=20, pad=0.02, label="weight")
    save(figure, path)


def joined(raw: str | Sequence[str]) -> str:
    """Return the text in which the coordinates count characters: words are joined by spaces."""
    return raw if isinstance(raw, str) else " ".join(raw)


def _draw_text(axis: Axes, text: str, coords: np.ndarray, colors: Sequence[Any]) -> str:
    """Draw the characters of a text with a box behind each token.

    Args:
        axis: Axis to draw in.
        text: The text.
        coords: (N, 2). Start and stop of each token in characters.
        colors: Colors of the boxes. They repeat if there are fewer colors than tokens.

    Returns:
        A note if the text was cut, otherwise "".
    """
    drawn = text[: COLUMNS * MAX_LINES]
    for i, (start, stop) in enumerate(coords.astype(int)):
        color = colors[i % len(colors)]
        # A token that continues on the next line has one box per line.
        last_line = min(max(stop - 1, start) // COLUMNS, MAX_LINES - 1)
        for line in range(start // COLUMNS, last_line + 1):
            left = max(start - line * COLUMNS, 0)
            right = min(stop - line * COLUMNS, COLUMNS)
            # A token without characters, such as the start of a text, still gets a thin box.
            size = max(right - left, 0.15)
            axis.add_patch(Rectangle((left, line + 0.1), size, 0.8, color=color, linewidth=0))
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9, "family": fonts()}
    # One object per character: in proportional fonts a whole line would not match the boxes.
    for position, character in enumerate(drawn):
        if character.isprintable() and not character.isspace():
            row, column = divmod(position, COLUMNS)
            axis.text(column + 0.5, row + 0.5, character, parse_math=False, **style)
    lines = max(-(-len(drawn) // COLUMNS), 1)
    # Reversed limits: the first line is at the top.
    axis.set(xlim=(0, COLUMNS), ylim=(lines, 0))
    axis.set_axis_off()
    return "" if drawn == text else f", first {len(drawn):,} of {len(text):,} characters drawn"
