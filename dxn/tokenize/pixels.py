"""Normalization and positions of pixels, shared by the adapters whose raw values are pictures."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dxn.tokenize.grid import PatchGrid
from dxn.tokenize.image.options import ImageNormalization, ResizeOptions
from dxn.tokenize.moments import Moments
from dxn.tokenize.positions import PosEmbed2d, PosEmbedKind

MIN_STD = 1e-3  # of pixels from 0 to 1
# Without an image_size, learned positions have the grid of this size, and are interpolated.
USUAL_SIZE = (224, 224)


def make_positions(
    kind: PosEmbedKind,
    grid: PatchGrid,
    *,
    image_size: tuple[int, int] | None,
    resize: ResizeOptions,
    dim: int,
) -> PosEmbed2d:
    """Create the position embedding of the patches of pictures.

    Args:
        kind: learned, sinusoidal or none.
        grid: Size and stride of the patches.
        image_size: Height and width of the pictures, or their maximum. None: any size.
        resize: Options of resizing.
        dim: Width D.
    """
    height, width = image_size or USUAL_SIZE
    size = (grid.count(height, 0), grid.count(width, 1))
    is_fixed = image_size is not None and resize.mode != "within"
    if resize.pos_grid is not None and not is_fixed:
        size = (resize.pos_grid[0], resize.pos_grid[1])
    return PosEmbed2d(kind, dim=dim, grid=size, antialias=resize.pos_antialias)


def register_statistics(module: nn.Module, normalize: ImageNormalization, channels: int) -> bool:
    """Register the buffers `mean` and `std` (channels,) of an adapter.

    Args:
        module: The adapter.
        normalize: Mean and standard deviation, if they are known.
        channels: Number of channels.

    Returns:
        Whether they are known. Otherwise `set_statistics` sets them.

    Raises:
        ValueError: If there is not one number per channel.
    """
    for name, values in (("mean", normalize.mean), ("std", normalize.std)):
        if values is not None and len(values) != channels:
            raise ValueError(
                f"normalize.{name} must have {channels} numbers, one per channel, "
                f"got {list(values)}"
            )
        # 0.5 is a placeholder until `set_statistics` computes the statistics.
        module.register_buffer(name, torch.tensor(values or [0.5] * channels))
    return normalize.mean is not None


def set_statistics(module: nn.Module, pictures: Iterable[Tensor]) -> None:
    """Set `mean` and `std` to those of each channel over uint8 pictures (C, ...), if any."""
    moments = Moments(len(module.get_buffer("mean")))
    for picture in pictures:
        moments.add(picture.flatten(1).T)
    if not moments.count.any():
        return
    module.get_buffer("mean").copy_(moments.mean / 255)
    # The clamp avoids a division by zero if all pictures have a single color.
    module.get_buffer("std").copy_((moments.std / 255).clamp(min=MIN_STD))


def normalize_pixels(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Scale uint8 pixels (..., C, H, W) to 0 to 1, and normalize each channel."""
    return (pixels.to(mean.dtype) / 255 - mean[:, None, None]) / std[:, None, None]
