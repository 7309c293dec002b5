"""The words and character n-grams of tokenized texts, from which a baseline learns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from dxn.tokenize.scripts import is_mark, is_unspaced
from dxn.tokenize.text_tokenizer import num_embeddings, special_ids

# Lengths of the character n-grams. The space before and after a word is one of the characters.
CHAR_LENGTHS = (2, 3, 4)
SPACE = ord(" ")
# Polynomial hashes modulo a prime. Products of two hashes are below 2**63, the limit of int64.
PRIME = 2_147_483_647
BASE = 1_000_003
INVERSE = pow(BASE, -1, PRIME)
PAIR = 998_244_353  # multiplier of the first word of a pair


class TextCodes:
    """Computes hashes of words, pairs of words and character n-grams from token ids.

    The tokens are converted to characters in lower case again, so the hashes depend neither on the
    vocabulary nor on upper case. A character of a script without spaces is a word.

    Args:
        tokenizer: The tokenizer of the ids.
    """

    def __init__(self, tokenizer: Tokenizer):
        pieces = token_pieces(tokenizer)
        # The last one stands for the space between two texts.
        pieces.append(" ")
        self.separator = len(pieces) - 1
        lengths = torch.tensor([len(piece) for piece in pieces])
        self.lengths = lengths
        self.starts = lengths.cumsum(0) - lengths
        text = "".join(pieces)
        self.chars = torch.tensor([ord(char) for char in text], dtype=torch.long)
        self.is_space = torch.tensor([char.isspace() for char in text])
        self.is_word = torch.tensor([_is_word(char) for char in text])
        self.is_unspaced = torch.tensor([is_unspaced(char) for char in text])
        self.is_mark = torch.tensor([is_mark(char) for char in text])

    def __call__(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words and pairs of words, and the character n-grams.

        Args:
            ids: (B, N). Token ids.
            mask: (B, N). True at real tokens.

        Returns:
            Two tensors (2, n): the sample and the hash of each occurrence.
        """
        device = ids.device
        # A space before each text, and one after the last, so that all texts are one sequence.
        separated = F.pad(ids, (1, 0), value=self.separator)
        kept = F.pad(mask, (1, 0), value=True)
        tokens = torch.cat([separated[kept], separated.new_tensor([self.separator])])
        owners = torch.cat([kept.nonzero()[:, 0], separated.new_tensor([len(ids) - 1])])
        counts = self.lengths.to(device)[tokens]
        first = counts.cumsum(0) - counts
        offsets = (self.starts.to(device)[tokens] - first).repeat_interleave(counts)
        index = torch.arange(len(offsets), device=device) + offsets
        rows = owners.repeat_interleave(counts)
        is_space = self.is_space.to(device)[index]
        # Only one of several spaces in a row.
        single = ~(is_space & F.pad(is_space, (1, 0))[:-1])
        index, rows, is_space = index[single], rows[single], is_space[single]
        chars = torch.where(is_space, SPACE, self.chars.to(device)[index])
        hashes = _Hashes(chars)
        is_word = self.is_word.to(device)[index]
        starts = _starts(
            is_word, self.is_unspaced.to(device)[index], self.is_mark.to(device)[index]
        )
        words = _words(hashes, rows, is_space, is_word, starts)
        return words, _char_ngrams(hashes, rows, is_space)


class _Hashes:
    """Hashes of all parts of a sequence of characters, from sums over its prefixes."""

    def __init__(self, chars: Tensor):
        count = len(chars) + 1
        powers = _powers(BASE, count).to(chars.device)
        self.inverse = _powers(INVERSE, count).to(chars.device)
        # Terms are below 2**31, so the sum of 2**32 of them fits into int64.
        self.sums = F.pad((chars * powers[:-1] % PRIME).cumsum(0), (1, 0))

    def of(self, start: Tensor, stop: Tensor) -> Tensor:
        """Return the hashes of the characters from `start` to before `stop`."""
        return (self.sums[stop] - self.sums[start]) % PRIME * self.inverse[start] % PRIME


def token_pieces(tokenizer: Tokenizer) -> list[str]:
    """Return the characters of each token in lower case, with the space before a new word.

    A special token is a space. A part of a character is a private character.
    """
    count = num_embeddings(tokenizer)
    special = set(special_ids(tokenizer))
    ids = sorted(tokenizer.get_vocab().values())
    anchor = _anchor(tokenizer, ids, special)
    # A decoder removes the space before the first token, so the tokens follow another one.
    pairs = [[i] if anchor is None else [anchor, i] for i in ids]
    decoded = tokenizer.decode_batch(pairs, skip_special_tokens=False)
    lead = "" if anchor is None else tokenizer.decode([anchor], skip_special_tokens=False)
    pieces = [" "] * count
    for i, text in zip(ids, decoded, strict=True):
        if i not in special and text.startswith(lead):
            # Bytes that are not a complete character are decoded as this one.
            pieces[i] = text[len(lead) :].lower().replace("\ufffd", _private(i))
    return pieces


def _anchor(tokenizer: Tokenizer, ids: Sequence[int], special: set[int]) -> int | None:
    """Return the first token that consists of letters, which no decoder changes."""
    for i in ids:
        text = tokenizer.decode([i], skip_special_tokens=False)
        if i not in special and text.isascii() and text.isalpha():
            return i
    return None


def _private(number: int) -> str:
    """Return a character of the private planes of Unicode."""
    return chr(0xF0000 + number % 0xFFFE)


def _is_word(char: str) -> bool:
    # Marks belong to the letter before them, and private characters are parts of letters.
    return char.isalnum() or char == "_" or is_mark(char) or unicodedata.category(char) == "Co"


def _starts(is_word: Tensor, is_unspaced: Tensor, is_mark: Tensor) -> Tensor:
    """Return at which characters (n,) a word starts."""
    after_word = F.pad(is_word, (1, 0))[:-1]
    after_unspaced = F.pad(is_unspaced, (1, 0))[:-1]
    return is_word & (~after_word | ~is_mark & (is_unspaced | after_unspaced))


def _words(
    hashes: _Hashes, rows: Tensor, is_space: Tensor, is_word: Tensor, starts: Tensor
) -> Tensor:
    """Return words, single characters of punctuation, and pairs of consecutive words (2, n)."""
    ends = F.pad(~is_word | starts, (0, 1), value=True)[1:]
    start = starts.nonzero()[:, 0]
    stop = (is_word & ends).nonzero()[:, 0] + 1
    words = hashes.of(start, stop)
    owners = rows[start]
    same = owners[1:] == owners[:-1]
    pairs = (words[:-1] * PAIR + words[1:])[same] % PRIME
    marks = (~is_word & ~is_space).nonzero()[:, 0]
    codes = torch.cat([words, pairs, hashes.of(marks, marks + 1)])
    return torch.stack([torch.cat([owners, owners[1:][same], rows[marks]]), codes])


def _char_ngrams(hashes: _Hashes, rows: Tensor, is_space: Tensor) -> Tensor:
    """Return the n-grams (2, n) that have a space at most at their ends."""
    spaces = F.pad(is_space.long().cumsum(0), (1, 0))
    found_rows: list[Tensor] = []
    codes: list[Tensor] = []
    for n in CHAR_LENGTHS:
        start = torch.arange(max(len(rows) - n + 1, 0), device=rows.device)
        inner = spaces[start + n - 1] - spaces[start + 1]
        start = start[inner == 0]
        # A space between two texts counts to the second one. It ends a word of the first one too,
        # whose n-gram starts in the first text.
        found_rows.append(rows[start])
        codes.append(hashes.of(start, start + n))
    return torch.stack([torch.cat(found_rows), torch.cat(codes)])


def _powers(base: int, count: int) -> Tensor:
    """Return the powers 0 to count - 1 of a number, modulo PRIME."""
    powers = torch.ones(1, dtype=torch.long)
    while len(powers) < count:
        powers = torch.cat([powers, powers * pow(base, len(powers), PRIME) % PRIME])
    return powers[:count]
