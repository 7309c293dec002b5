"""What tasks share whose predictions are texts: error rates, and a description of targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from dxn.tasks.metric import Metric


class ErrorRates(Metric):
    """Word and character error rate, and exact match (0 to 1).

    An error rate is the number of insertions, deletions and substitutions, divided by the number of
    words or characters of the references.

    Args:
        normalize: Function that returns a reference in the form that the model can write, for
            example in lower case.
    """

    monitored = "cer"
    lower_is_better = ("wer", "cer")
    row: ClassVar = ("cer", "character error rate")

    def __init__(self, normalize: Callable[[str], str]):
        self.normalize = normalize

    def rows(self, predictions: Sequence[str], targets: Sequence[str]) -> Tensor:
        """Count wrong words, words, wrong characters, characters, exact matches, and 1."""
        rows: list[tuple[int, ...]] = []
        for predicted, target in zip(predictions, targets, strict=True):
            true = self.normalize(target)
            words = predicted.split(), true.split()
            chars = distance(predicted, true), len(true)
            rows.append((distance(*words), len(words[1]), *chars, predicted == true, 1))
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, 6)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the metrics. Without any reference, an error rate is the number of errors."""
        wrong_words, words, wrong_chars, chars, exact, total = sums.unbind(-1)
        return {
            "wer": wrong_words / words.clamp(min=1),
            "cer": wrong_chars / chars.clamp(min=1),
            "exact_match": exact / total.clamp(min=1),
        }


def distance(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the Levenshtein distance of two lists of words, or of two texts."""
    others = np.array(list(right), dtype=object)
    steps = np.arange(len(right) + 1)
    row = steps
    for i, item in enumerate(left, 1):
        changed = np.minimum(row[:-1] + (others != item), row[1:] + 1)
        # An insertion continues the best way to the item before, so the minimum is a running one.
        best = np.concatenate([[i], changed])
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])


def describe_texts(values: Sequence[str]) -> str:
    """Return the range and the median of the lengths of texts in characters."""
    lengths = [len(value) for value in values]
    if not lengths:
        return "no texts"
    middle = statistics.median(lengths)
    return f"texts of {min(lengths):,} to {max(lengths):,} characters, median {middle:,.0f}"
