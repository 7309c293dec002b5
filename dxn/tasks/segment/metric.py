"""Pixel accuracy and the intersection over union of classes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dxn.tasks.metric import Metric
from dxn.tasks.names import MAX_CLASS_COLUMNS
from dxn.tasks.segment.masks import Mask
from dxn.tasks.segment.target import PixelClasses
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import Placement

MAX_SHOWN = 3  # classes whose metrics are shown in tables


@dataclass(frozen=True, slots=True)
class Segmented:
    """The prediction for one picture.

    Args:
        classes: (h, w). Class of each pixel of the prepared picture.
        placement: Where the prepared picture lies in the original one.
    """

    classes: Tensor
    placement: Placement

    def at(self, size: tuple[int, int]) -> np.ndarray:
        """Return the class (H, W) of each pixel of the original picture.

        A pixel that the model has not seen, such as outside of a center crop, has the class of the
        nearest one that it has.
        """
        index = [
            nearest(self.placement, axis, length, self.classes.shape[axis])
            for axis, length in enumerate(size)
        ]
        return self.classes.numpy()[np.ix_(*index)]


def nearest(placement: Placement, axis: int, length: int, count: int) -> np.ndarray:
    """Return the row or column of the prepared picture at each one of the original picture."""
    origin, scale, unit = (float(tensor[axis]) for tensor in placement)
    fractions = ((np.arange(length) + 0.5) / length * unit - origin) / scale
    return np.floor(fractions * count).astype(np.int64).clip(0, count - 1)


class Overlap(Metric):
    """The share of right pixels, and the intersection over union (IoU) of each class.

    All pixels of the original pictures count that have a class.
    """

    target: PixelClasses
    monitored = "miou"
    row: ClassVar = ("pixel_accuracy", "share of right pixels")

    def rows(self, predictions: Sequence[Segmented], targets: Sequence[Mask]) -> Tensor:
        """Count the right, predicted and true pixels of each class.

        All classes that are not in the training split are one more class, which is never predicted.
        """
        count = len(self.target.labels) + 1
        rows = torch.zeros(len(predictions), 3, count, dtype=torch.float64)
        for row, prediction, mask in zip(rows, predictions, targets, strict=True):
            true = self.target.index_of(mask)
            has_class = true != IGNORED
            true, predicted = true[has_class], prediction.at(mask.size)[has_class]
            for i, classes in enumerate((true[true == predicted], predicted, true)):
                row[i] = torch.from_numpy(np.bincount(classes, minlength=count))
        return rows.flatten(1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. The mean is over the classes that are true or predicted."""
        right, predicted, true = sums.unflatten(-1, (3, -1)).unbind(-2)
        iou = right / (predicted + true - right)
        results = {"miou": iou.nanmean(-1), "pixel_accuracy": right.sum(-1) / true.sum(-1)}
        names = self.names
        return results | dict(zip(names, iou.unbind(-1)[: len(names)], strict=True))

    @property
    def names(self) -> list[str]:
        """The names of the metrics of single classes."""
        labels = self.target.labels
        return [f"iou({name})" for name in labels] if len(labels) <= MAX_CLASS_COLUMNS else []

    @property
    def details(self) -> Collection[str]:
        """The metrics of single classes, if there are many."""
        return self.names if len(self.names) > MAX_SHOWN else ()
