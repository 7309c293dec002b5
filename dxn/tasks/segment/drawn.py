"""Masks that are drawn from objects with polygons or run lengths, as in COCO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.tasks.detect.objects import (
    MAX_FRACTION,
    is_crowd,
    is_ignored,
    label_of,
    list_of_objects,
)
from dxn.tokenize.base import BadMedia

SEGMENTATION = "segmentation"  # key of the polygons or run lengths of an object
BACKGROUND = "background"  # name of the pixels without an object, whose value is 0
UNKNOWN = 65535  # value of a class that the training split does not have
# Rows that the edges of all polygons of a picture cross: each pixel some times, or a number that
# takes about a second. More are damaged or made to take time.
MAX_CROSSINGS, CROSSINGS_PER_PIXEL = 10_000_000, 4
MAX_EXTENT = 4096  # pixels of a picture whose size is not known
CHUNK = 1_000_000  # crossings at a time, which limits the memory
FIRST = ord("0")  # character of the number 0 in compressed run lengths
BITS = 5  # of a number in a character


class Area(NamedTuple):
    """An object of a picture.

    Args:
        label: Its class.
        area: Its polygons or run lengths.
        is_crowd: Whether it is a region with many objects.
        is_ignored: Whether it need not be found, as such a region.
    """

    label: str
    area: Any
    is_crowd: bool = False
    is_ignored: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """Objects that become a mask when it is needed.

    Args:
        objects: Value of each object, and its polygons or run lengths.
        size: Height and width of the mask.
    """

    objects: tuple[tuple[int, Any], ...]
    size: tuple[int, int]

    def values(self) -> np.ndarray:
        """Return the values (H, W) of the pixels: 0, and that of the last object at each pixel.

        Raises:
            BadMedia: If an object has neither polygons nor run lengths that fit the picture.
        """
        kind = np.uint8 if all(value < 256 for value, _ in self.objects) else np.int32
        values = np.zeros(self.size, kind)
        for value, area in self.objects:
            if isinstance(area, Mapping):
                values[run_lengths(area, self.size)] = value
                continue
            for corners in polygons(area):
                top, inside = filled(corners, self.size)
                values[top : top + len(inside)][inside] = value
        return values


def labels_of(cells: Sequence[Any]) -> list[str]:
    """Return the sorted classes of the objects in cells, of which other cells have none."""
    items = (item for cell in cells for item in list_of_objects(cell) or ())
    labels = {label_of(item) for item in items if isinstance(item, Mapping)}
    return sorted(label for label in labels if label is not None and label != BACKGROUND)


def check_units(cells: Sequence[Any]) -> None:
    """Check that polygons are in pixels.

    Raises:
        UserError: If most of them lie within the first pixel, as fractions of a picture do.
    """
    num_small = num_large = 0
    for cell in cells:
        for item in list_of_objects(cell) or ():
            area = item.get(SEGMENTATION) if isinstance(item, Mapping) else None
            with suppress(BadMedia):  # is reported when the rows are read
                for corners in () if isinstance(area, Mapping) or area is None else polygons(area):
                    is_small = corners.max() <= MAX_FRACTION
                    num_small, num_large = num_small + is_small, num_large + (not is_small)
    if num_small > num_large:
        raise UserError(
            f"data.target: {num_small:,} of {num_small + num_large:,} polygons lie within one "
            "pixel, as if they were fractions of the picture; write their corners in pixels"
        )


def read_drawn(
    cell: Any,
    origin: str,
    values: Mapping[str, int],
    size: tuple[int, int],
    unused: Counter[str],
) -> Drawn | None:
    """Return the mask of a cell with a list of objects; None if it is anything else.

    A region with many objects (iscrowd) lies behind single ones.

    Args:
        cell: Objects, such as {"label": "cat", "segmentation": [[x, y, x, y, x, y]]}, or their text
            in JSON. The polygons can also be run lengths {"size": [H, W], "counts": ...}.
        origin: File and row.
        values: Value of each class.
        size: Height and width of the picture.
        unused: Numbers of objects without a pixel, by row, which are left out and counted.

    Raises:
        UserError: If an object has no class, or neither polygons nor run lengths.
    """
    areas = read_areas(cell, origin, size, unused)
    if areas is None:
        return None
    areas = sorted(areas, key=lambda area: not area.is_crowd)  # keeps the order of equal keys
    names = {**values, BACKGROUND: 0}
    return Drawn(tuple((names.get(area.label, UNKNOWN), area.area) for area in areas), size)


def read_areas(
    cell: Any, origin: str, size: tuple[int, int], unused: Counter[str]
) -> list[Area] | None:
    """Return the objects of a cell; None if it is no list of objects.

    The arguments are those of `read_drawn`.

    Raises:
        UserError: If an object has no class, or neither polygons nor run lengths.
    """
    if isinstance(cell, Mapping) and SEGMENTATION not in cell and "objects" not in cell:
        return None
    items = list_of_objects(cell)
    if items is None:
        return None
    areas: list[Area] = []
    num_crossings = 0
    for item in items:
        label = label_of(item) if isinstance(item, Mapping) else None
        if label is None or SEGMENTATION not in item:
            raise UserError(
                f"{origin}: an object of a mask must have a label and a segmentation (polygons or "
                f"run lengths), got {shortened(item)}; objects with boxes alone need head=detect"
            )
        area = item[SEGMENTATION]
        try:
            if isinstance(area, Mapping):
                is_inside = bool(run_lengths(area, size).any())
            else:
                is_inside = False
                for corners in polygons(area):
                    crossings = int(_rows(corners, size)[1].sum())
                    num_crossings += crossings
                    is_beside = corners[:, 0].max() <= 0 or corners[:, 0].min() >= size[1]
                    is_inside |= crossings > 0 and not is_beside
            if num_crossings > MAX_CROSSINGS + CROSSINGS_PER_PIXEL * size[0] * size[1]:
                raise BadMedia(
                    f"the polygons have too many long edges for a picture of {size[1]}×{size[0]} "
                    "pixels; write fewer points, or run lengths"
                )
        except BadMedia as error:
            raise UserError(f"{origin}: {error}") from error
        if not is_inside:
            unused[origin] += 1
            continue
        areas.append(Area(label, area, is_crowd(item), is_ignored(item)))
    return areas


def extent(cell: Any) -> tuple[int, int]:
    """Return the height and width up to which the objects of a cell reach, from 1 to MAX_EXTENT.

    Raises:
        BadMedia: If an object has neither polygons nor run lengths.
    """
    ends = [np.ones(2)]
    for item in list_of_objects(cell) or ():
        area = item.get(SEGMENTATION) if isinstance(item, Mapping) else None
        if isinstance(area, Mapping):
            with suppress(TypeError, ValueError, OverflowError):
                ends.append(np.asarray(area.get("size"), np.float64).reshape(2))
        elif area is not None:
            ends += [corners.max(0)[::-1] for corners in polygons(area)]
    height, width = np.nan_to_num(np.ceil(np.max(ends, 0))).clip(1, MAX_EXTENT).astype(int).tolist()
    return height, width


def polygons(area: Any) -> list[np.ndarray]:
    """Return the corners (n, 2) of polygons, written as x, y, x, y, ... or as a list of corners.

    Raises:
        BadMedia: If they are anything else.
    """
    try:
        # A single polygon can be a list of corners.
        is_single = len(area) > 2 and all(np.shape(part) == (2,) for part in area)
        parts = [area] if is_single else area
        corners = [np.asarray(polygon, np.float64).reshape(-1, 2) for polygon in parts]
        # Only a damaged file has corners that far outside of a picture.
        if all(np.abs(polygon).max(initial=0) < 1e6 for polygon in corners):
            return [polygon for polygon in corners if len(polygon) > 2]
    except (TypeError, ValueError, OverflowError):
        pass
    raise BadMedia(
        "a segmentation must be a list of polygons [x, y, x, y, x, y], or run lengths with the "
        f"keys size and counts, got {shortened(area)}"
    )


def filled(corners: np.ndarray, size: tuple[int, int]) -> tuple[int, np.ndarray]:
    """Return the first row of a polygon, and the pixels (h, W) whose center is inside.

    Args:
        corners: (n, 2). x and y of the corners, in pixels from the upper left edge.
        size: Height and width of the picture.
    """
    width = size[1]
    (x, y), (next_x, next_y) = corners.T, np.roll(corners, -1, 0).T
    first, counts = _rows(corners, size)
    used = np.flatnonzero(counts)
    if not len(used):
        return 0, np.zeros((0, width), bool)
    top, bottom = int(first[used].min()), int((first + counts)[used].max())
    changes = np.zeros((bottom - top) * (width + 1), np.int64)
    for part in np.split(used, _starts(counts[used])):
        edge = np.repeat(part, counts[part])
        starts = counts[part].cumsum() - counts[part]
        row = np.arange(len(edge)) - np.repeat(starts, counts[part]) + first[edge]
        slope = (next_x[edge] - x[edge]) / (next_y[edge] - y[edge])
        crossing = x[edge] + (row + 0.5 - y[edge]) * slope
        column = np.ceil(crossing - 0.5).clip(0, width).astype(np.int64)
        changes += np.bincount((row - top) * (width + 1) + column, minlength=len(changes))
    # Each edge on the left changes whether a pixel is inside.
    return top, changes.reshape(-1, width + 1).cumsum(1)[:, :width] % 2 == 1


def _rows(corners: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row whose center each edge of a polygon crosses, and the number of rows."""
    y, next_y = corners[:, 1], np.roll(corners[:, 1], -1)
    first = np.ceil(np.minimum(y, next_y) - 0.5).clip(0, size[0]).astype(np.int64)
    last = np.ceil(np.maximum(y, next_y) - 0.5).clip(0, size[0]).astype(np.int64)
    return first, last - first


def _starts(counts: np.ndarray) -> np.ndarray:
    """Return where parts of at most about `CHUNK` crossings start, except the first one."""
    parts = (counts.cumsum() - 1) // CHUNK
    return np.flatnonzero(np.diff(parts)) + 1


def run_lengths(area: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Return the mask (H, W) bool of run lengths.

    They alternate between pixels outside and inside, column by column. The text of compressed ones
    has 5 bits per character, the lowest first, and from the fourth one on, each run is the
    difference to the one two before.

    Args:
        area: "size", height and width, and "counts", a list or a compressed text.
        size: Height and width of the picture.

    Raises:
        BadMedia: If they do not fit the picture.
    """
    try:
        written_size = tuple(map(int, area["size"]))
        counts = area["counts"]
        if isinstance(counts, bytes):
            counts = counts.decode("ascii")
        if isinstance(counts, str):
            counts = _uncompressed(counts)
        runs = np.asarray(counts, np.int64).reshape(-1)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadMedia(
            f"run lengths must have the keys size and counts, got {shortened(area)}"
        ) from error
    if written_size != size:
        raise BadMedia(
            f"run lengths of {written_size[::-1]} pixels do not fit the picture of {size[::-1]}"
        )
    total = sum(runs.tolist())  # that of NumPy overflows for huge runs
    expected = size[0] * size[1]
    if (runs < 0).any() or total != expected:
        raise BadMedia(f"run lengths must have a sum of {expected:,} pixels, got {total:,}")
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape(size[::-1]).T.copy()


def runs_of(mask: np.ndarray) -> np.ndarray:
    """Return the run lengths of a mask (H, W), see `run_lengths`."""
    flat = mask.T.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(np.concatenate([[0], edges, [flat.size]]))
    return np.concatenate([[0], runs]) if flat.size and flat[0] else runs


def compressed(runs: np.ndarray) -> str:
    """Return run lengths as a text, see `run_lengths`."""
    numbers = runs.astype(np.int64)
    numbers[3:] -= runs[1:-2]
    chars: list[str] = []
    for number in numbers.tolist():
        while True:
            bits, number = number & 31, number >> BITS
            is_last = number == (-1 if bits & 16 else 0)
            chars.append(chr(FIRST + bits + (0 if is_last else 32)))
            if is_last:
                break
    return "".join(chars)


def _uncompressed(text: str) -> list[int]:
    runs: list[int] = []
    number = shift = 0
    for char in text:
        bits = ord(char) - FIRST
        number |= (bits & 31) << shift
        shift += BITS
        if bits & 32:  # more characters of this number follow
            continue
        if bits & 16:  # the sign
            number -= 1 << shift
        runs.append(number + (runs[-2] if len(runs) > 2 else 0))
        number = shift = 0
    if shift:
        raise ValueError("the last number is incomplete")
    return runs
