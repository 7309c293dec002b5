"""The objects in a cell of a table: a list of boxes or intervals, each with a class."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dxn.core.errors import UserError
from dxn.core.marks import Described
from dxn.core.untrusted import shortened
from dxn.tasks.names import class_name

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
# By number of axes.
EXAMPLES = {
    1: '[{"label": "bell", "start": 0.5, "end": 1.5}]',
    2: '[{"label": "cat", "box": [left, top, right, bottom]}]',
}


@dataclass(frozen=True, slots=True)
class Objects(Described):
    """The objects of a sample.

    Args:
        labels: Class of each object.
        boxes: Box of each object: top, left, bottom and right as fractions of a picture, or start
            and stop of an event in seconds or steps.
    """

    labels: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> Sequence[str]:
        """The class of each object."""
        return self.labels

    def __str__(self) -> str:
        return ", ".join(self.labels) or "no objects"


def list_of_objects(cell: Any) -> list[Any] | None:
    """Return the items of a cell with a list of objects, or its text; None if it is none."""
    if isinstance(cell, str):
        if not cell.lstrip().startswith(("[", "{")):
            return None
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            try:
                cell = ast.literal_eval(cell.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return None
    if isinstance(cell, Mapping):
        cell = cell.get("objects", [cell])
    return list(cell) if isinstance(cell, list | tuple) else None


def label_of(item: Mapping[str, Any]) -> str | None:
    """Return the class of an object, None if it has none."""
    label = next((item[key] for key in CLASS_KEYS if key in item), None)
    is_name = isinstance(label, str | int | float) and str(label).strip()
    return class_name(label) if is_name else None


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
            "end": 1.5}.
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
    for item in items:
        # A region with many objects instead of one.
        if isinstance(item, Mapping) and item.get("iscrowd"):
            continue
        numbers, order_of_key = _box_of(item, origin, example)
        label = label_of(item)
        if label is None or len(numbers) != 2 * axes:
            raise UserError(
                f"{origin}: an object must have a label and {2 * axes} numbers, such as {example}, "
                f"got {shortened(item)}"
            )
        labels.append(label)
        boxes.append(_corners(numbers, order or order_of_key))
    return Objects(tuple(labels), tuple(boxes))


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
