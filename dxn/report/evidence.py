"""What the report of a run is made of: the run, its model and its predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.results import Results
from dxn.core.tokens import Tokens
from dxn.data.dataset import Samples
from dxn.tasks import Task
from dxn.training.predict import Predictions
from dxn.viz.drawers import Shown


@dataclass(frozen=True)
class Answers:
    """The predictions of a model.

    Args:
        samples: The samples.
        predictions: The predictions.
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
class RunInfo:
    """What a report says about a run besides its predictions.

    Args:
        folder: The run folder.
        title: Name of the run.
        command: Command line of the training.
        config: The configuration as YAML.
        about: Names and values that describe the training.
        results: Content of metrics.json.
        log: Rows of metrics.jsonl.
        columns: Column that each input was read from, by input name.
        notes: Sentences about parts of the report that are missing.
    """

    folder: Path
    title: str
    command: str
    config: str
    about: Sequence[tuple[str, str]]
    results: Results
    log: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True)
class Evidence:
    """The model and its predictions.

    Args:
        task: The task.
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
