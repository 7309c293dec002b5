"""The preprocessor of the image adapter, which runs in data workers."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from dxn.presets.advice import Advice, Facts
from dxn.presets.image import advise_images
from dxn.tokenize.examples import random_pictures
from dxn.tokenize.grid import as_pair, collate_grids
from dxn.tokenize.image.augment import Frame, ImageAugmenter
from dxn.tokenize.image.file import image_size, num_pages, read_image, resize
from dxn.tokenize.image.options import ImageAugment, ResizeOptions
from dxn.tokenize.media import BadMedia, is_image, matching_fraction

# Pixels per token in `num_tokens`: a patch of 16×16. The exact value is not needed, because
# `num_tokens` serves only to compare images with each other.
USUAL_PATCH = 256


class ImagePreprocessor:
    """Convert an image to pixels of the configured size.

    Args:
        image_size: Size of the resized images: [height, width], or one number for a square. With
            resize.mode=within, the maximum size. None: images are not resized.
        resize: Options of reading and resizing.
        in_channels: Number of channels: 3 for color, 1 for gray.
        augment: Augmentation of training images.
    """

    modality = "image"
    reads_files = True
    media_type = "image/*"
    has_words = False

    def __init__(
        self,
        *,
        image_size: int | Sequence[int] | None,
        resize: ResizeOptions,
        in_channels: int,
        augment: ImageAugment,
    ):
        if in_channels not in (1, 3):
            raise ValueError(f"in_channels must be 1 or 3, got {in_channels}")
        if resize.mode != "within" and image_size is None:
            raise ValueError(f"resize.mode={resize.mode} needs an image_size, got null")
        self.image_size: tuple[int, int] | None = None
        if image_size is not None:
            self.image_size = as_pair(image_size, name="image_size", axes="height, width")
        self.resize = resize
        self.in_channels = in_channels
        self.augmenter = ImageAugmenter(augment, resize.interpolation)

    def read(self, source: Any) -> Tensor:
        """Read a path, bytes, PIL image or array as uint8 (C, H, W).

        A larger image is reduced to the size that `__call__` resizes it to, so that a data set of
        photos fits into memory. With augment.zoom, it is reduced less, so that a random crop still
        has image_size pixels.

        Raises:
            BadMedia: If the image cannot be read or has more than max_pixels pixels.
        """
        return read_image(
            source,
            channels=self.in_channels,
            max_pixels=self.resize.max_pixels,
            reduced_size=self.kept_size,
            interpolation=self.resize.interpolation,
        )

    def without_augment(self) -> ImagePreprocessor:
        """Return a preprocessor whose `read` keeps no additional pixels for augmentation."""
        return ImagePreprocessor(
            image_size=self.image_size,
            resize=self.resize,
            in_channels=self.in_channels,
            augment=ImageAugment(),
        )

    def advise(self, cells: Sequence[Any], facts: Facts) -> list[Advice]:
        """Return the options that preset=auto sets."""
        return advise_images(cells, facts)

    def __call__(self, raw: Tensor, rand: random.Random | None = None) -> dict[str, Tensor]:
        """Resize a raw image uint8 (C, H, W), after augmentation if rand is not None.

        Returns:
            pixels uint8 (C, h, w), and frame (4,): the position of the pixels in the raw image,
            which `read` has reduced, see `Frame`.
        """
        frame = Frame()
        if rand is not None:
            raw, frame = self.augmenter(raw, rand)
        pixels, part = self._resized(raw)
        return {"pixels": pixels, "frame": torch.tensor(frame.of_part(part))}

    def collate(self, samples: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Collate pixels uint8 (B, C, H, W), padded at the bottom and on the right.

        The batch also has sizes (B, 2), the height and width of each image, and frame (B, 4).
        """
        sizes = torch.tensor([sample["pixels"].shape[1:] for sample in samples])
        height, width = (int(n) for n in sizes.amax(0))
        # uint8 needs a quarter of the memory of float32; the adapter converts pixels later.
        batch = torch.zeros(len(samples), self.in_channels, height, width, dtype=torch.uint8)
        for row, sample in zip(batch, samples, strict=True):
            pixels = sample["pixels"]
            row[:, : pixels.shape[1], : pixels.shape[2]] = pixels
        return {
            "pixels": batch,
            "sizes": sizes,
            "frame": torch.stack([sample["frame"] for sample in samples]),
            **collate_grids(samples),
        }

    def num_tokens(self, raw: Tensor) -> float:
        """Return the approximate number of tokens of an image raw (C, H, W)."""
        # Resized images have about the same size, so they need no comparison.
        return raw[0].numel() / USUAL_PATCH if self.image_size is None else 1

    def examples(self, count: int, rand: random.Random) -> list[Tensor]:
        """Return random raw values, see `dxn.tokenize.examples`."""
        return random_pictures(self.image_size, self.in_channels, count, rand)

    def recipe(self) -> dict[str, Any]:
        """Return what a program without dxn needs, see `dxn.tokenize.recipes`."""
        return {
            "prepare": "image",
            "channels": self.in_channels,
            "image_size": self.image_size,
            "mode": self.resize.mode,
            "crop_ratio": self.resize.crop_ratio,
            "interpolation": self.resize.interpolation,
            "max_pixels": self.resize.max_pixels,
        }

    def accepts(self, values: Sequence[Any]) -> float:
        """Return the fraction of the values that look like images, see `is_image`."""
        return matching_fraction(values, is_image)

    def summarize(self, raws: Sequence[Tensor], sources: Sequence[Any]) -> str:
        """Summarize the smallest, median and largest size of the sources as width×height."""
        sizes: list[tuple[int, int]] = []
        num_long = 0
        for source in sources:
            with suppress(BadMedia):  # the data set reports invalid files itself
                height, width = image_size(source)
                sizes.append((width, height))
                num_long += num_pages(source) > 1
        if not sizes:
            return ""
        sizes.sort(key=math.prod)
        shown = (sizes[0], sizes[len(sizes) // 2], sizes[-1])
        low, middle, high = (f"{width}×{height}" for width, height in shown)
        count = len(set(sizes))
        pages = f"; only the first page of {num_long:,} files with several pages is read"
        end = pages if num_long else ""
        if count == 1:
            return f"all {low}{end}"
        return f"{low} to {high}, median {middle}, {count:,} sizes{end}"

    def _resized(self, raw: Tensor) -> tuple[Tensor, Frame]:
        """Resize and crop raw (C, H, W); return the pixels and their frame in raw."""
        height, width = raw.shape[1:]
        # An image of the right size is returned as it is, unless crop_ratio removes its border.
        keeps_all = self.resize.mode == "within" or self.resize.crop_ratio == 1
        if self.image_size is None or (keeps_all and (height, width) == self.image_size):
            return raw, Frame()
        size = self._size(height, width)
        pixels = raw
        if size != (height, width):
            pixels = resize(raw, size, self.resize.interpolation)
        down = height / size[0]
        across = width / size[1]
        top = left = 0
        if self.resize.mode != "within":
            target_h, target_w = self.image_size
            top = round((size[0] - target_h) / 2)
            left = round((size[1] - target_w) / 2)
            pixels = pixels[:, top : top + target_h, left : left + target_w]
        return pixels, Frame(top * down, left * across, down, across)

    def kept_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width to which `read` reduces an image."""
        if self.image_size is None:
            return height, width
        # The smallest random crop has the fraction `zoom` of the area; sides scale by its root.
        return self._size(height, width, scale=self.augmenter.options.zoom**-0.5)

    def _size(self, height: int, width: int, *, scale: float = 1.0) -> tuple[int, int]:
        """Return height and width of the whole image after resizing and before cropping.

        Args:
            height: Height of the image.
            width: Width of the image.
            scale: Factor of image_size.
        """
        assert self.image_size is not None
        target_h, target_w = (side * scale for side in self.image_size)
        if self.resize.mode == "within":
            shrink = min(target_h / height, target_w / width, 1.0)  # 1.0: never enlarged
            return max(round(height * shrink), 1), max(round(width * shrink), 1)
        min_h = math.floor(target_h / self.resize.crop_ratio)
        min_w = math.floor(target_w / self.resize.crop_ratio)
        if self.resize.mode == "stretch":
            return min_h, min_w
        # The side that is shorter relative to the target gets its exact length and the other one is
        # rounded down, as in torchvision. Otherwise pixels would differ from public models.
        if min_h * width >= min_w * height:
            return min_h, max(min_h * width // height, min_w)
        return max(min_w * height // width, min_h), min_w
