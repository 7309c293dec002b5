"""Figures by metric: which are defined, whether higher ones are better, and those of the user."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dxn.core.errors import UserError

# A function of predictions and targets, and of probabilities if it has such a parameter.
OwnMetric = Callable[..., float]

NAME = re.compile(r"[A-Za-z]\w*")
PROBABILITIES = "probabilities"
# Metrics of which lower values are better, besides all whose names start with "loss".
LOWER_IS_BETTER = frozenset(
    {
        *("log_loss", "rmse", "mae", "median_absolute_error", "wer", "cer", "perplexity"),
        *("mase", "crps", "median_rank"),
    }
)
# Figures without a best value: the best coverage is that of the quantiles.
NOT_MONITORED = frozenset({"coverage", "rows"})


def defined(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without those that are not defined for the rows of a split.

    They are NaN, such as the R² of equal targets. A loss that is NaN is a fault, and remains.
    """
    return {
        name: value for name, value in metrics.items() if name == "loss" or not math.isnan(value)
    }


def is_higher_better(name: str, own: Mapping[str, OwnMetric]) -> bool:
    """Return whether higher values of a metric are better.

    Args:
        name: Name of the metric.
        own: Metrics of the user. Those with an attribute `higher_is_better` decide themselves.
    """
    if name in own:
        return bool(getattr(own[name], "higher_is_better", True))
    return name not in LOWER_IS_BETTER and not name.startswith("loss")


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
            raise UserError(
                f"metrics.{name}: must be a function of predictions and targets, got {metric!r}"
            )


def own_figures(
    metrics: Mapping[str, OwnMetric], answers: Sequence[Mapping[str, Any]], truths: Sequence[Any]
) -> dict[str, float]:
    """Compute the metrics of the user.

    Args:
        metrics: The metrics by name.
        answers: Results of `Task.answer`.
        truths: Parsed targets of the same rows.

    Raises:
        UserError: If a metric fails, or returns something else than a number.
    """
    predictions = [answer["prediction"] for answer in answers]
    figures: dict[str, float] = {}
    for name, metric in metrics.items():
        extra: dict[str, Any] = {}
        try:
            if PROBABILITIES in inspect.signature(metric).parameters:
                extra[PROBABILITIES] = [answer[PROBABILITIES] for answer in answers]
            value = float(metric(predictions, list(truths), **extra))
        # The code is that of the user, so any failure is a problem that the user can solve.
        except Exception as error:
            raise UserError(
                f"metrics.{name}: failed with {type(error).__name__}: {error}; it is called with "
                "two lists, one prediction and one target per row"
            ) from error
        if math.isinf(value):
            raise UserError(f"metrics.{name}: must return a finite number or NaN, got {value}")
        figures[name] = value
    return figures
