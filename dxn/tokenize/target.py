"""Text that a model writes: to ids between a beginning and an end, and back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dxn.errors import UserError
from dxn.tokenize.halves import Halves, special_ids
from dxn.tokenize.text import Subwords, load_tokenizer, train_tokenizer

FILE = "target_tokenizer.json"
BEGINS = ("[BOS]", "<s>", "<bos>", "[CLS]", "<|endoftext|>")
ENDS = ("[EOS]", "</s>", "<eos>", "[SEP]", "<|endoftext|>")


class TargetTokenizer:
    """Subwords of the texts that a model learns to write.

    Args:
        subwords: what a token is: bpe (over bytes), wordpiece, unigram, word or character.
        vocab_size: pieces at most, when the tokenizer is trained.
        lowercase: put all text in lower case first.
        tokenizer: path of a tokenizer.json to use instead of training one.
        share: one tokenizer, and one table of vectors, for the text that is read and the text that is written.
        max_len: tokens at most, the end's included; a longer text is cut.
        subword_dropout: probability that a subword is split in two shorter ones, in training.
    """

    def __init__(
        self,
        *,
        subwords: Subwords = "bpe",
        vocab_size: int = 8000,
        lowercase: bool = False,
        tokenizer: str | None = None,
        share: bool = False,
        max_len: int = 128,
        subword_dropout: float = 0.0,
    ):
        if max_len < 2:
            raise ValueError(f"max_len must be at least 2, a token and the end, got {max_len}")
        if share and tokenizer is not None:
            raise ValueError("share takes the text adapter's tokenizer: give adapters.text.tokenizer instead")
        self.subwords: Subwords = subwords
        self.vocab_size, self.lowercase, self.share, self.max_len = vocab_size, lowercase, share, max_len
        self.subword_dropout = subword_dropout
        self.tokenizer: Tokenizer | None = None
        if tokenizer is not None:
            self.use(load_tokenizer(tokenizer))

    def use(self, tokenizer: Tokenizer) -> None:
        """Write with this tokenizer; UserError where it has no token to begin or to end with."""
        begin, end = token_of(tokenizer, BEGINS), token_of(tokenizer, ENDS)
        if begin is None or end is None:
            purpose, names = ("begin", BEGINS) if begin is None else ("end", ENDS)
            raise UserError(f"target_text.tokenizer: it has no token to {purpose} a text with ({', '.join(names)})")
        self.begin, self.end = begin, end
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.halves = Halves(tokenizer, self.subword_dropout, special=special_ids(tokenizer))

    def fit(self, texts: Iterable[str]) -> None:
        """Learn the subwords of these texts, unless they are given. Call on the training split only."""
        if self.tokenizer is None:
            self.use(
                train_tokenizer(texts, subwords=self.subwords, vocab_size=self.vocab_size, lowercase=self.lowercase)
            )

    @property
    def size(self) -> int:
        """Rows that a table of its tokens needs."""
        return max(self._fitted().get_vocab().values()) + 1

    def encode(self, text: str, rng: random.Random | None = None) -> Tensor:
        """ids (n + 2,), the beginning and the end around the text's; one cut at max_len has no end.

        With rng, subword_dropout is drawn from it.
        """
        ids = self._fitted().encode(text, add_special_tokens=False).ids
        if rng is not None and self.subword_dropout:
            ids = [piece for i in ids for piece in self._halve(i, rng)]
        ids = [self.begin, *ids, self.end]
        return torch.tensor(ids[: self.max_len + 1], dtype=torch.long)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids that were written, special tokens left out."""
        return self._fitted().decode(list(ids), skip_special_tokens=True).strip()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token by itself, as it reads."""
        return [self._fitted().decode([i], skip_special_tokens=False).strip() or "·" for i in ids]

    def normal(self, text: str) -> str:
        """The text as the tokenizer reads it: in lower case, where all is."""
        normalizer = self._fitted().normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def save(self, folder: Path) -> None:
        """target_tokenizer.json in folder."""
        self._fitted().save(str(folder / FILE))

    def load(self, folder: Path) -> TargetTokenizer:
        """Undo `save`."""
        self.use(load_tokenizer(folder / FILE))
        return self

    def _halve(self, token: int, rng: random.Random) -> tuple[int, ...]:
        half = self.halves.draw(token, rng)
        return (token,) if half is None else (half.left, half.right)

    def _fitted(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError("this target tokenizer is not trained yet: call fit(texts) or give tokenizer=")
        return self.tokenizer


def token_of(tokenizer: Tokenizer, names: Sequence[str]) -> int | None:
    """The id of the first of these names that the tokenizer knows."""
    return next((i for name in names if (i := tokenizer.token_to_id(name)) is not None), None)
