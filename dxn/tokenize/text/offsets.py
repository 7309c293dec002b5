"""Positions of tokens in a text, in addition to those of the tokenizers library."""

from __future__ import annotations

from collections.abc import Sequence


def with_marks(offsets: list[tuple[int, int]], text: str) -> list[tuple[int, int]]:
    """Extend the offsets of each token over the combining marks that follow it.

    The normalizer composes a letter with its marks, but the offsets of the library exclude them.
    """
    if text.isascii():  # the usual case: there are no combining marks
        return offsets
    starts = {start for start, _ in offsets}
    extended = []
    for start, stop in offsets:
        while start < stop < len(text) and stop not in starts and not text[stop].isspace():
            stop += 1
        extended.append((start, stop))
    return extended


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the position of each word in " ".join(words)."""
    starts = []
    position = 0
    for word in words:
        starts.append(position)
        position += len(word) + 1  # 1 for the space
    return starts
