"""Draw images: the pixels with a box around each patch."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from PIL import Image
from torch import Tensor

from dxn.tokenize.image.file import read_image
from dxn.viz.drawers.drawer import (
    InputAttention,
    Shown,
    Thumbnails,
    check_weights,
    is_file,
)
from dxn.viz.drawers.html import picture
from dxn.viz.drawers.panel import Panel, draw_boxes, draw_heat, page_panel
from dxn.viz.figures import color_bar, heat_scale, new_figure, save, set_title
from dxn.viz.labels import shortened

SIDE = 3.6  # inches of the longer side of an image
FINE_SIDE = 640  # pixels of the longer side of an image that is drawn from its file
GAP = 0.06  # width of the gap between the image and its colored copy, relative to the image
COPY_INCHES = 1.7  # width of a copy by default
MAX_RATIO = 4.0  # images that are longer than this get less than their share of the figure


class ImageDrawer:
    """Draws a uint8 tensor (C, H, W). Coordinates are (top, left, bottom, right) in pixels."""

    unit = "patch"
    reads_words = False
    reading_file = "cells.png"
    thumbnails = Thumbnails(width=1.5, height=1.7, per_row=8)

    def size(self, shown: Shown, *, shaded: bool) -> tuple[float, float]:
        height, width = shown.raw.shape[1:]
        scale = SIDE / max(height, width)
        size = (max(width * scale, SIDE / MAX_RATIO), max(height * scale, SIDE / MAX_RATIO))
        # The shaded picture has the original beside it.
        return (size[0] * (2 + GAP), size[1]) if shaded else size

    def draw_tokens(self, axis: Axes, shown: Shown, coords: np.ndarray) -> str:
        note = draw_boxes(axis, panel_of(shown), coords)
        axis.set_anchor("W")
        rows, columns = len(np.unique(coords[:, 0])), len(np.unique(coords[:, 1]))
        height, width = coords[0, 2:] - coords[0, :2] if len(coords) else (0, 0)
        return f", {rows}×{columns} patches of {height:.3g}×{width:.3g} pixels{note}"

    def draw_shares(
        self, axis: Axes, shown: Shown, coords: np.ndarray, shares: np.ndarray, scale: Normalize
    ) -> None:
        panel = panel_of(shown)
        draw_heat(axis, panel, coords, shares, scale)
        # The original on the left: the colors hide some of it.
        left = -(1 + GAP) * panel.width
        extent = (left, -GAP * panel.width, panel.height, 0)
        axis.imshow(panel.pixels, extent=extent)
        axis.set(xlim=(left, panel.width), ylim=(panel.height, 0), anchor="W")

    def draw_thumbnail(
        self, axis: Axes, shown: Shown, coords: np.ndarray, weights: np.ndarray, scale: Normalize
    ) -> None:
        draw_heat(axis, panel_of(shown), coords, weights, scale)

    def draw_reading(
        self,
        shown: Shown,
        attention: InputAttention,
        path: Path,
        *,
        title: str = "",
        about: str = "",
    ) -> None:
        weights, words, coords = attention.weights, attention.words, attention.coords
        draw_copies(weights, words, panel_of(shown), coords, path, title=title, about=about)

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        # Rows and columns of the grid of patches, from 1.
        rows = np.unique(coords[np.isfinite(coords[:, 0]), 0])
        columns = np.unique(coords[np.isfinite(coords[:, 1]), 1])
        names: list[str | None] = []
        for top, left, *_ in coords:
            row, column = np.searchsorted(rows, top) + 1, np.searchsorted(columns, left) + 1
            names.append(None if np.isnan(top) else f"row {row}, col {column}")
        return names

    def page(self, shown: Shown) -> dict[str, Any]:
        return page_panel(panel_of(shown))

    def boxes(self, shown: Shown, coords: np.ndarray) -> np.ndarray:
        return coords

    def file(self, shown: Shown) -> bytes:
        """Return the image as the content of a PNG file."""
        content = io.BytesIO()
        Image.fromarray(rgb(pixels_of(shown.raw))).save(content, "PNG")
        return content.getvalue()

    def fragment(self, shown: Shown) -> str:
        """Return a small copy of the image as HTML."""
        return picture(panel_of(shown).pixels, f"{shown.name or 'image'} of the sample")


def draw_copies(
    weights: np.ndarray,
    words: Sequence[str],
    panel: Panel,
    coords: np.ndarray,
    path: Path,
    *,
    per_row: int = 6,
    width: float = COPY_INCHES,
    title: str = "",
    about: str = "",
) -> None:
    """Write a PNG with one small copy of an image per word (arXiv:1502.03044, figure 3).

    Args:
        weights: (T, N). Attention weights. All copies have the same color scale.
        words: Titles of the T copies.
        panel: The image.
        coords: (N, 4). Top, left, bottom and right of each token in pixels, or NaN.
        path: File to write.
        per_row: Maximum number of copies per row.
        width: Width of a copy in inches.
        title: Title of the picture.
        about: Line below the title.

    Raises:
        ValueError: If the shapes do not match.
    """
    check_weights(weights, words, len(coords), coords=coords, coords_width=4)
    columns = min(per_row, len(words))
    rows = -(-len(words) // columns)
    # Extreme aspect ratios are limited. The 0.3 inches are for the title of a copy, the last inch
    # for the color bar.
    copy_height = width * min(max(panel.height / panel.width, 1 / MAX_RATIO), MAX_RATIO) + 0.3
    figure = new_figure(width * columns + 1, copy_height * rows + 0.7)
    set_title(figure, title, about)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    # All axes, because the last row may have empty ones.
    for axis in axes:
        axis.set_axis_off()
    scale = heat_scale(weights)
    for axis, word, row in zip(axes, shortened(words), weights, strict=False):
        draw_heat(axis, panel, coords, row, scale)
        axis.set_title(word, fontsize=9)
    color_bar(figure, axes, scale, "attention\nper patch")
    save(figure, path)


def panel_of(shown: Shown) -> Panel:
    """Return the image without axes. The units of its boxes are pixels of `shown.raw`.

    `read` reduces an image to the size that the model needs. If its file still exists, more pixels
    of it are drawn, at the same place.
    """
    height, width = shown.raw.shape[1:]
    raw = shown.raw
    if max(height, width) < FINE_SIDE and is_file(shown.source):
        raw = _fine(shown.source, Path(shown.source).stat().st_mtime_ns, channels=len(raw))
    return Panel(rgb(pixels_of(raw)), width, height)


@functools.lru_cache(maxsize=4)
def _fine(path: str | Path, changed: int, *, channels: int) -> Tensor:
    """Read an image file with a longer side of at most FINE_SIDE pixels.

    The time of its last change is an argument, so that a changed file is read again.
    """

    def reduced(height: int, width: int) -> tuple[int, int]:
        scale = FINE_SIDE / max(height, width)
        return max(round(height * scale), 1), max(round(width * scale), 1)

    return read_image(path, channels=channels, reduced_size=reduced)


def pixels_of(raw: Any) -> np.ndarray:
    """Convert a raw image (C, H, W) to an array (H, W, C)."""
    return raw.permute(1, 2, 0).cpu().numpy()


def rgb(image: np.ndarray) -> np.ndarray:
    """Convert an image (H, W) or (H, W, C) to (H, W, 3).

    Gray is repeated, and channels after the third one are dropped.
    """
    pixels = image if image.ndim == 3 else image[..., None]
    return pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, 2)
