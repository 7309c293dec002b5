"""What the outputs of segmentation mean, and their loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.tasks.segment.target import PixelClasses
from dxn.tasks.space import Batch, Categorical, LossSum
from dxn.tasks.target import IGNORED


class PerPixel(Categorical):
    """Logits (B, K, H, W) of the classes of each pixel; targets are indices (B, H, W).

    Args:
        names: The classes.
        dice: Weight of the Dice loss, which counts each class alike.
    """

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
    known = (target != IGNORED)[:, None]
    probabilities = output.float().softmax(1) * known
    true = F.one_hot(target.clamp(min=0), output.shape[1]).movedim(-1, 1) * known
    common = (probabilities * true).sum((0, 2, 3))
    total = probabilities.sum((0, 2, 3)) + true.sum((0, 2, 3))
    present = true.sum((0, 2, 3)) > 0
    scores = (2 * common + 1) / (total + 1)
    return ((1 - scores) * present).sum() / present.sum().clamp(min=1)
