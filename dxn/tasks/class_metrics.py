"""The metrics of classes and labels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from dxn.tasks.metric import ClassScores, Metric, f1_scores, one_hot
from dxn.tasks.names import MAX_CLASS_COLUMNS, TOP, Names

RARE = 0.1  # a class is rare if it has less than this share of the rows of the most frequent one
MAX_RARE = 3  # rare classes whose F1 is shown in tables
# Metrics that tables show only if a class is rare: they do not depend on the frequent classes.
FOR_RARE = ("roc_auc", "average_precision")
MAX_NAME = 32  # characters of the name of a metric, which is the heading of a column
PREFIX = "f1:"  # of the F1 of a class, such as "f1:spam"


class NameMetric(Metric):
    """Base class of the metrics of classes and labels.

    A class that is not in the training split has a probability of 0 and is never predicted, so its
    rows count as wrong in every metric.

    Args:
        target: The names.
    """

    lower_is_better = ("log_loss",)

    def __init__(self, target: Names):
        self.target = target

    def columns(
        self, predictions: Sequence[Tensor], targets: Sequence[str] | Sequence[Sequence[str]]
    ) -> ClassScores:
        """Return the scores of the classes of the model, followed by those that it does not know.

        Args:
            predictions: Probabilities (K,) of each row.
            targets: Targets of the rows.
        """
        scores = self.class_scores(predictions, targets)
        assert scores is not None
        names = [self.target.names(target) for target in targets]
        unknown = sorted(set(chain.from_iterable(names)) - self.target.index.keys())
        if not unknown:
            return scores
        added = torch.tensor([[name in row for name in unknown] for row in names])
        probabilities = pad(scores.probabilities, (0, len(unknown)))
        return ClassScores(probabilities, torch.cat([scores.true, added], 1), scores.threshold)

    def per_class(
        self, scores: ClassScores, counts: Tensor, ranked: Sequence[int]
    ) -> dict[str, Tensor]:
        """Return the macro F1 and, with at most MAX_CLASS_COLUMNS classes, more metrics of them.

        A class that is neither true nor predicted in any row has no F1, and one without any row has
        no average precision; it is left out of the means, as in scikit-learn.

        Args:
            scores: Result of `columns` for n rows.
            counts: (R, n). How often each row counts.
            ranked: Classes of the model whose ranking is measured. A row of an unknown class is a
                negative row of each of them.

        Returns:
            R values by metric. NaN: not defined for these rows.
        """
        parts = (scores.predicted & scores.true, scores.predicted, scores.true)
        f1 = f1_scores(*(counts @ each.to(counts.dtype) for each in parts))
        results = {"f1_macro": f1.nanmean(1)}
        names = self.target.labels
        if len(names) > MAX_CLASS_COLUMNS:
            return results
        rankings = [ranking(scores.probabilities[:, k], scores.true[:, k], counts) for k in ranked]
        areas, precisions = (
            torch.stack(each, 1).nanmean(1) for each in zip(*rankings, strict=True)
        )
        results |= {"roc_auc": areas, "average_precision": precisions}
        return results | dict(zip(f1_names(names), f1.T, strict=False))  # not of unknown classes

    @property
    def details(self) -> Collection[str]:
        """Metrics that tables do not show for the frequencies of the training split."""
        names = self.target.labels
        rare = rare_classes(names, self.target.frequencies)
        hidden = {f1 for f1, name in zip(f1_names(names), names, strict=True) if name not in rare}
        return hidden if rare else hidden | set(FOR_RARE)


class ClassMetric(NameMetric):
    """Metrics of the classes of which each row has one.

    They are the accuracy, the log loss, the balanced accuracy and metrics per class. With more than
    MAX_CLASS_COLUMNS classes, the fraction of rows whose class is among the TOP most probable ones
    takes the place of the metrics of single classes. With two classes, the average precision is
    that of the rarer one.
    """

    monitored = "accuracy"
    row: ClassVar = ("accuracy", "correct")

    def class_scores(self, predictions: Sequence[Tensor], targets: Sequence[str]) -> ClassScores:
        """Return the probabilities of the classes, of which exactly one is predicted."""
        index = torch.tensor([self.target.index.get(name, -1) for name in targets])
        true = one_hot(index, len(self.target.labels))
        return ClassScores(torch.stack(list(predictions)), true)

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[str]) -> Tensor:
        """Return 1, whether the answer is right, its log loss, and whether it is among the best."""
        scores = self.columns(predictions, targets)
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
        scores = self.columns(predictions, targets)
        right, true = (scores.predicted & scores.true).to(counts.dtype), scores.true
        recall = counts @ right / (counts @ true.to(counts.dtype))
        results["balanced_accuracy"] = recall.nanmean(1)
        num_classes = len(self.target.labels)
        if num_classes == 1:
            return results
        # The ranking by the other one of two classes is the same in the opposite order.
        ranked = [self._rarer()] if num_classes == 2 else range(num_classes)
        return results | self.per_class(scores, counts, ranked)

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show, except with rare classes."""
        return {"balanced_accuracy", "log_loss", *super().details}

    def _rarer(self) -> int:
        """Return the index of the rarer of two classes, 1 if both are as frequent."""
        first, second = self.target.frequencies or (0, 0)
        return int(second <= first)


class LabelMetric(NameMetric):
    """Metrics of the labels of which each row has any number: F1, exact match, and per label.

    Args:
        target: The labels.
        threshold: Minimum probability at which a label is predicted.
    """

    monitored = "f1_micro"
    row: ClassVar = ("f1_micro", "F1 of the labels")

    def __init__(self, target: Names, threshold: float):
        super().__init__(target)
        self.threshold = threshold

    def class_scores(
        self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]]
    ) -> ClassScores:
        """Return the independent probabilities of the labels."""
        true = torch.stack([self.target.encode(names, {}) for names in targets]).bool()
        return ClassScores(torch.stack(list(predictions)), true, self.threshold)

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]]) -> Tensor:
        """Return 1, the right, the predicted and the true labels, and whether all are right."""
        scores = self.columns(predictions, targets)
        predicted, true = scores.predicted, scores.true
        parts = [
            torch.ones(len(true)),
            (predicted & true).sum(1),
            predicted.sum(1),
            true.sum(1),
            (predicted == true).all(1),
        ]
        return torch.stack([part.double() for part in parts], 1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the micro F1 and the exact match; without any label, there is no F1."""
        total, right, predicted, true, exact = sums.unbind(-1)
        return {"f1_micro": f1_scores(right, predicted, true), "exact_match": exact / total}

    def weighted(
        self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return all metrics."""
        results = super().weighted(predictions, targets, counts)
        scores = self.columns(predictions, targets)
        return results | self.per_class(scores, counts, range(len(self.target.labels)))

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show, except with rare labels."""
        return set(super().details) - {"average_precision"}


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
