"""Masks beside their picture, with the classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import ImageColor

from dxn.core.display import percent
from dxn.core.marks import Areas
from dxn.core.printable import printable
from dxn.viz.html import escaped
from dxn.viz.media import SIDE, picture

OTHER = "#c8c8c8"  # color of pixels without a class
MAX_CLASSES = 12  # in a legend


def masks(pixels: np.ndarray, alt: str, areas: Sequence[Areas]) -> str:
    """Return a picture uint8 (H, W, 3) with its masks beside it and a legend as HTML.

    With a true and a predicted mask, the legend has the intersection over union of each class.
    """
    figures = [("picture", picture(pixels, alt))]
    for area in areas:
        name = "predicted" if area.size is None else "true"
        drawing = picture(_colored(area, pixels.shape[:2]), f"{name} mask", drawing=True)
        figures.append((name, drawing))
    parts = "".join(
        f"<figure>{html}<figcaption>{name}</figcaption></figure>" for name, html in figures
    )
    return f'<div class="masks">{parts}</div>{_legend(areas)}'


def _colored(areas: Areas, size: tuple[int, ...]) -> np.ndarray:
    """Return a mask as a picture (H, W, 3) with about as many pixels as are shown."""
    scale = min(SIDE / max(size), 1)
    classes = areas.at((max(round(size[0] * scale), 1), max(round(size[1] * scale), 1)))
    colors = np.array([ImageColor.getrgb(color) for color in (*areas.colors, OTHER)], np.uint8)
    count = len(areas.colors)
    return colors[np.where((classes >= 0) & (classes < count), classes, count)]


def _legend(areas: Sequence[Areas]) -> str:
    """Return the classes that a mask has, those with most pixels first, and their overlap."""
    size = next((area.size for area in areas if area.size is not None), None)
    first = areas[0]
    count = len(first.labels)
    classes = [area.at(size or (SIDE, SIDE)) for area in areas]
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
