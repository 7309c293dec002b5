"""Compute the hashed character n-grams of the word that each token of a text belongs to."""

from __future__ import annotations

import re
import unicodedata
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

WORD = re.compile(r"\w+|[^\w\s]+")
MAX_WORD = 30  # characters; the rest of a longer word has no n-grams

# Start and stop of each token in characters, and the tokens that are used, -1 for special ones.
Places = tuple[Sequence[tuple[int, int]], Sequence[int]]


def ngrams(
    texts: Sequence[str | list[str]], places: Sequence[Places], options: Mapping[str, Any]
) -> np.ndarray:
    """Return the hashes (B, N, G) int32, 0 where there is none.

    Args:
        texts: B texts, or their words.
        places: Places of the tokens of each text.
        options: The lengths of the n-grams, and the number of buckets of the hashes.
    """
    rows = [_rows(text, *own, options) for text, own in zip(texts, places, strict=True)]
    width = max(1, *(len(row) for own in rows for row in own))
    result = np.zeros((len(rows), max(map(len, rows)), width), np.int32)
    for i, own in enumerate(rows):
        for j, row in enumerate(own):
            result[i, j, : len(row)] = row
    return result


def _rows(
    text: str | list[str],
    offsets: Sequence[tuple[int, int]],
    used: Sequence[int],
    options: Mapping[str, Any],
) -> list[list[int]]:
    words, starts = _words(text)
    chars = text if isinstance(text, str) else " ".join(text)
    begins = {start for start, _ in offsets}
    rows: list[list[int]] = []
    for i in used:
        word = ""
        if i >= 0:
            start, stop = offsets[i]
            # The combining marks that follow a letter belong to its token.
            while start < stop < len(chars) and stop not in begins and not chars[stop].isspace():
                stop += 1
            # The last character: some tokenizers count the space before a word to its token.
            last = max(start, stop - 1)
            number = bisect_right(starts, last) - 1
            if number >= 0 and last < starts[number] + len(words[number]):
                word = words[number]
        rows.append(_hashes(word, options) if word else [])
    return rows


def _words(text: str | list[str]) -> tuple[list[str], list[int]]:
    """Return the words of a text, and the position of each."""
    if isinstance(text, list):
        return text, [0, *accumulate(len(word) + 1 for word in text)][:-1]
    matches = list(WORD.finditer(text))
    return [match[0] for match in matches], [match.start() for match in matches]


def _hashes(word: str, options: Mapping[str, Any]) -> list[int]:
    marked = f"<{unicodedata.normalize('NFC', word[:MAX_WORD]).lower()}>"
    parts = [marked[i : i + n] for n in options["lengths"] for i in range(len(marked) - n + 1)]
    return [1 + zlib.crc32(part.encode(errors="replace")) % options["buckets"] for part in parts]
