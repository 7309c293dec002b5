"""What the outputs of segmentation mean, and their loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.tasks.detect.space import Matches, assign
from dxn.tasks.segment.head import MaskQueries, at_pixels, covered
from dxn.tasks.segment.target import PixelClasses
from dxn.tasks.space import AnswerKind, Batch, Categorical, LossSum
from dxn.tasks.target import IGNORED
from dxn.tokenize.patches import PatchGrid

CLASS_WEIGHT, MASK_WEIGHT, DICE_WEIGHT = 2.0, 5.0, 5.0
NOTHING_WEIGHT = 0.1  # in the loss of the classes, of queries without a segment
MAX_POINTS = 112**2  # pixels of a picture at which masks are compared


class PerPixel(Categorical):
    """Logits (B, K, H, W) of the classes of each pixel; targets are indices (B, H, W).

    Args:
        names: The classes.
        dice: Weight of the Dice loss, which counts each class alike.
    """

    kind = AnswerKind.PIXELS
    mixes = False
    names: PixelClasses

    def __init__(self, names: PixelClasses, *, dice: float = 0.0):
        super().__init__(names)
        self.dice = dice

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the cross-entropy per pixel, weighted by the class, and the Dice loss."""
        result = super().loss(output, batch)
        if not self.dice:
            return result
        # Each pixel has the share of the loss that it has in the mean.
        return LossSum(
            result.total + self.dice * result.weight * _dice(output, batch), result.weight
        )

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, K, H, W) of the classes of each pixel."""
        return {"probabilities": output.float().softmax(1)}

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logarithm of the mean of the probabilities."""
        total = torch.stack(list(outputs)).float().log_softmax(2).logsumexp(0)
        return total - torch.tensor(float(len(outputs))).log()


def _dice(output: Tensor, batch: Batch) -> Tensor:
    """Return 1 minus the mean Dice coefficient of the classes in a batch (arXiv:1606.04797)."""
    target = batch["target"]
    has_class = (target != IGNORED)[:, None]
    probabilities = output.float().softmax(1) * has_class
    true = F.one_hot(target.clamp(min=0), output.shape[1]).movedim(-1, 1) * has_class
    common = (probabilities * true).sum((0, 2, 3))
    total = probabilities.sum((0, 2, 3)) + true.sum((0, 2, 3))
    present = true.sum((0, 2, 3)) > 0
    scores = (2 * common + 1) / (total + 1)
    return ((1 - scores) * present).sum() / present.sum().clamp(min=1)


class Segments(NamedTuple):
    """The true segments of a batch, at P points of each picture.

    Args:
        labels: (B, n). Class of each segment, negative where there is none.
        masks: (B, n, P) float. 1 at the points of the segment.
        known: (B, P) float. 0 at points without a class.
    """

    labels: Tensor
    masks: Tensor
    known: Tensor


class MaskClasses(PerPixel):
    """`MaskQueries` in training, and logits (B, K, H, W) of each pixel at use.

    Args:
        names: The classes.
        upscale: How often the resolution of the tokens is doubled.
    """

    averages = False

    def __init__(self, names: PixelClasses, upscale: int):
        super().__init__(names)
        self.upscale = upscale

    def loss(self, output: Tensor | MaskQueries, batch: Batch) -> LossSum:
        """Return the loss per segment, or per pixel of a model that is used."""
        if isinstance(output, Tensor):
            return super().loss(output, batch)
        target = batch["target"]
        step = point_step(target)
        points = points_of(output.masks, self.names.grid, self.upscale, target, step)
        target = target[:, ::step, ::step].flatten(1)
        masks = F.one_hot(target.clamp(min=0), len(self.names.labels)).mT * (target >= 0)[:, None]
        labels = torch.arange(masks.shape[1], device=masks.device)
        labels = labels.where(masks.any(2), IGNORED)
        has_class = (target != IGNORED).float()
        return set_loss(output.classes, points, Segments(labels, masks.float(), has_class))


class MaskObjects(MaskClasses):
    """`MaskQueries`, of which each object has exactly one.

    The targets are those of `ObjectMasks`.
    """

    def loss(self, output: Tensor | MaskQueries, batch: Batch) -> LossSum:
        """Return the loss per object."""
        assert isinstance(output, MaskQueries)
        target = batch["target"]
        step = point_step(target["known"])
        points = points_of(output.masks, self.names.grid, self.upscale, target["known"], step)
        masks = target["masks"][..., ::step, ::step].flatten(2).float()
        has_class = target["known"][:, ::step, ::step].flatten(1).float()
        return set_loss(output.classes, points, Segments(target["labels"], masks, has_class))

    def decode(self, output: Tensor | MaskQueries, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, M, K) of the classes of the queries, and their masks.

        The masks (B, M, H, W) are the probability that each pixel belongs to the query.
        """
        assert isinstance(output, MaskQueries)
        size = batch[self.names.input]["pixels"].shape[-2:]
        masks = at_pixels(output.masks, self.names.grid, self.upscale, size)
        probabilities = output.classes.float().softmax(-1)[..., :-1]
        return {"probabilities": probabilities, "masks": masks.sigmoid()}


def point_step(target: Tensor) -> int:
    """Return the distance of the points at which masks (..., H, W) are compared."""
    height, width = target.shape[-2:]
    step = 1
    while -(-height // step) * -(-width // step) > MAX_POINTS:
        step += 1
    return step


def points_of(masks: Tensor, grid: PatchGrid, upscale: int, target: Tensor, step: int) -> Tensor:
    """Return the logits (B, M, P) of masks (B, M, h, w) at every `step`-th pixel of a target."""
    coords: list[Tensor] = []
    for length, whole in zip(target.shape[-2:], covered(masks, grid, upscale), strict=True):
        pixels = torch.arange(0, length, step, device=masks.device) + 0.5
        coords.append(2 * pixels / whole - 1)
    down, across = torch.meshgrid(*coords, indexing="ij")
    where = torch.stack([across, down], -1).expand(len(masks), -1, -1, -1)
    # Equal to a bilinear interpolation at these pixels.
    at = F.grid_sample(masks.float(), where, padding_mode="border", align_corners=False)
    return at.flatten(2)


def set_loss(classes: Tensor, masks: Tensor, true: Segments) -> LossSum:
    """Return the loss of queries, of which each segment has exactly one.

    Args:
        classes: (B, M, K + 1). Logits of the classes; the last one is no segment.
        masks: (B, M, P). Logits of the masks at points.
        true: The segments.
    """
    logits = classes.float()
    pairs = match(logits, masks, true)
    labels = torch.full(logits.shape[:2], logits.shape[2] - 1, device=logits.device)
    labels[pairs.rows, pairs.outputs] = true.labels[pairs.rows, pairs.objects]
    weights = logits.new_ones(logits.shape[2])
    weights[-1] = NOTHING_WEIGHT
    of_classes = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weights)
    predicted, has_class = masks[pairs.rows, pairs.outputs], true.known[pairs.rows]
    expected = true.masks[pairs.rows, pairs.objects]
    losses = F.binary_cross_entropy_with_logits(predicted, expected, has_class, reduction="none")
    of_pixels = (losses.sum(1) / has_class.sum(1).clamp(min=1)).sum()
    chances = predicted.sigmoid() * has_class
    common = (chances * expected).sum(1)
    dice = (1 - (2 * common + 1) / (chances.sum(1) + expected.sum(1) + 1)).sum()
    count = (true.labels >= 0).sum().float()
    total = CLASS_WEIGHT * of_classes * count.clamp(min=1)
    return LossSum(total + MASK_WEIGHT * of_pixels + DICE_WEIGHT * dice, count)


@torch.no_grad()
def match(classes: Tensor, masks: Tensor, true: Segments) -> Matches:
    """Match each segment with one query. The arguments are those of `set_loss`."""
    index = true.labels.clamp(min=0)[:, None].expand(-1, classes.shape[1], -1)
    scores = classes.softmax(-1).gather(2, index)
    # The cross-entropy is softplus(x) - x where the mask is 1, and softplus(x) elsewhere.
    has_class = true.known[:, None]
    rest = (F.softplus(masks) * has_class).sum(2, keepdim=True)
    of_pixels = (rest - masks @ true.masks.mT) / has_class.sum(2, keepdim=True).clamp(min=1)
    chances = masks.sigmoid() * has_class
    total = chances.sum(2, keepdim=True) + true.masks.sum(2)[:, None]
    dice = 1 - (2 * chances @ true.masks.mT + 1) / (total + 1)
    cost = MASK_WEIGHT * of_pixels + DICE_WEIGHT * dice - CLASS_WEIGHT * scores
    return assign(cost, true.labels >= 0)
