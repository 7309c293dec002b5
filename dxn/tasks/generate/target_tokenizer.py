"""The tokenizer of target texts, which a model generates."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.randomness import check_probability
from dxn.tokenize.text.options import TokenizerOptions
from dxn.tokenize.text.subwords import SubwordSplitter
from dxn.tokenize.text.vocabulary import (
    BEGINS,
    ENDS,
    check_vocab_size,
    encode,
    load_tokenizer,
    num_embeddings,
    save_tokenizer,
    special_ids,
    token_of,
    token_texts,
    train_tokenizer,
)

FILE = "target_tokenizer.json"


class TargetTokenizer:
    """Converts target texts to token ids and back.

    Args:
        vocab_size: Maximum number of tokens of a trained tokenizer.
        tokenizer: Options of the tokenizer.
        max_len: Maximum number of tokens of a text, including the end token. Longer texts are
            truncated.
        subword_dropout: Probability that a token is split into two shorter ones in training.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 8000,
        tokenizer: TokenizerOptions = TokenizerOptions(),
        max_len: int = 128,
        subword_dropout: float = 0.0,
    ):
        check_vocab_size(vocab_size)
        if max_len < 2:
            raise ValueError(
                f"max_len must be at least 2 (one token and the end token), got {max_len}"
            )
        # SubwordSplitter checks it as well, but exists only after `fit`.
        check_probability("subword_dropout", subword_dropout)
        if tokenizer.special_tokens:
            raise ValueError(
                "tokenizer.special_tokens=true is not supported for target texts, to which the "
                "begin and end tokens are always added: leave it out"
            )
        self.vocab_size = vocab_size
        self.options = tokenizer
        self.max_len = max_len
        self.subword_dropout = subword_dropout
        self.tokenizer: Tokenizer | None = None
        if tokenizer.path is not None:
            self.use_tokenizer(load_tokenizer(tokenizer.path))

    def use_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Use this tokenizer instead of training one.

        Raises:
            UserError: If it has no begin token or no end token.
        """
        begin = token_of(tokenizer, BEGINS)
        end = token_of(tokenizer, ENDS)
        if begin is None or end is None:
            missing, names = ("begin", BEGINS) if begin is None else ("end", ENDS)
            raise UserError(
                f"head.tokenizer: the tokenizer has no {missing} token ({', '.join(names)}): "
                "choose another tokenizer, or train one"
            )
        self.begin = begin
        self.end = end
        # A tokenizer.json can enable both, but max_len and the task already handle the length.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.splitter = SubwordSplitter(
            tokenizer, self.subword_dropout, special=special_ids(tokenizer)
        )

    def fit(self, texts: Iterable[str]) -> None:
        """Train the tokenizer on texts of the training split, unless it is loaded already."""
        if self.tokenizer is None:
            options = self.options
            vocabulary = train_tokenizer(
                texts,
                kind=options.kind,
                vocab_size=self.vocab_size,
                lowercase=options.lowercase,
            )
            self.use_tokenizer(vocabulary)

    @property
    def size(self) -> int:
        """Number of rows that an embedding of the tokens needs."""
        return num_embeddings(self._fitted())

    def encode(self, text: str, rand: random.Random | None = None) -> Tensor:
        """Return the token ids of a text between the begin and end tokens.

        Args:
            text: Text with n tokens.
            rand: Random generator of subword_dropout. None: no subword_dropout.

        Returns:
            (n + 2,). A truncated text has max_len + 1 ids, without the end token.
        """
        ids = encode(self._fitted(), text, add_special_tokens=False).ids
        if rand is not None and self.subword_dropout:
            parts = [self._split(i, rand) for i in ids]
            ids = list(chain.from_iterable(parts))
        ids = [self.begin, *ids, self.end]
        # The begin token is never predicted, so it does not count towards max_len.
        return torch.tensor(ids[: self.max_len + 1], dtype=torch.long)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self._fitted().decode(list(ids), skip_special_tokens=True).strip()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token separately, see `token_texts`."""
        return token_texts(self._fitted(), ids)

    def normalize(self, text: str) -> str:
        """Apply the normalizer of the tokenizer, for example lower-casing, to a text."""
        normalizer = self._fitted().normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def save(self, folder: Path) -> None:
        """Save the tokenizer to target_tokenizer.json in folder."""
        save_tokenizer(self._fitted(), folder / FILE)

    def load(self, folder: Path) -> TargetTokenizer:
        """Load the tokenizer that `save` wrote to folder."""
        self.use_tokenizer(load_tokenizer(folder / FILE))
        return self

    def _split(self, token: int, rand: random.Random) -> tuple[int, ...]:
        """Return the token, or with probability subword_dropout two shorter ones."""
        split = self.splitter.draw(token, rand)
        return (token,) if split is None else split[:2]

    def _fitted(self) -> Tokenizer:
        if self.tokenizer is None:
            raise ValueError(
                "the target tokenizer is not trained yet: call fit(texts) or set tokenizer.path"
            )
        return self.tokenizer
