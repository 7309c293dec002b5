"""Compute the hashes of words and character n-grams that a baseline of texts counts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

PRIME, BASE, PAIR = 2_147_483_647, 1_000_003, 998_244_353
NGRAMS = (2, 3, 4)


def counted(arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> list[np.ndarray]:
    """Return the hashes of words and of n-grams (B, n) int64 each, padded with -1.

    Args:
        arrays: ids (B, N) and mask (B, N) of the texts.
        options: Options of the input in preprocess.json.
    """
    words: list[list[int]] = []
    ngrams: list[list[int]] = []
    for ids, mask in zip(arrays["ids"], arrays["mask"], strict=True):
        text = "".join(options["pieces"][i] for i in ids[mask].tolist())
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
        if _is_word(char):
            word += char
            continue
        if word:
            words.append(_hash(word))
            word = ""
        if char != " ":
            marks.append(_hash(char))
    pairs = [(a * PAIR + b) % PRIME for a, b in pairwise(words)]
    return words + pairs + marks


def _ngrams(chars: str) -> list[int]:
    """Return the hashes of n-grams that have a space at most at their ends."""
    parts = [chars[i : i + n] for n in NGRAMS for i in range(len(chars) - n + 1)]
    return [_hash(part) for part in parts if " " not in part[1:-1]]


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char) in ("Mn", "Mc", "Co")


def _hash(text: str) -> int:
    value = 0
    for char in reversed(text):
        value = (value * BASE + ord(char)) % PRIME
    return value


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    width = max(1, *(len(row) for row in rows))
    return np.array([[*row, *[-1] * (width - len(row))] for row in rows], np.int64)
