"""Draw images: the pixels with a box around each patch."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from PIL import Image

from dxn.explain.drawers.drawer import InputAttention, Shown, Thumbnails, check_weights
from dxn.explain.labels import fonts, shortened
from dxn.explain.plots import ORANGE, new_figure, save, set_title

THUMBNAIL_SIDE = 320  # pixels of the longer side of a copy; more would not be visible
PAGE_SIDE = 512  # pixels of the longer side of an image in the HTML page, which embeds it
MIN_BRIGHTNESS = 0.25  # a patch without attention stays recognizable
COPY_INCHES = 1.7  # width of a copy


class ImageDrawer:
    """Draws a uint8 tensor (C, H, W). Coordinates are (top, left, bottom, right) in pixels."""

    reads_words = False
    reading_file = "cells.png"
    thumbnails = Thumbnails(width=1.5, height=1.7, per_row=8)

    def height(self, shown: Shown) -> float:
        return 3.2

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        _draw_image(axis, pixels_of(shown.raw))
        style = {"facecolor": "none", "edgecolor": ORANGE, "linewidth": 0.8}
        # One collection, because a matplotlib object per patch would be slow. autolim=False keeps
        # the limits of the image.
        axis.add_collection(PatchCollection(_boxes(coords), **style), autolim=False)
        return ""

    def draw_shares(self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray) -> None:
        _draw_image(axis, pixels_of(shown.raw))
        # A white layer covers patches with a small share. 0.85 keeps all patches recognizable.
        layers = [(1.0, 1.0, 1.0, 0.85 * (1 - float(share))) for share in shares]
        patches = PatchCollection(_boxes(coords), facecolors=layers, edgecolors="none")
        axis.add_collection(patches, autolim=False)

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray
    ) -> None:
        draw_cells(axis, rgb(pixels_of(shown.raw)), coords, weights)

    def draw_reading(
        self, shown: Shown, attention: InputAttention, path: Path, *, title: str = ""
    ) -> None:
        pixels = pixels_of(shown.raw)
        draw_copies(attention.weights, attention.words, pixels, attention.coords, path, title=title)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        return [None] * len(coords)

    def page(self, shown: Shown) -> dict[str, Any]:
        pixels = rgb(pixels_of(shown.raw))
        # The original size, not the size of the embedded PNG: it is the unit of the coordinates.
        height, width = pixels.shape[:2]
        picture = Image.fromarray(pixels)
        picture.thumbnail((PAGE_SIDE, PAGE_SIDE))
        return {"kind": "boxes", "source": png_source(picture), "width": width, "height": height}


def draw_copies(
    weights: np.ndarray,
    words: Sequence[str],
    image: np.ndarray,
    coords: np.ndarray,
    path: Path,
    *,
    per_row: int = 6,
    title: str = "",
) -> None:
    """Write a PNG with one small copy of an image per word (arXiv:1502.03044, figure 3).

    Args:
        weights: (T, N). Attention weights. The patch with the largest weight of a word keeps its
            brightness, and the other patches are darker.
        words: Titles of the T copies.
        image: uint8 (H, W) or (H, W, C).
        coords: (N, 4). Top, left, bottom and right of each token in pixels, or NaN.
        path: File to write.
        per_row: Maximum number of copies per row.
        title: Title of the picture. "": no title.

    Raises:
        ValueError: If the shapes do not match.
    """
    check_weights(weights, words, len(coords), coords=coords, coords_width=4)
    height, width = image.shape[:2]
    columns = min(per_row, len(words))
    rows = -(-len(words) // columns)
    # Extreme aspect ratios are limited. The 0.3 inches are for the title of a copy.
    copy_height = COPY_INCHES * min(max(height / width, 0.25), 4) + 0.3
    figure = new_figure(COPY_INCHES * columns, copy_height * rows)
    set_title(figure, title)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    # All axes, because the last row may have empty ones.
    for axis in axes:
        axis.set_axis_off()
    for axis, word, row in zip(axes, shortened(words), weights, strict=False):
        draw_cells(axis, rgb(image), coords, row)
        axis.set_title(word, fontsize=9, family=fonts(), parse_math=False)
    save(figure, path)


def draw_cells(axis: Axes, image: np.ndarray, coords: np.ndarray, weights: np.ndarray) -> None:
    """Draw an image that is darker where the attention weights are smaller.

    Args:
        axis: Axis to draw in.
        image: uint8 (H, W, 3).
        coords: (N, 4). Top, left, bottom and right of each patch in pixels, or NaN.
        weights: (N,). Attention weights of the patches.
    """
    step = max(-(-max(image.shape[:2]) // THUMBNAIL_SIDE), 1)
    small = image[::step, ::step]
    heat = np.zeros(small.shape[:2])
    for (top, left, bottom, right), weight in zip(coords / step, weights, strict=True):
        if not np.isnan(top):
            rows = slice(round(top), max(round(bottom), round(top) + 1))
            columns = slice(round(left), max(round(right), round(left) + 1))
            box = heat[rows, columns]
            np.maximum(box, weight, out=box)  # where patches overlap, the largest weight is drawn
    brightness = MIN_BRIGHTNESS + (1 - MIN_BRIGHTNESS) * heat / (heat.max() or 1.0)
    axis.imshow(small / 255 * brightness[..., None], interpolation="nearest")
    axis.set_axis_off()


def pixels_of(raw: Any) -> np.ndarray:
    """Convert a raw image (C, H, W) to an array (H, W, C)."""
    return raw.permute(1, 2, 0).cpu().numpy()


def rgb(image: np.ndarray) -> np.ndarray:
    """Convert an image (H, W) or (H, W, C) to (H, W, 3).

    Gray is repeated, and channels after the third one are dropped.
    """
    pixels = image if image.ndim == 3 else image[..., None]
    return pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, 2)


def png_source(picture: Image.Image) -> str:
    """Encode a picture as a data URL, so that the HTML page needs no other file."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _draw_image(axis: Axes, pixels: np.ndarray) -> None:
    axis.imshow(rgb(pixels), vmin=0, vmax=255)
    axis.set_anchor("W")
    axis.set_axis_off()


def _boxes(coords: np.ndarray) -> list[Rectangle]:
    """Return the patches as rectangles. `imshow` puts the center of pixel (i, j) at (j, i)."""
    return [
        Rectangle((left - 0.5, top - 0.5), right - left, bottom - top)
        for top, left, bottom, right in coords
    ]
