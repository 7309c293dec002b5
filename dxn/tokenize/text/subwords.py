"""Parts of words: subword dropout, and hashed character n-grams (arXiv:1607.04606, section 3.2)."""

from __future__ import annotations

import random
import re
import unicodedata
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dxn.core.randomness import check_probability
from dxn.tokenize.text.tokenizer import word_starts

# Words and runs of other characters, such as punctuation.
WORD = re.compile(r"\w+|[^\w\s]+")
# A text in a language without spaces can be one word. The rest of a longer word has no n-grams.
MAX_WORD = 30
MAX_CACHED = 100_000  # words whose n-grams are kept in memory
NONE = np.zeros(0, np.int32)  # hashes of a token without a word
# Two shorter subwords: the id of the first and of the second, the number of letters of the second,
# and the possible lengths of the whole subword in letters, without and with the leading space.
Split = tuple[int, int, int, range]


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


def _words(text: str | Sequence[str]) -> tuple[Sequence[str], Sequence[int]]:
    """Return the words of a text, and the position of each."""
    if not isinstance(text, str):
        return text, word_starts(text)
    matches = list(WORD.finditer(text))
    return [match[0] for match in matches], [match.start() for match in matches]


class SubwordSplitter:
    """Splits random subwords into two shorter ones, similar to BPE-dropout (arXiv:1910.13267).

    Args:
        tokenizer: Tokenizer whose subwords are split.
        probability: Probability that a subword is split.
        special: Ids of special tokens, which are never split.
    """

    def __init__(self, tokenizer: Tokenizer, probability: float, *, special: Collection[int]):
        check_probability("subword_dropout", probability)
        self.tokenizer = tokenizer
        self.probability = probability
        self.special = special
        self.known: dict[int, list[Split]] = {}  # cache, filled on demand

    def draw(self, token: int, rand: random.Random) -> Split | None:
        """Draw a split of the subword `token`. None: it is not split."""
        if rand.random() >= self.probability:
            return None
        # Cached, because the same tokens occur many times.
        if token not in self.known:
            self.known[token] = self._splits(token)
        splits = self.known[token]
        return rand.choice(splits) if splits else None

    def _splits(self, token: int) -> list[Split]:
        """Return all splits of a subword into two subwords of the vocabulary."""
        piece = self.tokenizer.id_to_token(token)
        if piece is None or token in self.special:
            return []
        # WordPiece marks subwords that continue a word with "##". Other kinds have no prefix.
        prefix = "##" if self.tokenizer.token_to_id("##" + piece[-1]) is not None else ""
        body = piece.removeprefix(prefix)
        own_prefix = piece[: len(piece) - len(body)]
        # "Ġ" (byte-level BPE) and "▁" (unigram) represent the space before a word.
        letters = range(len(body) - body.startswith(("Ġ", "▁")), len(body) + 1)
        splits = []
        for at in range(1, len(body)):
            left = self.tokenizer.token_to_id(own_prefix + body[:at])
            right = self.tokenizer.token_to_id(prefix + body[at:])
            if left is not None and right is not None:
                splits.append((left, right, len(body) - at, letters))
        return splits
