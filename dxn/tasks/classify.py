"""Classification: predict one of several classes for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.tasks.class_metrics import ClassMetric
from dxn.tasks.heads import HeadOptions
from dxn.tasks.names import Names, explain_case, kind_of_classes, probability_fields
from dxn.tasks.space import Categorical
from dxn.tasks.task import Task


class Class(Names):
    """One class per row."""

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find the type of the classes, and names that differ only in case."""
        self.kind = kind_of_classes(cells)
        return explain_case(map(self.name_of, cells))

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> str:
        """Return the class name."""
        return self.name_of(cell)

    def names(self, value: str) -> Sequence[str]:
        """Return the only class."""
        return (value,)

    def encode(self, value: str, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the class index (), or IGNORED for a class that is not in the training split."""
        return super().encode(value, sample, rand)[0]

    def typed(self, prediction: str) -> Any:
        """Return a class with the type that it has in the training table."""
        return self.value(prediction)


@dataclass(kw_only=True, eq=False)
class Classify(HeadOptions, Task[Class]):
    """Predict one of several classes for each sample.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (uniform targets)
            (arXiv:1512.00567, section 7).
        balance: Whether to weight each class in the loss by its inverse frequency.
    """

    name = "classify"

    label_smoothing: float = 0.0
    balance: bool = False

    def __post_init__(self):
        super().__post_init__()
        self.target = Class(balance=self.balance)
        self.space = Categorical(self.target, label_smoothing=self.label_smoothing)
        self.metric = ClassMetric(self.target)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to logits."""
        return self.linear_head(pooled_dim, len(self.target.labels))

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the most probable class, and the probability of each class."""
        labels = self.target.labels
        return {
            "prediction": labels[int(prediction.argmax())],
            "probabilities": dict(zip(labels, prediction.tolist(), strict=True)),
        }

    def columns(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the predicted class, its probability, and the probabilities of the classes."""
        return {
            "prediction": self.target.labels[int(prediction.argmax())],
            "confidence": significant(float(prediction.max())),
            **probability_fields(self.target.labels, prediction),
        }

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Tensor]] | None:
        """Return the most frequent class of the training split for every row."""
        if not self.target.frequencies:
            return None
        # The frequencies as probabilities: the most frequent class is then the predicted one.
        prediction = torch.tensor(self.target.frequencies)
        rule = f"always {self.target.labels[int(prediction.argmax())]}"
        return rule, [prediction] * len(raws)
