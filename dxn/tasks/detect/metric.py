"""The mean average precision of boxes and intervals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dxn.tasks.detect.boxes import overlaps
from dxn.tasks.detect.objects import Objects
from dxn.tasks.detect.target import DetectedObjects
from dxn.tasks.metric import Metric, f1_scores
from dxn.tasks.names import MAX_CLASS_COLUMNS

# As COCO defines the mean average precision: the mean over these overlaps, at 101 recalls.
THRESHOLDS = torch.arange(0.5, 1.0, 0.05, dtype=torch.float64)
RECALLS = torch.linspace(0, 1, 101, dtype=torch.float64)
EPSILON = 1e-6  # an overlap at a threshold counts, in spite of the rounding of float32


@dataclass(frozen=True, slots=True)
class Detected:
    """The prediction for one sample: its outputs with the highest scores, best first.

    Args:
        classes: (n,). Index of the class of each object.
        scores: (n,). Score of each object from 0 to 1.
        boxes: (n, 2A). Places, see `Objects`.
    """

    classes: Tensor
    scores: Tensor
    boxes: Tensor


class AveragePrecision(Metric):
    """The average precision per class, and its mean, as COCO computes them.

    Args:
        target: The objects.
        threshold: Minimum score of an object in the score of a single row.
    """

    monitored = "map"
    row = ("f1", "F1 of the objects")

    def __init__(self, target: DetectedObjects, threshold: float = 0.4):
        self.target = target
        self.threshold = threshold

    def rows(self, predictions: Sequence[Detected], targets: Sequence[Objects]) -> Tensor:
        """Return the numbers of right, found and true objects of each row (n, 3).

        An object is right if it overlaps a true one of its class by at least 0.5.
        """
        counts = torch.zeros(len(predictions), 3, dtype=torch.float64)
        for row, (found, true) in enumerate(zip(predictions, targets, strict=True)):
            kept = found.scores >= self.threshold
            own = Detected(found.classes[kept], found.scores[kept], found.boxes[kept])
            right = 0
            for index in own.classes.unique().tolist():
                _, hits, _ = _hits([own], [true], index, self.target.labels[index])
                right += int(hits[:, 0].sum())
            counts[row] = torch.tensor([right, len(own.scores), len(true)])
        return counts

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the F1 of the objects from the results of `rows`."""
        right, found, true = sums.unbind(-1)
        return {"f1": f1_scores(right, found, true)}

    def weighted(
        self, predictions: Sequence[Detected], targets: Sequence[Objects], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return the mean average precision, that at an overlap of 0.5, and that of each class.

        The mean is over the classes that occur. Classes that the training split does not have are
        objects that are never found.
        """
        labels = [*self.target.labels]
        labels += sorted({n for true in targets for n in true.labels} - set(labels))
        of_class: list[Tensor] = []
        for index, name in enumerate(labels):
            found, hits, rows = _hits(predictions, targets, index, name)
            true = torch.tensor([t.labels.count(name) for t in targets], dtype=counts.dtype)
            order = found.argsort(descending=True, stable=True)
            of_class.append(_average_precision(hits[order], rows[order], true, counts))
        by_class = torch.stack(of_class, 1)  # (R, K, T)
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


def _hits(
    predictions: Sequence[Detected], targets: Sequence[Objects], index: int, name: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores (n,) of one class, whether each is right (n, T), and their rows (n,)."""
    scores = [torch.zeros(0)]
    hits = [torch.zeros(0, len(THRESHOLDS), dtype=torch.bool)]
    rows = [torch.zeros(0, dtype=torch.long)]
    for row, (found, true) in enumerate(zip(predictions, targets, strict=True)):
        chosen = found.classes == index
        boxes = found.boxes[chosen].double()
        own = [box for label, box in zip(true.labels, true.boxes, strict=True) if label == name]
        expected = torch.tensor(own, dtype=torch.float64).reshape(len(own), boxes.shape[1])
        scores.append(found.scores[chosen])
        hits.append(_right(boxes, expected))
        rows.append(torch.full((len(boxes),), row))
    return torch.cat(scores), torch.cat(hits), torch.cat(rows)


def _right(boxes: Tensor, expected: Tensor) -> Tensor:
    """Return whether boxes (n, 2A), best first, find an object that no better box has found.

    Args:
        boxes: Boxes of one class in one sample.
        expected: (m, 2A). The objects of this class.

    Returns:
        (n, T) bool. For each threshold of the overlap.
    """
    right = torch.zeros(len(boxes), len(THRESHOLDS), dtype=torch.bool)
    if not len(boxes) or not len(expected):
        return right
    iou, _ = overlaps(boxes[:, None], expected)
    free = torch.ones(len(THRESHOLDS), len(expected), dtype=torch.bool)
    for i, own in enumerate(iou):
        open_iou = torch.where(free, own, -1.0)  # (T, m)
        best = open_iou.max(1)
        right[i] = best.values >= THRESHOLDS - EPSILON
        free[right[i], best.indices[right[i]]] = False
    return right


def _average_precision(hits: Tensor, rows: Tensor, true: Tensor, counts: Tensor) -> Tensor:
    """Return the average precision (R, T), NaN without any object.

    Args:
        hits: (n, T) bool. Whether each output is right, best first.
        rows: (n,). Row of each output.
        true: (rows,). Number of objects of each row.
        counts: (R, rows). How often each row counts.
    """
    total = counts @ true
    results = torch.full((len(counts), hits.shape[1]), torch.nan, dtype=counts.dtype)
    for i in range(len(counts)):
        if not total[i] > 0:
            continue
        weights = counts[i, rows]
        right = (hits * weights[:, None]).cumsum(0)
        precision = right / weights.cumsum(0).clamp(min=EPSILON)[:, None]
        # The highest precision at this or any higher recall.
        precision = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
        recall = (right / total[i]).T.contiguous()
        at = torch.searchsorted(recall, RECALLS.expand(len(recall), -1).contiguous() - EPSILON)
        padded = torch.cat([precision, precision.new_zeros(1, precision.shape[1])])
        results[i] = padded.gather(0, at.T).mean(0)
    return results
