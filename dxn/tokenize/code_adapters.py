"""Adapters of inputs that a model writes as the codes of a trained codec."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.audio.reader import AudioReader
from dxn.tokenize.base import FULL, Adapter, Sample, Tokenizer, file_of_adapter
from dxn.tokenize.image.reader import ImageReader
from dxn.tokenize.positions import PosEmbed1d
from dxn.tokenize.series.reader import SeriesReader
from dxn.tokenize.video.reader import VideoReader

WEIGHTS = "codec.safetensors"
ReadKind = Literal["values", "codes"]


class CodeTokenizer(Tokenizer):
    """Turns raw values into their codes."""

    def __init__(self, codec: Any):
        self.codec = codec
        self.reader = codec.reader

    @property
    def plain_values(self) -> Tokenizer:
        """See `Tokenizer.plain_values`."""
        return self.codec.tokenizer

    def __call__(self, raw: Any, rand: random.Random | None = None) -> Sample:
        """Return codes (M, R) and lengths (), their number M."""
        codes = self.codec.codes(self.plain_values(raw))
        return {"codes": codes, "lengths": torch.tensor(len(codes))}

    def length(self, raw: Any) -> float:
        """Return the approximate number of tokens."""
        return self.plain_values.length(raw)

    def header(self, cell: Any) -> float | None:
        """Check a file as the codec does."""
        return self.plain_values.header(cell)


class CodeEmbedding(nn.Module):
    """Embeds codes as Tokens: a linear layer of their vectors.

    A table of the codes would have to learn from data that some of them are similar.

    Args:
        dim: Width D of a token.
        codec: The codec.
        dropout: Dropout probability of the embedded tokens.
    """

    def __init__(self, dim: int, codec: Any, *, dropout: float):
        super().__init__()
        self.tokenizer = CodeTokenizer(codec)
        # A copy, which moves to the device of the model.
        self.scalars = copy.deepcopy(codec.scalars)
        self.project = nn.Linear(self.scalars.width, dim)
        self.pos_embed = PosEmbed1d("sinusoidal", dim=dim, max_len=0)
        self.places = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, M, D)."""
        codes, lengths = batch["codes"], batch["lengths"]
        x = self.project(self.scalars.vectors(codes).to(self.places.weight.dtype))
        count = x.shape[1]
        x = x + self.places(self.pos_embed(count, x.device).to(x.dtype))
        mask = torch.arange(count, device=x.device) < lengths[:, None]
        num_real = mask.numel() if batch.get(FULL, False) else None
        reader = self.tokenizer.reader
        # A code depends on the whole value, so that it has no place in it.
        locate = partial(_nowhere, mask)
        span = Span(reader.modality, reader.modality, 0, count, locate)
        return Tokens(self.dropout(x), mask, (span,), num_real)


class CodeAdapter(Adapter):
    """Inputs that head=any can write as the codes of a trained codec.

    Args:
        dim: Width D of a token.
        codec: Run folder of the codec, or a `dxn.tasks.codec.stored.StoredCodec`.
        read: What is read: values (by an adapter with the options of the codec, which sees all
            details) or codes.
        dropout: Dropout probability of the embedded tokens.
    """

    def __init__(
        self,
        dim: int = 128,
        *,
        codec: Any = None,
        read: ReadKind = "values",
        dropout: Rate = 0.0,
    ):
        super().__init__()
        if isinstance(codec, str | int | float | list | dict | None):
            raise ValueError(
                f"codec: must be the run folder of a trained codec (train one with dxn train DATA "
                f"head=codec), got {codec!r}"
            )
        if codec.reader.modality != self.reader.modality:
            raise ValueError(
                f"codec: must be a codec of {self.reader.modality} inputs, got one of "
                f"{codec.reader.modality} inputs ({codec.input})"
            )
        self.dim = dim
        if read == "codes":
            self.embed = CodeEmbedding(dim, codec, dropout=dropout)
        else:
            self.embed = codec.new_adapter(dim=dim, dropout=dropout)
        self.tokenizer = self.embed.tokenizer
        # In a tuple, because weights that never change are no parameters of the model. The codec
        # stays on the CPU.
        self._codecs = (codec,)

    @property
    def codec(self) -> Any:
        """The codec, a `dxn.tasks.codec.stored.StoredCodec`."""
        return self._codecs[0]

    @property
    def plain_values(self) -> Adapter:
        """See `Adapter.plain_values`."""
        return self.codec.model.adapter(self.codec.input)

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed a collated batch as Tokens (B, N, D)."""
        return self.embed(batch)

    def describe(self, raw: Any) -> str:
        """Describe the codes of one raw value."""
        (codes,) = self.codec.encode([raw])
        count, stages = codes.shape
        per_token = "1 code" if stages == 1 else f"{stages} codes"
        return f"{count} tokens of {per_token}; there are {self.codec.scalars.num_codes:,} codes"

    def fold(self) -> None:
        """See `Adapter.fold`."""
        if isinstance(self.embed, Adapter):
            self.embed.fold()

    def save(self, folder: Path, name: str) -> None:
        """Write the weights of the codec."""
        self.codec.save(file_of_adapter(folder, name, WEIGHTS))

    def load(self, folder: Path, name: str) -> None:
        """Read the weights of the codec."""
        self.codec.load(file_of_adapter(folder, name, WEIGHTS))


def _nowhere(mask: Tensor) -> Tensor:
    """Return coordinates of tokens without a place, as many as those of a clip: the most of all."""
    return torch.full((*mask.shape, 6), torch.nan, device=mask.device)


class ImageCodes(CodeAdapter):
    """Pictures."""

    reader = ImageReader


class AudioCodes(CodeAdapter):
    """Sounds."""

    reader = AudioReader


class SeriesCodes(CodeAdapter):
    """Series."""

    reader = SeriesReader


class VideoCodes(CodeAdapter):
    """Clips."""

    reader = VideoReader
