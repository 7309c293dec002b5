"""The loss of a batch as a sum, so that parts of a batch and processes add up exactly."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class LossSum(NamedTuple):
    """A weighted sum of losses, and the sum of their weights.

    The loss of several batches is the sum of the totals divided by the sum of the weights. It
    equals the loss of one batch with all samples.

    Attributes:
        total: () Sum of the weighted losses.
        weight: () Sum of the weights: the number of samples or tokens, or the sum of the weights of
            their classes. 0: the batch has nothing that the model is to predict.
    """

    total: Tensor
    weight: Tensor

    @classmethod
    def of(cls, losses: Tensor, weights: Tensor | None = None) -> LossSum:
        """Add up losses (...) with weights of the same shape; default: all weights are 1."""
        if weights is None:
            weights = torch.ones_like(losses)
        return cls((losses * weights).sum(), weights.sum())

    @property
    def mean(self) -> Tensor:
        """() Mean loss, 0 without any weight."""
        # Not a maximum with a constant: the weight of a rare class can be far below 1.
        return self.total / torch.where(self.weight > 0, self.weight, 1.0)

    def __add__(self, other: object) -> LossSum:
        """Return the loss of two batches together."""
        assert isinstance(other, LossSum)
        return LossSum(self.total + other.total, self.weight + other.weight)
