"""The metrics of single classes and labels, which several tasks have in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dxn.tasks.metric import ClassScores, f1_scores
from dxn.tasks.names import MAX_CLASS_COLUMNS, Names

RARE = 0.1  # a class is rare if it has less than this share of the rows of the most frequent one
MAX_RARE = 3  # rare classes whose F1 is shown in tables
# Metrics that tables show only if a class is rare: they do not depend on the frequent classes.
FOR_RARE = ("roc_auc", "average_precision")
MAX_NAME = 32  # characters of the name of a metric, which is the heading of a column
PREFIX = "f1:"  # of the F1 of a class, such as "f1:spam"


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
    f1 = f1_scores(*(counts @ each.to(counts.dtype) for each in parts))
    results = {"f1_macro": f1.nanmean(1)}
    if len(names) > MAX_CLASS_COLUMNS:
        return results
    rankings = [ranking(scores.probabilities[:, k], scores.true[:, k], counts) for k in ranked]
    areas, precisions = (torch.stack(each, 1).nanmean(1) for each in zip(*rankings, strict=True))
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
