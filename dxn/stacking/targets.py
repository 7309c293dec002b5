"""What a classical model learns for each task, in the space of the head's output, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from dxn.tasks import Task
from dxn.tasks.metric import one_hot
from dxn.tasks.space import AnswerKind


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


class Part(NamedTuple):
    """A trained part of a baseline.

    Attributes:
        name: Name of the model, such as "linear SVM".
        modules: Their scores are added up. They are without `bias`.
        bias: (K,).
        scores: (n, K). Scores of the training rows by models that were not trained on them, NaN in
            rows that were not scored.
    """

    name: str
    modules: Sequence[Any]
    bias: Tensor
    scores: Tensor


def score_targets(task: Task, values: Sequence[Any]) -> ScoreTargets | None:
    """Return what a baseline learns for a task. None: its output space allows none.

    Args:
        task: The fitted task.
        values: Targets of the training split.
    """
    kind = task.answer_kind
    if kind not in (AnswerKind.CLASS, AnswerKind.LABELS, AnswerKind.NUMBER):
        return None
    target = task.target.collate([task.target.encode(value, {}) for value in values])
    if kind is AnswerKind.LABELS:
        return ScoreTargets(2 * target - 1, are_classes=True)
    if kind is AnswerKind.NUMBER:
        return ScoreTargets(target[:, None], are_classes=False)
    # All values are -1 for a class that is not in the training split.
    true = one_hot(target, len(task.target.labels or ())).float()
    return ScoreTargets(2 * true - 1, are_classes=True, are_exclusive=True)
