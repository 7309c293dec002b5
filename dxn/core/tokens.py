"""The data contract: every adapter returns `Tokens`, and every model consumes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from dxn.core.display import notebook_html

# Keys of a batch besides those of the inputs, so that an input cannot have such a name.
RESERVED = ("#size", "#index", "#filler", "#bad", "target")


@dataclass(frozen=True, slots=True)
class Span:
    """The columns `start:stop` of one input and their coordinates in the raw input.

    Args:
        name: Name of the input. An adapter sets it to its modality; the model replaces it with the
            name of the input.
        modality: Modality of the input, such as "text". Class tokens and registers use "class".
        start: Index of the first column.
        stop: Index after the last column.
        locate: Function that computes `coords`, or the coordinates themselves. Only explanations
            need them, so a training does not compute them.
        marks: (B, stop - start) bool. True at the columns of a text that stand for the columns of
            other inputs, in their order. None: there are none.
    """

    name: str
    modality: str
    start: int
    stop: int
    locate: Callable[[], Tensor] | Tensor = field(repr=False)
    marks: Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def coords(self) -> Tensor:
        """(B, stop - start, k) float: the position of each column in the raw input.

        Text: (start, stop) in characters. Image: (top, left, bottom, right) in pixels. Audio:
        (start, stop) in seconds. Video: (start, stop) in frames, then the box of an image. NaN for
        columns without a position in the raw input, such as padding or a class token.
        """
        return self.locate if isinstance(self.locate, Tensor) else self.locate()

    def moved(self, change: Callable[[Tensor], Tensor], marks: Callable[[Tensor], Tensor]) -> Span:
        """Return the span with `change(coords)` as its coordinates, and `marks(marks)`."""
        moved = None if self.marks is None else marks(self.marks)
        return replace(self, locate=lambda: change(self.coords), marks=moved)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A batch of D×N matrices with one column per token.

    Args:
        x: (B, N, D). Embeddings of the tokens.
        mask: (B, N) bool. True at real tokens, False at padding.
        spans: Columns of each input, in ascending order. Empty if the inputs are not tracked.
        num_real: Number of real tokens of all samples, if it is known without reading the mask,
            which could be on a GPU. None: unknown. A graph for many batches has a larger number,
            but that of all tokens only if all of them are real.

    Raises:
        ValueError: If the shapes do not match, or the spans do not cover all columns in order.
    """

    x: Tensor
    mask: Tensor
    spans: tuple[Span, ...] = ()
    num_real: int | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 3 or self.mask.shape != self.x.shape[:2]:
            shapes = f"{tuple(self.x.shape)} and {tuple(self.mask.shape)}"
            raise ValueError(f"x must be (B, N, D) and mask (B, N), got {shapes}")
        if self.mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool, True at real tokens, got {self.mask.dtype}")
        # A wrong offset would not fail later: it would attribute tokens to the wrong input.
        end = 0
        for span in self.spans:
            shape = self.x.shape[0], span.stop - span.start
            # Coordinates that are a function are not computed here.
            shape_of_coords = span.locate.shape[:2] if isinstance(span.locate, Tensor) else shape
            if span.start != end or shape_of_coords != shape:
                raise ValueError(
                    f"span {span.name!r} covers columns {span.start}:{span.stop} with coords of "
                    f"{tuple(shape_of_coords)}; it must start at column {end}"
                )
            end = span.stop
        if self.spans and end != self.x.shape[1]:
            raise ValueError(
                f"the spans end at column {end}, but the matrix has {self.x.shape[1]} columns"
            )

    @property
    def matrix(self) -> Tensor:
        """The token matrices (B, D, N), as a view of x."""
        return rearrange(self.x, "b n d -> b d n")

    def __len__(self) -> int:
        # Computations use x.shape[0]: `len` would make the size a constant of an exported graph.
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        """Return the matrix (D, N_i) of sample i without padding."""
        return self.matrix[i][:, self.mask[i]]

    def __repr__(self) -> str:
        """Return the shape of the matrix and the columns of each input, without numbers."""
        spans = "".join(f", {span.name} {span.start}:{span.stop}" for span in self.spans)
        batch_size, num_columns, dim = self.x.shape
        return f"Tokens(B={batch_size}, D={dim}, N={num_columns}{spans})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the inputs, and the matrix of the first sample."""
        return notebook_html(self)

    @property
    def has_no_padding(self) -> bool:
        """Whether all columns are known to be real, so that a computation needs no mask.

        It is False while a model is exported, because a graph must be correct for any values.
        """
        return is_full(self.mask, self.num_real)

    def with_x(self, x: Tensor) -> Tokens:
        """Return the same columns with x (B, N, D) as their embeddings."""
        # Not `replace`, which takes longer than starting an operation of torch.
        return Tokens(x, self.mask, self.spans, self.num_real)

    def renamed(self, name: str) -> Tokens:
        """Return the same tokens with all spans renamed to the input `name`."""
        if all(span.name == name for span in self.spans):  # such as the only text
            return self
        return replace(self, spans=tuple(replace(span, name=name) for span in self.spans))

    def select(self, name: str) -> Tokens:
        """Return the columns of one input.

        Raises:
            KeyError: If no input has this name.
        """
        for span in self.spans:
            if span.name == name:
                return self._columns(span)
        names = [span.name for span in self.spans]
        raise KeyError(f"no columns of {name!r}, only of {names}")

    def split(self) -> list[Tokens]:
        """Return one `Tokens` per span: the inverse of `join`."""
        return [self._columns(span) for span in self.spans]

    def spread(self, rows: Tensor, batch_size: int) -> Tokens:
        """Expand to a batch of `batch_size` samples, of which only some have this input.

        Args:
            rows: (b,). Index in the new batch of each sample, in ascending order. All other
                samples contain only padding.
            batch_size: Number of samples in the new batch.

        Raises:
            ValueError: If there is not one row per sample.
        """
        if rows.shape != self.x.shape[:1]:
            raise ValueError(
                f"rows must be the index of each of the {self.x.shape[0]} samples in the new "
                f"batch, got {tuple(rows.shape)}"
            )
        # Every sample has this input, so the rows are 0, 1, 2, ... and nothing has to be copied.
        if rows.shape[0] == batch_size:
            return self

        def spread(part: Tensor, fill: float = 0) -> Tensor:
            empty = part.new_full((batch_size, *part.shape[1:]), fill)
            return empty.index_copy(0, rows, part)

        # NaN marks samples without the input, as padding without a position in the raw input.
        spans = tuple(
            span.moved(lambda coords: spread(coords, torch.nan), spread) for span in self.spans
        )
        return Tokens(spread(self.x), spread(self.mask), spans, self.num_real)

    def take(self, rows: Tensor) -> Tokens:
        """Return the samples of the rows (b,), in ascending order. `spread` undoes it."""
        if rows.shape[0] == self.x.shape[0]:
            return self
        spans = tuple(span.moved(lambda c: c[rows], lambda m: m[rows]) for span in self.spans)
        return Tokens(self.x[rows], self.mask[rows], spans)

    def _columns(self, span: Span) -> Tokens:
        columns = slice(span.start, span.stop)
        moved = replace(span, start=0, stop=span.stop - span.start)
        x, mask = self.x[:, columns], self.mask[:, columns]
        # All columns are real if those of all inputs are.
        num_real = mask.numel() if self.num_real == self.mask.numel() else None
        return Tokens(x, mask, (moved,), num_real)


def join(parts: Sequence[Tokens]) -> Tokens:
    """Concatenate the columns of several `Tokens` of the same batch.

    Raises:
        ValueError: If `parts` is empty, or its batches or widths differ.
    """
    if not parts:
        raise ValueError("nothing to join: pass at least one Tokens")
    if len(parts) == 1:
        return parts[0]  # torch.cat would copy the tensors
    for part in parts:
        if part.x.shape[::2] != parts[0].x.shape[::2]:
            raise ValueError(
                "all parts must have the same batch size B and width D, got "
                f"{', '.join(map(repr, parts))}; `spread` adds samples without an input"
            )
    spans: list[Span] = []
    offset = 0
    for part in parts:
        for span in part.spans:
            spans.append(replace(span, start=span.start + offset, stop=span.stop + offset))
        offset += part.x.shape[1]
    x = torch.cat([part.x for part in parts], 1)
    mask = torch.cat([part.mask for part in parts], 1)
    counts = [part.num_real for part in parts if part.num_real is not None]
    num_real = sum(counts) if len(counts) == len(parts) else None
    return Tokens(x, mask, tuple(spans), num_real)


def is_full(mask: Tensor, num_real: int | None) -> bool:
    """Whether a mask (B, N) is known to be True everywhere. See `Tokens.has_no_padding`.

    Args:
        mask: (B, N) bool.
        num_real: Number of its True values. None: it is read from the mask, see `can_read`.
    """
    if torch.compiler.is_exporting():
        return False
    if num_real is not None:
        return num_real == mask.numel()
    return can_read(mask) and bool(mask.all())


def can_read(x: Tensor) -> bool:
    """Whether a computation may depend on the values of x.

    A GPU would be asked for them, and the answer would have to wait for all computations before it.
    A graph must be correct for any values.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which matrix products of x are computed, with autocast or without."""
    device = x.device.type
    # Of the devices of tensors, only "meta" has no autocast. torch.amp.is_autocast_available would
    # say so, but torch 2.11 cannot compile it.
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return the context in which matrix products of x are computed in its dtype."""
    device = x.device.type
    is_available = torch.amp.is_autocast_available(device)
    # Creating a context of autocast takes as long as several operations.
    if not is_available or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def sinusoidal(index: Tensor, dim: int) -> Tensor:
    """Compute sinusoidal position encodings (arXiv:1706.03762, section 3.5).

    The first half of an encoding holds the sines of index / 10000^(2i/dim), the second half the
    cosines. The encoding has no maximum length.

    Args:
        index: (...). Positions of the tokens.
        dim: Width D of the encoding; it must be even.

    Returns:
        (..., D).

    Raises:
        ValueError: If dim is odd.
    """
    if dim % 2:
        raise ValueError(f"dim must be even for sinusoidal positions, got {dim}")
    frequency = 10000 ** (-torch.arange(0, dim, 2, device=index.device) / dim)
    angle = index[..., None].float() * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)
