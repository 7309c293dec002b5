"""Patches on a two-dimensional grid, shared by image, audio and video adapters and masking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


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

    def windows(self, x: Tensor) -> Tensor:
        """Return the patches (B, C, h, w, *size) of x (B, C, H, W), padded with zeros.

        The result is a view, so overlapping patches need no additional memory.
        """
        pads = []
        for axis in (1, 0):  # F.pad expects the last dimension first
            count = self.count(x.shape[2 + axis], axis)
            needed = (count - 1) * self.stride[axis] + self.size[axis]
            pads += [0, needed - x.shape[2 + axis]]  # negative if the end is dropped
        # F.pad copies x even if all pads are 0, but a graph must not depend on this.
        if torch.compiler.is_exporting() or any(pads):
            x = F.pad(x, pads)
        return x.unfold(2, self.size[0], self.stride[0]).unfold(3, self.size[1], self.stride[1])


def grid_mask(sizes: Tensor, height: int, width: int) -> Tensor:
    """Return the mask (B, height, width) of the cells inside the sizes (B, 2) of the samples."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows[:, :, None] & columns[:, None, :]


def patch_boxes(grid: PatchGrid, frame: Tensor, sizes: Tensor, mask: Tensor) -> Tensor:
    """Return top, left, bottom, right of each patch in raw pixels (B, h w, 4), NaN at padding.

    Args:
        grid: The patches.
        frame: (B, 4). Position of the pixels in the raw picture, see `Frame` of image_augment.py.
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
    origin, scale = frame[:, None, :2], frame[:, None, 2:]
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
