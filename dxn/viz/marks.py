"""Draw objects on a picture: their masks or boxes, and their names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from dxn.core.display import cut, percent
from dxn.core.marks import Mark
from dxn.core.printable import printable

# Colors that can be told apart on most pictures (Okabe and Ito), for the classes in turn.
COLORS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2", "#ffffff")
MIN_SIDE = 320  # pixels of the longer side; a smaller picture is enlarged, so that names fit
LINES = 160  # the width of a line is the longer side divided by this number
TEXTS = 20  # the same for the height of a text
MIN_TEXT = 11  # pixels
MAX_NAME = 24  # characters
AREA = 0.5  # opacity of a mask


def marked(pixels: np.ndarray, marks: Sequence[Mark]) -> np.ndarray:
    """Return a picture uint8 (H, W, 3) with its marks, their masks and their names.

    A name that would cover that of a mark with a higher score is left out. A small picture is
    enlarged.
    """
    ranked = sorted(marks, key=lambda mark: 1.0 if mark.score is None else mark.score)
    image = Image.fromarray(_filled(pixels, ranked))
    factor = -(-MIN_SIDE // max(image.size))
    if factor > 1:
        size = (image.width * factor, image.height * factor)
        image = image.resize(size, Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    side = max(image.size)
    width = max(round(side / LINES), 2)
    font = ImageFont.load_default(max(side / TEXTS, MIN_TEXT))
    places = [_pixels(mark, image) for mark in ranked]
    # The best one last, so that it is on top.
    for mark, place in zip(ranked, places, strict=True):
        draw.rectangle(place, outline=color_of(mark.number), width=width)
    taken: list[tuple[float, ...]] = []
    for mark, (left, top, _, _) in zip(ranked[::-1], places[::-1], strict=True):
        score = "" if mark.score is None else f" {percent(mark.score)}"
        text = f"{cut(printable(mark.label), MAX_NAME)}{score}"
        _, y0, x1, y1 = draw.textbbox((0, 0), text, font=font)
        # Above the box, or inside of it at the upper edge of the picture.
        x = min(max(left, 0), max(image.width - x1 - width, 0))
        y = top - y1 - width if top >= y1 + width else top
        place = (x, y + y0 - 1, x + x1 + width, y + y1 + width)
        if any(_overlap(place, other) for other in taken):
            continue
        taken.append(place)
        color = color_of(mark.number)
        draw.rectangle(place, fill=color)
        ink = "black" if is_light(color) else "white"
        draw.text((x + width / 2, y), text, fill=ink, font=font)
    return np.asarray(image)


def _filled(pixels: np.ndarray, marks: Sequence[Mark]) -> np.ndarray:
    """Return a picture in which the masks of marks are colored, the last one on top."""
    colors = np.array(pixels, np.float32)
    weights = np.zeros((*pixels.shape[:2], 1), np.float32)
    for mark in marks:
        if mark.mask is not None:
            rows, columns = (
                ((np.arange(length) + 0.5) * count / length).astype(int)
                for length, count in zip(pixels.shape, mark.mask.shape, strict=False)
            )
            inside = mark.mask[np.ix_(rows, columns)]
            colors[inside] = ImageColor.getrgb(color_of(mark.number))
            weights[inside] = AREA
    return np.round(pixels * (1 - weights) + colors * weights).astype(np.uint8)


def _pixels(mark: Mark, image: Image.Image) -> tuple[float, float, float, float]:
    top, left, bottom, right = mark.box
    return left * image.width, top * image.height, right * image.width, bottom * image.height


def _overlap(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    left, top, right, bottom = first
    return left < second[2] and second[0] < right and top < second[3] and second[1] < bottom


def color_of(number: int) -> str:
    """Return the color of the marks of a number, such as #e69f00."""
    return COLORS[number % len(COLORS)]


def is_light(color: str) -> bool:
    """Return whether black letters are easier to read on a color than white ones."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 100
