"""Tasks that predict inputs: their loss and their metrics, of each predicted input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dxn.tasks.metric import Metric, defined
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.target import Target
from dxn.tasks.task import Task

SMALLEST = 1e-9  # avoids a division by zero if nothing of an input is predicted


class PredictedInputs(Target):
    """The inputs that are predicted, as a part of the samples.

    Attributes:
        kinds: For each predicted input by name, whether its predictions are ids of a vocabulary.
            `bind` sets it.
    """

    source = "inputs"
    random = True

    def __init__(self):
        self.kinds: dict[str, bool] = {}

    def count(self, sample: Mapping[str, Any], name: str) -> int:
        """Return the number of predictions of an input of a sample."""
        raise NotImplementedError


class InputMetric(Metric):
    """The loss of each input, their mean, and the accuracy of the predicted token ids.

    Inputs without any prediction are left out.
    """

    target: PredictedInputs

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[Any]) -> Tensor:
        """Return the statistics of the head as (n, 3 I)."""
        return torch.stack(list(predictions)).double().flatten(1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics."""
        # 0 / 0: the input was missing in all rows, or nothing of it was predicted by chance.
        total, counts, correct = sums.unflatten(-1, (-1, 3)).unbind(-1)
        losses = total / counts
        results = {"loss": losses.nanmean(-1)}
        results |= {f"loss_{name}": losses[..., i] for i, name in enumerate(self.target.kinds)}
        are_ids = list(self.target.kinds.values())
        if any(are_ids):
            results["accuracy"] = correct[..., are_ids].sum(-1) / counts[..., are_ids].sum(-1)
        return results

    def metrics(
        self, predictions: Sequence[Tensor], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the metrics of the inputs that have predictions."""
        return defined(super().metrics(predictions, targets, loss))


AnyInputs = TypeVar("AnyInputs", bound=PredictedInputs)


class PerInput(Task[AnyInputs]):
    """Base class of tasks whose head returns statistics (B, I, 3) of each of I predicted inputs.

    The three numbers are the sum of the losses, the number of predictions, and the number of
    correct ones. With several inputs, a prediction has a weight with which all inputs count equally
    in the training split, see `prepare_loss`.
    """

    # Predictions per sample, by input, see `prepare_loss`.
    usual: Mapping[str, float] = MappingProxyType({})

    def prepare_loss(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Count the predictions of each input per sample.

        Without such constants, the weight of a prediction would depend on the other samples of a
        batch, and batches whose gradients are added up would not make the step of one large batch.
        """
        totals = dict.fromkeys(self.target.kinds, 0)
        size = 0
        for sample in samples:
            size += 1
            for name in totals:
                totals[name] += self.target.count(sample, name)
        self.usual = {name: total / max(size, 1) for name, total in totals.items()}

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the weighted sum over the predictions of all inputs; output is (B, I, 3)."""
        sums, counts = output.sum(0)[:, :2].unbind(1)
        # An input with many columns has the same weight as an input with few.
        usual = counts.new_tensor([self.usual.get(name, 0.0) for name in self.target.kinds])
        usual = torch.where(usual > 0, usual, counts).clamp(min=SMALLEST)
        return LossSum((sums / usual).sum(), (counts / usual).sum())

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tensor]:
        """Return the statistics (I, 3) of each sample, for the metrics."""
        return list(output.detach().cpu().double())
