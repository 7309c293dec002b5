"""The predictions of a model, and what a report asks the model for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxn.core.tokens import Tokens
from dxn.data.dataset import Samples
from dxn.tasks import Task
from dxn.training.predict import Predictions
from dxn.viz.drawers import Shown


@dataclass(frozen=True)
class Answers:
    """The predictions of a model for the samples of a split.

    Args:
        samples: The samples, with the origin of each row and, if they are known, the targets.
        predictions: The predictions, and the row of the split that each one is for.
    """

    samples: Samples
    predictions: Predictions

    @property
    def truths(self) -> list[Any]:
        """Parsed targets in the order of the predictions; [] if there are none."""
        targets = self.samples.opened.targets
        return [] if targets is None else [targets[row] for row in self.predictions.rows]

    @property
    def origins(self) -> list[str]:
        """Origin of each row in the order of the predictions."""
        return [self.samples.opened.origin[row] for row in self.predictions.rows]


@dataclass(frozen=True)
class Evidence:
    """What a report shows of a model: its predictions, inputs, attention and created values.

    Args:
        task: Task of the model, with its metric.
        last: Predictions from all inputs. None: the data cannot be read.
        shown: Function that returns the inputs of a row of the split.
        attended: Function that returns one encoded sample (1, N, D) and the share (N,) of each of
            its columns in the answer, from the position of the sample and the names of its inputs.
            None: the model has no attention that can be drawn.
        created: Function that returns the values that the model creates of an input, from its name
            and rows of the split.
        limits: What also decides about the answers, and has no attention. "": nothing.
    """

    task: Task
    last: Answers | None
    shown: Callable[[int], dict[str, Shown]]
    attended: Callable[[int, Sequence[str]], tuple[Tokens, np.ndarray] | None]
    created: Callable[[str, Sequence[int]], list[Shown]]
    limits: str = ""
