"""The reader of texts and of lists of words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dxn.core.untrusted import shortened
from dxn.tokenize.base import BadMedia, Reader

RawText = str | list[str]

SENTENCE_WORDS = 4  # mean number of words from which the cells of a column are sentences


class TextReader(Reader):
    """Checks texts and lists of words.

    Args:
        max_chars: Maximum number of characters of a text that are tokenized.
    """

    modality = "text"
    words = True

    def __init__(self, max_chars: int = 100_000):
        self.max_chars = max_chars

    def read(self, cell: Any) -> RawText:
        """Check a text or a list of words, and return it.

        Raises:
            BadMedia: If the cell is not a text, or its first max_chars characters are blank.
        """
        words = [cell] if isinstance(cell, str) else cell
        is_text = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not is_text or isinstance(words, bytes):
            raise BadMedia(f"must be a str or a list of str, got {shortened(cell)}")
        try:
            for word in words:
                word.encode()
        except UnicodeEncodeError:
            raise BadMedia(
                f"has characters that are not Unicode, such as half of a surrogate pair, got "
                f"{shortened(cell)}"
            ) from None
        # A blank text has no tokens, but a sample needs at least one.
        if not any(map(str.strip, first_words(words, self.max_chars))):
            raise BadMedia("blank text")
        return cell if isinstance(cell, str) else list(words)

    def describe(self, raws: Sequence[RawText], cells: Sequence[Any]) -> str:
        """Describe the lengths in words or characters."""
        if not raws:
            return ""
        unit = "words" if isinstance(raws[0], list) else "characters"
        lengths = [len(raw) for raw in raws]
        median = statistics.median(lengths)
        return f"{min(lengths):,} to {max(lengths):,}, median {median:,.0f} {unit}"


def first_words(words: Sequence[str], count: int) -> list[str]:
    """Return the first words with `count` characters in all; the last word may be cut."""
    first: list[str] = []
    for word in words:
        if count <= 0:
            break
        first.append(word[:count])
        count -= len(word)
    return first
