"""Option groups of the text adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge

from dxn.core.randomness import Probability
from dxn.core.schema import options

TokenizerKind = Literal["bpe", "wordpiece", "unigram", "word", "character"]


@options
class TokenizerOptions:
    """Options of the tokenizer.

    Args:
        kind: Kind of the tokens: bpe (byte-level BPE), wordpiece, unigram, word or character.
        lowercase: Convert all text to lower case first.
        path: Path of a tokenizer.json. Default: train a tokenizer on the training split.
        special_tokens: Add the special tokens of the tokenizer of `path` to each text, such as
            [CLS] and [SEP].
        pad_to: Number of tokens to which pad_token is repeated at the end of a shorter text. The
            model sees these tokens as part of the text, as in SigLIP. 0: texts keep their length.
        pad_token: Token of the vocabulary with which texts are filled up to pad_to.
        marker: Token of the vocabulary that stands for another input, such as <image>: a language
            model reads the tokens of the input in its place. Default: they are before the text.
        prompt: Text that is put before each text, such as "query: ". Conversations do not get it.
    """

    kind: TokenizerKind = "bpe"
    lowercase: bool = False
    path: str | None = None
    special_tokens: bool = False
    pad_to: Annotated[int, Ge(0)] = 0
    pad_token: str = "<pad>"
    marker: str | None = None
    prompt: str = ""


@options
class EmbeddingOptions:
    """Options of the token embedding.

    Args:
        path: Path of a .safetensors file with one tensor (V, D), the initial embedding. Default:
            random initialization.
        frozen: Do not train the embedding.
        scale: Multiply the embedding by sqrt(dim) (arXiv:1706.03762, section 3.4). Its initial
            values are divided by the same factor.
        pool: Number of neighboring tokens whose mean is one column, so that a long text has fewer
            columns. The tasks tag, span, language and masked need 1.
    """

    path: str | None = None
    frozen: bool = False
    scale: bool = False
    pool: Annotated[int, Ge(1)] = 1


@options
class EmbeddingNormOptions:
    """Options of the layer norm of the embedded columns.

    Args:
        eps: Constant added to the variance.
        bias: Add a learned bias.
    """

    eps: float = 1e-5
    bias: bool = True


@options
class TextAugment:
    """Random augmentation of training texts. It is drawn again in each epoch.

    Args:
        subword_dropout: Probability that a token is split into two shorter ones.
        token_dropout: Probability that a token is removed.
        token_mask: Probability that a token is replaced by the mask token.
    """

    subword_dropout: Probability = 0.0
    token_dropout: Probability = 0.0
    token_mask: Probability = 0.0
