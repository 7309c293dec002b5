"""Draw text: its words, with a box behind each token."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from dxn.core.marks import Areas, Mark
from dxn.tokenize.text.tokenizer import plain_text
from dxn.viz.drawers.drawer import Drawer, Shown
from dxn.viz.fonts import families, legible, text_width
from dxn.viz.html import escaped
from dxn.viz.marks import COLORS
from dxn.viz.media import paragraph

SIZE = 11.0  # points
LINE = 23.0  # points from one line to the next
SPACE = 4.0  # points between two words
SOFT_COLORS = ("#bee3f8", "#fefcbf", "#c6f6d5", "#fed7d7", "#e9d8fd")
WIDTH = 640.0  # points of a line of text
NARROWEST = 240.0  # points; the title above a short text has room
LABELS = 50.0  # points
MAX_LINES = 24
AROUND = 150  # characters of a long text before the first and behind the last mark
MAX_MARKED = 1000  # characters of a text with marks
MAX_CHARACTERS = 4000  # more than MAX_LINES lines of narrow letters
UNDECODED = "\ufffd"  # what a tokenizer decodes an incomplete character to
THIN = 1.5  # points; width of a token without characters


@dataclass(frozen=True)
class Word:
    """A part of a text that is drawn as one piece.

    Args:
        text: The characters as they are drawn.
        raw: The characters of the text.
        start: Index of the first character in the text.
        line: Number of the line, from 0.
        x: Left edge in points.
        width: Width in points.
        is_rtl: Whether the characters run from right to left.
    """

    text: str
    raw: str
    start: int
    line: int
    x: float
    width: float
    is_rtl: bool

    def part(self, start: int, stop: int) -> tuple[float, float]:
        """Return the left edge and the width of the characters start:stop of the text."""
        before = self._width_to(start - self.start)
        after = self._width_to(stop - self.start)
        left = self.x + (self.width - after if self.is_rtl else before)
        return left, after - before

    def _width_to(self, count: int) -> float:
        """Return the width of the first `count` characters of the word."""
        count = min(max(count, 0), len(self.raw))
        if count in (0, len(self.raw)):
            return self.width if count else 0.0
        return min(text_width(legible(self.raw[:count]), SIZE), self.width)


class TextDrawer(Drawer):
    """Draws text, a str or a list of words. Coordinates are (start, stop) in characters."""

    def size(self, shown: Shown) -> tuple[float, float]:
        words, _ = _laid_out(plain_text(shown.raw))
        lines = words[-1].line + 1 if words else 1
        return _width(words) / 72, lines * LINE / 72

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        # Alternating colors show where a token ends and the next one starts.
        colors = [SOFT_COLORS[i % len(SOFT_COLORS)] for i in range(len(coords))]
        return _draw_text(axis, plain_text(shown.raw), coords, colors)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        prepare = shown.preprocessor
        ids = prepare(shown.raw)["ids"].tolist()
        if len(coords) < len(ids):  # a column has several tokens
            text = plain_text(shown.raw)
            # The slice of an unknown position, 0 to 0, is empty.
            ends = np.nan_to_num(coords).astype(int).tolist()
            return [text[start:stop] for start, stop in ends]
        tokenizer = prepare.vocabulary
        # Each token is decoded separately. A token of whitespace only becomes a visible dot.
        pieces = [tokenizer.decode([i], skip_special_tokens=False).strip() or "·" for i in ids]
        _name_bytes(pieces, plain_text(shown.raw), coords)
        # The columns after the subwords, such as n-grams, have no name.
        return [*pieces, *[""] * (len(coords) - len(pieces))]

    def page(self, shown: Shown) -> dict[str, Any]:
        return {"kind": "characters", "text": plain_text(shown.raw)}

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        return coords

    def fragment(self, shown: Shown) -> str:
        """Return the text as HTML."""
        return paragraph(plain_text(shown.raw))

    def marked_fragment(self, shown: Shown, marks: Sequence[Mark | Areas]) -> str:
        """Return the text as HTML twice: with its true and with its predicted marks."""
        text = plain_text(shown.raw)
        places = [mark for mark in marks if isinstance(mark, Mark)]
        # Both are the same part of a long text.
        start = max(min(int(mark.box[0]) for mark in places) - AROUND, 0)
        stop = min(max(int(mark.box[1]) for mark in places) + AROUND, start + MAX_MARKED)
        html = ""
        for name in ("true", "predicted"):
            chosen = [mark for mark in places if (mark.score is None) == (name == "true")]
            html += f'<p class="note">{name}{"" if chosen else ": nothing"}</p>'
            html += _marked(text, chosen, start, stop) if chosen else ""
        return html


def _marked(text: str, marks: Sequence[Mark], start: int, stop: int) -> str:
    """Return the part start:stop of a text as HTML, with marks and their labels."""
    parts = ["…" if start else ""]
    end = start
    for mark in sorted(marks, key=lambda mark: mark.box):
        first, last = max(int(mark.box[0]), end), min(int(mark.box[1]), stop)
        if first >= last:  # it is cut off, or overlaps another one
            continue
        color = COLORS[mark.number % len(COLORS)]
        name = f' <span class="note">{escaped(mark.label)}</span>' if mark.label else ""
        parts.append(escaped(text[end:first]))
        parts.append(f'<mark style="--c:{color}">{escaped(text[first:last])}{name}</mark>')
        end = last
    parts.append(escaped(text[end:stop]) + ("…" if stop < len(text) else ""))
    return f'<p class="text" dir="auto">{"".join(parts)}</p>'


def _name_bytes(pieces: list[str], text: str, coords: np.ndarray) -> None:
    """Name tokens that are only some bytes of a character by the character: "é 1/2", "é 2/2"."""
    is_part = [
        UNDECODED in piece and np.isfinite(c).all()
        for piece, c in zip(pieces, coords, strict=False)
    ]
    for i, part in enumerate(is_part):
        if part:
            same = [
                k for k, other in enumerate(is_part) if other and (coords[k] == coords[i]).all()
            ]
            start, stop = coords[i].astype(int)
            pieces[i] = f"{text[start:stop].strip()} {same.index(i) + 1}/{len(same)}"


def _laid_out(text: str) -> tuple[list[Word], int]:
    """Return the words of the first MAX_LINES lines, and the number of characters up to there."""
    words = [word for word in lay_out(text[:MAX_CHARACTERS], WIDTH) if word.line < MAX_LINES]
    end = words[-1].start + len(words[-1].raw) if words else 0
    # Whitespace at the end is not missing.
    return words, len(text) if len(text.rstrip()) <= end else end


def _draw_text(axis: Axes, text: str, coords: np.ndarray, colors: Sequence[Any]) -> str:
    """Draw the words of a text with a box behind each token.

    Args:
        axis: Axis to draw in. Its unit is a point, so that boxes match the letters at any size.
        text: Text of the input.
        coords: (N, 2). Start and stop of each token in characters.
        colors: Colors of the N boxes.

    Returns:
        A note if the text was cut, otherwise "".
    """
    words, count = _laid_out(text)
    boxes: list[Rectangle] = []
    box_colors: list[Any] = []
    for (start, stop), color in zip(coords.astype(int), colors, strict=True):
        for box in _boxes(words, start, max(stop, start)):
            boxes.append(box)
            box_colors.append(color)
    edge = {"edgecolors": "white", "linewidths": 0.6}
    axis.add_collection(PatchCollection(boxes, facecolors=box_colors, **edge), autolim=False)
    # Paths instead of text objects: they scale with the axis, so that boxes always match.
    letters = []
    for word in words:
        # 0.7 of the line above the baseline: capitals have 0.7 of the font size.
        position = (word.x, -LINE * word.line - 0.5 * LINE - 0.35 * SIZE)
        font = FontProperties(family=families(word.text))
        letters.append(TextPath(position, word.text, size=SIZE, prop=font))
    axis.add_collection(PathCollection(letters, facecolors="black", linewidths=0), autolim=False)
    lines = words[-1].line + 1 if words else 1
    # The axis is wider than the text, by the space that is reserved for labels.
    axis.set(xlim=(-2, _width(words) + LABELS), ylim=(-LINE * lines, 0), aspect="equal")
    axis.set_anchor("NW")
    axis.set_axis_off()
    return "" if count == len(text) else f", first {count:,} of {len(text):,} characters drawn"


def _width(words: Sequence[Word]) -> float:
    """Return the width of the longest line in points."""
    return max([NARROWEST, *(word.x + word.width for word in words)])


def _boxes(words: Sequence[Word], start: int, stop: int) -> list[Rectangle]:
    """Return the boxes behind the characters start:stop: one per word that they are part of."""
    boxes: list[Rectangle] = []
    for word in words:
        end = word.start + len(word.raw)
        inside = start < end and stop > word.start
        # A token without characters, such as the start of a text, still gets a thin box.
        if inside or (start == stop and word.start <= start <= end):
            left, width = word.part(start, stop)
            bottom = -LINE * (word.line + 1) + 0.12 * LINE
            boxes.append(Rectangle((left, bottom), max(width, THIN), 0.76 * LINE))
            if start == stop:
                break
    return boxes


def lay_out(text: str, width: float) -> list[Word]:
    """Break a text into lines of at most `width` points, between words where possible.

    A text whose first letter belongs to a right-to-left script starts at the right.
    """
    is_rtl = _is_rtl(text)
    words: list[Word] = []
    line = 0
    x = 0.0
    end = 0
    for start, stop in _pieces(text, width):
        gap = text[end:start]
        end = stop
        raw = text[start:stop]
        drawn = legible(raw)
        size = text_width(drawn, SIZE)
        if "\n" in gap and words:
            line, x = line + 1, 0.0
        # Spaces have the width of the gap, so that a token of several spaces has room.
        x += SPACE * len(gap.replace("\n", "")) if x else 0.0
        if x and x + size > width:
            line, x = line + 1, 0.0
        left = width - x - size if is_rtl else x
        words.append(Word(drawn, raw, start, line, left, size, _is_rtl(raw)))
        x += size
    return words


def _pieces(text: str, width: float) -> Iterator[tuple[int, int]]:
    """Yield the start and stop of each piece that is not broken.

    A piece is a word, a character of a script without spaces, or a part of a word that is longer
    than a line.
    """
    start = 0
    while start < len(text):
        if text[start].isspace():
            start += 1
            continue
        stop = start + 1
        while (
            stop < len(text) and not text[stop].isspace() and not _breaks(text[stop - 1 : stop + 1])
        ):
            stop += 1
        # Half of the piece is measured again: the width of a character is not known.
        while stop - start > 1 and text_width(legible(text[start:stop]), SIZE) > width:
            stop = (start + stop + 1) // 2
        yield start, stop
        start = stop


def _breaks(pair: str) -> bool:
    """Return whether a line may be broken between two characters, as in Chinese and Japanese."""
    wide = [unicodedata.east_asian_width(character) in "WF" for character in pair]
    # Korean has wide characters, and spaces between words.
    return all(wide) and not any("\uac00" <= character <= "\ud7a3" for character in pair)


def _is_rtl(text: str) -> bool:
    """Return whether the first letter with a direction runs from right to left."""
    for character in text:
        direction = unicodedata.bidirectional(character)
        if direction in ("L", "R", "AL"):
            return direction != "L"
    return False
