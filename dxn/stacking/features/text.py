"""The words and character n-grams of texts."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.stacking.features.base import Features
from dxn.tokenize.text.scripts import is_mark, is_unspaced
from dxn.tokenize.text.tokenizer import MAX_KEPT

# Lengths of the character n-grams. The space before and after a word is one of the characters.
CHAR_LENGTHS = (2, 3, 4, 5)
SPACE = ord(" ")
# Polynomial hashes modulo a prime. Products of two hashes are below 2**63, the limit of int64.
PRIME = 2_147_483_647
BASE = 1_000_003
INVERSE = pow(BASE, -1, PRIME)
MAX_KINDS = 100_000  # characters whose kind is remembered, more than any script has
PAIR = 998_244_353  # multiplier of the first word of a pair
# What `dxn/export/programs/text_codes.py` needs.
RECIPE = {"counted": "text_codes", "counted_chars": MAX_KEPT}


def text_features(adapter: Any, batch: Mapping[str, Any]) -> Features:
    """Return hashes of the words and pairs of words, and of the character n-grams of texts.

    A character of a script without spaces is a word.
    """
    texts: Sequence[str] = batch["text"]
    # Composed, so that "é" has one form. An exported program reads a NUL as a space, too.
    shown = [unicodedata.normalize("NFC", text.lower()) for text in texts]
    shown = [text.replace("\0", " ") for text in shown]
    # A space before each text, and one after the last, so that all texts are one sequence.
    chars = torch.tensor([ord(char) for char in " ".join(["", *shown, ""])])
    lengths = [1 + len(text) for text in shown]
    lengths[-1] += 1
    rows = torch.arange(len(texts)).repeat_interleave(torch.tensor(lengths))
    # Each distinct character is classified once.
    distinct, index = chars.unique(return_inverse=True)
    kinds = torch.tensor([_kind(point) for point in distinct.tolist()])
    # Only one of several spaces in a row: the last one, which belongs to the word after it. The
    # first one can be the end of the text before.
    is_space = kinds[index, 0]
    last = ~(is_space & F.pad(is_space, (0, 1))[1:])
    rows = rows[last]
    is_space, is_word, is_unspaced, is_mark = kinds[index[last]].unbind(1)
    chars = torch.where(is_space, SPACE, chars[last])
    # Sums over prefixes, from which the hashes of all parts of the sequence follow. The terms are
    # below 2**31, so the sum of 2**32 of them fits into int64.
    sums = F.pad((chars * _powers(BASE, len(chars)) % PRIME).cumsum(0), (1, 0))
    inverse = _powers(INVERSE, len(chars) + 1)

    def hashes(start: Tensor, stop: Tensor) -> Tensor:
        """Return the hashes of the characters from `start` to before `stop`."""
        return (sums[stop] - sums[start]) % PRIME * inverse[start] % PRIME

    # A word starts after another character, and at each character of a script without spaces.
    after_word, after_unspaced = F.pad(is_word, (1, 0))[:-1], F.pad(is_unspaced, (1, 0))[:-1]
    starts = is_word & (~after_word | ~is_mark & (is_unspaced | after_unspaced))
    ends = F.pad(~is_word | starts, (0, 1), value=True)[1:]
    start = starts.nonzero()[:, 0]
    words = hashes(start, (is_word & ends).nonzero()[:, 0] + 1)
    # Pairs of consecutive words of a text, and single characters of punctuation.
    owners = rows[start]
    same = owners[1:] == owners[:-1]
    pairs = (words[:-1] * PAIR + words[1:])[same] % PRIME
    marks = (~is_word & ~is_space).nonzero()[:, 0]
    word_rows = torch.cat([owners, owners[1:][same], rows[marks]])
    word_codes = torch.cat([words, pairs, hashes(marks, marks + 1)])
    # n-grams have a space at most at their ends. A space between two texts counts to the second
    # one. It ends a word of the first one too, whose n-gram starts in the first text.
    spaces = F.pad(is_space.long().cumsum(0), (1, 0))
    gram_rows: list[Tensor] = []
    gram_codes: list[Tensor] = []
    for n in CHAR_LENGTHS:
        start = torch.arange(max(len(rows) - n + 1, 0))
        start = start[spaces[start + n - 1] == spaces[start + 1]]
        gram_rows.append(rows[start])
        gram_codes.append(hashes(start, start + n))
    device = batch["ids"].device
    counted = (
        torch.stack([word_rows, word_codes]).to(device),
        torch.stack([torch.cat(gram_rows), torch.cat(gram_codes)]).to(device),
    )
    return Features("TF-IDF", torch.zeros(len(texts), 0, device=device), counted)


@functools.lru_cache(maxsize=MAX_KINDS)
def _kind(point: int) -> tuple[bool, bool, bool, bool]:
    """Return whether a character is a space, of a word, of an unspaced script, and a mark."""
    char = chr(point)
    # Marks belong to the letter before them.
    is_word = char.isalnum() or char == "_" or is_mark(char)
    return char.isspace(), is_word, is_unspaced(char), is_mark(char)


def _powers(base: int, count: int) -> Tensor:
    """Return the powers 0 to count - 1 of a number, modulo PRIME."""
    powers = torch.ones(1, dtype=torch.long)
    while len(powers) < count:
        powers = torch.cat([powers, powers * pow(base, len(powers), PRIME) % PRIME])
    return powers[:count]
