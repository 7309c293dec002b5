"""The mean average precision of boxes and intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dxn.tasks.detect.objects import Objects
from dxn.tasks.detect.target import areas, intersections, overlaps
from dxn.tasks.metric import Metric, f1_scores
from dxn.tasks.names import MAX_CLASS_COLUMNS

if TYPE_CHECKING:
    from dxn.tasks.detect.target import DetectedObjects
    from dxn.tasks.segment.instances import Instances, ObjectMasks

    Truth = Objects | Instances  # the objects of a row

# As COCO defines the mean average precision: the mean over these overlaps, at 101 recalls.
THRESHOLDS = torch.arange(0.5, 1.0, 0.05, dtype=torch.float64)
# NumPy's, as in pycocotools: another rounding decides differently whether 7 of 20 reach 0.35.
RECALLS = torch.from_numpy(np.linspace(0, 1, 101))
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
        """Return the overlap (n, m) float64 with each true object, those that count first.

        It is the intersection over union. With a crowd, it is the share of the area of the output.
        """


@dataclass(frozen=True, slots=True)
class Detected(ScoredObjects):
    """The boxes that are found in one sample, best first.

    Args:
        boxes: (n, 2A). Places, see `Objects`.
    """

    boxes: Tensor

    def iou(self, true: Objects) -> Tensor:
        """Return the overlap (n, m) with each true object."""
        boxes = [*true.boxes, *(item.place for item in true.ignored)]
        found = self.boxes.double()[:, None]
        iou, _ = overlaps(found, torch.tensor(boxes, dtype=torch.float64))
        for i, item in enumerate(true.ignored, len(true)):
            if item.is_crowd:
                crowd = torch.tensor(item.place, dtype=torch.float64)
                area = areas(found[:, 0]).clamp(min=torch.finfo(found.dtype).tiny)
                iou[:, i] = intersections(found[:, 0], crowd) / area
        return iou


class AveragePrecision(Metric):
    """The average precision per class, and its mean, as COCO computes them."""

    target: DetectedObjects | ObjectMasks
    monitored = "map"
    row = ("f1", "F1 of the objects")

    def rows(self, predictions: Sequence[ScoredObjects], targets: Sequence[Truth]) -> Tensor:
        """Return the numbers of right, found and true objects of each row (n, 3).

        An object is right if it overlaps a true one of its class by at least 0.5. Found are those
        whose score is at least the threshold of the target.
        """
        matched = _match(predictions, targets, self.target.labels)
        is_answer = (matched.scores >= self.target.threshold) & matched.counted[:, 0]
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
        self,
        predictions: Sequence[ScoredObjects],
        targets: Sequence[Truth],
        counts: Tensor,
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
            precisions.append(_average_precision(matched.of(is_class), counts @ true[i], counts))
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
    predictions: Sequence[ScoredObjects],
    targets: Sequence[Truth],
    labels: Sequence[str],
) -> float | None:
    """Return the minimum score with which the F1 of the objects of all rows is highest.

    None: it is below `MIN_F1` at any score.
    """
    matched = _match(predictions, targets, labels)
    right = matched.hits[:, 0].cumsum(0)
    if not len(right):
        return None
    num_found = matched.counted[:, 0].cumsum(0)
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
        counted: (n, T) bool. False if it is neither right nor wrong, because it finds an object
            that is ignored.
    """

    scores: Tensor
    classes: Tensor
    rows: Tensor
    hits: Tensor
    counted: Tensor

    def of(self, chosen: Tensor) -> Matched:
        """Return the outputs that are chosen (n,) bool."""
        parts = (self.scores, self.classes, self.rows, self.hits, self.counted)
        return Matched(*(part[chosen] for part in parts))


def _match(
    predictions: Sequence[ScoredObjects],
    targets: Sequence[Truth],
    labels: Sequence[str],
) -> Matched:
    """Say which outputs find an object that no better output of the same row has found.

    Args:
        predictions: Outputs of each row, best first.
        targets: Objects of the same rows.
        labels: Names of the classes. An object of another class is never found.
    """
    index = {name: i for i, name in enumerate(labels)}
    scores, classes = [torch.zeros(0)], [torch.zeros(0, dtype=torch.long)]
    hits, counted = ([np.zeros((0, len(THRESHOLDS)), bool)] for _ in range(2))
    for objects, true in zip(predictions, targets, strict=True):
        scores.append(objects.scores)
        classes.append(objects.classes)
        names = [*true.names, *(item.label for item in true.ignored)]
        expected = torch.tensor([index.get(name, -1) for name in names], dtype=torch.long)
        is_right, is_counted = _right(objects, expected, true)
        hits.append(is_right)
        counted.append(is_counted)
    sizes = torch.tensor([len(objects.scores) for objects in predictions], dtype=torch.long)
    rows = torch.arange(len(sizes)).repeat_interleave(sizes)
    joined = torch.cat(scores)
    order = joined.argsort(descending=True, stable=True)
    parts = (joined, torch.cat(classes), rows)
    marks = (torch.from_numpy(np.concatenate(of_rows)) for of_rows in (hits, counted))
    return Matched(*(part[order] for part in (*parts, *marks)))


def _right(objects: ScoredObjects, expected: Tensor, true: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Say which outputs of a sample find an object that no better one has found.

    An output that finds none of them is left out if it finds an object that is ignored, also if a
    better one has found it before.

    Args:
        objects: The outputs, best first.
        expected: (m,). Class of each object, those that count first.
        true: The objects.

    Returns:
        Whether each output is right (n, T) bool, for each threshold of the overlap, and whether it
        is counted (n, T) bool.
    """
    right = np.zeros((len(objects.scores), len(THRESHOLDS)), bool)
    counted = np.ones_like(right)
    if not len(right) or not len(expected):
        return right, counted
    iou = objects.iou(true).where(objects.classes[:, None] == expected, 0.0).numpy()
    limits = THRESHOLDS.numpy() - EPSILON
    num_counted = len(true.names)
    counted[:] = iou[:, num_counted:].max(1, initial=0.0)[:, None] < limits
    iou = iou[:, :num_counted]
    free = np.ones((len(THRESHOLDS), num_counted), bool)
    for i in np.flatnonzero((iou >= limits[0]).any(1)):
        free_iou = np.where(free, iou[i], -1.0)  # (T, m)
        best = free_iou.argmax(1)
        right[i] = free_iou.max(1) >= limits
        free[right[i], best[right[i]]] = False
    return right, counted | right


def _average_precision(matched: Matched, total: Tensor, counts: Tensor) -> Tensor:
    """Return the average precision (R, T), NaN without any object.

    Args:
        matched: Outputs of a class.
        total: (R,). Number of objects.
        counts: (R, rows). How often each row counts.
    """
    hits = matched.hits
    results = torch.zeros(len(counts), hits.shape[1], dtype=counts.dtype)
    # The precision is highest at an output that is right, so only these are compared.
    used = hits.any(1).nonzero().flatten()
    if len(used):
        last = int(used[-1]) + 1
        counted = matched.counted[:last]
        is_ignored = not counted.all()
        for part in _parts(len(counts), last):
            weights = counts[part].index_select(1, matched.rows[:last])
            num_found = weights.cumsum(1)[:, used]
            for i, is_right in enumerate(hits[used].T):
                if is_ignored:
                    num_found = (weights * counted[:, i]).cumsum(1)[:, used]
                of_hits = weights[:, used][:, is_right], num_found[:, is_right]
                results[part, i] = _at_recalls(*of_hits, total[part])
    return results.masked_fill(total[:, None] <= 0, torch.nan)


def _parts(count: int, width: int) -> Iterator[slice]:
    """Yield parts of `count` rows of this width that fit into memory."""
    step = max(CHUNK // width, 1)
    for start in range(0, count, step):
        yield slice(start, start + step)


def _at_recalls(weights: Tensor, num_found: Tensor, total: Tensor) -> Tensor:
    """Return the mean precision (R,) at the recalls.

    Args:
        weights: (R, u). How often each output that is right counts, best first.
        num_found: (R, u). How many outputs there are up to it.
        total: (R,). Number of objects.
    """
    right = weights.cumsum(1)
    precision = right / num_found.clamp(min=EPSILON)
    # The highest precision at this or any higher recall.
    precision = precision.flip(1).cummax(1).values.flip(1) if precision.numel() else precision
    recall = right / total.clamp(min=EPSILON)[:, None]
    at = torch.searchsorted(recall, RECALLS.expand(len(recall), -1).contiguous())
    padded = torch.cat([precision, precision.new_zeros(len(precision), 1)], 1)
    return padded.gather(1, at).mean(1)
