"""The options of head=auto, and the task that is chosen with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import nn

from dxn.core.errors import UserError
from dxn.core.parts import imported
from dxn.core.randomness import Probability
from dxn.tasks.heads import HeadOptions
from dxn.tasks.infer import infer
from dxn.tasks.task import TASKS, Task
from dxn.tokenize.column_profile import profile_of


@dataclass(kw_only=True, eq=False)
class Auto(HeadOptions):
    """Choose the task from the targets of the training split.

    An option is passed to the chosen task if the task has an option of the same name. Other options
    are ignored.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1. Default: the default of the
            chosen task.
        balance: Whether to give rare classes a higher weight in the loss.
        decoder: Decoder for a task that generates text. Null: head=auto cannot choose such a task.
    """

    is_supervised: ClassVar[bool] = True

    label_smoothing: Probability | None = None
    balance: bool = False
    decoder: Callable[..., nn.Module] | None = None

    def resolve(
        self,
        values: Sequence[Any],
        words: Sequence[Any] | None = None,
        hint: str | None = None,
        *,
        has_text: bool = True,
    ) -> tuple[Task, dict[str, Any], str]:
        """Return the best-fitting task, the configuration node that rebuilds it, and the reason.

        Args:
            values: Cells of the target column in the training split; None where missing.
            words: Cells of an input that contains lists of words, one per row of `values`. None if
                there is no such input.
            hint: Name of the task, if the data source specifies one. It has priority.
            has_text: Whether an input is a text.

        Raises:
            UserError: If there is no target or no task named `hint`, or if head=auto lacks a
                required option of the chosen task.
        """
        name, reason = hint or "", ""
        if not hint:
            rows = () if words is None else list(zip(words, values, strict=True))
            name, reason = infer(profile_of(values), rows, has_text=has_text)
        if name not in TASKS:
            raise UserError(f"head: there is no task {name!r}; choose one of {', '.join(TASKS)}")
        cls = imported(TASKS[name])
        parameters = inspect.signature(cls).parameters
        # An option that is None is not passed on, so that the task's own default applies.
        options = {
            field.name: vars(self)[field.name]
            for field in fields(self)
            if field.name in parameters and vars(self)[field.name] is not None
        }
        if not cls.writes:
            options.pop("decoder", None)  # that of a forecast does not generate text
        required = {key for key, p in parameters.items() if p.default is p.empty}
        if required - options.keys():
            raise UserError(f"head=auto: the task that fits the target is {name}; set head={name}")
        node = {"_target_": TASKS[name], **options}
        if "decoder" in node:
            # A decoder built from a configuration is a Partial, which stores its own node. The node
            # is what a saved configuration needs.
            node["decoder"] = getattr(node["decoder"], "node", node["decoder"])
        return cls(**options), node, reason
