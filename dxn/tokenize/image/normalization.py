"""Normalization of pixels by the mean and standard deviation of each channel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.core.schema import options
from dxn.tokenize.moments import Moments, in_blocks
from dxn.tokenize.patch_contents import PatchContents
from dxn.tokenize.patches import PatchGrid

MIN_STD = 1e-3  # of pixels from 0 to 1


@options
class ImageNormalization:
    """Normalization of the pixels. Before it, pixels are scaled to the range from 0 to 1.

    Args:
        mean: Mean of each channel. Default: computed from the training split.
        std: Standard deviation of each channel. Default: computed from the training split.
    """

    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError(
                f"normalize needs both mean and std, or neither, got {self.mean} and {self.std}"
            )
        if self.mean is not None and self.std is not None:
            # object.__setattr__, because the dataclass is frozen.
            object.__setattr__(self, "mean", tuple(self.mean))
            object.__setattr__(self, "std", tuple(self.std))


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
    module.register_buffer("shift", None, persistent=False)  # see `fold_statistics`
    return normalize.mean is not None


def set_statistics(module: nn.Module, pictures: Iterable[Tensor]) -> None:
    """Set `mean` and `std` to those of each channel over uint8 pictures (C, ...), if any."""
    moments = Moments(len(module.get_buffer("mean")))
    for pixels in in_blocks(picture.flatten(1).T for picture in pictures):
        moments.add(pixels)
    if not moments.count.any():
        return
    module.get_buffer("mean").copy_(moments.mean / 255)
    # The clamp avoids a division by zero if all pictures have a single color.
    module.get_buffer("std").copy_((moments.std / 255).clamp(min=MIN_STD))


def normalize_pixels(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Scale uint8 pixels (..., C, H, W) to 0 to 1, and normalize each channel."""
    return (pixels.to(mean.dtype) / 255 - mean[:, None, None]) / std[:, None, None]


@torch.no_grad()
def fold_statistics(module: nn.Module, layer: nn.Module) -> None:
    """Multiply the weights of the first layer by the scale of the normalization.

    Then `normalized_pixels` only subtracts the mean, so that padding is still 0. The adapter
    computes the same as before from its new weights, mean and std.

    Args:
        module: The adapter.
        layer: The layer that receives the normalized pixels, with weights (D, C ...).
    """
    weight = layer.get_parameter("weight")
    mean, std = module.get_buffer("mean"), module.get_buffer("std")
    # Not in place: the weights can be those of a file.
    scaled = weight.view(len(weight), len(std), -1) / (255 * std[:, None])
    layer.weight = nn.Parameter(scaled.view_as(weight), requires_grad=False)
    module.register_buffer("std", torch.full_like(std, 1 / 255))
    module.register_buffer("shift", 255 * mean[:, None, None], persistent=False)


def normalized_pixels(module: Any, pixels: Tensor) -> Tensor:
    """Normalize uint8 pixels (..., C, H, W) by the statistics of an adapter."""
    if module.shift is not None:
        return pixels - module.shift
    return normalize_pixels(pixels, module.mean, module.std)


def pixel_contents(module: Any, grid: PatchGrid, num_frames: int = 1) -> PatchContents:
    """Return the contents of the patches of pictures, or of the tubelets of clips.

    Args:
        module: The adapter, with the statistics of the pixels.
        grid: The patches of a picture.
        num_frames: Number of frames F of a tubelet. 1: a patch of a picture.
    """
    mean, std = module.mean.detach().cpu().clone(), module.std.detach().cpu().clone()
    return PatchContents(
        grid=grid,
        read=partial(_read_pixels, mean=mean, std=std, num_frames=num_frames),
        channels=num_frames * len(mean),
        shift=mean.repeat(num_frames)[:, None, None],
        scale=std.repeat(num_frames)[:, None, None],
        restore=partial(_to_pixels, num_frames=num_frames),
        peak=1.0,
    )


def _read_pixels(
    sample: Mapping[str, Tensor], mean: Tensor, std: Tensor, num_frames: int
) -> tuple[Tensor, Tensor | None]:
    """Return the values of the patches of a picture or clip, see `PatchContents`.

    Args:
        sample: Sample with uint8 pixels, (C, H, W) or (T, C, H, W).
        mean: (C,). Mean of each channel, for pixels from 0 to 1.
        std: (C,). Standard deviation of each channel.
        num_frames: Number of frames F of a tubelet.

    Returns:
        Normalized pixels (t, F C, H, W), and False at the missing frames of the last tubelet. None:
        there are none.
    """
    pixels = sample["pixels"]
    x = normalize_pixels(pixels if pixels.ndim == 4 else pixels[None], mean, std)
    missing = -len(x) % num_frames
    is_present = None
    if missing:
        is_frame = torch.arange(len(x) + missing)[:, None, None, None] < len(x)
        x = F.pad(x, (0, 0, 0, 0, 0, 0, 0, missing))
        is_present = rearrange(is_frame.expand_as(x), "(t f) c h w -> t (f c) h w", f=num_frames)
    return rearrange(x, "(t f) c h w -> t (f c) h w", f=num_frames), is_present


def _to_pixels(x: Tensor, num_frames: int) -> Tensor:
    """Return the uint8 picture (C, H, W) or clip (T, C, H, W) of pixels from 0 to 1.

    Args:
        x: (t, F C, H, W).
        num_frames: Number of frames F of a tubelet. 1: x is one picture.
    """
    x = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return x[0] if num_frames == 1 else rearrange(x, "t (f c) h w -> (t f) c h w", f=num_frames)
