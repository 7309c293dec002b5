"""Draw images: the pixels with a box around each patch, and masks beside their picture."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageColor
from torch import Tensor

from dxn.core.display import percent
from dxn.core.marks import Areas, Mark
from dxn.core.printable import printable
from dxn.tokenize.image.reader import ImageReader
from dxn.viz.drawers.drawer import Shown, is_file
from dxn.viz.drawers.panel import MAX_RATIO, Panel, PanelDrawer
from dxn.viz.html import escaped
from dxn.viz.marks import marked
from dxn.viz.media import PICTURE_SIDE, encoded, picture

SIDE = 3.6  # inches of the longer side of an image
FINE_SIDE = 640  # pixels of the longer side of an image that is drawn from its file
OTHER = "#c8c8c8"  # color of pixels without a class
MAX_CLASSES = 12  # in a legend


class ImageDrawer(PanelDrawer):
    """Draws a uint8 tensor (C, H, W). Coordinates are (top, left, bottom, right) in pixels."""

    unit = "patch"

    def size(self, shown: Shown) -> tuple[float, float]:
        height, width = shown.raw.shape[1:]
        scale = SIDE / max(height, width)
        return max(width * scale, SIDE / MAX_RATIO), max(height * scale, SIDE / MAX_RATIO)

    def note(self, shown: Shown, coords: np.ndarray) -> str:
        rows, columns = len(np.unique(coords[:, 0])), len(np.unique(coords[:, 1]))
        height, width = coords[0, 2:] - coords[0, :2] if len(coords) else (0, 0)
        return f", {rows}×{columns} patches of {height:.3g}×{width:.3g} pixels"

    def token_names(self, shown: Shown, coords: np.ndarray) -> list[str | None]:
        places = grid_places(coords)
        return [None if place is None else f"row {place[0]}, col {place[1]}" for place in places]

    def panel(self, shown: Shown) -> Panel:
        """Return the image without axes. The units of its boxes are pixels of `shown.raw`.

        `read` reduces an image to the size that the model needs. If its file still exists, more
        pixels of it are drawn, at the same place.
        """
        height, width = shown.raw.shape[1:]
        raw = shown.raw
        if max(height, width) < FINE_SIDE and is_file(shown.source):
            raw = _fine(shown.source, Path(shown.source).stat().st_mtime_ns, channels=len(raw))
        return Panel(rgb(raw), width, height)

    def marked_fragment(self, shown: Shown, marks: Sequence[Mark | Areas]) -> str:
        """Return the image as HTML with true and predicted boxes or masks beside each other."""
        areas = [mark for mark in marks if isinstance(mark, Areas)]
        if areas:
            return masks(self.panel(shown).pixels, self.describe(shown), areas)
        boxes = [mark for mark in marks if isinstance(mark, Mark)]
        pixels = self.panel(shown).pixels
        kinds = {
            "true": [mark for mark in boxes if mark.score is None],
            "predicted": [mark for mark in boxes if mark.score is not None],
        }
        alt = self.describe(shown)
        return figures({n: picture(marked(pixels, m), f"{alt}, {n}") for n, m in kinds.items()})

    def file(self, shown: Shown) -> bytes:
        """Return the image as the content of a PNG file."""
        return encoded(Image.fromarray(rgb(shown.raw)), "PNG")


def grid_places(boxes: np.ndarray) -> list[tuple[int, int] | None]:
    """Return the row and column of each box (N, 4) in its grid, from 1; None for padding."""
    rows = np.unique(boxes[np.isfinite(boxes[:, 0]), 0])
    columns = np.unique(boxes[np.isfinite(boxes[:, 1]), 1])
    return [
        None
        if np.isnan(top)
        else (int(np.searchsorted(rows, top)) + 1, int(np.searchsorted(columns, left)) + 1)
        for top, left, *_ in boxes
    ]


@functools.lru_cache(maxsize=4)
def _fine(path: str | Path, changed: int, *, channels: int) -> Tensor:
    """Read an image file with a longer side of at most FINE_SIDE pixels.

    The time of its last change is an argument, so that a changed file is read again.
    """

    def reduced(height: int, width: int) -> tuple[int, int]:
        scale = FINE_SIDE / max(height, width)
        return max(round(height * scale), 1), max(round(width * scale), 1)

    return ImageReader(channels=channels, reduced_size=reduced).read(path)


def rgb(raw: Any) -> np.ndarray:
    """Convert a raw image (C, H, W) to an array (H, W, 3).

    Gray is repeated, and channels after the third one are dropped.
    """
    pixels = raw.permute(1, 2, 0).cpu().numpy()
    return pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, 2)


def masks(pixels: np.ndarray, alt: str, areas: Sequence[Areas]) -> str:
    """Return a picture uint8 (H, W, 3) with its masks beside it and a legend as HTML.

    With a true and a predicted mask, the legend has the intersection over union of each class.
    """
    pictures = {"picture": picture(pixels, alt)}
    for area in areas:
        name = "predicted" if area.size is None else "true"
        drawn = _colored(area, pixels.shape[:2])
        pictures[name] = picture(drawn, f"{name} mask", drawing=True)
    return figures(pictures) + _legend(areas)


def figures(pictures: Mapping[str, str]) -> str:
    """Return pictures beside each other as HTML, by their captions."""
    parts = "".join(
        f"<figure>{html}<figcaption>{name}</figcaption></figure>" for name, html in pictures.items()
    )
    return f'<div class="masks">{parts}</div>'


def _colored(areas: Areas, size: tuple[int, ...]) -> np.ndarray:
    """Return a mask as a picture (H, W, 3) with about as many pixels as are shown."""
    scale = min(PICTURE_SIDE / max(size), 1)
    classes = areas.at((max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)))
    colors = np.array([ImageColor.getrgb(color) for color in (*areas.colors, OTHER)], np.uint8)
    count = len(areas.colors)
    return colors[np.where((classes >= 0) & (classes < count), classes, count)]


def _legend(areas: Sequence[Areas]) -> str:
    """Return the classes that a mask has, those with most pixels first, and their overlap."""
    size = next((area.size for area in areas if area.size is not None), None)
    first = areas[0]
    count = len(first.labels)
    classes = [area.at(size or (PICTURE_SIDE, PICTURE_SIDE)) for area in areas]
    is_known = np.all([pixels >= 0 for pixels in classes], axis=0)
    numbers = [
        np.bincount(pixels[is_known].clip(max=count), minlength=count + 1) for pixels in classes
    ]
    order: list[int] = np.argsort(-np.sum(numbers, axis=0), kind="stable").tolist()
    items: list[str] = []
    shown = [i for i in order if i < count and any(counts[i] for counts in numbers)]
    for i in shown[:MAX_CLASSES]:
        swatch = f'<span class="swatch" style="background:{escaped(first.colors[i])}"></span>'
        overlap = ""
        if len(classes) == 2:
            common = int((is_known & (classes[0] == i) & (classes[1] == i)).sum())
            union = int(sum(counts[i] for counts in numbers)) - common
            overlap = f", IoU {percent(common / union)}"
        items.append(f"<li>{swatch}{escaped(printable(first.labels[i]))}{overlap}</li>")
    if len(shown) > MAX_CLASSES:
        items.append(f"<li>and {len(shown) - MAX_CLASSES} more</li>")
    if any((pixels < 0).any() or (pixels >= count).any() for pixels in classes):
        items.append(
            f'<li><span class="swatch" style="background:{OTHER}"></span>no class, or one that is '
            "not in the training split</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>'
