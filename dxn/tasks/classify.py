"""Classification: predict one of several classes for each sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dxn.core.display import significant
from dxn.core.randomness import Probability
from dxn.tasks.heads import HeadOptions
from dxn.tasks.metric import ClassScores, Metric, f1_scores, one_hot
from dxn.tasks.names import (
    MAX_CLASS_COLUMNS,
    TOP,
    TYPES,
    Balance,
    Names,
    class_name,
    explain_case,
    kind_of_classes,
    probability_fields,
)
from dxn.tasks.space import Categorical
from dxn.tasks.task import Task

RARE = 0.1  # a class is rare if it has less than this share of the rows of the most frequent one
MAX_RARE = 3  # rare classes whose F1 is shown in tables
# Metrics that tables show only if a class is rare: they do not depend on the frequent classes.
FOR_RARE = ("roc_auc", "average_precision")
MAX_NAME = 32  # characters of the name of a metric, which is the heading of a column
PREFIX = "f1:"  # of the F1 of a class, such as "f1:spam"


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
    """

    target: Class
    monitored = "accuracy"
    lower_is_better = ("log_loss",)
    row: ClassVar = ("accuracy", "correct")

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
        balance: Weight of each class in the loss: its inverse frequency (inverse), the root of this
            (root), or the same for all (none).
        pair: Whether the inputs are two texts that become one sequence, as in BERT.
    """

    name = "classify"

    label_smoothing: Probability = 0.0
    balance: Balance = "none"
    pair: bool = False

    def __post_init__(self):
        self.target = Class(balance=self.balance)
        self.target.is_pair = self.pair
        self.space = Categorical(self.target, label_smoothing=self.label_smoothing)
        self.metric = ClassMetric(self.target)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to logits."""
        target = self.target
        return self.linear_head(pooled_dim, len(target.labels), windows=target.pair)

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the most probable class, and the probability of each class."""
        probabilities = dict(zip(self.target.labels, prediction.tolist(), strict=True))
        best = max(probabilities, key=probabilities.__getitem__)
        return {"prediction": best, "probabilities": probabilities}

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


# Metrics of single classes and labels, which several tasks have in common


def with_unknown(scores: ClassScores, target: Names, truths: Sequence[Any]) -> ClassScores:
    """Return the scores of the classes of the model, followed by those that it does not know.

    A class that is not in the training split has a probability of 0 and is never predicted, so its
    rows count as wrong in every metric.

    Args:
        scores: Scores of the classes of the model.
        target: The classes.
        truths: Target of each row.
    """
    names = [target.names(truth) for truth in truths]
    unknown = sorted(set(chain.from_iterable(names)) - target.index.keys())
    if not unknown:
        return scores
    added = torch.tensor([[name in row for name in unknown] for row in names])
    probabilities = pad(scores.probabilities, (0, len(unknown)))
    return ClassScores(probabilities, torch.cat([scores.true, added], 1), scores.threshold)


def per_class(
    scores: ClassScores, names: Sequence[str], counts: Tensor, ranked: Sequence[int]
) -> dict[str, Tensor]:
    """Return the macro F1 and, with at most MAX_CLASS_COLUMNS classes, more metrics of them.

    A class that is neither true nor predicted in any row has no F1, and one without any row has no
    average precision; it is left out of the means, as in scikit-learn.

    Args:
        scores: Result of `with_unknown` for n rows.
        names: Classes of the model.
        counts: (R, n). How often each row counts.
        ranked: Classes of the model whose ranking is measured. A row of an unknown class is a
            negative row of each of them.

    Returns:
        R values by metric. NaN: not defined for these rows.
    """
    parts = (scores.predicted & scores.true, scores.predicted, scores.true)
    f1 = f1_scores(*(counts @ flags.to(counts.dtype) for flags in parts))
    results = {"f1_macro": f1.nanmean(1)}
    if len(names) > MAX_CLASS_COLUMNS:
        return results
    rankings = [ranking(scores.probabilities[:, k], scores.true[:, k], counts) for k in ranked]
    areas, precisions = (
        torch.stack(values, 1).nanmean(1) for values in zip(*rankings, strict=True)
    )
    results |= {"roc_auc": areas, "average_precision": precisions}
    return results | dict(zip(f1_names(names), f1.T, strict=False))  # not of unknown classes


def hidden_metrics(target: Names) -> set[str]:
    """Return the metrics that tables do not show for the frequencies of the training split."""
    rare = rare_classes(target.labels, target.frequencies)
    pairs = zip(f1_names(target.labels), target.labels, strict=True)
    hidden = {f1 for f1, name in pairs if name not in rare}
    return hidden if rare else hidden | set(FOR_RARE)


def ranking(scores: Tensor, true: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the area below the ROC curve and the average precision, as in scikit-learn.

    Args:
        scores: (n,). Rows with equal scores have no order.
        true: (n,) bool.
        counts: (R, n). How often each row counts.

    Returns:
        Both (R,); NaN without a positive row, and the area also without a negative row.
    """
    scores, order = scores.sort(descending=True)
    counts, true = counts[:, order], true[order]
    # The number of positive and of all rows above each threshold between different scores.
    is_last = pad(scores[1:] != scores[:-1], (0, 1), value=True)
    above = counts.cumsum(1)[:, is_last]
    positive = (counts * true).cumsum(1)[:, is_last]
    negative = above - positive
    more_positive = positive.diff(dim=1, prepend=torch.zeros_like(positive[:, :1]))
    more_negative = negative.diff(dim=1, prepend=torch.zeros_like(negative[:, :1]))
    # Trapezoids: of the rows with equal scores, half are counted as being above the others.
    area = (more_negative * (positive - more_positive / 2)).sum(1)
    # Without any row above a threshold, there is no positive row above it either.
    precision = positive / above.clamp(min=1)
    total = positive[:, -1]
    return area / (total * negative[:, -1]), (more_positive * precision).sum(1) / total


def rare_classes(names: Sequence[str], frequencies: Sequence[float]) -> list[str]:
    """Return the rarest classes, at most MAX_RARE. Empty if no class is rare.

    Args:
        names: Names of the classes.
        frequencies: Share of each class in the training split. Empty: unknown.
    """
    limit = RARE * max(frequencies, default=0.0)
    pairs = sorted(zip(frequencies, names, strict=False))
    return [name for frequency, name in pairs if frequency < limit][:MAX_RARE]


def f1_names(names: Sequence[str]) -> list[str]:
    """Return the name of the F1 of each class, such as "f1:spam"."""
    metrics: list[str] = []
    for number, name in enumerate(names, 1):
        # Brackets stand around the inputs that a metric was computed from.
        text = PREFIX + " ".join(name.split()).replace("[", "(").replace("]", ")")
        if len(text) > MAX_NAME or text in metrics:
            text = f"{text[:MAX_NAME]}… {number}"
        metrics.append(text)
    return metrics
