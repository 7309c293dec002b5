"""The text adapter: one token per subword, word or character."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge
from einops import rearrange
from safetensors.torch import load_file
from tokenizers import Tokenizer as Vocabulary
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.errors import UserError
from dxn.core.tokens import Span, Tokens, can_read, is_full
from dxn.tokenize.base import ADDED, NUM_REAL, Adapter, file_of_adapter
from dxn.tokenize.positions import PosEmbed1d, PosEmbedKind
from dxn.tokenize.text.chat import DEFAULT_TOKENS, Conversation, load_template
from dxn.tokenize.text.chat import FILE as TEMPLATE
from dxn.tokenize.text.options import (
    EmbeddingNormOptions,
    EmbeddingOptions,
    TextAugment,
    TokenizerOptions,
)
from dxn.tokenize.text.tokenizer import MASK_TOKENS, RawText, TextReader, TextTokenizer
from dxn.tokenize.text.vocabulary import load_tokenizer

if TYPE_CHECKING:
    from dxn.tokenize.masking import TokenMasking

MASK_RATIO = 0.15  # as in BERT (arXiv:1810.04805, section 3.1)
MAX_DESCRIBED = 16  # tokens that `describe` lists, to fit into one line


class TextAdapter(Adapter):
    """Convert texts to Tokens: one embedding vector per token of the tokenizer.

    Args:
        dim: Width D of a token.
        vocab_size: Maximum number of tokens of a trained tokenizer. It can be exceeded, because the
            alphabet and the special tokens are always included.
        tokenizer: Options of the tokenizer.
        max_len: Maximum number of tokens of a text. Longer texts are truncated, and their number is
            reported.
        max_chars: Maximum number of characters of a text that are tokenized, which limits the time.
            The rest of a longer text is not read, and it counts as truncated.
        pos_embed: Position embedding of the columns: learned, sinusoidal or none.
        embedding: Options of the token embedding.
        conv_kernel: Kernel size of a convolution over neighboring tokens, whose output is added to
            the embeddings. 0: no convolution.
        norm: Layer norm of the embedded columns. Default: no layer norm.
        dropout: Dropout probability of the embedded columns.
        augment: Augmentation of training texts.
    """

    reader = TextReader
    tokenizer: TextTokenizer

    def __init__(
        self,
        dim: int = 128,
        *,
        vocab_size: Annotated[int, Ge(1)] = 8000,
        tokenizer: TokenizerOptions = TokenizerOptions(),
        max_len: Annotated[int, Ge(1)] = 256,
        max_chars: Annotated[int, Ge(1)] = 100_000,
        pos_embed: PosEmbedKind = "learned",
        embedding: EmbeddingOptions = EmbeddingOptions(),
        conv_kernel: int = 0,
        norm: EmbeddingNormOptions | None = None,
        dropout: Rate = 0.0,
        augment: TextAugment = TextAugment(),
    ):
        super().__init__()
        # An even kernel cannot be centered on a token.
        if conv_kernel and conv_kernel % 2 == 0:
            raise ValueError(f"conv_kernel must be odd, or 0 to disable it, got {conv_kernel}")
        self.dim = dim
        self.embedding_options = embedding
        self.scale = dim**0.5 if embedding.scale else 1.0
        self.tokens_per_column = embedding.pool
        self.lookback = conv_kernel // 2
        self.embedding: nn.Embedding  # created when the vocabulary is known
        self.tokenizer = TextTokenizer(
            tokenizer,
            vocab_size=vocab_size,
            max_len=max_len,
            max_chars=max_chars,
            augment=augment,
        )
        self.pos_embed = PosEmbed1d(pos_embed, dim=dim, max_len=max_len)
        self.conv = None
        if conv_kernel:
            self.conv = nn.Conv1d(dim, dim, conv_kernel, padding=conv_kernel // 2)
        self.norm = nn.Identity()
        if norm is not None:
            self.norm = nn.LayerNorm(dim, eps=norm.eps, bias=norm.bias)
        self.dropout = Dropout(dropout)
        if self.tokenizer.is_fitted:
            self._create_embedding()

    def fit(self, raws: Iterable[RawText]) -> Self:
        """Train the tokenizer on texts of the training split, unless it is loaded already."""
        if not self.tokenizer.is_fitted:
            self.tokenizer.fit(chain.from_iterable(map(self._parts, raws)), keeps_rare=False)
            self._create_embedding()
        vocabulary = self.tokenizer.vocabulary
        new = [name for name in self._new_tokens if vocabulary.token_to_id(name) is None]
        if new:
            vocabulary.add_special_tokens(new)
            self.use_vocabulary(vocabulary)
        return self

    @property
    def num_new_tokens(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of special tokens of the chat template that a loaded vocabulary can lack."""
        return len(self._new_tokens)

    @property
    def _new_tokens(self) -> Sequence[str]:
        template = self.tokenizer.reader.template
        return DEFAULT_TOKENS if template is not None and template.is_default else ()

    def _parts(self, raw: RawText) -> Sequence[str]:
        """Return the texts of a raw value that the tokenizer encodes separately."""
        if isinstance(raw, Conversation):
            # Without the special tokens, of which the vocabulary should have no parts.
            marks = "|".join(map(re.escape, self._new_tokens))
            return re.split(marks, raw.text) if marks else [raw.text]
        return [raw] if isinstance(raw, str) else raw

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Use this vocabulary and create the embedding of its tokens."""
        self.tokenizer.use_vocabulary(vocabulary)
        # A new embedding even if the size is the same, because its rows belong to other tokens.
        self._create_embedding()

    def _create_embedding(self) -> None:
        self.embedding = nn.Embedding(self.tokenizer.size, self.dim)
        # With scaling, the scaled values have a standard deviation of 1 (arXiv:1706.03762). Without
        # it, 0.02 is the standard deviation of BERT and GPT-2.
        std = 0.02 if self.scale == 1 else 1 / self.scale
        nn.init.normal_(self.embedding.weight, std=std)
        options = self.embedding_options
        if options.path is not None:
            vectors = _load_vectors(options.path, self.embedding.weight.shape)
            self.embedding.weight.data.copy_(vectors)
        self.embedding.weight.requires_grad_(not options.frozen)

    def masking(self, *, ratio: float | None = None) -> TokenMasking | None:
        """Create a masking of single tokens, as in BERT. Call it after `fit`.

        Args:
            ratio: Fraction of the tokens to mask. Default: 0.15.

        Returns:
            None if ratio is 0, or if it is not set and the tokenizer has no mask token.

        Raises:
            UserError: If ratio is set, but the tokenizer has no mask token or a column has several
                tokens.
        """
        from dxn.tokenize.masking import TokenMasking, check_ratio

        mask_ratio = check_ratio(MASK_RATIO if ratio is None else ratio)
        if not mask_ratio:
            return None
        if self.tokens_per_column > 1:
            raise UserError(
                "mask_ratio.text: a masked text needs adapters.text.embedding.pool=1, got "
                f"{self.tokens_per_column}"
            )
        if self.tokenizer.mask_id is None:
            if ratio is None:
                return None
            names = " or ".join(MASK_TOKENS)
            raise UserError(
                f"mask_ratio.text: masking needs a tokenizer with a {names} token, got a ratio of "
                f"{ratio} and a tokenizer without it: set mask_ratio.text=0"
            )
        return TokenMasking(
            ratio=mask_ratio,
            vocab_size=self.embedding.num_embeddings,
            special_ids=self.tokenizer.special_ids,
            mask_id=self.tokenizer.mask_id,
        )

    def save(self, folder: Path, name: str) -> None:
        """Save the tokenizer to tokenizer.json, or NAME.tokenizer.json if name is not "text"."""
        self.tokenizer.vocabulary.save(str(_path(folder, name, "tokenizer.json")))
        if self.tokenizer.reader.template is not None:
            self.tokenizer.reader.template.save(_path(folder, name, TEMPLATE))

    def load(self, folder: Path, name: str) -> None:
        """Load the tokenizer that `save` wrote, and its chat template."""
        path = _path(folder, name, TEMPLATE)
        self.tokenizer.reader.template = load_template(path) if path.exists() else None
        self.use_vocabulary(load_tokenizer(_path(folder, name, "tokenizer.json")))

    def describe(self, raw: RawText) -> str:
        """List the first tokens."""
        ids = self.tokenizer(raw)["ids"].tolist()
        texts = self.tokenizer.pieces(ids[:MAX_DESCRIBED])
        return " | ".join(texts) + (" | ..." if len(ids) > MAX_DESCRIBED else "")

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D)."""
        if not self.tokenizer.is_fitted:
            raise ValueError(
                "the text adapter has no vocabulary yet: call fit(texts) or set tokenizer.path"
            )
        ids = batch["ids"]
        mask = batch["mask"]
        num_real = batch.get(NUM_REAL)
        x = self.embedding(ids)
        if self.scale != 1:
            x = x * self.scale
        if self.conv is not None:
            # Padding is set to 0, so that it does not affect its neighbors.
            padded = x if is_full(mask, num_real) else x * mask[..., None]
            x = x + F.gelu(self._convolved(self.conv, padded))
        if "token_index" in batch:  # the columns are not the first ones of the text, see `lookback`
            positions = self.pos_embed.at(batch["token_index"])
        else:
            positions = self.pos_embed(x.shape[1], x.device)
        # Sinusoidal positions are float32, even if the weights are bf16.
        x = x + positions.to(x.dtype)
        if ADDED in batch:
            x = x + batch[ADDED].to(x.dtype)
        if self.tokens_per_column > 1:
            is_whole = num_real == mask.numel()
            x, mask = pooled(x, mask, self.tokens_per_column)
            num_real = mask.numel() if is_whole else None
        x = self.dropout(self.norm(x))
        locate = partial(self._coords, batch["coords"])
        marks = None
        if self.tokenizer.marker_id is not None and x.shape[1] == ids.shape[1]:
            marks = ids == self.tokenizer.marker_id
        span = Span(self.modality, self.modality, 0, x.shape[1], locate, marks)
        return Tokens(x, mask, (span,), num_real)

    def _convolved(self, conv: nn.Conv1d, x: Tensor) -> Tensor:
        """Apply the convolution to x (B, N, D)."""
        if self.training or not can_read(x) or x.shape[0] > 1:
            return conv(x.transpose(1, 2)).transpose(1, 2)
        # For one text on a CPU, a matrix product takes a third of the time of a convolution.
        size = conv.kernel_size[0]
        padded = F.pad(x, (0, 0, size // 2, size // 2))
        neighbors = padded.unfold(1, size, 1).flatten(2)
        return F.linear(neighbors, conv.weight.flatten(1), conv.bias)

    def _coords(self, coords: Tensor) -> Tensor:
        """Return the position of each column, given that of each token (B, N, 2)."""
        if self.tokens_per_column > 1:
            coords = hulls(coords, self.tokens_per_column)
        return coords


def pooled(x: Tensor, mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the mean of each group of neighboring tokens, without padding.

    Args:
        x: (B, N, D). Embedded tokens.
        mask: (B, N). True at real tokens.
        size: Number of tokens P of a group.

    Returns:
        Means (B, ceil(N / P), D), and their mask.
    """
    rest = -x.shape[1] % size
    weights = rearrange(F.pad(mask, (0, rest)), "b (n p) -> b n p 1", p=size).to(x.dtype)
    groups = rearrange(F.pad(x, (0, 0, 0, rest)), "b (n p) d -> b n p d", p=size)
    counts = weights.sum(2)
    return (groups * weights).sum(2) / counts.clamp(min=1), counts[..., 0] > 0


def hulls(coords: Tensor, size: int) -> Tensor:
    """Return the start of the first and the stop of the last token of each group of neighbors.

    Args:
        coords: (B, N, 2). Start and stop of each token in characters, NaN where unknown.
        size: Number of tokens P of a group.

    Returns:
        (B, ceil(N / P), 2).
    """
    rest = -coords.shape[1] % size
    ends = F.pad(coords, (0, 0, 0, rest), value=torch.nan)
    ends = rearrange(ends, "b (n p) e -> b n p e", p=size)
    starts = ends[..., 0].nan_to_num(torch.inf).amin(2)
    stops = ends[..., 1].nan_to_num(-torch.inf).amax(2)
    coords = torch.stack([starts, stops], -1)
    return coords.masked_fill(coords.isinf(), torch.nan)


def _path(folder: Path, name: str, suffix: str) -> Path:
    """Return the path of a file of the adapter with key `name`."""
    return folder / suffix if name == TextReader.modality else file_of_adapter(folder, name, suffix)


def _load_vectors(path: str, shape: torch.Size) -> Tensor:
    """Load the only tensor of a .safetensors file, which must have this shape."""
    tensors = load_file(path)
    if len(tensors) != 1 or next(iter(tensors.values())).shape != shape:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise UserError(
            f"{path}: the file must contain one tensor of shape {tuple(shape)}, one row per token, "
            f"got {shapes}"
        )
    return next(iter(tensors.values()))
