"""The words and character n-grams of texts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dxn.stacking.features.base import Features
from dxn.tokenize.text.scripts import is_mark, is_unspaced

# Lengths of the character n-grams. The space before and after a word is one of the characters.
CHAR_LENGTHS = (2, 3, 4, 5)
SPACE = ord(" ")
# Polynomial hashes modulo a prime. Products of two hashes are below 2**63, the limit of int64.
PRIME = 2_147_483_647
BASE = 1_000_003
INVERSE = pow(BASE, -1, PRIME)
# What is known of each character, by code point. It is computed when a text has the character.
IS_SPACE, IS_WORD, IS_UNSPACED, IS_MARK, UNKNOWN = 1, 2, 4, 8, 255
KINDS = np.full(0x110000, UNKNOWN, np.uint8)
NUM_POWERS = 4096
POWERS: dict[int, np.ndarray] = {}  # the first NUM_POWERS of `_powers`, computed once
PAIR = 998_244_353  # multiplier of the first word of a pair


def text_features(adapter: Any, batch: Mapping[str, Any]) -> Features:
    """Return hashes of the words and pairs of words, and of the character n-grams of texts.

    A character of a script without spaces is a word.
    """
    # NumPy, because starting an operation of torch takes several times longer, which is most of
    # the time of a short text.
    texts: Sequence[str] = batch["text"]
    # Composed, so that "é" has one form.
    shown = [unicodedata.normalize("NFC", text.lower()).replace("\0", " ") for text in texts]
    # A space before each text, and one after the last, so that all texts are one sequence.
    joined = " ".join(["", *shown, ""]).encode("utf-32-le", "surrogatepass")
    chars = np.frombuffer(joined, np.uint32).astype(np.int64)
    lengths = [1 + len(text) for text in shown]
    lengths[-1] += 1
    rows = np.arange(len(texts)).repeat(lengths)
    kinds = _kinds(chars)
    # Only one of several spaces in a row: the last one, which belongs to the word after it. The
    # first one can be the end of the text before.
    is_space = kinds & IS_SPACE != 0
    is_last = np.append(~(is_space[:-1] & is_space[1:]), True)
    chars, rows = chars[is_last], rows[is_last]
    kinds, is_space = kinds[is_last], is_space[is_last]
    chars = np.where(is_space, SPACE, chars)
    # Sums over prefixes, from which the hashes of all parts of the sequence follow. The terms are
    # below 2**31, so the sum of 2**32 of them fits into int64.
    count = len(chars)
    sums = np.zeros(count + 1, np.int64)
    np.cumsum(chars * _powers(BASE, count) % PRIME, out=sums[1:])
    inverse = _powers(INVERSE, count)

    def hashes(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Return the hashes of the characters from `start` to before `stop`."""
        return (sums[stop] - sums[start]) % PRIME * inverse[start] % PRIME

    # A word starts after another character, and at each character of a script without spaces. The
    # first character is a space, so none of them starts a word.
    is_word, is_unspaced, is_mark = (kinds & bit != 0 for bit in (IS_WORD, IS_UNSPACED, IS_MARK))
    starts = np.zeros(count, bool)
    splits = ~is_mark[1:] & (is_unspaced[1:] | is_unspaced[:-1])
    starts[1:] = is_word[1:] & (~is_word[:-1] | splits)
    # The last character is a space, too.
    ends = is_word[:-1] & (~is_word[1:] | starts[1:])
    start = starts.nonzero()[0]
    words = hashes(start, ends.nonzero()[0] + 1)
    # Pairs of consecutive words of a text, and single characters of punctuation.
    owners = rows[start]
    same = owners[1:] == owners[:-1]
    pairs = (words[:-1] * PAIR + words[1:])[same] % PRIME
    marks = (~is_word & ~is_space).nonzero()[0]
    word_rows = np.concatenate([owners, owners[1:][same], rows[marks]])
    word_codes = np.concatenate([words, pairs, hashes(marks, marks + 1)])
    # n-grams have a space at most at their ends. A space between two texts counts to the second
    # one. It ends a word of the first one too, whose n-gram starts in the first text.
    spaces = is_space.cumsum()
    gram_rows: list[np.ndarray] = []
    gram_codes: list[np.ndarray] = []
    for n in CHAR_LENGTHS:
        stop = max(count - n + 1, 0)
        is_gram = spaces[n - 2 : n - 2 + stop] == spaces[:stop]
        codes = (sums[n : n + stop] - sums[:stop]) % PRIME * inverse[:stop] % PRIME
        gram_rows.append(rows[:stop][is_gram])
        gram_codes.append(codes[is_gram])
    grams = np.stack([np.concatenate(gram_rows), np.concatenate(gram_codes)])
    device = batch["ids"].device
    blocks = [np.stack([word_rows, word_codes]), grams]
    counted = [torch.from_numpy(block).to(device) for block in blocks]
    empty = torch.zeros(len(texts), 0, device=device)
    return Features("TF-IDF", empty, tuple(counted))


def _kinds(chars: np.ndarray) -> np.ndarray:
    """Return the kinds of characters, a sum of IS_SPACE, IS_WORD, IS_UNSPACED and IS_MARK."""
    kinds = KINDS[chars]
    unknown = kinds == UNKNOWN
    if unknown.any():
        for point in np.unique(chars[unknown]).tolist():
            char = chr(point)
            # Marks belong to the letter before them.
            is_word = char.isalnum() or char == "_" or is_mark(char)
            KINDS[point] = (
                IS_SPACE * char.isspace()
                + IS_WORD * is_word
                + IS_UNSPACED * is_unspaced(char)
                + IS_MARK * is_mark(char)
            )
        kinds = KINDS[chars]
    return kinds


def _powers(base: int, count: int) -> np.ndarray:
    """Return the powers 0 to count - 1 of a number, modulo PRIME."""
    powers = POWERS.get(base, np.ones(1, np.int64))
    while len(powers) < count:
        powers = np.concatenate([powers, powers * pow(base, len(powers), PRIME) % PRIME])
    return powers[:count]


POWERS |= {base: _powers(base, NUM_POWERS) for base in (BASE, INVERSE)}
