"""The probabilities of classes and labels as columns of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# With more classes, a table with one column per class is too wide to read and large on disk.
MAX_CLASS_COLUMNS = 20
TOP = 5  # number of the most probable classes that such a table contains instead


def probability_fields(labels: Sequence[str], probabilities: Tensor) -> dict[str, Any]:
    """Return the columns with probabilities, and their values for one row.

    With at most MAX_CLASS_COLUMNS classes, there is one column per class, such as "p(ham)". With
    more, there are two columns for each of the TOP most probable classes: "top1" contains the name
    and "p(top1)" the probability.

    Args:
        labels: Names of the K classes.
        probabilities: Probability (K,) of each class.
    """
    if len(labels) <= MAX_CLASS_COLUMNS:
        pairs = zip(labels, probabilities.tolist(), strict=True)
        return {f"p({name})": significant(p) for name, p in pairs}
    best = probabilities.topk(TOP)
    fields: dict[str, Any] = {}
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    for rank, (index, p) in enumerate(ranked, 1):
        fields[f"top{rank}"] = labels[index]
        fields[f"p(top{rank})"] = significant(p)
    return fields


def significant(value: float) -> float:
    """Round to six significant digits. Float32, which models compute with, has about seven."""
    return float(f"{value:.6g}")


def list_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first names of a list and the number of the others, such as "a, b and 7 more"."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def mean_probabilities(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the probabilities of several models.

    Args:
        logits: (..., K). Logits of each model.
    """
    log_probabilities = torch.stack(list(logits)).float().log_softmax(-1)
    return log_probabilities.logsumexp(0) - math.log(len(logits))
