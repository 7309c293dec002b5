"""Draw boxes with their names on a picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dxn.core.display import cut, percent
from dxn.core.marks import Mark
from dxn.core.printable import printable

# Colors that can be told apart on most pictures (Okabe and Ito), for the classes in turn.
COLORS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2", "#ffffff")
MIN_SIDE = 320  # pixels of the longer side; a smaller picture is enlarged, so that names fit
LINES = 160  # the width of a line is the longer side divided by this number
TEXTS = 20  # the same for the height of a text
MIN_TEXT = 11  # pixels
DASH = 4  # length of a dash in widths of a line
MAX_NAME = 24  # characters


def marked(pixels: np.ndarray, marks: Sequence[Mark]) -> np.ndarray:
    """Return a picture uint8 (H, W, 3) with its marks.

    A mark with a score has a solid line and a name, and a true one a dashed line. A small picture
    is enlarged.
    """
    image = Image.fromarray(np.ascontiguousarray(pixels))
    factor = -(-MIN_SIDE // max(image.size))
    if factor > 1:
        size = (image.width * factor, image.height * factor)
        image = image.resize(size, Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(image)
    side = max(image.size)
    width = max(round(side / LINES), 2)
    font = ImageFont.load_default(max(side / TEXTS, MIN_TEXT))
    # The best one last, so that it is on top.
    for mark in sorted(marks, key=lambda mark: -1 if mark.score is None else mark.score):
        top, left, bottom, right = (
            fraction * length
            for fraction, length in zip(mark.box, (image.height, image.width) * 2, strict=True)
        )
        color = COLORS[mark.number % len(COLORS)]
        if mark.score is None:
            _dashed(draw, (left, top, right, bottom), color, width)
            continue
        draw.rectangle((left, top, right, bottom), outline=color, width=width)
        text = f"{cut(printable(mark.label), MAX_NAME)} {percent(mark.score)}"
        _, y0, x1, y1 = draw.textbbox((0, 0), text, font=font)
        # Above the box, or inside of it at the upper edge of the picture.
        x = min(max(left, 0), max(image.width - x1 - width, 0))
        y = top - y1 - width if top >= y1 + width else top
        draw.rectangle((x, y + y0 - 1, x + x1 + width, y + y1 + width), fill=color)
        draw.text(
            (x + width / 2, y), text, fill="black" if _is_light(color) else "white", font=font
        )
    return np.asarray(image)


def _dashed(
    draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], color: str, width: int
) -> None:
    """Draw a rectangle with dashes over a dark line, which are visible on any picture."""
    left, top, right, bottom = box
    draw.rectangle(box, outline="#202020", width=width)
    step = DASH * width
    for start in np.arange(left, right, 2 * step).tolist():
        for y in (top, bottom):
            draw.line((start, y, min(start + step, right), y), fill=color, width=width)
    for start in np.arange(top, bottom, 2 * step).tolist():
        for x in (left, right):
            draw.line((x, start, x, min(start + step, bottom)), fill=color, width=width)


def _is_light(color: str) -> bool:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 110
