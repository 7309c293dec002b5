"""What a report needs to know about single rows: how well each is answered, and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowScores:
    """How well each row was answered, so that rows can be sorted and two models compared.

    Args:
        name: Name of the score, such as "correct" or "absolute error".
        values: Score of each row.
        higher_is_better: Whether a higher score is a better answer.
    """

    name: str
    values: Sequence[float]
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Probabilities of classes, and the classes that are true.

    Args:
        probabilities: (n, K). In the order of `Task.labels`.
        true: (n, K) bool. A row whose class is not in the training split has none.
        threshold: Minimum probability at which a class is predicted. None: the most probable class
            of a row is predicted, and the probabilities of a row sum to 1.
    """

    probabilities: Tensor
    true: Tensor
    threshold: float | None = None

    @property
    def predicted(self) -> Tensor:
        """(n, K) bool. The predicted classes."""
        if self.threshold is not None:
            return self.probabilities >= self.threshold
        return one_hot(self.probabilities.argmax(1), self.probabilities.shape[1])


def one_hot(index: Tensor, size: int) -> Tensor:
    """Return (n, size) bool with one True per row. A negative index (n,) has a row of False."""
    return index[:, None] == torch.arange(size)


def draw_counts(draws: Tensor, size: int) -> Tensor:
    """Return how often each row occurs in each resample.

    The product with statistics (size, S) of single rows are the statistics of each resample.

    Args:
        draws: (R, m). Indices of the rows of each resample.
        size: Number of rows.

    Returns:
        (R, size), float64, because sums of squared targets need its digits.
    """
    counts = torch.zeros(len(draws), size, dtype=torch.float64)
    return counts.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64))


def f1_scores(correct: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """Return F1 from counts of the same shape; NaN where a class is neither predicted nor true."""
    return 2 * correct / (predicted + true)
