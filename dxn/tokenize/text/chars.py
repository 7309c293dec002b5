"""Hashed character n-grams of the words of a text (arXiv:1607.04606, section 3.2)."""

from __future__ import annotations

import re
import unicodedata
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

# Words and runs of other characters, such as punctuation.
WORD = re.compile(r"\w+|[^\w\s]+")
# A text in a language without spaces can be one word. The rest of a longer word has no n-grams.
MAX_WORD = 30
MAX_CACHED = 100_000  # words whose n-grams are kept in memory
NONE = np.zeros(0, np.int32)  # hashes of a token without a word


class CharNgrams:
    """Finds the character n-grams of the word that each token belongs to. It can be pickled.

    A word that is not in the vocabulary has n-grams in common with the words of the training split,
    such as those of its stem and its ending.

    Args:
        lengths: Lengths n of the n-grams.
        buckets: Number of hash values. The value 0 means that there is no n-gram, so hashes are
            numbers from 1 to `buckets`.
    """

    def __init__(self, lengths: Sequence[int], buckets: int):
        self.lengths = tuple(lengths)
        self.buckets = buckets
        self.known: dict[str, np.ndarray] = {}

    def of_word(self, word: str) -> np.ndarray:
        """Return the hashes (G,) of the n-grams of a word in lower case."""
        known = self.known.get(word)
        if known is not None:
            return known
        # The marks distinguish a prefix and a suffix from the same characters inside of a word.
        marked = f"<{unicodedata.normalize('NFC', word[:MAX_WORD]).lower()}>"
        grams = [
            marked[start : start + n] for n in self.lengths for start in range(len(marked) - n + 1)
        ]
        # Not `hash`, which differs from process to process.
        hashes = [1 + zlib.crc32(gram.encode(errors="replace")) % self.buckets for gram in grams]
        result = np.array(hashes, np.int32)
        if len(self.known) < MAX_CACHED:
            self.known[word] = result
        return result

    def __call__(self, text: str | Sequence[str], offsets: Iterable[tuple[float, float]]) -> Tensor:
        """Return the hashes (n, G) int32 for n tokens, 0 after the last n-gram of a word.

        Args:
            text: Text, or its words.
            offsets: Start and stop of each token in characters, for words those in " ".join(text).
                NaN: the token has no word.
        """
        words, starts = _words(text)
        rows = [self._of_token(words, starts, *offset) for offset in offsets]
        # At least one, because an embedding cannot look up nothing.
        width = max([1, *map(len, rows)])
        grams = np.zeros((len(rows), width), np.int32)
        for i, row in enumerate(rows):
            grams[i, : len(row)] = row
        return torch.from_numpy(grams)

    def _of_token(
        self, words: Sequence[str], starts: Sequence[int], start: float, stop: float
    ) -> np.ndarray:
        # The last character, because some tokenizers count the space before a word to its token.
        last = max(start, stop - 1)
        number = bisect_right(starts, last) - 1 if last >= 0 else -1  # no comparison holds for NaN
        if number < 0 or last >= starts[number] + len(words[number]):
            return NONE
        return self.of_word(words[number])


def word_starts(words: Sequence[str]) -> list[int]:
    """Return the position of each word in " ".join(words)."""
    starts = []
    position = 0
    for word in words:
        starts.append(position)
        position += len(word) + 1  # 1 for the space
    return starts


def _words(text: str | Sequence[str]) -> tuple[Sequence[str], Sequence[int]]:
    """Return the words of a text, and the position of each."""
    if not isinstance(text, str):
        return text, word_starts(text)
    matches = list(WORD.finditer(text))
    return [match[0] for match in matches], [match.start() for match in matches]
