"""An adapter with an encoder of its own, whose output vectors are the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from dxn.core.tokens import Span, Tokens, join
from dxn.core.windows import encode_input
from dxn.tokenize.base import ADDED, ENCODED, NUM_REAL, Adapter

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Vocabulary


# Which coordinates are ends, by their number: of a piece, of a box, and of frames and a box.
ENDS = {
    2: (False, True),
    4: (False, False, True, True),
    6: (False, True, False, False, True, True),
}
UNUSED = "mask_embedding"  # weights of an encoder that only masked pretraining reads


class EncodedAdapter(Adapter):
    """Encode an input before the model reads it: its tokens are projected output vectors.

    The encoder has its own width and depth, as that of the images in LLaVA (arXiv:2304.08485,
    section 4.1). Texts are allowed, too, but a model cannot write the tokens of their vocabulary.

    Args:
        dim: Width D of a token.
        adapter: Adapter that embeds the input with the width of the encoder.
        fusion: Fusion of the encoder, such as `dxn.models.EarlyFusion` for one input. It can add
            leading tokens, such as a class token.
        backbone: Backbone of the encoder.
        leading: Whether the leading tokens are columns, too.
        max_columns: Maximum number of columns of an input besides the leading tokens. Of more
            output vectors, those of equal pieces of the input become their mean, such as those of
            the rows of a picture. None: all output vectors are columns.
        projector: Layers from the width of the encoder to D: linear, which starts from the identity
            if both are equal, or mlp with a hidden layer of width D and GELU.
        bias: Whether these layers have biases.
    """

    def __init__(
        self,
        dim: int = 128,
        *,
        adapter: Any,
        fusion: Any,
        backbone: Any,
        leading: bool = False,
        max_columns: Annotated[int, Ge(1)] | None = None,
        projector: Literal["linear", "mlp"] = "mlp",
        bias: bool = True,
    ):
        super().__init__()
        if adapter.dim != backbone.dim:
            raise ValueError(
                "the encoder needs an adapter and a backbone of the same dim, got "
                f"{adapter.dim} and {backbone.dim}"
            )
        self.dim = dim
        self.adapter = adapter
        self.fusion = fusion
        self.backbone = backbone
        self.leading = leading
        self.max_columns = max_columns
        self.tokenizer = adapter.tokenizer
        self.tokens_per_column = adapter.tokens_per_column
        self.up = nn.Linear(adapter.dim, dim, bias=bias)
        self.down = nn.Linear(dim, dim, bias=bias) if projector == "mlp" else None
        if self.down is None and adapter.dim == dim:
            nn.init.eye_(self.up.weight)
            if bias:
                nn.init.zeros_(self.up.bias)

    @property
    def reader(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Class of the readers of the input."""
        return self.adapter.reader

    @property
    def has_vocabulary(self) -> bool:
        """False: the tokens are no rows of an embedding, so a model cannot predict them."""
        return False

    @property
    def num_new_tokens(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Adapter.num_new_tokens`."""
        return self.adapter.num_new_tokens

    @property
    def plain_values(self) -> Adapter:
        """Adapter of the raw values, from which a drawer reads options."""
        return self.adapter.plain_values

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Use this vocabulary in the adapter of the input."""
        self.adapter.use_vocabulary(vocabulary)

    def fit(self, raws: Sequence[Any]) -> Self:
        """Learn from raw values of the training split what the adapter of the input learns."""
        self.adapter.fit(raws)
        return self

    def fold(self) -> None:
        """See `Adapter.fold`."""
        self.adapter.fold()

    def describe(self, raw: Any) -> str:
        """Describe the columns of one raw value in one line."""
        return self.adapter.describe(raw)

    def save(self, folder: Path, name: str) -> None:
        """Write the state of the adapter of the input."""
        self.adapter.save(folder, name)

    def load(self, folder: Path, name: str) -> None:
        """Load what `save` wrote."""
        self.adapter.load(folder, name)

    @property
    def is_frozen(self) -> bool:
        """Whether the encoder is not trained, so that it encodes equal values always alike."""
        parts = (self.adapter, self.fusion, self.backbone)
        trained = {n for part in parts for n, p in part.named_parameters() if p.requires_grad}
        return trained <= {UNUSED}

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the module. A frozen encoder has no dropout during a training, too."""
        super().train(mode)
        if self.is_frozen:
            for part in (self.adapter, self.fusion, self.backbone):
                part.eval()
        return self

    def encode(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed and encode a collated batch as Tokens (B, N, E) of the width E of the encoder."""
        embedded = self.adapter(batch)
        tokens, _ = encode_input(embedded, self.adapter, self.fusion, self.backbone)
        limit = self.max_columns
        # A graph is for any number.
        if limit and (torch.compiler.is_exporting() or len(tokens.spans[-1]) > limit):
            *leading, of_input = tokens.split()
            tokens = join([*leading, pooled(of_input, limit)])
        columns = tokens if self.leading else tokens.select(self.modality)
        of_input = tokens.spans[-1]
        locate = of_input.locate
        # Not `len`, which would make the size a constant of an exported graph.
        if (count := columns.x.shape[1] - (of_input.stop - of_input.start)) > 0:
            # Leading tokens have no position in the input.
            locate = partial(_after, count, of_input)
        span = Span(self.modality, self.modality, 0, columns.x.shape[1], locate)
        return Tokens(columns.x, columns.mask, (span,), columns.num_real)

    def columns(self, batch: Mapping[str, Any]) -> Tokens:
        """Return the output vectors of the encoder as Tokens (B, N, E).

        The batch can have them instead of values, see `dxn.data.encoded`. Then the columns have no
        position in the input.
        """
        if ENCODED not in batch:
            return self.encode({name: batch[name] for name in batch if name != ADDED})
        # An evaluation can have another precision than the training.
        x, mask = batch[ENCODED].to(self.up.weight.dtype), batch["mask"]
        span = Span(self.modality, self.modality, 0, x.shape[1], partial(_nowhere, mask))
        return Tokens(x, mask, (span,), batch[NUM_REAL])

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed and encode a collated batch as Tokens (B, N, D), see `columns`."""
        columns = self.columns(batch)
        x = self.up(columns.x)
        if self.down is not None:
            x = self.down(F.gelu(x))
        if ADDED in batch:  # of the width D of the model, which is not that of the encoder
            x = x + batch[ADDED].to(x.dtype)
        return columns.with_x(x)


def pooled(tokens: Tokens, count: int) -> Tokens:
    """Return the means of the columns in `count` equal pieces of an input, for each sample.

    A sample with at most `count` columns keeps them.

    Args:
        tokens: Tokens (B, N, D) of one input.
        count: Maximum number of columns.
    """
    (span,) = tokens.spans
    size = tokens.mask.sum(1, keepdim=True)
    number = tokens.mask.cumsum(1) - 1  # of the column among those of its sample
    part = number * count // size.clamp(min=1)
    part = torch.where(size > count, part, number).clamp(0, count - 1)
    weight = tokens.mask.to(tokens.x)
    index = part[..., None].expand_as(tokens.x)
    total = tokens.x.new_zeros(tokens.x.shape[0], count, tokens.x.shape[2])
    total = total.scatter_add(1, index, tokens.x * weight[..., None])
    counts = weight.new_zeros(weight.shape[0], count).scatter_add(1, part, weight)
    locate = partial(_around, span, tokens.mask, part, count)
    moved = replace(span, start=0, stop=count, locate=locate, marks=None)
    return Tokens(total / counts.clamp(min=1)[..., None], counts > 0, (moved,))


def _around(span: Span, mask: Tensor, part: Tensor, count: int) -> Tensor:
    """Return the coordinates of parts: from the first to the last of those of their columns."""
    coords = span.coords
    index = part[..., None].expand_as(coords)
    ends = torch.tensor(ENDS[coords.shape[-1]], device=coords.device)
    found = []
    for kind, extreme in (("amin", torch.inf), ("amax", -torch.inf)):
        known = torch.where(mask[..., None] & ~coords.isnan(), coords, extreme)
        empty = coords.new_full((len(coords), count, coords.shape[-1]), extreme)
        found.append(empty.scatter_reduce(1, index, known, kind))
    chosen = torch.where(ends, found[1], found[0])
    return torch.where(chosen.isinf(), torch.nan, chosen)


def _nowhere(mask: Tensor) -> Tensor:
    """Return the coordinates of columns whose position is not known."""
    return torch.full((*mask.shape, 1), torch.nan, device=mask.device)


def _after(count: int, span: Span) -> Tensor:
    """Return the coordinates of a span after those of `count` tokens without any."""
    return F.pad(span.coords, (0, 0, count, 0), value=torch.nan)
