"""Convert picture files to pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def prepare(values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return pixels uint8 (B, C, H, W), padded on the right, and sizes (B, 2) without padding.

    Args:
        values: Paths or files of B pictures.
        options: Options of the input in preprocess.json.
    """
    pictures = [_pixels(value, options) for value in values]
    sizes = np.array([picture.shape[:2] for picture in pictures], np.int64)
    height, width = sizes.max(0)
    pixels = np.zeros((len(pictures), height, width, options["channels"]), np.uint8)
    for row, picture in zip(pixels, pictures, strict=True):
        row[: picture.shape[0], : picture.shape[1]] = picture
    return {"pixels": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), "sizes": sizes}


def _pixels(value: Any, options: Mapping[str, Any]) -> np.ndarray:
    with Image.open(value) as file:
        return resized(ImageOps.exif_transpose(file), options)


def resized(picture: Image.Image, options: Mapping[str, Any]) -> np.ndarray:
    """Return the pixels (H, W, C) of a picture in the size that the options ask for."""
    image = _opaque(picture)
    image = image.convert("RGB" if options["channels"] == 3 else "L")
    size = options["image_size"]
    if size is not None:
        height, width = _size(image.height, image.width, size, options)
        filter = Image.Resampling[options["interpolation"].upper()]
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), filter)
        if options["mode"] != "within":
            top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
            image = image.crop((left, top, left + size[1], top + size[0]))
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _opaque(image: Image.Image) -> Image.Image:
    """Return a picture with 8 bits per channel, over white where it is transparent."""
    if image.mode.startswith("I"):  # 16 bits
        values = np.asarray(image).astype(np.float64) / 257
        image = Image.fromarray(values.round().clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        foreground = image.convert("RGBA")
        image = Image.new("RGBA", foreground.size, "white")
        image.alpha_composite(foreground)
    return image


def _size(
    height: int, width: int, target: Sequence[int], options: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the height and width before cropping."""
    if options["mode"] == "within":
        shrink = min(target[0] / height, target[1] / width, 1.0)
        return max(round(height * shrink), 1), max(round(width * shrink), 1)
    min_h, min_w = (math.floor(side / options["crop_ratio"]) for side in target)
    if options["mode"] == "stretch":
        return min_h, min_w
    if min_h * width >= min_w * height:
        return min_h, max(min_h * width // height, min_w)
    return max(min_w * height // width, min_h), min_w
