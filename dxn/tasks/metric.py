"""How good predictions are: metrics of all rows, of single rows and of resamples of the rows."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.schema import CheckedMembers

# A function of predictions and targets, and of probabilities if it has such a parameter.
OwnMetric = Callable[..., float]
# Metrics by name, for several sets of rows or inputs.
Table = dict[str, dict[str, float]]

NAME = re.compile(r"[A-Za-z]\w*")
PROBABILITIES = "probabilities"
# Metrics without a best value: the best coverage is that of the quantiles.
NOT_MONITORED = frozenset({"coverage", "rows"})
# With fewer blocks, signs of whole blocks have too few combinations for a test.
MIN_BLOCKS = 8


class Blocks(NamedTuple):
    """Rows that depend on each other, such as those of one speaker, or overlapping windows.

    Attributes:
        ids: Number of the block of each row.
        spread: Factor of the standard error, above 1 if neighboring blocks depend on each other.
    """

    ids: Sequence[int]
    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Probabilities of classes, and the classes that are true.

    Args:
        probabilities: (n, K). In the order of `Target.labels`.
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


class Metric(CheckedMembers):
    """Base class of the metrics of a task.

    Most metrics are functions of sums over rows. A subclass defines `rows` and `value` for them.
    The metrics of a split, those of each row, their 95% intervals and those of several processes
    together then follow. Other metrics override `weighted`, or `metrics` if they cannot be computed
    for resamples.

    Attributes:
        monitored: Name of the metric that selects the best epoch.
        lower_is_better: Metrics of which lower values are better, besides all whose names start
            with "loss". Higher values of all others are better.
        details: Metrics that are in metrics.json, but not in tables and lines, which they would
            widen.
        of_fewer: What is different about the metrics of fewer rows, for notes. "": nothing.
        row: Metric of `value` that scores single rows, and the name of this score in a report.
            None: reports show no single rows.
        own: Metrics of the user by name, in addition to those of the task.

    Args:
        target: Target of the task, if the metric needs it.
    """

    monitored: str = "loss"
    of_fewer: ClassVar[str] = ""
    lower_is_better: Collection[str] = ()
    row: ClassVar[tuple[str, str] | None] = None
    own: Mapping[str, OwnMetric] = MappingProxyType({})

    def __init__(self, target: Any = None):
        self.target = target

    def rows(self, predictions: Sequence[Any], targets: Sequence[Any]) -> Tensor:
        """Return statistics (n, S) of n rows, float64, whose sums determine the metrics.

        Args:
            predictions: Results of `Task.predict`.
            targets: Targets of the same rows, as `Target.read` returned them.
        """
        return torch.zeros(len(predictions), 0, dtype=torch.float64)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return metrics (...) by name from sums of statistics (..., S).

        A metric that is not defined for the rows is NaN.
        """
        return {}

    def weighted(
        self, predictions: Sequence[Any], targets: Sequence[Any], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return R values (R,) by metric.

        Args:
            predictions: Results of `Task.predict` for n rows.
            targets: Targets of the same rows.
            counts: (R, n), float64. How often each row counts in each of R results.
        """
        return self.value(counts @ self.rows(predictions, targets))

    def metrics(
        self, predictions: Sequence[Any], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the metrics of all rows.

        Args:
            predictions: Results of `Task.predict`.
            targets: Targets of the same rows; empty if they follow from the inputs.
            loss: Mean loss of the rows. A result with the name "loss" replaces it.
        """
        once = torch.ones(1, len(predictions), dtype=torch.float64)
        results = self.weighted(predictions, targets, once)
        return {name: float(values[0]) for name, values in results.items()}

    def class_scores(
        self, predictions: Sequence[Any], targets: Sequence[Any]
    ) -> ClassScores | None:
        """Return the probabilities and the true classes of rows; None if there are none.

        The report shows confusions and calibration of them.
        """
        return None

    def blocks(self, targets: Sequence[Any]) -> Blocks | None:
        """Return which rows depend on each other; None if they are independent."""
        return None

    def further_rows(self, predictions: Sequence[Any]) -> Table:
        """Return metrics of parts of the task and of random answers, by a description.

        They are further rows of the table of an evaluation.
        """
        return {}

    def notes(self, predictions: Sequence[Any]) -> list[str]:
        """Return sentences about the metrics of these rows, such as that few rows are searched."""
        return []

    @property
    def details(self) -> Collection[str]:
        """Metrics that are in metrics.json, but not in tables and lines, which they would widen."""
        return ()

    def shown(self, metrics: Iterable[str]) -> list[str]:
        """Return the names of the metrics that tables and lines show, in their order."""
        hidden = set(self.details) - {self.monitored}
        return [name for name in metrics if name not in hidden]

    def is_higher_better(self, name: str) -> bool:
        """Return whether higher values of a metric are better."""
        if name in self.own:
            return bool(getattr(self.own[name], "higher_is_better", True))
        return name not in self.lower_is_better and not name.startswith("loss")

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the monitored metric are better."""
        return self.is_higher_better(self.monitored)

    def is_better(self, new: float, old: float | None) -> bool:
        """Return whether a value of the monitored metric improves on the best value so far.

        Args:
            new: New value. NaN is never an improvement.
            old: Best value so far; None in the first epoch.
        """
        # Without this check, a NaN in the first epoch would never be replaced: all comparisons with
        # NaN are False.
        if old is None:
            return not math.isnan(new)
        return new > old if self.higher_is_better else new < old


def one_hot(index: Tensor, size: int) -> Tensor:
    """Return (n, size) bool with one True per row. A negative index (n,) has a row of False."""
    return index[:, None] == torch.arange(size)


def f1_scores(correct: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """Return F1 from counts of the same shape; NaN where a class is neither predicted nor true."""
    return 2 * correct / (predicted + true)


def defined(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without those that are not defined for the rows of a split.

    They are NaN, such as the R² of equal targets. A loss that is NaN is a problem, and remains.
    """
    return {
        name: value for name, value in metrics.items() if name == "loss" or not math.isnan(value)
    }


def check_own_metrics(metrics: Mapping[str, OwnMetric]) -> None:
    """Check the names and types of the metrics of a user.

    Raises:
        UserError: If one of them is not usable.
    """
    for name, metric in metrics.items():
        if not NAME.fullmatch(name):
            raise UserError(
                f"metrics: a name must consist of letters, digits and underscores, got {name!r}"
            )
        if not callable(metric):
            hint = f"; write metrics.{name}._target_={metric}" if isinstance(metric, str) else ""
            raise UserError(
                f"metrics.{name}: must be a function of predictions and targets, got {metric!r}"
                f"{hint}"
            )


def own_metrics(
    metrics: Mapping[str, OwnMetric], answers: Sequence[Mapping[str, Any]], targets: Sequence[Any]
) -> dict[str, float]:
    """Compute the metrics of the user.

    Args:
        metrics: The metrics by name.
        answers: Results of `Task.answer`.
        targets: Targets of the same rows.

    Raises:
        UserError: If a metric fails, or returns something else than a number.
    """
    predictions = [answer["prediction"] for answer in answers]
    results: dict[str, float] = {}
    for name, metric in metrics.items():
        extra: dict[str, Any] = {}
        try:
            if PROBABILITIES in inspect.signature(metric).parameters:
                extra[PROBABILITIES] = [answer[PROBABILITIES] for answer in answers]
            value = float(metric(predictions, list(targets), **extra))
        # The code is that of the user, so any failure is a problem that the user can solve.
        except Exception as error:
            raise UserError(
                f"metrics.{name}: failed with {type(error).__name__}: {error}; it is called with "
                "two lists, one prediction and one target per row"
            ) from error
        if math.isinf(value):
            raise UserError(f"metrics.{name}: must return a finite number or NaN, got {value}")
        results[name] = value
    return results
