"""What a classical model learns for each task, in the space of the head's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from dxn.tasks import Classify, Forecast, Multilabel, Regress, Task


@dataclass(frozen=True, slots=True)
class ScoreTargets:
    """What a baseline learns to predict in place of the output of the head.

    Args:
        values: (n, K) float. Classes: 1 for each class of a sample and -1 for the others. Otherwise
            numbers in the space of the output.
        are_classes: Whether the values are classes.
        are_exclusive: Whether each sample has exactly one class (softmax).
    """

    values: Tensor
    are_classes: bool
    are_exclusive: bool = False


@singledispatch
def score_targets(task: Task, values: Sequence[Any]) -> ScoreTargets | None:
    """Return what a baseline learns for a task. None: the task cannot have one.

    A task of a user that is no subclass of those below registers a function of its own.

    Args:
        task: The fitted task.
        values: Parsed targets of the training split.
    """
    return None


@score_targets.register
def _of_classes(task: Classify, values: Sequence[Any]) -> ScoreTargets:
    # All values are -1 for a class that is not in the training split.
    index = torch.stack([task.encode(value) for value in values])
    true = index[:, None] == torch.arange(len(task.labels))
    return ScoreTargets(2 * true.float() - 1, are_classes=True, are_exclusive=True)


@score_targets.register
def _of_labels(task: Multilabel, values: Sequence[Any]) -> ScoreTargets:
    multi_hot = torch.stack([task.encode(value) for value in values])
    return ScoreTargets(2 * multi_hot - 1, are_classes=True)


@score_targets.register
def _of_numbers(task: Regress, values: Sequence[Any]) -> ScoreTargets:
    standardized = (torch.tensor(values, dtype=torch.float64) - task.mean) / task.std
    return ScoreTargets(standardized.float()[:, None], are_classes=False)


def kept_of_batch(task: Task, batch: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return what the loss of a task reads from a batch besides the target, by input name."""
    if not isinstance(task, Forecast):
        return {}
    # The location and the scale of each series.
    series = batch[task.input]
    return {task.input: {name: series[name] for name in ("loc", "scale")}}
