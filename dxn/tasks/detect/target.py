"""The target of detection: the objects of each sample, as places in one of its inputs.

Boxes (..., 2A) along A axes have the start on each axis, then the stop on each axis. A box of a
picture is top, left, bottom, right; an event of a sound is start, stop.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.randomness import Probability
from dxn.core.schema import Strict
from dxn.tasks.detect.objects import (
    MAX_FRACTION,
    Box,
    Ignored,
    Objects,
    Order,
    category_ids,
    check_size,
    note_on_rows,
    read_objects,
)
from dxn.tasks.names import Names, NamesState
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import BadMedia, Placement

if TYPE_CHECKING:
    from dxn.tasks.detect.task import Detect

# An object of which augmentation leaves less than this share in the picture is left out.
MIN_VISIBLE = 0.25
DEFAULT_THRESHOLD = 0.4  # if the validation split is no reason for another one


class ObjectsState(NamesState):
    """The content of labels.json."""

    usual_size: list[Annotated[float, Field(gt=0)]]
    fractions: bool = False
    category_ids: dict[str, int | str] = Field(default_factory=dict)
    threshold: Probability = DEFAULT_THRESHOLD


class DetectedObjects(Names):
    """Any number of objects per row, each with a class and a box or interval.

    Args:
        task: The task, whose options it reads.

    Attributes:
        usual_size: (A,). Median size of the objects along each axis, in the units of places.
        fractions: Whether the boxes are fractions of the picture, from 0 to 1, instead of pixels.
        category_ids: Id of each class in COCO, if the training data has this format.
        threshold: Minimum score of an object in answers.
    """

    State: ClassVar[type[Strict]] = ObjectsState
    needs_cells = True

    def __init__(self, task: Detect):
        super().__init__()
        self.input = task.input
        self.order: Order | None = task.order
        self.usual_size: list[float] = []
        self.fractions = False
        self.category_ids: dict[str, int | str] = {}
        self.fixed_threshold = task.threshold
        self.threshold = DEFAULT_THRESHOLD if task.threshold is None else task.threshold
        self.axes = 0  # number A of axes of the boxes in the table; 0: unknown
        # Objects without an area, those that are cut, and those that occur again, by row.
        self.unused: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.clipped: Counter[str] = Counter()

    def names(self, value: Objects) -> Sequence[str]:
        """Return the class of each object."""
        return value.labels

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out whether the boxes are fractions: the numbers of most boxes are from 0 to 1.

        A few boxes of fractions can be partly outside of the picture.
        """
        num_small = 0
        larger: list[str] = []  # the row of each box with larger numbers
        for cell, origin in zip(cells, origins, strict=True):
            try:
                objects = read_objects(cell, origin, axes=2, order=self.order)
            except UserError:  # is reported when the rows are read, or these are events
                continue
            for box in (*objects.boxes, *(item.place for item in objects.ignored)):
                if max(box) <= MAX_FRACTION:
                    num_small += 1
                else:
                    larger.append(origin)
        self.axes = 2 if num_small or larger else 1
        self.fractions = num_small > len(larger)
        self.category_ids, notes = category_ids(cells)
        if not self.fractions or not larger:
            return notes
        return [
            *notes,
            "target: boxes are read as fractions of the picture; "
            f"{count(len(larger), 'box', 'boxes')} of {num_small + len(larger):,} with larger "
            f"numbers, such as in {larger[0]}, reach beyond it",
        ]

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Objects:
        """Return the objects of a row in the units of places.

        Args:
            cell: See `read_objects`.
            origin: File and row.
            raws: Cells of the inputs.

        Raises:
            UserError: If the cell is not a list of objects, or the picture cannot be read.
        """
        name = self.input or self._located()
        tokenizer = self.tokenizers.get(name)
        if tokenizer is None:
            raise UserError(
                f"head=detect: needs an input with coordinates, such as a picture, got "
                f"{', '.join(self.tokenizers)}"
            )
        axes = tokenizer.reader.axes
        objects = read_objects(cell, origin, axes=axes, order=self.order)
        if self.labels and axes == 2:
            self._check_units(objects, origin)
        is_relative = tokenizer.reader.relative
        extent: Sequence[float] = (1.0 if is_relative else math.inf,) * axes
        source = raws.get(name)
        if not self.fractions and source is not None and (objects.boxes or objects.ignored):
            try:
                extent = tokenizer.reader.extent(source)
            except BadMedia:
                return objects  # the row is reported because of its picture
            if axes == 2:
                check_size(cell, origin, (int(extent[0]), int(extent[1])))
        whole = (1.0,) * axes
        unit, limits = (extent, whole) if is_relative else (whole, extent)
        labels: list[str] = []
        boxes: list[Box] = []
        for label, box in zip(objects.labels, objects.boxes, strict=True):
            clipped, is_cut = _clipped(box, unit, limits)
            if _is_empty(clipped):
                self.unused[origin] += 1
                continue
            if (label, clipped) in zip(labels, boxes, strict=True):
                self.repeated[origin] += 1
                continue
            if is_cut:
                self.clipped[origin] += 1
            labels.append(label)
            boxes.append(clipped)
        ignored: list[Ignored] = []
        for item in objects.ignored:
            clipped, _ = _clipped(item.place, unit, limits)
            if not _is_empty(clipped):
                ignored.append(item._replace(place=clipped))
        return Objects(tuple(labels), tuple(boxes), tuple(ignored))

    def _check_units(self, objects: Objects, origin: str) -> None:
        """Check that the boxes of another table are in the units of the training.

        Raises:
            UserError: If none of them is.
        """
        largest = [max(box) for box in objects.boxes]
        if not largest:
            return
        units = ["pixels", "fractions of the picture"]
        # A box of fractions can be partly outside of the picture.
        if not self.fractions and max(largest) <= MAX_FRACTION:
            units.reverse()
        elif not self.fractions or min(largest) <= 2:
            return
        raise UserError(
            f"{origin}: the boxes are {units[0]}, but those of the training are {units[1]}; "
            "convert them"
        )

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Choose the input in which the objects are.

        Raises:
            UserError: If no input has coordinates.
        """
        self.tokenizers = {name: adapter.tokenizer for name, adapter in adapters.items()}
        name = self.input or self._located()
        if name not in self.tokenizers or not self.tokenizers[name].reader.axes:
            inputs = ", ".join(f"{n} ({t.modality})" for n, t in self.tokenizers.items())
            raise UserError(
                f"head=detect: needs an input with coordinates, such as a picture, got {inputs}; "
                "set head.input to one"
            )
        self.input = name
        self.required = self.prepared_inputs = (name,)

    def _located(self) -> str:
        """Return the name of the first input with as many axes as the boxes, "" if there is none.

        Without boxes, it is the first one with any axes.
        """
        axes = len(self.usual_size) or self.axes
        num_axes = {name: tokenizer.reader.axes for name, tokenizer in self.tokenizers.items()}
        names = [name for name, number in num_axes.items() if number]
        return next((name for name in names if num_axes[name] == axes), names[0] if names else "")

    def fit(self, values: Sequence[Objects]) -> None:
        """Collect the classes, and compute the usual size of an object.

        Raises:
            UserError: If no training row has an object.
        """
        boxes = [box for value in values for box in value.boxes]
        if not boxes:
            raise UserError("data.target: no training row has an object; check the annotations")
        super().fit(values)
        axes = len(boxes[0]) // 2
        self.usual_size = [
            statistics.median(b[axes + i] - b[i] for b in boxes) for i in range(axes)
        ]

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, except a threshold that the user has set."""
        super().load(state)
        if self.fixed_threshold is not None:
            self.threshold = self.fixed_threshold

    def encode(
        self, value: Objects, sample: dict[str, Any], rand: Random | None = None
    ) -> dict[str, Tensor]:
        """Return the classes (n,) and boxes (n, 2A) as fractions of the prepared picture.

        Objects move with the picture. Those that augmentation has mostly cut off are left out.
        """
        tokenizer = self.tokenizers[self.input]
        labels = super().encode(value, sample, rand)
        boxes = torch.tensor(value.boxes, dtype=torch.float32)
        boxes = boxes.reshape(len(value), 2 * tokenizer.reader.axes)
        boxes = to_prepared(boxes, tokenizer.placement(sample[self.input]))
        visible = boxes.clamp(0, 1)
        is_visible = areas(visible) >= MIN_VISIBLE * areas(boxes)
        return {"labels": labels[is_visible], "boxes": visible[is_visible]}

    def collate(self, targets: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Pad the classes to (B, n) with IGNORED, and the boxes to (B, n, 2A) with 0."""
        pad = torch.nn.utils.rnn.pad_sequence
        return {
            "labels": pad([t["labels"] for t in targets], True, IGNORED),
            "boxes": pad([t["boxes"] for t in targets], True, 0.0),
        }

    def describe(self, values: Sequence[Objects]) -> str:
        """Return the number of objects per class, and what is unusual about them."""
        line = super().describe(values)
        empty = sum(not len(value) for value in values)
        if empty:
            line += f"; {count(empty, 'row')} without an object"
        if num_ignored := sum(len(value.ignored) for value in values):
            line += f"; {num_ignored:,} ignored (iscrowd or difficult)"
        for rows, what in (
            (self.unused, "without a size inside of the input, which are not used"),
            (self.clipped, "that are cut at the edge of the input"),
            (self.repeated, "that occur again with the same class and place, and are used once"),
        ):
            if rows:
                line += f"; {note_on_rows(rows, what)}"
        return line


def to_prepared(boxes: Tensor, placement: Placement) -> Tensor:
    """Convert boxes (n, 2A) from places to fractions of a prepared value."""
    origin, scale, unit = (part.tile(2) for part in placement)
    return ordered((boxes * unit - origin) / scale)


def to_places(boxes: Tensor, placement: Placement) -> Tensor:
    """Convert boxes (n, 2A) from fractions of a prepared value to places: undo `to_prepared`."""
    origin, scale, unit = (part.tile(2) for part in placement)
    return ordered((boxes * scale + origin) / unit)


def _clipped(box: Box, unit: Sequence[float], limits: Sequence[float]) -> tuple[Box, bool]:
    """Return a box in the units of places, and whether it is cut by more than a hundredth.

    Args:
        box: Box in the units in which it is written.
        unit: One along each axis, in these units.
        limits: The largest places along each axis.
    """
    scaled = [number / one for number, one in zip(box, (*unit, *unit), strict=True)]
    tops = (*limits, *limits)
    clipped = [min(max(number, 0.0), top) for number, top in zip(scaled, tops, strict=True)]
    is_cut = max(abs(a - b) for a, b in zip(clipped, scaled, strict=True)) > 1e-2
    return tuple(clipped), is_cut


def _is_empty(box: Box) -> bool:
    """Whether a box has no size along an axis."""
    axes = len(box) // 2
    return any(stop <= start for start, stop in zip(box[:axes], box[axes:], strict=True))


def extents(boxes: Tensor) -> Tensor:
    """Return the lengths (..., A) of boxes (..., 2A) along each axis."""
    start, stop = boxes.chunk(2, -1)
    return stop - start


def centers(boxes: Tensor) -> Tensor:
    """Return the centers (..., A) of boxes (..., 2A)."""
    start, stop = boxes.chunk(2, -1)
    return (start + stop) / 2


def areas(boxes: Tensor) -> Tensor:
    """Return the areas (...) of boxes (..., 2A), 0 where a stop is before a start."""
    return extents(boxes).clamp(min=0).prod(-1)


def ordered(boxes: Tensor) -> Tensor:
    """Return boxes (..., 2A) whose starts and stops are exchanged where they are mirrored."""
    start, stop = boxes.chunk(2, -1)
    return torch.cat([torch.minimum(start, stop), torch.maximum(start, stop)], -1)


def intersections(a: Tensor, b: Tensor) -> Tensor:
    """Return the areas (...) of the intersections of boxes (..., 2A), which are broadcast."""
    (a_start, a_stop), (b_start, b_stop) = a.chunk(2, -1), b.chunk(2, -1)
    sides = torch.minimum(a_stop, b_stop) - torch.maximum(a_start, b_start)
    return sides.clamp(min=0).prod(-1)


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the intersection over union and its generalization (...) of boxes (..., 2A).

    The generalized value, from -1 to 1, also tells distant boxes apart (arXiv:1902.09630). The
    boxes are broadcast.
    """
    common = intersections(a, b)
    union = areas(a) + areas(b) - common
    (a_start, a_stop), (b_start, b_stop) = a.chunk(2, -1), b.chunk(2, -1)
    hull = torch.maximum(a_stop, b_stop) - torch.minimum(a_start, b_start)
    hull = hull.clamp(min=0).prod(-1)
    tiny = torch.finfo(common.dtype).tiny
    iou = common / union.clamp(min=tiny)
    return iou, iou - (hull - union) / hull.clamp(min=tiny)
