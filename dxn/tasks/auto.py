"""Infer the task from the values of the target column (head=auto)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import nn

from dxn.core.errors import UserError
from dxn.tasks.cells import problem_of
from dxn.tasks.heads import Hidden, check_hidden
from dxn.tasks.task import TASKS, Task


class Auto:
    """Choose the task from the targets of the training split.

    An option is passed to the chosen task if the task has an option of the same name. Other options
    are ignored.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1. Default: the default of the
            chosen task.
        balance: Whether to give rare classes a higher weight in the loss.
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        norm: Whether to apply a layer norm before the output layer.
        norm_eps: Epsilon of the layer norm before the output layer.
        dropout: Dropout probability before the output layer.
        decoder: Decoder for a task that generates text. Null: head=auto cannot choose such a task.
    """

    needs_target: ClassVar[bool] = True

    def __init__(
        self,
        *,
        label_smoothing: float | None = None,
        balance: bool = False,
        hidden: Hidden = "none",
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.1,
        decoder: Callable[..., nn.Module] | None = None,
    ):
        check_hidden(hidden)
        options = {
            "label_smoothing": label_smoothing,
            "balance": balance,
            "hidden": hidden,
            "norm": norm,
            "norm_eps": norm_eps,
            "dropout": dropout,
            "decoder": decoder,
        }
        # An option that is None is not passed on, so that the task's own default applies.
        self.options = {name: value for name, value in options.items() if value is not None}

    def resolve(
        self, values: Sequence[Any], words: Sequence[Any] | None = None, hint: str | None = None
    ) -> tuple[Task, dict[str, Any], str]:
        """Return the best-fitting task, the configuration node that rebuilds it, and the reason.

        The reason is "" if no other task fits nearly as well, see `Task.reason`.

        Args:
            values: Raw cells of the target column in the training split; None where missing.
            words: Cells of an input that contains lists of words, one per row of `values`. None if
                there is no such input.
            hint: Name of the task, if the data source specifies one.

        Raises:
            UserError: If there is no target, or if head=auto lacks a required option of the chosen
                task.
        """
        # The task that a data source specifies has priority over the one inferred from its values.
        name = hint or infer_task(values, words)
        cls = task_class(name)
        reason = "" if hint else cls.reason([value for value in values if value is not None])
        parameters = inspect.signature(cls).parameters
        options = {key: value for key, value in self.options.items() if key in parameters}
        required = {key for key, p in parameters.items() if p.default is p.empty}
        if required - options.keys():
            raise UserError(f"head=auto: the task that fits the target is {name}; set head={name}")
        node = {"_target_": TASKS[name], **options}
        if "decoder" in node:
            # A decoder built from a configuration is a Partial, which stores its own node. The node
            # is what a saved configuration needs.
            node["decoder"] = getattr(node["decoder"], "node", node["decoder"])
        return cls(**options), node, reason


def infer_task(values: Sequence[Any], words: Sequence[Any] | None = None) -> str:
    """Return the name of the task with the highest `Task.accepts` score for these target values.

    Args:
        values: Raw cells of the target column; None where missing.
        words: Cells of an input that contains lists of words, one per row of `values`. None if
            there is no such input.

    Raises:
        UserError: If there are no values, or no task accepts them.
    """
    rows = [i for i, value in enumerate(values) if value is not None]
    present = [values[i] for i in rows]
    if not present:
        raise UserError(
            "head=auto: there are no target values to infer a task from; set data.target=COLUMN, "
            "or head=masked to train without targets"
        )
    # Tags are recognized by having the same length as the words of their row, so the rows of both
    # lists must stay aligned.
    row_words = None if words is None else [words[i] for i in rows]
    scores = {name: task_class(name).accepts(present, row_words) for name in TASKS}
    # If scores are equal, max() returns the task that is first in the registry.
    best = max(scores, key=scores.__getitem__)
    if scores[best] <= 0:
        problem = problem_of(present) or f"no task accepts values such as {present[0]!r}; set head"
        raise UserError(f"data.target: {problem}")
    return best


def task_class(name: str) -> type[Task]:
    """Return the class of a registered task.

    Raises:
        UserError: If there is no task of that name.
    """
    if name not in TASKS:
        raise UserError(f"head: there is no task {name!r}; choose one of {', '.join(TASKS)}")
    # The registry contains import paths, because the task modules import the registry module:
    # importing the classes there would be a circular import.
    module, _, cls = TASKS[name].rpartition(".")
    return getattr(importlib.import_module(module), cls)
