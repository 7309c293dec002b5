"""The objects in a cell of a table: a list of boxes or intervals, each with a class."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dxn.core.display import join_names, list_names
from dxn.core.errors import UserError
from dxn.core.marks import Described
from dxn.core.untrusted import parsed_cell, shortened
from dxn.tasks.names import class_name
from dxn.tokenize.cells.cell_values import plain_number

Box = tuple[float, ...]  # the start on each axis, then the stop on each axis
Order = Literal["corners", "size", "center"]

# Keys of the class of an object.
CLASS_KEYS = (
    *("label", "labels", "class", "class_name", "label_name", "labelname", "category"),
    *("category_name", "event_label", "name", "type", "event"),
)
# Keys of a list of four numbers, and what these are. COCO has left, top, width and height.
BOX_KEYS: dict[str, Order] = {
    "box": "corners",
    "bbox": "size",
    "bounding_box": "corners",
    "xyxy": "corners",
    "xywh": "size",
    "cxcywh": "center",
}
# Keys of single numbers in the order of such a list.
SIDE_KEYS: tuple[tuple[tuple[str, ...], Order], ...] = (
    (("left", "top", "right", "bottom"), "corners"),
    (("xmin", "ymin", "xmax", "ymax"), "corners"),
    (("x_min", "y_min", "x_max", "y_max"), "corners"),
    (("x1", "y1", "x2", "y2"), "corners"),
    (("cx", "cy", "width", "height"), "center"),
    (("cx", "cy", "w", "h"), "center"),
    (("x", "y", "width", "height"), "size"),
    (("x", "y", "w", "h"), "size"),
    (("start", "stop"), "corners"),
    (("start", "end"), "corners"),
    (("start_time", "end_time"), "corners"),
    (("start_seconds", "end_seconds"), "corners"),
    (("onset", "offset"), "corners"),
    (("onset", "duration"), "size"),
    (("start", "duration"), "size"),
)
# Keys of flags, 0 or 1: a region with many objects of a class, and an object that is hard to see.
CROWD_KEYS = ("iscrowd", "is_crowd")
IGNORED_KEYS = (*CROWD_KEYS, "difficult", "is_difficult")
MAX_FRACTION = 1.01  # of a place at the edge of a picture, because of rounding
MAX_SHOWN = 3  # rows in a note
# By number of axes.
EXAMPLES = {
    1: '[{"label": "bell", "start": 0.5, "end": 1.5}]',
    2: '[{"label": "cat", "box": [left, top, right, bottom]}]',
}


class Ignored(NamedTuple):
    """An object that need not be found: the metrics leave out what finds it.

    Args:
        label: Its class.
        place: Its box, or the polygons or run lengths of its mask.
        is_crowd: Whether it is a region with many objects, each of which lies in it.
    """

    label: str
    place: Any
    is_crowd: bool


@dataclass(frozen=True, slots=True)
class Objects(Described):
    """The objects of a sample.

    Args:
        labels: Class of each object.
        boxes: Box of each object: top, left, bottom and right as fractions of a picture, or start
            and stop of an event in seconds or steps.
        ignored: Further objects, with which the model is neither trained nor evaluated.
    """

    labels: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    ignored: tuple[Ignored, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> Sequence[str]:
        """The class of each object."""
        return self.labels

    def __str__(self) -> str:
        return join_names(self.labels) or "no objects"


def list_of_objects(cell: Any) -> list[Any] | None:
    """Return the items of a cell with a list of objects, or its text; None if it is none."""
    if isinstance(cell, str):
        cell = parsed_cell(cell)
    if isinstance(cell, Mapping):
        cell = cell.get("objects", [cell])
    return list(cell) if isinstance(cell, list | tuple) else None


def label_of(item: Mapping[str, Any]) -> str | None:
    """Return the class of an object, None if it has none."""
    label = next((item[key] for key in CLASS_KEYS if key in item), None)
    is_name = isinstance(label, str | int | float) and str(label).strip()
    return class_name(label) if is_name else None


def check_size(cell: Any, origin: str, size: tuple[int, int]) -> None:
    """Check that the objects of a cell are for a picture of this size, if the cell names one.

    Args:
        cell: Objects; a mapping can have them as "objects" beside "width" and "height".
        origin: File and row.
        size: Height and width of the picture, as it is shown.

    Raises:
        UserError: If it has another size.
    """
    if not isinstance(cell, Mapping) or "objects" not in cell:
        return
    # They can be texts, as in XML and CSV.
    written = tuple(map(plain_number, (cell.get("height"), cell.get("width"))))
    if None in written or written == size:
        return
    turned = "; if EXIF turns it, save it without" if written == size[::-1] else ""
    raise UserError(
        f"{origin}: the objects are for a picture of {written[1]:g}×{written[0]:g} pixels, but it "
        f"has {size[1]}×{size[0]}{turned}; correct the width and height of the annotations, or use "
        "the picture that was annotated"
    )


def note_on_rows(rows: Counter[str], what: str) -> str:
    """Return a sentence about objects, from their number by row; "" if there are none."""
    shown = list_names([*rows], MAX_SHOWN)
    return f"objects of all splits {what}: {rows.total():,} ({shown})" if rows else ""


def category_ids(cells: Sequence[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the id of each class in cells with objects of COCO, and notes about several ids.

    If a class has several ids, most of its objects have the id that is returned.
    """
    counts: dict[str, Counter[Any]] = {}
    for cell in cells:
        # A text has no ids of COCO, and it takes time to parse.
        for item in () if isinstance(cell, str) else list_of_objects(cell) or ():
            number = item.get("category_id") if isinstance(item, Mapping) else None
            label = None if number is None else label_of(item)
            if label is not None and isinstance(number, int | str):
                counts.setdefault(label, Counter())[number] += 1
    ids = {label: numbers.most_common(1)[0][0] for label, numbers in counts.items()}
    notes = [
        f"target: the class {label!r} has several ids of categories "
        f"({', '.join(map(str, numbers))}); results in the format of COCO get {ids[label]}"
        for label, numbers in counts.items()
        if len(numbers) > 1
    ]
    return ids, notes


def is_crowd(item: Mapping[str, Any]) -> bool:
    """Whether an object is a region with many objects."""
    return any(_is_set(item.get(key)) for key in CROWD_KEYS)


def is_ignored(item: Mapping[str, Any]) -> bool:
    """Whether an object need not be found."""
    return any(_is_set(item.get(key)) for key in IGNORED_KEYS)


def _is_set(flag: Any) -> bool:
    """Whether a flag is 1 or true. In XML and CSV files, it is a text, also "0"."""
    return str(flag).strip().lower() in ("1", "1.0", "true")


def are_objects(cells: Sequence[Any]) -> bool:
    """Return whether most target cells are lists of objects with boxes; a list can also be empty.

    The others are reported when the rows are read. They must not turn the lists into classes.
    """
    right = wrong = 0
    for cell in cells:
        items = list_of_objects(cell)
        if items:
            has_places = all(map(_has_place, items))
            right, wrong = right + has_places, wrong + (not has_places)
        elif items is None:
            wrong += 1
    return right > wrong


def _has_place(item: Any) -> bool:
    try:
        numbers, _ = _box_of(item, "")
    except UserError:
        return False
    return len(numbers) in (2, 4)


def read_objects(cell: Any, origin: str, *, axes: int, order: Order | None) -> Objects:
    """Read the objects of a cell, in the units in which they are written.

    Args:
        cell: A list of objects or its text in JSON. An object has a class and a box, such as
            {"label": "cat", "box": [left, top, right, bottom]}, {"name": "cat", "bbox": [left, top,
            width, height]}, {"label": "cat", "xmin": 3, ...}, or {"label": "bell", "start": 0.5,
            "end": 1.5}. With "iscrowd": 1 or "difficult": 1, it is ignored.
        origin: File and row of the cell, for error messages.
        axes: Number A of axes: 2 for a picture, 1 for what has only a time.
        order: What the numbers of a list are. None: that follows from its key.

    Raises:
        UserError: If the cell is anything else.
    """
    items = list_of_objects(cell)
    example = EXAMPLES[axes]
    if items is None:
        raise UserError(
            f"{origin}: the target must be a list of objects such as {example}, got "
            f"{shortened(cell)}"
        )
    labels: list[str] = []
    boxes: list[Box] = []
    ignored: list[Ignored] = []
    for item in items:
        numbers, order_of_key = _box_of(item, origin, example)
        label = label_of(item)
        if label is None or len(numbers) != 2 * axes:
            raise UserError(
                f"{origin}: an object must have a label and {2 * axes} numbers, such as {example}, "
                f"got {shortened(item)}"
            )
        box = _corners(numbers, order or order_of_key)
        if any(stop < start for start, stop in zip(box[:axes], box[axes:], strict=True)):
            raise UserError(
                f"{origin}: the stop of an object must not be before its start, nor its right or "
                f"bottom side before the left or top one, got {shortened(item)}; correct it, or "
                "set head.order if its numbers mean something else"
            )
        if is_ignored(item):
            ignored.append(Ignored(label, box, is_crowd(item)))
            continue
        labels.append(label)
        boxes.append(box)
    return Objects(tuple(labels), tuple(boxes), tuple(ignored))


def _box_of(item: Any, origin: str, example: str = "") -> tuple[list[float], Order]:
    """Return the numbers of an object in the order in which they are written, and what they are."""
    if isinstance(item, Mapping):
        for key, order in BOX_KEYS.items():
            if key in item:
                return _numbers(item[key], item, origin), order
        for keys, order in SIDE_KEYS:
            if all(key in item for key in keys):
                return _numbers([item[key] for key in keys], item, origin), order
    raise UserError(
        f"{origin}: an object must have a place, such as {example}, got {shortened(item)}"
    )


def _numbers(values: Any, item: Any, origin: str) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise UserError(f"{origin}: a box must consist of finite numbers, got {shortened(item)}")
    return numbers


def _corners(numbers: Sequence[float], order: Order) -> Box:
    """Return the starts, then the stops, of numbers in the order x, y."""
    axes = len(numbers) // 2
    first, second = numbers[:axes], numbers[axes:]
    if order == "size":
        second = [a + b for a, b in zip(first, second, strict=True)]
    elif order == "center":
        pairs = list(zip(first, second, strict=True))
        first = [center - size / 2 for center, size in pairs]
        second = [center + size / 2 for center, size in pairs]
    # dxn has the vertical axis first, as the coordinates of tokens have it.
    return (*first[::-1], *second[::-1])
