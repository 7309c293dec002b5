"""The mean average precision of boxes and intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.marks import Described
from dxn.tasks.detect.objects import Objects
from dxn.tasks.detect.target import overlaps
from dxn.tasks.metric import Metric, f1_scores
from dxn.tasks.names import MAX_CLASS_COLUMNS

if TYPE_CHECKING:
    from dxn.tasks.detect.target import DetectedObjects
    from dxn.tasks.segment.instances import ObjectMasks

# As COCO defines the mean average precision: the mean over these overlaps, at 101 recalls.
THRESHOLDS = torch.arange(0.5, 1.0, 0.05, dtype=torch.float64)
RECALLS = torch.linspace(0, 1, 101, dtype=torch.float64)
EPSILON = 1e-6  # an overlap at a threshold counts, in spite of the rounding of float32
# Below this F1, answers would consist of wrong objects: a model that has hardly learned anything
# has the highest F1 at the lowest threshold.
MIN_F1 = 0.1
CHUNK = 2_000_000  # weights of outputs at a time, which limits the memory of resamples


@dataclass(frozen=True, slots=True)
class ScoredObjects(ABC):
    """The prediction for one sample: its outputs with the highest scores, best first.

    Args:
        classes: (n,). Index of the class of each object.
        scores: (n,). Score of each object from 0 to 1.
    """

    classes: Tensor
    scores: Tensor

    @abstractmethod
    def iou(self, true: Any) -> Tensor:
        """Return the intersection over union (n, m) float64 with each true object."""


@dataclass(frozen=True, slots=True)
class Detected(ScoredObjects):
    """The boxes that are found in one sample, best first.

    Args:
        boxes: (n, 2A). Places, see `Objects`.
    """

    boxes: Tensor

    def iou(self, true: Objects) -> Tensor:
        """Return the intersection over union (n, m) with each true object."""
        boxes = torch.tensor(true.boxes, dtype=torch.float64)
        iou, _ = overlaps(self.boxes.double()[:, None], boxes)
        return iou


class AveragePrecision(Metric):
    """The average precision per class, and its mean, as COCO computes them."""

    target: DetectedObjects | ObjectMasks
    monitored = "map"
    row = ("f1", "F1 of the objects")

    def rows(self, predictions: Sequence[ScoredObjects], targets: Sequence[Described]) -> Tensor:
        """Return the numbers of right, found and true objects of each row (n, 3).

        An object is right if it overlaps a true one of its class by at least 0.5. Found are those
        whose score is at least the threshold of the target.
        """
        matched = _match(predictions, targets, self.target.labels)
        is_answer = matched.scores >= self.target.threshold
        counts = torch.zeros(len(predictions), 3, dtype=torch.float64)
        counts[:, 0] = matched.rows[is_answer & matched.hits[:, 0]].bincount(minlength=len(counts))
        counts[:, 1] = matched.rows[is_answer].bincount(minlength=len(counts))
        counts[:, 2] = torch.tensor([len(true.names) for true in targets])
        return counts

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the F1 of the objects from the results of `rows`."""
        right, num_found, true = sums.unbind(-1)
        return {"f1": f1_scores(right, num_found, true)}

    def weighted(
        self, predictions: Sequence[ScoredObjects], targets: Sequence[Described], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean average precision, that at an overlap of 0.5, and that of each class.

        The mean is over the classes that occur. Classes that the training split does not have are
        objects that are never found.
        """
        labels = [*self.target.labels]
        labels += sorted({n for true in targets for n in true.names} - set(labels))
        index = {name: i for i, name in enumerate(labels)}
        true = torch.zeros(len(labels), len(targets), dtype=counts.dtype)
        for row, objects in enumerate(targets):
            for name in objects.names:
                true[index[name], row] += 1
        matched = _match(predictions, targets, labels)
        precisions: list[Tensor] = []
        for i in range(len(labels)):
            is_class = matched.classes == i
            hits, rows = matched.hits[is_class], matched.rows[is_class]
            precisions.append(_average_precision(hits, rows, counts @ true[i], counts))
        by_class = torch.stack(precisions, 1)  # (R, K, T)
        results = {
            "map": by_class.mean(2).nanmean(1),
            "map50": by_class[:, :, 0].nanmean(1),
            "map75": by_class[:, :, 5].nanmean(1),
        }
        if len(labels) <= MAX_CLASS_COLUMNS:
            for i, name in enumerate(self.target.labels):
                results[f"map({name})"] = by_class[:, i].mean(1)
        return results

    @property
    def details(self) -> Collection[str]:
        """The metrics of single classes."""
        return {"map75", *(f"map({name})" for name in self.target.labels)}


def best_threshold(
    predictions: Sequence[ScoredObjects], targets: Sequence[Described], labels: Sequence[str]
) -> float | None:
    """Return the minimum score with which the F1 of the objects of all rows is highest.

    None: it is below `MIN_F1` at any score.
    """
    matched = _match(predictions, targets, labels)
    right = matched.hits[:, 0].cumsum(0)
    if not len(right):
        return None
    num_found = torch.arange(1, len(right) + 1)
    f1 = f1_scores(right, num_found, torch.tensor(sum(len(true.names) for true in targets)))
    # All outputs of the same score are found, or none of them.
    following = torch.cat([matched.scores[1:], torch.zeros(1)])
    is_last = following < matched.scores
    is_last[-1] = True
    best = int(f1.where(is_last, -1.0).argmax())
    if not f1[best] >= MIN_F1:
        return None
    # In the middle of two scores, so that rounding does not matter.
    return float(matched.scores[best] + following[best]) / 2


@dataclass(frozen=True, slots=True)
class Matched:
    """The outputs of all rows, those with the highest scores first.

    Args:
        scores: (n,). Score of each output.
        classes: (n,). Index of its class.
        rows: (n,). Its row.
        hits: (n, T) bool. Whether it is right, at each threshold of the overlap.
    """

    scores: Tensor
    classes: Tensor
    rows: Tensor
    hits: Tensor


def _match(
    predictions: Sequence[ScoredObjects], targets: Sequence[Described], labels: Sequence[str]
) -> Matched:
    """Say which outputs find an object that no better output of the same row has found.

    Args:
        predictions: Outputs of each row, best first.
        targets: Objects of the same rows.
        labels: Names of the classes. An object of another class is never found.
    """
    index = {name: i for i, name in enumerate(labels)}
    scores, classes = [torch.zeros(0)], [torch.zeros(0, dtype=torch.long)]
    hits = [np.zeros((0, len(THRESHOLDS)), bool)]
    for objects, true in zip(predictions, targets, strict=True):
        scores.append(objects.scores)
        classes.append(objects.classes)
        expected = torch.tensor([index.get(name, -1) for name in true.names], dtype=torch.long)
        hits.append(_right(objects, expected, true))
    sizes = torch.tensor([len(objects.scores) for objects in predictions], dtype=torch.long)
    rows = torch.arange(len(sizes)).repeat_interleave(sizes)
    joined = torch.cat(scores)
    order = joined.argsort(descending=True, stable=True)
    is_right = torch.from_numpy(np.concatenate(hits))
    return Matched(joined[order], torch.cat(classes)[order], rows[order], is_right[order])


def _right(objects: ScoredObjects, expected: Tensor, true: Described) -> np.ndarray:
    """Return whether each output of a sample finds an object that no better one has found.

    Args:
        objects: The outputs, best first.
        expected: (m,). Class of each object.
        true: The objects.

    Returns:
        (n, T) bool. For each threshold of the overlap.
    """
    right = np.zeros((len(objects.scores), len(THRESHOLDS)), bool)
    if not len(right) or not len(expected):
        return right
    iou = objects.iou(true).where(objects.classes[:, None] == expected, 0.0).numpy()
    limits = THRESHOLDS.numpy() - EPSILON
    free = np.ones((len(THRESHOLDS), len(expected)), bool)
    for i in np.flatnonzero((iou >= limits[0]).any(1)):
        free_iou = np.where(free, iou[i], -1.0)  # (T, m)
        best = free_iou.argmax(1)
        right[i] = free_iou.max(1) >= limits
        free[right[i], best[right[i]]] = False
    return right


def _average_precision(hits: Tensor, rows: Tensor, total: Tensor, counts: Tensor) -> Tensor:
    """Return the average precision (R, T), NaN without any object.

    Args:
        hits: (n, T) bool. Whether each output is right, best first.
        rows: (n,). Row of each output.
        total: (R,). Number of objects.
        counts: (R, rows). How often each row counts.
    """
    results = torch.zeros(len(counts), hits.shape[1], dtype=counts.dtype)
    # The precision is highest at an output that is right, so only these are compared.
    used = hits.any(1).nonzero().flatten()
    if len(used):
        last = int(used[-1]) + 1
        for part in _parts(len(counts), last):
            weights = counts[part].index_select(1, rows[:last])
            num_found = weights.cumsum(1)[:, used]
            results[part] = _at_recalls(weights[:, used], num_found, hits[used], total[part])
    return results.masked_fill(total[:, None] <= 0, torch.nan)


def _parts(count: int, width: int) -> Iterator[slice]:
    """Yield parts of `count` rows of this width that fit into memory."""
    step = max(CHUNK // width, 1)
    for start in range(0, count, step):
        yield slice(start, start + step)


def _at_recalls(weights: Tensor, num_found: Tensor, hits: Tensor, total: Tensor) -> Tensor:
    """Return the mean precision (R, T) at the recalls.

    Args:
        weights: (R, u). How often each output counts, best first.
        num_found: (R, u). How many outputs there are up to it.
        hits: (u, T) bool. Whether each output is right.
        total: (R,). Number of objects.
    """
    means: list[Tensor] = []
    for is_right in hits.T:
        right = weights[:, is_right].cumsum(1)
        precision = right / num_found[:, is_right].clamp(min=EPSILON)
        # The highest precision at this or any higher recall.
        precision = precision.flip(1).cummax(1).values.flip(1) if precision.numel() else precision
        recall = right / total.clamp(min=EPSILON)[:, None]
        at = torch.searchsorted(recall, RECALLS.expand(len(recall), -1).contiguous() - EPSILON)
        padded = torch.cat([precision, precision.new_zeros(len(precision), 1)], 1)
        means.append(padded.gather(1, at).mean(1))
    return torch.stack(means, 1)
