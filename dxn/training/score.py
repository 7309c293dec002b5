"""Metrics of predictions."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from dxn.data.dataset import Samples
from dxn.tasks.metric import defined
from dxn.tasks.task import Task

if TYPE_CHECKING:
    from dxn.core.results import Figures, Results
    from dxn.training.predict import Predictions


def score(
    predictions: Predictions, samples: Samples, task: Task, *, calibrate: bool = False
) -> dict[str, float]:
    """Return the loss and the metrics of the task for these predictions.

    Args:
        predictions: Predictions of rows of the samples.
        samples: The samples.
        task: The task.
        calibrate: Whether the task chooses what answers need, see `Task.calibrate`.
    """
    # A task such as masked prediction derives its targets from the inputs.
    targets = samples.opened.targets if task.is_supervised else None
    truths = [] if targets is None else [targets[row] for row in predictions.rows]
    if calibrate:
        task.calibrate(predictions.predicted, truths)
    return task.score(predictions.predicted, truths, predictions.loss)


def task_results(task: Task, split: str, figures: Figures, **others: Any) -> Results:
    """Return the results of a model.

    Args:
        task: Its task.
        split: Name of the evaluated split.
        figures: Metrics by row of the table.
        **others: Further fields of `Results`.
    """
    from dxn.core.results import Results, flat  # a prediction has none

    return Results(
        split=split,
        task=task.name,
        monitored=task.metric.monitored,
        higher_is_better=task.metric.higher_is_better,
        metrics=flat(split, {row: defined(values) for row, values in figures.items()}),
        shown=task.metric.shown(dict.fromkeys(chain.from_iterable(figures.values()))),
        **others,
    )
