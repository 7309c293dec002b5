"""Augmentation of training images, and its effect on coordinates."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Annotated, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from dxn.core.randomness import torch_seeded
from dxn.core.schema import options
from dxn.tokenize.image.reader import Interpolation, resize


@options
class ImageAugment:
    """Random augmentation of training images. It is drawn again in each epoch.

    Args:
        crop: Maximum shift in each direction, in pixels of the image after it has been reduced to
            image_size. Pixels at the edge are repeated.
        zoom: Minimum fraction of the image area in a random crop, which is resized to the full
            size. 1 disables it. Smaller fractions need more memory, because images are kept at a
            higher resolution.
        flip: Flip images horizontally with probability 1/2.
        turn: Turn images by a random multiple of 90 degrees, for pictures without a top, such as
            those of microscopes and satellites.
        jitter: Maximum relative change of contrast and brightness, which are drawn per image.
        randaugment: Magnitude from 0 to 30 of two random RandAugment operations
            (arXiv:1909.13719). 0 disables them.
        token_dropout: Fraction of the patches that is dropped from each image (arXiv:2212.00794).
    """

    crop: Annotated[int, Ge(0)] = 0
    zoom: Annotated[float, Interval(gt=0, le=1)] = 1.0
    flip: bool = False
    turn: bool = False
    jitter: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    randaugment: Annotated[int, Interval(ge=0, le=30)] = 0
    token_dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0


GRAY = 128  # fill value of pixels beyond an edge: the middle of 0 to 255


class PixelMap(NamedTuple):
    """Position of an image in the raw image that it was made from: raw = origin + scale * pixel.

    Coordinates refer to the edges of pixels: pixel i lies between i and i + 1.

    Args:
        top: Vertical origin in raw pixels.
        left: Horizontal origin in raw pixels.
        down: Vertical scale, in raw pixels per pixel.
        across: Horizontal scale, in raw pixels per pixel. Negative if the image is mirrored.
    """

    top: float = 0.0
    left: float = 0.0
    down: float = 1.0
    across: float = 1.0

    def of_part(self, part: PixelMap) -> PixelMap:
        """Compose both: return the map of an image whose map to this image is `part`."""
        return PixelMap(
            self.top + self.down * part.top,
            self.left + self.across * part.left,
            self.down * part.down,
            self.across * part.across,
        )


def augment_image(
    pixels: Tensor,
    options: ImageAugment,
    rand: random.Random,
    interpolation: Interpolation = "bilinear",
) -> tuple[Tensor, PixelMap]:
    """Augment pixels uint8 (C, H, W) and return them with their map to the original image.

    The map includes flip, crop and zoom. It does not include the shears, rotations and translations
    of RandAugment, because it cannot represent them all. The tokenizer turns images, because each
    of them has the map to the turned image.

    Args:
        pixels: The image.
        options: The augmentation.
        rand: Random generator.
        interpolation: Interpolation of pixels that are resized.
    """
    height, width = pixels.shape[1:]
    pixel_map = PixelMap()
    if options.flip and rand.random() < 0.5:
        pixels = pixels.flip(-1)
        pixel_map = PixelMap(left=width, across=-1.0)
    if options.crop:
        limit = options.crop
        down = rand.randint(-limit, limit)
        right = rand.randint(-limit, limit)
        pixels = _shift(pixels, down, right)
        pixel_map = pixel_map.of_part(PixelMap(top=down, left=right))
    if options.zoom < 1:
        area = rand.uniform(options.zoom, 1)  # sides scale by its root
        h = max(round(height * area**0.5), 1)
        w = max(round(width * area**0.5), 1)
        top = rand.randint(0, height - h)
        left = rand.randint(0, width - w)
        part = pixels[:, top : top + h, left : left + w]
        pixels = resize(part, (height, width), interpolation)
        pixel_map = pixel_map.of_part(PixelMap(top, left, h / height, w / width))
    if options.jitter:
        pixels = _jittered(pixels, options.jitter, rand)
    if options.randaugment:
        # torchvision draws from the global generator of torch.
        with torch_seeded(rand):
            pixels = _randaugment(options.randaugment)(pixels)
    return pixels, pixel_map


@cache
def _randaugment(magnitude: int) -> Callable[[Tensor], Tensor]:
    # Imported here because the import takes seconds, and most runs do not need it.
    from torchvision.transforms import v2

    # Two operations per image is the default of torchvision.
    return v2.RandAugment(num_ops=2, magnitude=magnitude, fill=GRAY)


def _jittered(pixels: Tensor, limit: float, rand: random.Random) -> Tensor:
    """Change the contrast around the mean of uint8 pixels (C, H, W), and then the brightness."""
    contrast, brightness = (1 + rand.uniform(-limit, limit) for _ in range(2))
    x = pixels.float()
    mean = x.mean()
    return ((x - mean) * contrast + mean * brightness).round_().clamp_(0, 255).byte()


def _shift(pixels: Tensor, down: int, right: int) -> Tensor:
    """Shift an image: pixel (i, j) gets the value of (i + down, j + right), edges are repeated."""
    height, width = pixels.shape[1:]
    rows = (torch.arange(height) + down).clamp(0, height - 1)
    columns = (torch.arange(width) + right).clamp(0, width - 1)
    return pixels[:, rows][:, :, columns]
