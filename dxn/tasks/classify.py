"""Classification: predict one of several classes for each sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dxn.core.display import significant
from dxn.core.randomness import Probability
from dxn.tasks.class_metrics import hidden_metrics, per_class, with_unknown
from dxn.tasks.heads import HeadOptions
from dxn.tasks.metric import ClassScores, Metric, one_hot
from dxn.tasks.names import (
    MAX_CLASS_COLUMNS,
    TOP,
    TYPES,
    Names,
    class_name,
    explain_case,
    kind_of_classes,
    probability_fields,
)
from dxn.tasks.space import Categorical
from dxn.tasks.task import Task


class Class(Names):
    """One class per row."""

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find the type of the classes, and names that differ only in case."""
        self.kind = kind_of_classes(cells)
        return explain_case(self.read(cell, "", {}) for cell in cells)

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> str:
        """Return the name of a class of any table, in which a class can have another type."""
        name = class_name(cell)
        # In a text file, or in a column of pandas with missing values.
        if self.kind == "bool" and name.capitalize() in ("True", "False"):
            return name.capitalize()
        if self.kind == "int" and isinstance(cell, float) and cell.is_integer():
            return str(int(cell))
        if self.kind == "float":
            with suppress(ValueError):
                return str(float(name))
        return name

    def names(self, value: str) -> Sequence[str]:
        """Return the only class."""
        return (value,)

    def encode(self, value: str, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the class index (), or IGNORED for a class that is not in the training split."""
        return super().encode(value, sample, rand)[0]

    def typed(self, prediction: str) -> Any:
        """Return a class with the type that it has in the training table."""
        return TYPES[self.kind](prediction)


class ClassMetric(Metric):
    """Metrics of the classes of which each row has one.

    They are the accuracy, the log loss, the balanced accuracy and metrics per class. With more than
    MAX_CLASS_COLUMNS classes, the fraction of rows whose class is among the TOP most probable ones
    takes the place of the metrics of single classes. With two classes, the average precision is
    that of the rarer one.

    Args:
        target: The classes.
    """

    monitored = "accuracy"
    lower_is_better = ("log_loss",)
    row: ClassVar = ("accuracy", "correct")

    def __init__(self, target: Class):
        self.target = target

    def class_scores(self, predictions: Sequence[Tensor], targets: Sequence[str]) -> ClassScores:
        """Return the probabilities of the classes, of which exactly one is predicted."""
        index = torch.tensor([self.target.index.get(name, -1) for name in targets])
        true = one_hot(index, len(self.target.labels))
        return ClassScores(torch.stack(list(predictions)), true)

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[str]) -> Tensor:
        """Return 1, whether the answer is right, its log loss, and whether it is among the best."""
        scores = with_unknown(self.class_scores(predictions, targets), self.target, targets)
        probabilities, true = scores.probabilities, scores.true
        # A probability of 0 is replaced, as in scikit-learn.
        chosen = (probabilities * true).sum(1).clamp(min=torch.finfo(torch.float32).eps)
        best = probabilities.topk(min(TOP, probabilities.shape[1])).indices
        parts = [
            torch.ones(len(true)),
            (scores.predicted & true).any(1),
            -chosen.double().log(),
            true.gather(1, best).any(1),
        ]
        return torch.stack([part.double() for part in parts], 1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the accuracy, the log loss and, with many classes, the top-5 accuracy."""
        total, right, log_loss, among_best = sums.unbind(-1)
        results = {"accuracy": right / total, "log_loss": log_loss / total}
        if len(self.target.labels) > MAX_CLASS_COLUMNS:
            results[f"accuracy_top{TOP}"] = among_best / total
        return results

    def weighted(
        self, predictions: Sequence[Tensor], targets: Sequence[str], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return all metrics."""
        results = super().weighted(predictions, targets, counts)
        scores = with_unknown(self.class_scores(predictions, targets), self.target, targets)
        right, true = (scores.predicted & scores.true).to(counts.dtype), scores.true
        recall = counts @ right / (counts @ true.to(counts.dtype))
        results["balanced_accuracy"] = recall.nanmean(1)
        num_classes = len(self.target.labels)
        if num_classes == 1:
            return results
        # The ranking by the other one of two classes is the same in the opposite order.
        ranked = range(num_classes)
        if num_classes == 2:
            first, second = self.target.frequencies or (0, 0)
            ranked = [int(second <= first)]  # the rarer one
        return results | per_class(scores, self.target.labels, counts, ranked)

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show, except with rare classes."""
        return {"balanced_accuracy", "log_loss", *hidden_metrics(self.target)}


@dataclass(kw_only=True, eq=False)
class Classify(HeadOptions, Task[Class]):
    """Predict one of several classes for each sample.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (uniform targets)
            (arXiv:1512.00567, section 7).
        balance: Whether to weight each class in the loss by its inverse frequency.
    """

    name = "classify"

    label_smoothing: Probability = 0.0
    balance: bool = False

    def __post_init__(self):
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
