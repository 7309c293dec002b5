"""Patches on a grid and of cells, and the layers that embed them instead of a projection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


@dataclass(frozen=True)
class PatchGrid:
    """Patches that cover an image (height, width) or a spectrogram (frames, mel bins).

    Cells are the pixels of an image and the values of a spectrogram.

    Args:
        size: Size of a patch along both axes, in cells.
        stride: Distance between consecutive patches along both axes, in cells.
        pad_end: Pad the end of each axis to a whole patch. False: drop the incomplete patch.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    pad_end: bool = True

    def __post_init__(self) -> None:
        for size, stride in zip(self.size, self.stride, strict=True):
            # A larger stride would leave gaps between the patches.
            if not 0 < stride <= size:
                raise ValueError(
                    "stride must be at least 1 and at most the patch size, "
                    f"got {self.stride} for patches of {self.size}"
                )

    def count(self, length: int, axis: int) -> int:
        """Return the number of patches, at least 1, along axis 0 or 1 with `length` cells."""
        rest = max(length - self.size[axis], 0)  # cells after the first patch
        if self.pad_end:
            rest += self.stride[axis] - 1  # makes the division below round up
        return rest // self.stride[axis] + 1

    def counts(self, lengths: Tensor, axis: int) -> Tensor:
        """Apply `count` to each element of lengths (B,)."""
        rest = (lengths - self.size[axis]).clamp(min=0)
        if self.pad_end:
            rest = rest + (self.stride[axis] - 1)
        return rest // self.stride[axis] + 1

    def counts_2d(self, sizes: Tensor) -> Tensor:
        """Convert heights and widths (B, 2) from cells to patches."""
        return torch.stack([self.counts(sizes[:, axis], axis) for axis in (0, 1)], 1)

    def unfold(self, x: Tensor) -> Tensor:
        """Return the patches (B, C, h, w, *size) of x (B, C, H, W), padded with zeros.

        The result is a view, so overlapping patches need no additional memory.
        """
        pads = []
        for axis in (1, 0):  # F.pad expects the last dimension first
            count = self.count(x.shape[2 + axis], axis)
            needed = (count - 1) * self.stride[axis] + self.size[axis]
            pads += [0, needed - x.shape[2 + axis]]  # negative if the end is dropped
        # F.pad copies x even if all pads are 0, but a graph must not depend on this.
        if torch.compiler.is_compiling() or any(pads):
            x = F.pad(x, pads)
        return x.unfold(2, self.size[0], self.stride[0]).unfold(3, self.size[1], self.stride[1])


def grid_mask(sizes: Tensor, height: int, width: int) -> Tensor:
    """Return the mask (B, height, width) of the cells inside the sizes (B, 2) of the samples."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


def patch_mask(grids: Tensor | None, x: Tensor) -> Tensor:
    """Return the mask (B, h, w) of the patches x (B, h, w, D) of pictures.

    Args:
        grids: (B, 2). Height and width of the grid of each picture. None: all patches are real.
        x: (B, h, w, D).
    """
    if grids is None:
        return x.new_ones(x.shape[:3], dtype=torch.bool)
    return grid_mask(grids, x.shape[1], x.shape[2])


def patch_boxes(grid: PatchGrid, pixel_map: Tensor, sizes: Tensor, mask: Tensor) -> Tensor:
    """Return top, left, bottom, right of each patch in raw pixels (B, h w, 4), NaN at padding.

    Args:
        grid: The patches.
        pixel_map: (B, 4 or more). Position of the pixels in the raw picture, see `PixelMap`.
        sizes: (B, 2). Height and width of each picture in pixels.
        mask: (B, h, w). True at real patches.
    """
    # All on the device of the sizes: a copy from the CPU would wait for a GPU.
    starts = [
        torch.arange(0, count * stride, stride, device=sizes.device)
        for count, stride in zip(mask.shape[1:], grid.stride, strict=True)
    ]
    stops = [start + size for start, size in zip(starts, grid.size, strict=True)]
    corner, end = torch.cartesian_prod(*starts), torch.cartesian_prod(*stops)
    end = torch.minimum(end, sizes[:, None])
    origin, scale = pixel_map[:, None, :2], pixel_map[:, None, 2:4]
    start = corner * scale + origin
    stop = end * scale + origin
    # In a mirrored picture, the left edge of a patch lies on the right in the raw picture.
    box = torch.cat([torch.minimum(start, stop), torch.maximum(start, stop)], -1)
    return box.masked_fill(~mask.flatten(1)[..., None], torch.nan)


def as_pair(size: int | Sequence[int], *, name: str, axes: str) -> tuple[int, int]:
    """Convert one number, or a pair of numbers, to a pair.

    Args:
        size: One positive number, or a pair.
        name: Name of the option in the error message.
        axes: Names of both axes in the error message.

    Raises:
        ValueError: If a number is less than 1, or size is not a pair.
    """
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{name} must be one positive number or [{axes}], got {size}")
    return pair


class ConvStem(nn.Module):
    """Convolutions of stride 2, followed by a projection to D (arXiv:2106.14881).

    Each convolution has a kernel size of 3. Its output is normalized by a layer norm over the
    channels of each cell, and set to 0 outside the image. So neither padding nor other samples can
    affect a real cell. A batch norm, as in the paper, would not have this property.

    The first convolution has a bias. Without it, the norm would remove the scale of a cell, and a
    gray area would look like a black one.

    With blocks, each of the last two convolutions is followed by residual convolutions of stride 1.

    Args:
        in_channels: Number of channels C of the grid.
        dim: Width D of a token.
        stride: Total stride of all convolutions: 2, 4, 8, 16 or 32.
        width: Number of channels after the first convolution. With axes=2, each further convolution
            doubles it.
        axes: Number of axes with a stride: 2 for height and width, 1 for the height only.
        blocks: Number of residual convolutions after each of the last two convolutions.
        merged: Number of neighbouring cells along the width that are projected to one token
            together. It must divide the number of cells along the width.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        dim: int,
        stride: int,
        width: int = 48,
        axes: Literal[1, 2] = 2,
        blocks: int = 0,
        merged: int = 1,
    ):
        super().__init__()
        num_convs = int(math.log2(stride)) if stride > 0 else 0
        if not 1 <= num_convs <= 5 or 2**num_convs != stride:
            raise ValueError(
                f"the stride of stem=conv (patch_size or frame_size) must be 2, 4, 8, 16 or 32, "
                f"got {stride}"
            )
        widths = [in_channels, *(width * axes**i for i in range(num_convs))]
        self.axes = axes
        # With one axis, the kernel size along the width is 1, so that columns never mix.
        kernel, step, pad = ((3, 3), (2, 2), (1, 1)) if axes == 2 else ((3, 1), (2, 1), (1, 0))
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, kernel, step, pad, bias=i == 0)
            for i, (a, b) in enumerate(pairwise(widths))
        )
        self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths[1:])
        counts = [blocks if i >= num_convs - 2 else 0 for i in range(num_convs)]
        self.blocks = nn.ModuleList(
            nn.ModuleList(ResidualConv(w, kernel, pad) for _ in range(count))
            for w, count in zip(widths[1:], counts, strict=True)
        )
        self.merged = merged
        self.proj = nn.Linear(widths[-1] * merged, dim)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """Embed the cells of a grid.

        Args:
            x: (B, C, H, W). It must be 0 outside the grid of each sample.
            sizes: (B, 2). Height and width of the grid of each sample.

        Returns:
            (B, ceil(H / stride), ceil(W / stride) / merged, D). With axes=1,
            (B, ceil(H / stride), W / merged, D).
        """
        # On a CPU, convolutions and norms over the channels are faster in this memory format.
        x = x.contiguous(memory_format=torch.channels_last)
        for conv, norm, blocks in zip(self.convs, self.norms, self.blocks, strict=True):
            x = conv(x)
            # ceil(size / 2): kernel size 3, stride 2 and padding 1.
            sizes = torch.cat([sizes[:, : self.axes].add(1) // 2, sizes[:, self.axes :]], 1)
            # The bias of a norm makes padding nonzero, so each layer sets it to 0 again.
            inside = rearrange(grid_mask(sizes, x.shape[2], x.shape[3]), "b h w -> b 1 h w")
            x = activated(x, norm, inside)
            for block in cast("nn.ModuleList", blocks):
                x = block(x, inside)
        return self.proj(rearrange(x, "b c h (w m) -> b h w (m c)", m=self.merged))


class ResidualConv(nn.Module):
    """A convolution of stride 1 whose output is added to its input."""

    def __init__(self, width: int, kernel: tuple[int, int], pad: tuple[int, int]):
        super().__init__()
        self.conv = nn.Conv2d(width, width, kernel, padding=pad, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        """Apply it to x (B, C, H, W), with inside (B, 1, H, W) True in the grid of a sample."""
        return x + activated(self.conv(x), self.norm, inside)


def activated(x: Tensor, norm: nn.Module, inside: Tensor) -> Tensor:
    """Normalize x (B, C, H, W) over C, apply GELU, and set the cells outside the grid to 0."""
    x = F.gelu(norm(rearrange(x, "b c h w -> b h w c")))
    return rearrange(x, "b h w c -> b c h w") * inside


class ResidualStem(nn.Module):
    """A hidden layer with ReLU, and a linear layer beside it (arXiv:2403.07815, Chronos-Bolt).

    Args:
        width: Number of features of a patch.
        dim: Width D of a token.
        hidden_dim: Width of the hidden layer.
    """

    def __init__(self, width: int, dim: int, hidden_dim: int):
        super().__init__()
        self.hidden = nn.Linear(width, hidden_dim)
        self.out = nn.Linear(hidden_dim, dim)
        self.skip = nn.Linear(width, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Embed flattened patches (..., width) as (..., D)."""
        return self.out(F.relu(self.hidden(x))) + self.skip(x)


class WhisperStem(nn.Module):
    """Whisper's two convolutions over frames (arXiv:2212.04356, section 2.2).

    The second one has a stride of 2.

    Args:
        n_mels: Number of mel bins F.
        dim: Width D of a token.
    """

    def __init__(self, n_mels: int, dim: int):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, dim, 3, padding=1)
        self.conv2 = nn.Conv1d(dim, dim, 3, stride=2, padding=1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Embed frames.

        Args:
            x: (B, T, F). It must be 0 beyond the length of each sample.
            lengths: (B,). Number of frames of each sample.

        Returns:
            (B, ceil(T / 2), D).
        """
        # The bias of the first convolution makes padding nonzero, so it is set to 0 again.
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = F.gelu(self.conv1(rearrange(x, "b t f -> b f t"))) * rearrange(inside, "b t -> b 1 t")
        return rearrange(F.gelu(self.conv2(x)), "b d t -> b t d")


# Without an option, a frame has at most this many patches of cells: attention is quadratic in them.
USUAL_PATCHES = 64


@dataclass(frozen=True)
class CellPatches:
    """Square patches that cover frames of H×W cells, which are the channels of a series.

    Args:
        grid_size: Height H and width W of a frame.
        size: Height and width of a patch in cells.
        margin: Number of cells beyond each side of a patch that its token reads, too.
        periodic: Whether the opposite border follows beyond a border of a frame.
    """

    grid_size: tuple[int, int]
    size: int
    margin: int = 0
    periodic: bool = False

    @classmethod
    def of(
        cls, grid_size: tuple[int, int], size: int | None, margin: int | None, *, periodic: bool
    ) -> CellPatches:
        """Return the patches of the given sizes, or of the usual ones."""
        if size is None:
            size = 1
            while len(cls(grid_size, size)) > USUAL_PATCHES:
                size *= 2
        return cls(grid_size, size, size if margin is None else margin, periodic)

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of patches along the height and the width, rounded up."""
        return -(-self.grid_size[0] // self.size), -(-self.grid_size[1] // self.size)

    def __len__(self) -> int:
        return self.counts[0] * self.counts[1]

    @property
    def width(self) -> int:
        """Number of cells that a token reads along each axis."""
        return self.size + 2 * self.margin

    def order(self) -> Tensor:
        """Return the cells that each token reads (n * width * width,), H * W beyond the frame.

        Patches and their cells are ordered row by row.
        """
        rows, columns = map(self._along, self.grid_size)  # (patches, width)
        cells = rows[:, None, :, None] * self.grid_size[1] + columns[None, :, None, :]
        inside = (rows >= 0)[:, None, :, None] & (columns >= 0)[None, :, None, :]
        return cells.masked_fill(~inside, self.grid_size[0] * self.grid_size[1]).flatten()

    def places(self) -> Tensor:
        """Return the place of each cell (H * W,) in the patches without their margins."""
        order = CellPatches(self.grid_size, self.size).order()
        return order.argsort(stable=True)[: self.grid_size[0] * self.grid_size[1]]

    def _along(self, length: int) -> Tensor:
        """Return the cells of each patch along one axis (n, width), -1 beyond the frame."""
        starts = torch.arange(0, length, self.size) - self.margin
        index = starts[:, None] + torch.arange(self.width)
        if self.periodic:
            return index % length
        return index.masked_fill((index < 0) | (index >= length), -1)

    def codes(self, dim: int) -> Tensor:
        """Return a code of the place of each patch (n, dim), with which the training starts.

        Codes consist of sines and cosines with whole periods per frame, so their inner product
        depends on the distance of two patches, also across the borders of a periodic grid.
        """
        axes: list[Tensor] = []
        for count in self.counts:
            angle = 2 * torch.pi * torch.arange(count) / count
            # A multiple from the half of the count on repeats a smaller one.
            multiples = torch.arange(1, dim // 4 + 1) % max(count // 2 + 1, 1)
            angles = angle[:, None] * multiples
            axes.append(torch.cat([angles.sin(), angles.cos()], 1))
        down, across = self.counts
        rows, columns = axes[0].repeat_interleave(across, 0), axes[1].repeat(down, 1)
        return F.pad(torch.cat([rows, columns], 1), (0, dim % 4))

    def boxes(self) -> Tensor:
        """Return top, left, bottom and right of each patch in cells (n, 4)."""
        down, across = self.counts
        start = torch.cartesian_prod(torch.arange(down), torch.arange(across)) * self.size
        stop = torch.minimum(start + self.size, torch.tensor(self.grid_size))
        return torch.cat([start, stop], 1)


def divided(x: Tensor, order: Tensor) -> Tensor:
    """Return cells (..., H * W) patch by patch, 0 beyond the frame.

    Args:
        x: The cells of frames.
        order: See `CellPatches.order`.
    """
    return F.pad(x, (0, 1))[..., order]
