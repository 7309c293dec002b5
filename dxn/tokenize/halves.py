"""Subwords cut otherwise than the tokenizer would, in training."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from tokenizers import Tokenizer


@dataclass(frozen=True)
class Half:
    """One way to write a subword as two: both ids, the letters of the second, and how many the whole has, with and
    without its space."""

    left: int
    right: int
    behind: int
    letters: range


class Halves:
    """Two shorter subwords in the place of one, each with a probability (after arXiv:1910.13267)."""

    def __init__(self, tokenizer: Tokenizer, probability: float, *, special: Collection[int]):
        if not 0 <= probability <= 1:
            raise ValueError(f"subword_dropout is a probability, got {probability}")
        self.tokenizer, self.probability, self.special = tokenizer, probability, special
        self.known: dict[int, list[Half]] = {}

    def draw(self, token: int, rng: random.Random) -> Half | None:
        """Both halves of this subword; None for one that stays whole, by chance or because no two pieces make it."""
        if rng.random() >= self.probability:
            return None
        if token not in self.known:
            self.known[token] = self._ways(token)
        return rng.choice(self.known[token]) if self.known[token] else None

    def _ways(self, token: int) -> list[Half]:
        piece = self.tokenizer.id_to_token(token)
        if piece is None or token in self.special:
            return []
        inside = "##" if self.tokenizer.token_to_id("##" + piece[-1]) is not None else ""
        body = piece.removeprefix(inside) if inside else piece
        lead = piece[: len(piece) - len(body)]
        letters = range(len(body) - body.startswith(("Ġ", "▁")), len(body) + 1)
        ways = []
        for at in range(1, len(body)):
            left = self.tokenizer.token_to_id(lead + body[:at])
            right = self.tokenizer.token_to_id(inside + body[at:])
            if left is not None and right is not None:
                ways.append(Half(left, right, len(body) - at, letters))
        return ways


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of its special tokens, in order."""
    added = tokenizer.get_added_tokens_decoder()
    return sorted(i for i, token in added.items() if token.special)
