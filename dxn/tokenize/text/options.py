"""Option groups of the text adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from dxn.core.randomness import check_probability

TokenizerKind = Literal["bpe", "wordpiece", "unigram", "word", "character"]


@dataclass(frozen=True)
class TokenizerOptions:
    """Options of the tokenizer.

    Args:
        kind: Kind of the tokens: bpe (byte-level BPE), wordpiece, unigram, word or character.
        lowercase: Convert all text to lower case first.
        path: Path of a tokenizer.json. Default: train a tokenizer on the training split.
        special_tokens: Add the special tokens of the tokenizer of `path` to each text, such as
            [CLS] and [SEP].
    """

    kind: TokenizerKind = "bpe"
    lowercase: bool = False
    path: str | None = None
    special_tokens: bool = False

    def __post_init__(self) -> None:
        check_kind(self.kind)


def check_kind(kind: str) -> None:
    """Raise a ValueError if `kind` is not a TokenizerKind."""
    kinds = get_args(TokenizerKind)
    if kind not in kinds:
        names = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise ValueError(f"tokenizer.kind must be {names}, got {kind!r}")


@dataclass(frozen=True)
class EmbeddingOptions:
    """Options of the token embedding.

    Args:
        path: Path of a .safetensors file with one tensor (V, D), the initial embedding. Default:
            random initialization.
        frozen: Do not train the embedding.
        scale: Multiply the embedding by sqrt(dim) (arXiv:1706.03762, section 3.4). Its initial
            values are divided by the same factor.
        pool: Number of neighboring tokens whose mean is one column, so that a long text has fewer
            columns. The tasks tag, language and masked need 1.

    Raises:
        ValueError: If pool is below 1.
    """

    path: str | None = None
    frozen: bool = False
    scale: bool = False
    pool: int = 1

    def __post_init__(self) -> None:
        if self.pool < 1:
            raise ValueError(f"embedding.pool must be at least 1, got {self.pool}")


@dataclass(frozen=True)
class NgramOptions:
    """Hashed embeddings of n-grams of tokens (arXiv:1607.01759, section 2) and of characters.

    Args:
        lengths: Lengths n of the n-grams of tokens. An empty list disables them.
        buckets: Number of rows of each n-gram embedding.
        columns: Append n-grams of tokens as additional columns. False: add each one to its last
            token.
        chars: Lengths n of character n-grams, such as [3, 4, 5]. Their mean over the word that a
            token belongs to is added to the token, so that a rare or unknown word resembles words
            with the same parts (arXiv:1607.04606, section 3.2). An empty list disables them.
    """

    lengths: Sequence[int] = ()
    buckets: int = 20000
    columns: bool = False
    chars: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name in ("lengths", "chars"):
            values = tuple(getattr(self, name))
            # object.__setattr__, because the dataclass is frozen.
            object.__setattr__(self, name, values)
            if any(n < 2 for n in values):
                raise ValueError(f"ngrams.{name} must be at least 2, got {list(values)}")
        if self.buckets < 1:
            raise ValueError(f"ngrams.buckets must be at least 1, got {self.buckets}")


@dataclass(frozen=True)
class EmbeddingNormOptions:
    """Options of the layer norm of the embedded columns.

    Args:
        eps: Constant added to the variance.
        bias: Add a learned bias.
    """

    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True)
class TextAugment:
    """Random augmentation of training texts. It is drawn again in each epoch.

    Args:
        subword_dropout: Probability that a token is split into two shorter ones.
        token_dropout: Probability that a token is removed.
        token_mask: Probability that a token is replaced by the mask token.
    """

    subword_dropout: float = 0.0
    token_dropout: float = 0.0
    token_mask: float = 0.0

    def __post_init__(self) -> None:
        for name in ("subword_dropout", "token_dropout", "token_mask"):
            check_probability(name, getattr(self, name))
