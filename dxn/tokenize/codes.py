"""Adapters whose tokens are the codes of a trained codec."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Rate
from dxn.core.tokens import Span, Tokens
from dxn.tokenize.audio.reader import AudioReader
from dxn.tokenize.base import FULL, Adapter, BadMedia, Reader, Sample, Tokenizer, file_of_adapter
from dxn.tokenize.image.reader import ImageReader
from dxn.tokenize.positions import PosEmbed1d
from dxn.tokenize.series.reader import SeriesReader
from dxn.tokenize.video.reader import VideoReader

WEIGHTS = "codec.safetensors"


class CodeReader(Reader):
    """Reads a cell as codes (M, R): what the codec makes of the value in it.

    The codes of a row are kept, so that each picture or sound is encoded once.
    """

    def __init__(self, codec: Any):
        self.codec = codec
        plain = codec.reader
        self.modality = plain.modality  # pyright: ignore[reportAttributeAccessIssue]
        self.files = plain.files  # pyright: ignore[reportAttributeAccessIssue]
        self.media = plain.media  # pyright: ignore[reportAttributeAccessIssue]
        self.formats = plain.formats  # pyright: ignore[reportAttributeAccessIssue]

    def read(self, cell: Any) -> Tensor | None:
        """Return the codes (M, R) of a cell."""
        raw = self.codec.reader.read(cell)
        if raw is None:
            return None
        codes = self.codec.encode([raw])[0].to(torch.int32)
        if self.codec.has_fixed_length and len(codes) != self.codec.num_tokens:
            raise BadMedia(
                f"has another size than those of the codec: {len(codes)} tokens instead of "
                f"{self.codec.num_tokens}; train the codec with resize.mode=stretch"
            )
        return codes

    def write(self, raw: Any, path: Path) -> None:
        """Write a raw value of the codec to a file."""
        self.codec.reader.write(raw, path)

    def is_path(self, cell: Any) -> bool:
        """See `Reader.is_path`."""
        return self.codec.reader.is_path(cell)

    def score(self, cells: Sequence[Any]) -> float:
        """See `Reader.score`."""
        return self.codec.reader.score(cells)


class CodeTokenizer(Tokenizer):
    """Passes on the codes of a value."""

    reader: CodeReader

    def __init__(self, codec: Any):
        self.codec = codec
        self.reader = CodeReader(codec)

    @property
    def drawing(self) -> str:
        """See `Tokenizer.drawing`. A code belongs to no place of a picture or sound."""
        return "codes"

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> Sample:
        """Return codes (M, R) and lengths (), their number M."""
        return {"codes": raw.long(), "lengths": torch.tensor(len(raw))}

    def length(self, raw: Tensor) -> float:
        """Return the number of tokens."""
        return float(len(raw))

    def header(self, cell: Any) -> float | None:
        """Check a file as the codec does, without encoding it."""
        return self.codec.tokenizer.header(cell)


class CodeAdapter(Adapter):
    """Embeds the codes of a trained codec as Tokens: a linear layer of the vectors of the codes.

    A table of the codes would have to learn from data that some of them are similar.

    Args:
        dim: Width D of a token.
        codec: Run folder of the codec, or a `dxn.tasks.codec.stored.StoredCodec`.
        dropout: Dropout probability of the embedded tokens.
    """

    tokenizer: CodeTokenizer

    def __init__(self, dim: int = 128, *, codec: Any = None, dropout: Rate = 0.0):
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
        # The tokenizer owns it: weights that never change are no parameters of the model.
        self.tokenizer = CodeTokenizer(codec)
        # A copy, which moves to the device of the model. The codec stays on the CPU.
        self.scalars = copy.deepcopy(codec.scalars)
        self.project = nn.Linear(self.scalars.width, dim)
        self.pos_embed = PosEmbed1d("sinusoidal", dim=dim, max_len=0)
        self.places = nn.Linear(dim, dim)
        self.dropout = Dropout(dropout)

    def fit(self, raws: Sequence[Any]) -> Self:
        """Nothing is learned: the codec is trained already."""
        return self

    def forward(self, batch: Mapping[str, Any]) -> Tokens:
        """Embed a collated batch as Tokens (B, M, D)."""
        codes, lengths = batch["codes"], batch["lengths"]
        x = self.project(self.scalars.vectors(codes).to(self.places.weight.dtype))
        count = x.shape[1]
        x = x + self.places(self.pos_embed(count, x.device).to(x.dtype))
        mask = torch.arange(count, device=x.device) < lengths[:, None]
        num_real = mask.numel() if batch.get(FULL, False) else None
        x = self.dropout(x)
        locate = partial(_nowhere, mask, 2 * max(self.reader.axes, 1))
        span = Span(self.modality, self.modality, 0, count, locate)
        return Tokens(x, mask, (span,), num_real)

    def describe(self, raw: Tensor) -> str:
        """Describe the codes of one raw value."""
        return f"{len(raw)} tokens of {raw.shape[1]} codes each, of {self.scalars.num_codes:,}"

    def save(self, folder: Path, name: str) -> None:
        """Write the weights of the codec."""
        self.tokenizer.codec.save(file_of_adapter(folder, name, WEIGHTS))

    def load(self, folder: Path, name: str) -> None:
        """Read the weights of the codec."""
        self.tokenizer.codec.load(file_of_adapter(folder, name, WEIGHTS))


def _nowhere(mask: Tensor, numbers: int) -> Tensor:
    """Return coordinates of tokens that have no place: a code depends on the whole value."""
    return torch.full((*mask.shape, numbers), torch.nan, device=mask.device)


class ImageCodes(CodeAdapter):
    """The codes of pictures."""

    reader = ImageReader


class AudioCodes(CodeAdapter):
    """The codes of sounds."""

    reader = AudioReader


class SeriesCodes(CodeAdapter):
    """The codes of series."""

    reader = SeriesReader


class VideoCodes(CodeAdapter):
    """The codes of clips."""

    reader = VideoReader
