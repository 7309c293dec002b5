"""Convert pictures to pixels."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

# Pixels (H, W, C) in the size that the options ask for, and their pixel_map (6,): the top and left
# edge of the part of the picture that they show, the height and width of a pixel, and the height
# and width of the picture, all in pixels of the file.
Resized = tuple[np.ndarray, np.ndarray]


def read(value: Any, options: Mapping[str, Any]) -> Resized:
    """Return the pixels of a picture, and where they lie in it.

    Args:
        value: Path, file, bytes, picture of Pillow, or array uint8 (H, W) or (H, W, C).
        options: Options of the input in preprocess.json.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the picture is too large, or its pixels have another range.
    """
    if isinstance(value, np.ndarray):
        value = Image.fromarray(_as_picture(value))
    if isinstance(value, Image.Image):
        _check_size(value, options)
        return resized(ImageOps.exif_transpose(value), options)
    if not isinstance(value, bytes | str | os.PathLike) and not hasattr(value, "read"):
        raise ValueError("must be a path, a file, bytes, a picture of Pillow or an array")
    with Image.open(io.BytesIO(value) if isinstance(value, bytes) else value) as file:
        _check_size(file, options)
        return resized(ImageOps.exif_transpose(file), options)


def prepare(raws: Sequence[Resized], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return pixels uint8 (B, C, H, W), padded on the right, and where they are.

    sizes (B, 2) are those without padding. See `Resized` for pixel_map (B, 6).

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    sizes = np.array([picture.shape[:2] for picture, _ in raws], np.int64)
    height, width = sizes.max(0)
    pixels = np.zeros((len(raws), height, width, options["channels"]), np.uint8)
    for row, (picture, _) in zip(pixels, raws, strict=True):
        row[: picture.shape[0], : picture.shape[1]] = picture
    return {
        "pixels": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)),
        "sizes": sizes,
        "pixel_map": np.stack([pixel_map for _, pixel_map in raws]),
    }


def resized(picture: Image.Image, options: Mapping[str, Any]) -> Resized:
    """Resize a picture as the options ask for."""
    image = _opaque(picture)
    image = image.convert("RGB" if options["channels"] == 3 else "L")
    raw_height, raw_width = image.height, image.width
    down = across = 1.0
    top = left = 0
    size = options["image_size"]
    if size is not None:
        height, width = _size(image.height, image.width, size, options)
        filter = Image.Resampling[options["interpolation"].upper()]
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), filter)
            down, across = raw_height / height, raw_width / width
        if options["mode"] == "pad":  # with black pixels
            image = image.crop((0, 0, size[1], size[0]))
        if options["mode"] in ("stretch", "crop"):
            top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
            image = image.crop((left, top, left + size[1], top + size[0]))
    pixels = np.asarray(image)
    pixel_map = [top * down, left * across, down, across, raw_height, raw_width]
    return pixels.reshape(*pixels.shape[:2], -1), np.array(pixel_map, np.float32)


def _as_picture(pixels: np.ndarray) -> np.ndarray:
    """Return an array that Pillow accepts, which expects gray pictures without channels."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise ValueError("an array must be uint8 and have the shape (H, W) or (H, W, C)")
    return pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels


def _check_size(image: Image.Image, options: Mapping[str, Any]) -> None:
    if image.width * image.height > options["max_pixels"]:
        raise ValueError(f"more than {options['max_pixels']:,} pixels")


def _opaque(image: Image.Image) -> Image.Image:
    """Return a picture with 8 bits per channel, over white where it is transparent."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no defined range")
    if image.mode.startswith("I"):  # 16 bits
        values = np.asarray(image).astype(np.float64)
        if values.max() > 65535 or values.min() < 0:
            raise ValueError("pixels below 0 or above 65,535")
        image = Image.fromarray((values / 257).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        foreground = image.convert("RGBA")
        image = Image.new("RGBA", foreground.size, "white")
        image.alpha_composite(foreground)
    return image


def _size(
    height: int, width: int, target: Sequence[int], options: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the height and width before cropping."""
    if options["mode"] in ("within", "pad"):
        shrink = min(target[0] / height, target[1] / width)
        if options["mode"] == "within":
            shrink = min(shrink, 1.0)
        return max(round(height * shrink), 1), max(round(width * shrink), 1)
    crop_ratio = 1.0 if options["mode"] == "cover" else options["crop_ratio"]
    min_h, min_w = (math.floor(side / crop_ratio) for side in target)
    if options["mode"] == "stretch":
        return min_h, min_w
    if min_h * width >= min_w * height:
        return min_h, max(min_h * width // height, min_w)
    return max(min_w * height // width, min_h), min_w
