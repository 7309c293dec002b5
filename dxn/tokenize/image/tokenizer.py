"""The tokenizer of the image adapter: images become pixels of the configured size."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Interval, Len
from torch import Tensor

from dxn.core.schema import options
from dxn.tokenize.base import Placement, Sample, Tokenizer
from dxn.tokenize.image.augment import ImageAugment, PixelMap, augment_image
from dxn.tokenize.image.reader import ImageReader, Interpolation, check_pixels, image_size, resize
from dxn.tokenize.patches import PatchGrid, as_pair

ResizeMode = Literal["within", "stretch", "crop", "cover", "pad"]


@options
class ResizeOptions:
    """Options of reading an image and resizing it to `image_size`.

    Args:
        mode: Method of resizing: within (shrink larger images, keep the aspect ratio and mask the
            padding), stretch (ignore the aspect ratio), crop (keep the aspect ratio and crop the
            center), cover (as crop, but keep the whole image) or pad (keep the aspect ratio, and
            add black pixels on the right or at the bottom).
        crop_ratio: Fraction of the shorter side that the center crop keeps. It has no effect with
            the modes within, cover and pad.
        interpolation: Interpolation of the pixels: bilinear or bicubic.
        max_pixels: Maximum number of pixels. Larger images are rejected.
        pos_grid: Height and width of the grid of learned positions in patches, for images without a
            fixed size, which have image_size=null, mode=within or mode=cover. It is interpolated to
            the grid of each image. Default: the grid of image_size, or of 224.
        pos_antialias: Use antialiasing when learned positions are interpolated to a smaller grid.
        pad_end: Pad the right and the bottom of an image to whole patches. False: drop incomplete
            patches.
    """

    mode: ResizeMode = "within"
    crop_ratio: Annotated[float, Interval(gt=0, le=1)] = 1.0
    interpolation: Interpolation = "bilinear"
    max_pixels: Annotated[int, Ge(1)] = 50_000_000
    pos_grid: Annotated[Sequence[Annotated[int, Ge(1)]], Len(2, 2)] | None = None
    pos_antialias: bool = True
    pad_end: bool = True

    @property
    def is_fixed(self) -> bool:
        """Whether all images have the height and width `image_size`."""
        return self.mode not in ("within", "cover")


# Without an image_size, learned positions have the grid of this size, and are interpolated.
USUAL_SIZE = (224, 224)
# Pixels per token in `length`: a patch of 16×16. The exact value is not needed, because `length`
# serves only to compare images with each other.
USUAL_PATCH = 256
TURNS = "turns"  # key of a sample


class ImageTokenizer(Tokenizer):
    """Convert an image to pixels of the configured size.

    Args:
        image_size: Size of the resized images: [height, width], or one number for a square. With
            resize.mode=within, the maximum size. None: images are not resized.
        resize: Options of reading and resizing.
        in_channels: Number of channels: 3 for color, 1 for gray.
        augment: Augmentation of training images.
    """

    def __init__(
        self,
        *,
        image_size: int | Sequence[int] | None,
        resize: ResizeOptions,
        in_channels: int,
        augment: ImageAugment,
    ):
        if resize.mode != "within" and image_size is None:
            raise ValueError(f"resize.mode={resize.mode} needs an image_size, got null")
        self.image_size: tuple[int, int] | None = None
        if image_size is not None:
            self.image_size = as_pair(image_size, name="image_size", axes="height, width")
        self.resize = resize
        self.in_channels = in_channels
        self.augment = augment
        self.is_random = augment != ImageAugment()
        # A larger image is reduced to the size that `__call__` resizes it to, so that a data set of
        # photos fits into memory. With augment.zoom, it is reduced less, so that a random crop
        # still has image_size pixels.
        self.reader = ImageReader(
            channels=in_channels,
            max_pixels=resize.max_pixels,
            reduced_size=self.kept_size,
            interpolation=resize.interpolation,
        )

    def plain(self) -> ImageTokenizer:
        """Return a tokenizer whose reader keeps no additional pixels for augmentation."""
        return ImageTokenizer(
            image_size=self.image_size,
            resize=self.resize,
            in_channels=self.in_channels,
            augment=ImageAugment(),
        )

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> Sample:
        """Resize a raw image uint8 (C, H, W), after augmentation if rand is not None.

        Returns:
            pixels uint8 (C, h, w), which need a quarter of the memory of float32; sizes (2,), h and
            w; and pixel_map (6,): the position of the pixels in the raw image, which the reader has
            reduced, see `PixelMap`, and its height and width. With augment.turn, also turns: how
            often the raw image has been turned by 90 degrees, counterclockwise, before all this.
        """
        pixel_map = PixelMap()
        turns: dict[str, Tensor] = {}
        if rand is not None and self.augment.turn:
            turns[TURNS] = torch.tensor(rand.randrange(4))
            raw = raw.rot90(int(turns[TURNS]), (1, 2))
        raw_size = raw.shape[1:]
        if rand is not None:
            raw, pixel_map = augment_image(raw, self.augment, rand, self.resize.interpolation)
        pixels, part = self._resized(raw)
        return turns | {
            "pixels": pixels,
            "sizes": torch.tensor(pixels.shape[1:]),
            "pixel_map": torch.tensor([*pixel_map.of_part(part), *raw_size]),
        }

    def placement(self, sample: Mapping[str, Tensor]) -> Placement:
        """Return where the pixels lie. Places are fractions of the picture."""
        pixel_map = sample["pixel_map"]
        return Placement(
            pixel_map[..., :2], pixel_map[..., 2:4] * sample["sizes"], pixel_map[..., 4:]
        )

    def length(self, raw: Tensor) -> float:
        """Return the approximate number of tokens of an image raw (C, H, W)."""
        # Resized images have about the same size, so they need no comparison.
        return raw[0].numel() / USUAL_PATCH if self.image_size is None else 1

    def header(self, cell: Any) -> float:
        """Check the format and the number of pixels of an image, and return its `length`."""
        height, width = image_size(cell)
        check_pixels(width, height, self.resize.max_pixels)
        return height * width / USUAL_PATCH if self.image_size is None else 1

    def position_grid(self, grid: PatchGrid) -> tuple[int, int]:
        """Return the height and width of the grid of learned positions of patches."""
        height, width = self.image_size or USUAL_SIZE
        is_fixed = self.image_size is not None and self.resize.is_fixed
        if self.resize.pos_grid is not None and not is_fixed:
            return self.resize.pos_grid[0], self.resize.pos_grid[1]
        return grid.count(height, 0), grid.count(width, 1)

    def _resized(self, raw: Tensor) -> tuple[Tensor, PixelMap]:
        """Resize and crop raw (C, H, W); return the pixels and their map to raw."""
        height, width = raw.shape[1:]
        # An image of the right size is returned as it is, unless crop_ratio removes its border.
        crops = self.resize.mode in ("stretch", "crop")
        keeps_all = not crops or self.resize.crop_ratio == 1
        if self.image_size is None or (keeps_all and (height, width) == self.image_size):
            return raw, PixelMap()
        size = self._size(height, width)
        pixels = raw
        if size != (height, width):
            pixels = resize(raw, size, self.resize.interpolation)
        down = height / size[0]
        across = width / size[1]
        top = left = 0
        target_h, target_w = self.image_size
        if self.resize.mode == "pad":
            pixels = F.pad(pixels, (0, target_w - size[1], 0, target_h - size[0]))
        if crops:
            top = round((size[0] - target_h) / 2)
            left = round((size[1] - target_w) / 2)
            pixels = pixels[:, top : top + target_h, left : left + target_w]
        return pixels, PixelMap(top * down, left * across, down, across)

    def kept_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which the reader reduces an image."""
        if self.image_size is None:
            return height, width
        # The smallest random crop has the fraction `zoom` of the area; sides scale by its root.
        return self._size(height, width, scale=self.augment.zoom**-0.5)

    def _size(self, height: int, width: int, *, scale: float = 1.0) -> tuple[int, int]:
        """Return height and width of the whole image after resizing and before cropping.

        Args:
            height: Height of the image.
            width: Width of the image.
            scale: Factor of image_size.
        """
        assert self.image_size is not None
        target_h, target_w = (side * scale for side in self.image_size)
        if self.resize.mode in ("within", "pad"):
            shrink = min(target_h / height, target_w / width)
            if self.resize.mode == "within":
                shrink = min(shrink, 1.0)  # never enlarged
            return max(round(height * shrink), 1), max(round(width * shrink), 1)
        crop_ratio = 1.0 if self.resize.mode == "cover" else self.resize.crop_ratio
        min_h = math.floor(target_h / crop_ratio)
        min_w = math.floor(target_w / crop_ratio)
        if self.resize.mode == "stretch":
            return min_h, min_w
        # The side that is shorter relative to the target gets its exact length and the other one is
        # rounded down, as in torchvision. Otherwise pixels would differ from public models.
        if min_h * width >= min_w * height:
            return min_h, max(min_h * width // height, min_w)
        return max(min_w * height // width, min_h), min_w
