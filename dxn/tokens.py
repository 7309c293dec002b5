"""The one contract: every adapter returns `Tokens`, every model takes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """The columns `start:stop` that one modality owns, and what each stands for in the raw input.

    `places` is (B, stop - start, k): text (start, stop) in characters, image (top, left, bottom, right) in
    pixels, audio (start, stop) in seconds. NaN where a column stands for nothing raw: padding, a class token.
    """

    modality: str
    start: int
    stop: int
    places: Tensor

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Tokens:
    """A batch of D×N matrices, a column a token.

    x (B, N, D); mask (B, N) bool, True at real tokens; spans in the order of their columns.
    Raises ValueError where shapes do not fit each other.
    """

    x: Tensor
    mask: Tensor
    spans: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        if self.x.ndim != 3 or self.mask.shape != self.x.shape[:2]:
            raise ValueError(
                f"x must be (B, N, D) and mask (B, N), got {tuple(self.x.shape)} and {tuple(self.mask.shape)}"
            )
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, True at real tokens, got {self.mask.dtype}")
        end = 0
        for span in self.spans:
            if span.start != end or span.places.shape[:2] != (len(self.x), len(span)):
                raise ValueError(f"span {span.modality} {span.start}:{span.stop} does not follow column {end}")
            end = span.stop
        if self.spans and end != self.x.shape[1]:
            raise ValueError(f"spans end at column {end}, the matrix has {self.x.shape[1]} columns")

    @property
    def matrix(self) -> Tensor:
        """(B, D, N): a view of x, nothing is copied."""
        return rearrange(self.x, "b n d -> b d n")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        """Sample i's own matrix (D, N_i), its padding gone."""
        return self.matrix[i][:, self.mask[i]]

    def with_x(self, x: Tensor) -> Tokens:
        """The same columns with other contents."""
        return replace(self, x=x)

    def select(self, modality: str) -> Tokens:
        """The columns of one modality; KeyError where there is none of that name."""
        for span in self.spans:
            if span.modality == modality:
                return self._columns(span)
        raise KeyError(f"no {modality} columns, only {[s.modality for s in self.spans]}")

    def split(self) -> list[Tokens]:
        """The parts that `join` put together."""
        return [self._columns(span) for span in self.spans]

    def spread(self, rows: Tensor, batch_size: int) -> Tokens:
        """Tokens of a few rows (b,) as a batch of `batch_size`: the other rows have no real column."""
        if len(rows) == batch_size:
            return self
        return Tokens(
            self.x.new_zeros(batch_size, *self.x.shape[1:]).index_copy(0, rows, self.x),
            self.mask.new_zeros(batch_size, self.mask.shape[1]).index_copy(0, rows, self.mask),
            tuple(replace(s, places=_spread(s.places, rows, batch_size)) for s in self.spans),
        )

    def _columns(self, span: Span) -> Tokens:
        cut = slice(span.start, span.stop)
        return Tokens(self.x[:, cut], self.mask[:, cut], (replace(span, start=0, stop=len(span)),))


def join(parts: Sequence[Tokens]) -> Tokens:
    """One sequence out of several, side by side: N is the sum of theirs. ValueError without a part."""
    if not parts:
        raise ValueError("nothing to join: give at least one Tokens")
    if len(parts) == 1:
        return parts[0]
    spans, offset = [], 0
    for part in parts:
        spans += [replace(s, start=s.start + offset, stop=s.stop + offset) for s in part.spans]
        offset += part.x.shape[1]
    return Tokens(torch.cat([p.x for p in parts], 1), torch.cat([p.mask for p in parts], 1), tuple(spans))


def check_columns(mask: Tensor, names: Iterable[str] | None = None) -> None:
    """ValueError naming the samples of mask (B, N) that have no real column at all."""
    empty = (~mask.any(1)).nonzero().flatten().tolist()
    if empty:
        known = list(names) if names is not None else None
        raise ValueError(f"no tokens at all in sample {', '.join(str(known[i] if known else i) for i in empty)}")


def sinusoidal(index: Tensor, dim: int) -> Tensor:
    """index (...) to (..., dim): sines then cosines of 1/10000^(2i/dim) (arXiv:1706.03762, 3.5).

    Any index has a code, so lengths never seen in training are no special case. ValueError for an odd dim.
    """
    if dim % 2:
        raise ValueError(f"dim must be even for sinusoidal positions, got {dim}")
    frequency = 10000 ** (-torch.arange(0, dim, 2, device=index.device) / dim)
    angle = index[..., None].float() * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)


def _spread(places: Tensor, rows: Tensor, batch_size: int) -> Tensor:
    return places.new_full((batch_size, *places.shape[1:]), torch.nan).index_copy(0, rows, places)
