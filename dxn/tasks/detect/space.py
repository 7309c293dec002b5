"""What the outputs of detection mean, how they are matched with the objects, and their loss.

Several parts of tokens can find the same object. Those that fit an object best learn to find it
(arXiv:2108.07755), and at use the best of them is kept. Of learned queries, exactly one is matched
with each object, at the lowest total cost (arXiv:2005.12872), so that each object is found once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.tasks.detect.target import DetectedObjects, centers, overlaps
from dxn.tasks.space import AnswerKind, Batch, LossSum, Space

LIMIT = 1e6  # of a cost
# Weights of the classification, of the distance of the boxes and of their overlap.
CLASS_WEIGHT, DISTANCE_WEIGHT, OVERLAP_WEIGHT = 1.0, 5.0, 2.0
MATCH_CLASS_WEIGHT = 2.0  # in the cost of a match
# Share and exponent of the loss of outputs without an object (arXiv:2008.13367, equation 2).
NEGATIVE_SHARE, FOCUS = 0.75, 2.0
NUM_CANDIDATES = 10  # parts of tokens per object
MIN_QUALITY = 0.2  # of the part that is nearest to an object, also if it does not overlap it yet
# Exponents of the score and of the overlap in the choice of candidates (arXiv:2108.07755).
SCORE_POWER, OVERLAP_POWER = 0.5, 6.0


class Matches(NamedTuple):
    """Which outputs belong to which objects.

    Args:
        rows: (P,). Sample of each pair.
        outputs: (P,). Index of the output in the sample.
        objects: (P,). Index of the object in the sample.
    """

    rows: Tensor
    outputs: Tensor
    objects: Tensor


@torch.no_grad()
def assign(cost: Tensor, real: Tensor) -> Matches:
    """Match each object with one output at the lowest total cost of each sample.

    Args:
        cost: (B, M, n). Cost of each output for each object.
        real: (B, n) bool. False where there is no object.
    """
    from scipy.optimize import linear_sum_assignment  # it takes time to import

    # One copy for all samples. A diverged model has NaN, which the solver refuses.
    costs = cost.nan_to_num(LIMIT, LIMIT, -LIMIT).cpu().numpy()
    is_real = real.cpu().numpy()
    parts: list[np.ndarray] = []
    for row in np.flatnonzero(is_real.any(1)).tolist():
        objects = np.flatnonzero(is_real[row])
        outputs, chosen = linear_sum_assignment(costs[row][:, objects])
        parts.append(np.stack([np.full_like(outputs, row), outputs, objects[chosen]]))
    pairs = np.concatenate(parts, 1) if parts else np.zeros((3, 0), np.int64)
    return Matches(*torch.from_numpy(pairs).to(cost.device))


class Detections(Space):
    """Logits of K classes and a box of each of M outputs: (B, M, K + 2A).

    The boxes are fractions of the prepared picture.

    Args:
        target: The objects.
        once: Whether exactly one output learns to find each object, instead of several.
    """

    mixes = False
    averages = False
    kind = AnswerKind.OBJECTS

    def __init__(self, target: DetectedObjects, *, once: bool):
        self.target = target
        self.once = once

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the loss per object: that of the classes and that of the boxes."""
        labels, boxes = batch["target"]["labels"], batch["target"]["boxes"]
        num_classes = output.shape[-1] - boxes.shape[-1]
        # float32: boxes in bfloat16 would be accurate to a percent only.
        logits, predicted = output.float().split([num_classes, boxes.shape[-1]], -1)
        loss = _set_loss if self.once else _dense_loss
        return LossSum(loss(logits, predicted, labels, boxes), (labels >= 0).sum().float())

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the scores (B, M, K) and the boxes (B, M, 2A) in the prepared picture."""
        num_classes = len(self.target.labels)
        output = output.float()
        return {"scores": output[..., :num_classes].sigmoid(), "boxes": output[..., num_classes:]}


def _set_loss(logits: Tensor, predicted: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
    """Return the sum of the losses of outputs of which each object has exactly one.

    Args:
        logits: (B, M, K).
        predicted: (B, M, 2A). Boxes of the outputs.
        labels: (B, n). Classes of the objects, negative where there is none.
        boxes: (B, n, 2A). Boxes of the objects.
    """
    pairs = match(logits, predicted, labels, boxes)
    matched, true = predicted[pairs.rows, pairs.outputs], boxes[pairs.rows, pairs.objects]
    iou, generalized = overlaps(matched, true)
    quality = torch.zeros_like(logits)
    classes = labels[pairs.rows, pairs.objects]
    quality[pairs.rows, pairs.outputs, classes] = iou.detach()
    weights = NEGATIVE_SHARE * logits.detach().sigmoid().pow(FOCUS)
    weights = torch.where(quality > 0, quality, weights)
    of_classes = F.binary_cross_entropy_with_logits(logits, quality, weights, reduction="sum")
    distance = (matched - true).abs().sum()
    overlap = (1 - generalized).sum()
    return CLASS_WEIGHT * of_classes + DISTANCE_WEIGHT * distance + OVERLAP_WEIGHT * overlap


def _dense_loss(logits: Tensor, predicted: Tensor, labels: Tensor, boxes: Tensor) -> Tensor:
    """Return the sum of the losses of outputs of which each object has several.

    The arguments are those of `_set_loss`.
    """
    pairs, quality = candidates(logits, predicted, labels, boxes)
    matched, true = predicted[pairs.rows, pairs.outputs], boxes[pairs.rows, pairs.objects]
    _, generalized = overlaps(matched, true)
    targets = torch.zeros_like(logits)
    classes = labels[pairs.rows, pairs.objects]
    targets[pairs.rows, pairs.outputs, classes] = quality
    of_classes = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    # As many as the objects of the batch, whatever the number of their candidates is. A batch
    # without any object also teaches that there is none.
    share = (labels >= 0).sum().clamp(min=1) / quality.sum().clamp(min=1)
    distance = ((matched - true).abs().sum(-1) * quality).sum()
    overlap = ((1 - generalized) * quality).sum()
    return share * (
        CLASS_WEIGHT * of_classes + DISTANCE_WEIGHT * distance + OVERLAP_WEIGHT * overlap
    )


@torch.no_grad()
def match(logits: Tensor, predicted: Tensor, labels: Tensor, boxes: Tensor) -> Matches:
    """Match each object with one output at the lowest total cost of each sample.

    The arguments are those of `_set_loss`. An object whose class is not in the training split has
    a negative label and is not matched.
    """
    index = labels.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1)
    scores = logits.sigmoid().gather(2, index)
    distance = torch.cdist(predicted, boxes, p=1)
    _, generalized = overlaps(predicted[:, :, None], boxes[:, None])
    cost = DISTANCE_WEIGHT * distance - OVERLAP_WEIGHT * generalized - MATCH_CLASS_WEIGHT * scores
    return assign(cost, labels >= 0)


@torch.no_grad()
def candidates(
    logits: Tensor, predicted: Tensor, labels: Tensor, boxes: Tensor
) -> tuple[Matches, Tensor]:
    """Choose the outputs that fit each object best, and how well each of them fits.

    Their centers are inside of the object, except that of the nearest one, which can be outside of
    a small object. An output that fits several objects belongs to the one that it overlaps most.
    The arguments are those of `_set_loss`.

    Returns:
        The pairs, and the quality (P,) of each from 0 to 1: the best candidate of an object has the
        largest overlap of its candidates (arXiv:2108.07755, section 3.2).
    """
    real = labels >= 0
    index = labels.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1)
    scores = logits.sigmoid().gather(2, index)  # (B, M, n)
    iou, _ = overlaps(predicted[:, :, None], boxes[:, None])
    center = centers(predicted)[:, :, None]
    start, stop = boxes[:, None].chunk(2, -1)
    inside = ((center >= start) & (center <= stop)).all(-1)
    distance = (center - centers(boxes)[:, None]).square().sum(-1)
    is_nearest = torch.zeros_like(inside).scatter(1, distance.argmin(1, keepdim=True), True)
    is_near = (inside | is_nearest) & real[:, None]
    fit = scores.pow(SCORE_POWER) * iou.pow(OVERLAP_POWER) * is_near
    best = fit.topk(min(NUM_CANDIDATES, fit.shape[1]), 1)
    chosen = torch.zeros_like(inside).scatter(1, best.indices, best.values > 0)
    chosen |= is_nearest & real[:, None]
    # An output belongs to one object only, unless there is none in the batch.
    if labels.shape[1]:
        owner = iou.masked_fill(~chosen, -1).argmax(2, keepdim=True)
        chosen &= torch.zeros_like(chosen).scatter(2, owner, True)
    fit = fit * chosen
    highest = fit.amax(1, keepdim=True).clamp(min=torch.finfo(fit.dtype).tiny)
    quality = fit / highest * (iou * chosen).amax(1, keepdim=True)
    quality = torch.where(is_nearest, quality.clamp(min=MIN_QUALITY), quality)
    rows, outputs, objects = chosen.nonzero(as_tuple=True)
    return Matches(rows, outputs, objects), quality[rows, outputs, objects]
