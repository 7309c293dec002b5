"""Masks: pictures whose pixels are the values of classes."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from dxn.core.errors import UserError
from dxn.core.marks import Described
from dxn.core.untrusted import shortened
from dxn.tasks.infer import COLOR, MASK, value_of_color
from dxn.tasks.segment.drawn import Drawn
from dxn.tokenize.base import BadMedia
from dxn.tokenize.media import bytes_or_path

# Formats without loss. In others, such as JPEG, the values near the edges of areas are wrong.
FORMATS = ("PNG", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 50_000_000
WHITE = 255  # usual value of pixels without a class
# Distance of 255 from the next level of gray, as a multiple of the largest one between others, from
# which it is not one of these levels.
MAX_STEP = 1.5
# Values with a smaller share of the pixels can be those of edges. A few of them are rare classes.
MIN_SHARE, MIN_EDGES = 0.001, 4
# How masks are written, by the mode of Pillow: bits, gray, 16 bits of gray, palettes and colors.
MODES = {"1": "1", "L": "L", "LA": "L", "La": "L", "PA": "L", "P": "P", "I": "I;16", "F": "I;16"}
MAX_VALUES = 256  # a picture with more different values is a photo instead of a mask
NAMES = "names"  # key of a cell that also has the names of the classes


@dataclass(frozen=True, slots=True, eq=False)
class Mask(Described):
    """The mask of a picture, which is decoded when it is needed.

    Masks are equal if their pixels are, also those of different files.

    Args:
        key: The path, or a hash of the content.
        source: Path, bytes or array (H, W) of the mask, or the objects that it is drawn from.
        size: Height and width.
        mode: How the values are written in its file, see `MODES`. "": there is no file.
        palette: Red, green and blue of each index, if there is a palette.
    """

    key: str
    source: Any = field(repr=False)
    size: tuple[int, int]
    mode: str = field(default="", repr=False)
    palette: bytes = field(default=b"", repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask) or self.size != other.size:
            return False
        return self.key == other.key or np.array_equal(self.values(), other.values())

    def __str__(self) -> str:
        if isinstance(self.source, str):
            return self.source
        return f"mask of {self.size[1]}×{self.size[0]} pixels"

    def values(self) -> np.ndarray:
        """Return the values (H, W) of the pixels.

        Raises:
            UserError: If the file is damaged, or has changed its size.
        """
        try:
            values = decode(self.source)
        except BadMedia as error:
            raise UserError(f"{self.key}: {error}; correct or remove this mask") from error
        if values.shape != self.size:
            raise UserError(
                f"{self.key}: has changed while it was in use: {values.shape} pixels instead of "
                f"{self.size}; start again"
            )
        return values


def names_of(cell: Any) -> dict[int, str]:
    """Return the names of the classes that a cell has, by the value of their pixels.

    Raises:
        UserError: If the cell has other names.
    """
    names = cell.get(NAMES) if isinstance(cell, Mapping) else None
    try:
        return {int(value): str(name) for value, name in dict(names or {}).items()}
    except (TypeError, ValueError):
        raise UserError(
            "data.target: the names of the classes of a mask must be an object with the value of "
            f'the pixels of each class as a key, such as {{"0": "sky"}}, got {shortened(names)}'
        ) from None


def read_mask(cell: Any, origin: str) -> Mask:
    """Return the mask of a cell, of which only the header is read.

    Args:
        cell: Path, bytes, PIL image or uint8 array (H, W) of a mask, or a mapping with the key
            "mask".
        origin: File and row.

    Raises:
        UserError: If it is not a mask.
    """
    source = cell.get(MASK) if isinstance(cell, Mapping) else cell
    if isinstance(source, Image.Image):
        source = np.asarray(source)
    try:
        refusal = getattr(source, "reason", "")  # of a path out of the folder of the data
        if refusal:
            raise BadMedia(refusal)
        if isinstance(source, np.ndarray):
            if source.ndim != 2 or source.dtype.kind not in "uib" or not source.size:
                raise BadMedia(
                    f"an array must have whole numbers (height, width), got {source.dtype} "
                    f"{source.shape}"
                )
            if source.dtype == bool:
                source = source.astype(np.uint8)
            return Mask(_digest(source.tobytes()), source, (source.shape[0], source.shape[1]))
        with _opened(source) as image:
            size = image.height, image.width
            mode = MODES.get(image.mode.partition(";")[0], "RGB")
            palette = bytes(image.getpalette() or ()) if mode == "P" else b""
    except BadMedia as error:
        shown = f"{source} " if isinstance(source, str) else ""
        raise UserError(f"{origin}: the mask {shown}cannot be read: {error}") from error
    key = _digest(source) if isinstance(source, bytes) else str(source)
    return Mask(key, source, size, mode, palette)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def decode(source: Any) -> np.ndarray:
    """Return the values (H, W) of the pixels of a mask.

    They are the indices of a palette, the levels of gray, or 256 + 65536 red + 256 green + blue of
    other colors. So a color has the same value in all files, whatever other colors they have.

    Raises:
        BadMedia: If it cannot be read, or has negative values or decimals.
    """
    values = _decoded(source)
    if values.dtype.kind == "f":
        others = values[values != np.floor(values)]  # also NaN
        if others.size:
            raise BadMedia(f"the value of a class must be a whole number, got {others[0]:g}")
        values = values.astype(np.int64)
    if values.min() < 0:
        raise BadMedia(
            f"the value {values.min()}, but values are from 0; pixels without a class have 255"
        )
    return values


def _decoded(source: Any) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, Drawn):
        return source.values()
    with _opened(source) as image:
        try:
            if image.mode in ("LA", "La", "PA"):
                image = image.convert("L")
            if image.mode in ("1", "L", "P", "F") or image.mode.startswith("I"):
                values = np.asarray(image)
                return values.astype(np.uint8) if image.mode == "1" else values
            pixels = np.asarray(image.convert("RGBA")).reshape(-1, 4)
            red, green, blue = np.moveaxis(np.asarray(image.convert("RGB"), np.int32), -1, 0)
        # Pillow raises, among others, OSError, SyntaxError and struct.error.
        except Exception as error:
            raise BadMedia(f"damaged or truncated ({error})") from error
    if (pixels[:, 3] != pixels[0, 3]).any() and (pixels[:, :3] == pixels[0, :3]).all():
        raise BadMedia(
            "all pixels have the same color, and only their transparency differs, which is not "
            "read; write the classes as levels of gray"
        )
    values = value_of_color(red, green, blue)
    return values.astype(np.uint8) if values.max() < COLOR else values


def _opened(source: Any) -> Image.Image:
    try:
        image = Image.open(bytes_or_path(source), formats=FORMATS)
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, BadMedia):
            raise
        raise BadMedia(
            f"not a picture without loss ({', '.join(FORMATS)}), as a file with the class of each "
            "pixel must be"
        ) from error
    except Image.DecompressionBombError as error:
        raise BadMedia(f"too many pixels ({error})") from error
    if image.width * image.height > MAX_PIXELS:
        raise BadMedia(f"{image.width * image.height:,} pixels, more than {MAX_PIXELS:,}")
    return image


def count_values(values: np.ndarray) -> dict[int, int]:
    """Return the number of pixels with each value.

    Raises:
        BadMedia: If there are more values than classes, of which a dict would need much memory.
    """
    if values.dtype == np.uint8:  # several times faster than sorting
        counts = np.bincount(values.ravel(), minlength=256)
        return {value: int(counts[value]) for value in np.flatnonzero(counts).tolist()}
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > MAX_VALUES + 1:  # one of them can be ignored
        raise BadMedia(
            f"{len(distinct):,} different values, at most {MAX_VALUES} are possible; a mask has "
            "the same value at all pixels of a class, which smooth edges and a lossy format such "
            "as JPEG change"
        )
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def sum_of(counts: Sequence[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for of_mask in counts:
        total.update(of_mask)
    return total


def is_void(counts: Sequence[Mapping[int, int]]) -> bool:
    """Whether 255 is the value of pixels without a class, as in most data sets.

    It is a class of masks of black and white, of colors, and of levels of gray as far from it as
    from each other, such as 0, 128 and 255.
    """
    values = sorted({value for of_mask in counts for value in of_mask} - {WHITE})
    if not {*values} - {0} or values[-1] > WHITE:
        return False
    with_white = [of_mask for of_mask in counts if WHITE in of_mask]
    if 2 * _num_black_and_white(with_white) > len(with_white):
        return False
    steps = [b - a for a, b in pairwise(values)]
    return WHITE - values[-1] > MAX_STEP * max(steps, default=0)


def _num_black_and_white(counts: Sequence[Mapping[int, int]]) -> int:
    return sum(of_mask.keys() == {0, WHITE} for of_mask in counts)


def note_on_white(counts: Sequence[Mapping[int, int]], ignored: int | None) -> str:
    """Say whether 255 is a class, if other values than 0 leave this open."""
    total = sum_of(counts)
    share = f"{total[WHITE] / max(total.total(), 1):.1%}"
    if not total[WHITE] or not total.keys() - {0, WHITE}:
        return ""
    if ignored == WHITE:
        return f"the value 255 ({share}) is ignored; head.ignore=-1 makes it a class"
    number = _num_black_and_white(counts)
    others = f"; {number:,} masks have only 0 and 255, unlike others" if number else ""
    return f"the value 255 ({share}) is a class; head.ignore=255 ignores it{others}"


def note_on_edges(total: Counter[int], ignored: int | None) -> str:
    """Say whether most values are rare and lie between others, as those of smooth edges."""
    rare = {value for value, n in total.items() if n < MIN_SHARE * total.total()} - {ignored}
    usual = total.keys() - rare
    if len(rare) < MIN_EDGES or len(rare) <= len(usual):
        return ""
    limit = f"at most {MAX_VALUES} are possible, and " if len(total) > MAX_VALUES else ""
    return (
        f"{limit}{len(rare):,} values have less than {MIN_SHARE:.1%} of the pixels each, as if "
        "edges were smooth or a format had lost details; write masks without anti-aliasing, so "
        "that each value is a class"
    )


def indexed(values: np.ndarray, expected: Sequence[int], other: int) -> np.ndarray:
    """Return the index (H, W) int64 of each value in the sorted list `expected`, or `other`."""
    table = np.asarray(expected)
    index = np.searchsorted(table, values).clip(max=len(table) - 1)
    return np.where(table[index] == values, index, other)


def palette(count: int) -> list[int]:
    """Return red, green and blue of each class: black, and then colors that differ much."""
    colors: list[int] = []
    for number in range(count):
        channels = [0, 0, 0]
        rest, step = number, 0
        while rest:
            for channel in range(3):
                channels[channel] |= (rest >> channel & 1) << (7 - step)
            rest, step = rest >> 3, step + 1
        colors += channels
    return colors


def name_of_value(value: int, mode: str) -> str:
    """Return the name of a class without one: its value, or its color such as #ff8000."""
    return f"#{bytes(color_of(value)).hex()}" if mode == "RGB" else str(value)


def color_of(value: int) -> tuple[int, int, int]:
    """Return red, green and blue of a value of a mask of colors, see `decode`."""
    if value < COLOR:
        return value, value, value
    color = value - COLOR
    return color >> 16, color >> 8 & 255, color & 255


def png(classes: np.ndarray, values: Sequence[int], mode: str, colors: Sequence[int]) -> bytes:
    """Return a PNG file with the classes of pixels, written as in the masks of a training.

    Args:
        classes: (H, W). Index of the class of each pixel.
        values: Value of each class.
        mode: See `MODES`. "": indices of a palette, or levels of gray if they are too large.
        colors: Red, green and blue of each index of the palette.
    """
    if mode == "RGB":
        image = Image.fromarray(np.array([color_of(v) for v in values], np.uint8)[classes])
    else:
        pixels = np.asarray(values)[classes]
        if mode == "1":
            image = Image.fromarray(pixels.astype(bool))
        elif mode == "I;16" or max(values) > 255:
            image = Image.fromarray(pixels.astype(np.uint16))
        else:
            image = Image.fromarray(pixels.astype(np.uint8))
            if mode != "L":
                image.putpalette(colors)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def data_url(content: bytes) -> str:
    """Return a PNG file as a text."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
