"""Subword dropout: random subwords are split into two shorter ones."""

from __future__ import annotations

import random
from collections.abc import Collection

from tokenizers import Tokenizer

from dxn.core.randomness import check_probability

# Two shorter subwords: the id of the first and of the second, the number of letters of the second,
# and the possible lengths of the whole subword in letters, without and with the leading space.
Split = tuple[int, int, int, range]


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
        self.splits: dict[int, list[Split]] = {}  # cache, filled on demand

    def draw(self, token: int, rand: random.Random) -> Split | None:
        """Draw a split of the subword `token`. None: it is not split."""
        if rand.random() >= self.probability:
            return None
        # Cached, because the same tokens occur many times.
        if token not in self.splits:
            self.splits[token] = self._splits(token)
        splits = self.splits[token]
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
