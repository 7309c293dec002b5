"""Compute the hashes of words and character n-grams that a baseline of texts counts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

PRIME, BASE, PAIR = 2_147_483_647, 1_000_003, 998_244_353
NGRAMS = (2, 3, 4, 5)
# First and last code point of scripts without spaces, whose characters are words: Thai and Lao,
# Burmese, Khmer, Japanese, Chinese.
UNSPACED = (
    (0x0E01, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3005, 0x3007),
    (0x3041, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)


def counted(
    values: Sequence[str], arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the hashes of words and of n-grams (B, n) int64 each, padded with -1.

    Args:
        values: B texts.
        arrays: Prepared inputs of the model, which are not needed.
        options: Options of the input in preprocess.json.
    """
    words: list[list[int]] = []
    ngrams: list[list[int]] = []
    for value in values:
        text = unicodedata.normalize("NFC", value[: options["counted_chars"]].lower())
        text = text.replace("\0", " ")
        chars = " ".join(["", *text.split(), ""]) if text.strip() else " "
        words.append(_words(chars))
        ngrams.append(_ngrams(chars))
    return [_padded(words), _padded(ngrams)]


def _words(chars: str) -> list[int]:
    """Return the hashes of words, of pairs of words, and of single other characters."""
    words: list[int] = []
    marks: list[int] = []
    word = ""
    for char in chars:
        is_word = _is_word(char)
        if word and (not is_word or _is_start(char, word[-1])):
            words.append(_hash(word))
            word = ""
        if is_word:
            word += char
        elif char != " ":
            marks.append(_hash(char))
    pairs = [(a * PAIR + b) % PRIME for a, b in pairwise(words)]
    return words + pairs + marks


def _ngrams(chars: str) -> list[int]:
    """Return the hashes of n-grams that have a space at most at their ends."""
    parts = [chars[i : i + n] for n in NGRAMS for i in range(len(chars) - n + 1)]
    return [_hash(part) for part in parts if " " not in part[1:-1]]


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char) in ("Mn", "Mc")


def _is_start(char: str, before: str) -> bool:
    """Whether a character after another one of a word begins a new word."""
    if unicodedata.category(char) in ("Mn", "Mc"):
        return False
    return _is_unspaced(char) or _is_unspaced(before)


def _is_unspaced(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in UNSPACED)


def _hash(text: str) -> int:
    value = 0
    for char in reversed(text):
        value = (value * BASE + ord(char)) % PRIME
    return value


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    width = max(1, *(len(row) for row in rows))
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], np.int64)
