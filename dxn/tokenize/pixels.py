"""Normalization of pixels, shared by the adapters whose raw values are pictures."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dxn.tokenize.image_options import ImageNormalization


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
    count = 0
    sums: list[Tensor] = []
    for picture in pictures:
        pixels = picture.flatten(1)
        count += pixels.shape[1]
        # float64, because the variance is a small difference of two large numbers.
        sums.append(_sums(pixels.double() / 255))
    if not count:
        return
    total, squares = torch.stack(sums).sum(0)
    mean = total / count
    module.get_buffer("mean").copy_(mean)
    # The clamp avoids a division by zero if all pictures have a single color.
    module.get_buffer("std").copy_((squares / count - mean**2).clamp(min=1e-6).sqrt())


def normalize_pixels(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Scale uint8 pixels (..., C, H, W) to 0 to 1, and normalize each channel."""
    return (pixels.to(mean.dtype) / 255 - mean[:, None, None]) / std[:, None, None]


def _sums(x: Tensor) -> Tensor:
    """Return the sums (2, C) of x (C, M) and of its squares."""
    return torch.stack([x.sum(1), (x**2).sum(1)])
