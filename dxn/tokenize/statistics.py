"""Statistics of a training split, and the normalization of pixels by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from dxn.tokenize.grid_positions import PosEmbed2d
from dxn.tokenize.patches import PatchGrid
from dxn.tokenize.positions import PosEmbedKind

if TYPE_CHECKING:
    from dxn.tokenize.image.tokenizer import ImageNormalization, ResizeOptions

MIN_STD = 1e-3  # of pixels from 0 to 1
# Without an image_size, learned positions have the grid of this size, and are interpolated.
USUAL_SIZE = (224, 224)


class Moments:
    """Mean and standard deviation of each channel of values that are added piece by piece.

    The pieces are combined as in Chan, Golub and LeVeque (1983), because a sum of squares loses the
    variance of values that are large compared with it. NaN is a missing value.

    Args:
        num_channels: Number of channels C.

    Attributes:
        mean: (C,) float64. 0 where a channel has no value yet.
    """

    def __init__(self, num_channels: int):
        self.count = torch.zeros(num_channels, dtype=torch.float64)
        self.mean = torch.zeros(num_channels, dtype=torch.float64)
        self.squares = torch.zeros(num_channels, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add values x (M, C)."""
        x = x.double()
        count = (~x.isnan()).sum(0)
        mean = x.nanmean(0).nan_to_num(0.0)
        difference = mean - self.mean
        total = self.count + count
        share = count / total.clamp(min=1)
        self.squares += (x - mean).square().nansum(0) + difference**2 * self.count * share
        self.mean += difference * share
        self.count = total

    @property
    def std(self) -> Tensor:
        """(C,) float64. 0 where a channel has no value."""
        return (self.squares / self.count.clamp(min=1)).sqrt()


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
    is_fixed = image_size is not None and resize.is_fixed
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
    module.register_buffer("shift", None, persistent=False)  # see `fold_statistics`
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


def pixel_contents(
    sample: Mapping[str, Tensor], mean: Tensor, std: Tensor, num_frames: int = 1
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
    known = None
    if missing:
        is_frame = torch.arange(len(x) + missing)[:, None, None, None] < len(x)
        x = F.pad(x, (0, 0, 0, 0, 0, 0, 0, missing))
        known = rearrange(is_frame.expand_as(x), "(t f) c h w -> t (f c) h w", f=num_frames)
    return rearrange(x, "(t f) c h w -> t (f c) h w", f=num_frames), known


def to_pixels(x: Tensor, num_frames: int) -> Tensor:
    """Return the uint8 picture (C, H, W) or clip (T, C, H, W) of pixels from 0 to 1.

    Args:
        x: (t, F C, H, W).
        num_frames: Number of frames F of a tubelet. 1: x is one picture.
    """
    x = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return x[0] if num_frames == 1 else rearrange(x, "t (f c) h w -> (t f) c h w", f=num_frames)
