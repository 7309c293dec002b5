"""Instance segmentation: the target with one mask per object, and the masks that are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dxn.core.display import join_names, significant
from dxn.core.errors import UserError
from dxn.core.marks import Described, Mark
from dxn.core.randomness import Probability
from dxn.core.schema import Strict
from dxn.core.untrusted import shortened
from dxn.tasks.detect.metric import ScoredObjects
from dxn.tasks.detect.objects import Ignored, category_ids, check_size, note_on_rows
from dxn.tasks.detect.target import DEFAULT_THRESHOLD
from dxn.tasks.names import Names
from dxn.tasks.segment.drawn import (
    SEGMENTATION,
    Area,
    Drawn,
    check_units,
    compressed,
    read_areas,
    runs_of,
)
from dxn.tasks.segment.target import UNUSED, MaskState, PixelClasses, mask_at, nearest
from dxn.tasks.space import Batch
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import Placement
from dxn.tokenize.image.tokenizer import TURNS

if TYPE_CHECKING:
    from dxn.tasks.segment.task import Segment

EPSILON = 1e-6  # pixels of a mask, in the mean of its probabilities
MIN_PIXEL = 0.5  # probability of a pixel that belongs to a mask


class InstanceState(MaskState):
    """The content of labels.json."""

    threshold: Probability = DEFAULT_THRESHOLD
    category_ids: dict[str, int | str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instances(Described):
    """The objects of a picture, each with a class and a mask, which is drawn when it is needed.

    Args:
        areas: The objects.
        size: Height and width of the picture.
        ignored: Further objects, with which the model is neither trained nor evaluated.
    """

    areas: tuple[Area, ...]
    size: tuple[int, int]
    ignored: tuple[Ignored, ...] = ()

    def __len__(self) -> int:
        return len(self.areas)

    @property
    def names(self) -> Sequence[str]:
        """The class of each object."""
        return tuple(area.label for area in self.areas)

    def __str__(self) -> str:
        return join_names(self.names) or "no objects"

    def masks(self) -> np.ndarray:
        """Return the masks (m, H, W) bool."""
        return drawn_masks([area.area for area in self.areas], self.size)


def drawn_masks(areas: Sequence[Any], size: tuple[int, int]) -> np.ndarray:
    """Return the masks (m, H, W) bool of polygons or run lengths."""
    masks = np.zeros((len(areas), *size), bool)
    for mask, area in zip(masks, areas, strict=True):
        mask[:] = Drawn(((1, area),), size).values() > 0
    return masks


class ObjectMasks(PixelClasses):
    """Any number of objects in a picture, each with a class and a mask. Masks can overlap.

    Args:
        task: The task, whose options it reads.

    Attributes:
        threshold: Minimum score of an object in answers.
        category_ids: Id of each class in COCO, if the training data has this format.
    """

    State: ClassVar[type[Strict]] = InstanceState

    def __init__(self, task: Segment):
        super().__init__(task)
        self.category_ids: dict[str, int | str] = {}
        self.fixed_threshold = task.threshold
        self.threshold = DEFAULT_THRESHOLD if task.threshold is None else task.threshold

    def names(self, value: Instances) -> Sequence[str]:
        """Return the class of each object."""
        return value.names

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Collect the ids of the classes in COCO. Each object has the name of its class."""
        check_units(cells)
        self.category_ids, notes = category_ids(cells)
        return notes

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Any:
        """Return the `Instances` of a row.

        Args:
            cell: See `read_drawn`.
            origin: File and row.
            raws: Cells of the inputs.

        Raises:
            UserError: If it is no list of objects with polygons or run lengths.
        """
        size = self.size_in(raws)
        if size != (1, 1):
            check_size(cell, origin, size)
        areas = read_areas(cell, origin, size, self.unused)
        if areas is None:
            raise UserError(
                f"{origin}: head.instances needs a list of objects such as "
                '[{"label": "cat", "segmentation": [[x, y, x, y, x, y]]}], got '
                f"{shortened(cell)}; for a mask with the class of each pixel, leave out "
                "head.instances"
            )
        used = tuple(area for area in areas if not area.is_ignored)
        others = (area for area in areas if area.is_ignored)
        return Instances(used, size, tuple(Ignored(a.label, a.area, a.is_crowd) for a in others))

    def fit(self, values: Sequence[Any]) -> None:
        """Collect the classes and their frequencies.

        Raises:
            UserError: If there is no object.
        """
        Names.fit(self, values)
        if not self.labels:
            raise UserError("data.target: no row has an object; check the annotations")
        self.values = list(range(len(self.labels)))

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, except a threshold that the user has set."""
        super().load(state)
        if self.fixed_threshold is not None:
            self.threshold = self.fixed_threshold

    def encode(self, value: Any, sample: dict[str, Any], rand: Random | None = None) -> Any:
        """Return the classes (n,) and masks (n, h, w) of the objects in the prepared picture.

        "known" (h, w) are the pixels that lie in the picture. Masks move with the picture, and
        objects that are outside of it are left out.
        """
        part = sample[self.input]
        placement = self.tokenizers[self.input].placement(part)
        turned = np.rot90(value.masks().transpose(1, 2, 0), int(part.get(TURNS, 0)))
        masks, is_inside = mask_at(turned, placement, part["sizes"].tolist())
        in_picture = torch.from_numpy(masks & is_inside[..., None]).permute(2, 0, 1)
        labels = Names.encode(self, value, sample, rand)
        is_visible = in_picture.flatten(1).any(1)
        return {
            "labels": labels[is_visible],
            "masks": in_picture[is_visible],
            "known": torch.from_numpy(is_inside),
        }

    def collate(self, targets: Sequence[Any]) -> Any:
        """Pad the classes to (B, n) with IGNORED, and the masks to (B, n, H, W) with False."""
        height, width = (max(t["known"].shape[axis] for t in targets) for axis in (0, 1))
        count = max(len(target["labels"]) for target in targets)
        labels = torch.full((len(targets), count), IGNORED)
        masks = torch.zeros(len(targets), count, height, width, dtype=torch.bool)
        is_inside = torch.zeros(len(targets), height, width, dtype=torch.bool)
        for i, target in enumerate(targets):
            n, h, w = target["masks"].shape
            labels[i, :n] = target["labels"]
            masks[i, :n, :h, :w] = target["masks"]
            is_inside[i, :h, :w] = target["known"]
        return {"labels": labels, "masks": masks, "known": is_inside}

    def describe(self, values: Sequence[Any]) -> str:
        """Return the number of objects per class, and of those without a pixel."""
        parts = [Names.describe(self, values), note_on_rows(self.unused, UNUSED)]
        return "; ".join(filter(None, parts))

    def unknown(self, values: Sequence[Any]) -> list[str]:
        """Return the first name of each row that is not in the training split."""
        return Names.unknown(self, values)


@dataclass(frozen=True, slots=True)
class FoundMasks(ScoredObjects):
    """The objects that are found in one picture, best first.

    Args:
        runs: Run lengths of the mask of each object in the prepared picture, which need less memory
            than its pixels.
        size: Height and width of the prepared picture.
        placement: Where the prepared picture lies in the original one.
    """

    runs: tuple[np.ndarray, ...]
    size: tuple[int, int]
    placement: Placement

    def mask(self, index: int, size: tuple[int, int]) -> np.ndarray:
        """Return the mask (H, W) bool of an object in the original picture.

        A pixel that the model has not seen belongs to the object if the nearest one does.
        """
        runs = self.runs[index]
        flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        prepared = flat.reshape(self.size[::-1]).T
        return prepared[
            np.ix_(
                *(
                    nearest(self.placement, axis, length, self.size[axis])
                    for axis, length in enumerate(size)
                )
            )
        ]

    def iou(self, true: Instances) -> Tensor:
        """Return the overlap (n, m) with each true object."""
        ignored = drawn_masks([item.place for item in true.ignored], true.size)
        masks = np.concatenate([true.masks(), ignored]).reshape(len(true) + len(ignored), -1)
        areas = masks.sum(1)
        is_crowd = np.array([False] * len(true) + [item.is_crowd for item in true.ignored], bool)
        result = np.zeros((len(self.scores), len(masks)))
        for i, row in enumerate(result):
            mask = self.mask(i, true.size).ravel()
            common = masks[:, mask].sum(1)
            union = areas + mask.sum() - common
            row[:] = common / np.maximum(np.where(is_crowd, mask.sum(), union), 1)
        return torch.from_numpy(result)

    def objects(
        self, labels: Sequence[str], threshold: float, size: tuple[int, int]
    ) -> list[dict[str, Any]]:
        """Return the objects whose score is at least the threshold, in a picture of a size.

        Args:
            labels: Names of the classes.
            threshold: Minimum score.
            size: Height and width of the picture.
        """
        objects: list[dict[str, Any]] = []
        for i in (self.scores >= threshold).nonzero().flatten().tolist():
            mask = self.mask(i, size)
            if not mask.any():  # smaller than a pixel
                continue
            top, left, bottom, right = extent(mask)
            objects.append(
                {
                    "label": labels[int(self.classes[i])],
                    "score": significant(float(self.scores[i])),
                    "left": left,
                    "top": top,
                    "right": right,
                    "bottom": bottom,
                    SEGMENTATION: {"size": [*size], "counts": compressed(runs_of(mask))},
                }
            )
        return objects


def extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return the top, left, bottom and right of a mask (H, W) that is not empty."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def found_masks(
    decoded: Mapping[str, Tensor], target: ObjectMasks, batch: Batch, max_objects: int
) -> list[FoundMasks]:
    """Return the objects of each picture, best first.

    Each query is an object of its most probable class, unless no pixel belongs to it. Its score is
    the probability of the class times the mean probability of the pixels of its mask.

    Args:
        decoded: Result of `MaskObjects.decode`.
        target: The classes.
        batch: The batch.
        max_objects: Maximum number of objects of a picture.
    """
    part = batch[target.input]
    placements = [
        tensor.cpu().float() for tensor in target.tokenizers[target.input].placement(part)
    ]
    predictions = [no_masks()] * batch["#size"]
    for i, row in enumerate(part["rows"].tolist()):
        height, width = part["sizes"][i].tolist()
        pixels = decoded["masks"][row, :, :height, :width]
        inside = pixels > MIN_PIXEL
        counts = inside.sum((1, 2))
        quality = (pixels * inside).sum((1, 2)) / (counts + EPSILON)
        probability, classes = decoded["probabilities"][row].max(1)
        scores = (probability * quality).cpu()
        order = scores.argsort(descending=True, stable=True)
        order = order[(counts > 0).cpu()[order]][:max_objects]
        masks = inside[order.to(inside.device)].cpu().numpy()
        predictions[row] = FoundMasks(
            classes.cpu()[order],
            scores[order],
            tuple(map(runs_of, masks)),
            (height, width),
            Placement(*(tensor[i] for tensor in placements)),
        )
    return predictions


def no_masks() -> FoundMasks:
    """Return that there is no object in a picture."""
    whole = Placement(torch.zeros(2), torch.ones(2), torch.ones(2))
    return FoundMasks(torch.zeros(0).long(), torch.zeros(0), (), (1, 1), whole)


def object_marks(value: FoundMasks | Instances, target: ObjectMasks) -> list[Mark]:
    """Return the boxes and masks of predicted or true objects."""
    labels = list(target.labels)
    marks: list[Mark] = []
    if isinstance(value, Instances):
        for label, mask in zip(value.names, value.masks(), strict=True):
            if mask.any():
                number = labels.index(label) if label in labels else len(labels)
                marks.append(Mark(label, number, _box(mask), mask=mask))
        return marks
    for i in (value.scores >= target.threshold).nonzero().flatten().tolist():
        number = int(value.classes[i])
        # The placement is needed only in fractions, so any size of the original does.
        mask = value.mask(i, value.size)
        if mask.any():
            marks.append(Mark(labels[number], number, _box(mask), float(value.scores[i]), mask))
    return marks


def _box(mask: np.ndarray) -> tuple[float, ...]:
    height, width = mask.shape
    top, left, bottom, right = extent(mask)
    return top / height, left / width, bottom / height, right / width
