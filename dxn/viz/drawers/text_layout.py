"""Lines of text: where each word is, and where the characters of a token are."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from dxn.viz.fonts import legible, text_width

SIZE = 11.0  # points
LINE = 23.0  # points from one line to the next
SPACE = 4.0  # points between two words


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
