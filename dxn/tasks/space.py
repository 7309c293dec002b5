"""The outputs of a head: their loss, their meaning, and how several of them are combined.

`Space` is the base class, and `Categorical` the space of classes. The other spaces are in the
modules of their tasks, such as `Bernoulli` in `dxn.tasks.multilabel`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.core.schema import CheckedMembers
from dxn.tasks.names import Names

# The keys are "#size" (int, the number of samples), "#index" (list of row indices), "target" (the
# result of `Target.collate`), and the name of each input (its collated samples).
Batch = Mapping[str, Any]
# Of a history that is drawn before its forecast; with more, the forecast would be too narrow.
SHOWN_HORIZONS = 4


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


class AnswerKind(Enum):
    """What a row gets, such as a class, quantiles of future values, or the class of each pixel."""

    CLASS = auto()
    LABELS = auto()
    NUMBER = auto()
    QUANTILES = auto()
    OBJECTS = auto()
    CODES = auto()
    PIXELS = auto()
    TAGS = auto()
    SPAN = auto()


# Answers that a classical model can learn from features of the inputs.
WITH_BASELINE = (AnswerKind.CLASS, AnswerKind.LABELS, AnswerKind.NUMBER, AnswerKind.QUANTILES)
# One answer for a whole sample, for which the vectors of its inputs are enough.
PER_SAMPLE = (AnswerKind.CLASS, AnswerKind.LABELS, AnswerKind.NUMBER)


class Space(ABC, CheckedMembers):
    """Base class of output spaces. A subclass must define `loss` and `decode`.

    The other methods have a default for any output (B, ...) of a head.

    Attributes:
        mixes: Whether `mix` works for the targets, so that trainer.mixup can be set.
        averages: Whether `mean` works, so that ensemble can be set.
        kind: What a row gets. The preset, the baseline and the charts of an evaluation depend on
            it. None: something else, which has none of them. A derived class does not inherit it,
            because its targets can be others.
    """

    mixes: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    kind: ClassVar[AnswerKind | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kind = vars(cls).get("kind")

    @abstractmethod
    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the loss of a batch, in float32.

        Args:
            output: Output of the head.
            batch: The batch. Its targets are those of `Target.collate`, or of `mix`.
        """

    @abstractmethod
    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return what an output means, by name. The first tensor contains the predictions.

        These are also the outputs of an exported model. The operations become a part of its graph,
        so they must not depend on the values of tensors.

        Args:
            output: Output of the head.
            batch: The batch.
        """

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the output of an ensemble in the same space, from those of its members."""
        return torch.stack(list(outputs)).mean(0)

    def mix(self, target: Tensor, order: Tensor, share: float) -> Tensor:
        """Mix the targets of a batch with those of a permuted batch, for mixup (arXiv:1710.09412).

        Args:
            target: Collated targets (B, ...).
            order: Permutation (B,) of the samples.
            share: Weight of the original sample; the permuted sample has the weight 1 - share.
        """
        return share * target + (1 - share) * target[order]


class Categorical(Space):
    """Logits (B, K) of classes of which exactly one is right; targets are indices (B,).

    Args:
        names: The classes, and their weights in the loss.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (arXiv:1512.00567, section
            7).
    """

    kind = AnswerKind.CLASS

    def __init__(self, names: Names, *, label_smoothing: float = 0.0):
        self.names = names
        self.label_smoothing = label_smoothing

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the cross-entropy, weighted by the class.

        Targets are class indices, or class probabilities (B, K) after mixup.
        """
        target = batch["target"]
        weights = self.names.class_weights
        if weights is not None:
            weights = torch.tensor(weights, dtype=torch.float32, device=output.device)
        # The softmax is computed in float32 even if the model uses bfloat16, whose 8 significant
        # bits are too few for the differences between logits.
        total = F.cross_entropy(
            output.float(),
            target,
            weight=weights,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        if target.is_floating_point():
            # As in cross_entropy, soft targets have the weight 1.
            return LossSum(total, total.new_tensor(len(target)))
        has_class = target >= 0
        if weights is None:
            return LossSum(total, has_class.sum().float())
        return LossSum(total, (weights[target.clamp(min=0)] * has_class).sum())

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, K)."""
        return {"probabilities": output.float().softmax(-1)}

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logarithm of the mean of the probabilities."""
        log_probabilities = torch.stack(list(outputs)).float().log_softmax(-1)
        return log_probabilities.logsumexp(0) - math.log(len(outputs))

    def mix(self, target: Tensor, order: Tensor, share: float) -> Tensor:
        """Return soft targets (B, K), the mixed class probabilities."""
        # one_hot cannot encode IGNORED. It does not occur here, because mixup is applied only in
        # training, where all classes are known.
        return super().mix(F.one_hot(target, len(self.names.labels)).float(), order, share)


class Marked(NamedTuple):
    """What the targets of a task mark in the inputs.

    Attributes:
        size: Usual size in the units of the targets: the height and width of objects in pictures or
            of areas of one class in masks, or the duration of events.
        num_classes: Number of classes of the pixels of masks, which weights can balance; otherwise
            0.
    """

    size: tuple[float, ...]
    num_classes: int = 0
