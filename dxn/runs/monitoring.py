"""The metric that selects the best epoch and the metrics of the user, checked before a training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dxn.config.instantiate import build
from dxn.config.settings import FOLDER
from dxn.core.errors import UserError, did_you_mean
from dxn.core.files import CONFIG
from dxn.core.untrusted import load_yaml
from dxn.data.dataset import Samples
from dxn.models.model import MultimodalModel
from dxn.runs.folder import is_run
from dxn.tasks import Task
from dxn.tasks.metric import NOT_MONITORED, OwnMetric
from dxn.training.predict import predict, score

MAX_SAMPLES = 64  # of the validation split, whose metrics tell the names


def check_metrics(
    model: MultimodalModel, task: Task, samples: Samples, monitor: str | None
) -> None:
    """Compute all metrics of a few validation rows with the untrained model.

    A metric that does not exist or fails would otherwise be noticed after the first epoch.

    Args:
        model: The model.
        task: Its task.
        samples: The validation split.
        monitor: Name of the metric that the user wants to select the best epoch. None: that of the
            task.

    Raises:
        UserError: If the monitored metric does not exist or is not defined for the validation
            split, or a metric of the user fails or has the name of another one.
    """
    samples.keep(min(MAX_SAMPLES, len(samples)))
    # The loader draws random numbers, and this check must not change the training.
    with torch.random.fork_rng(devices=[]):
        predictions = predict(
            model,
            task,
            samples,
            batch_size=MAX_SAMPLES,
            device=torch.device("cpu"),
            draft=True,
        )
    figures = score(predictions, samples, task)
    targets = samples.opened.targets if task.is_supervised else None
    truths = [targets[row] for row in predictions.rows] if targets else []
    built_in = task.metric.metrics(predictions.predicted, truths, predictions.loss)
    for name in task.metric.own:
        if name in built_in or name == "loss":
            raise UserError(
                f"metrics.{name}: head={task.name} has a metric of this name; rename it"
            )
    names = [name for name in figures if name not in NOT_MONITORED]
    monitored = task.metric.monitored
    if monitored not in names:
        source = f"{type(task.metric).__name__}.monitored" if monitor is None else "trainer.monitor"
        raise UserError(
            f"{source}: head={task.name} has no metric {monitored!r}; choose one of "
            f"{', '.join(names)}{did_you_mean(monitored, names, '{}')}"
        )
    if monitor is None:
        return
    values = {repr(target) for target in samples.opened.targets or ()}
    if math.isnan(figures[monitor]) and len(values) == 1:
        raise UserError(
            f"trainer.monitor: {monitor} is not defined for the validation split, because all of "
            f"its targets are {values.pop()}; choose another metric, or another split"
        )


def own_metrics_of(run: str | None, trust: Sequence[str]) -> dict[str, OwnMetric]:
    """Return the metrics of the user in the configuration of the run that a command evaluates.

    Raises:
        UserError: If their package is not trusted.
    """
    if run is None or not is_run(Path(run)):
        return {}
    return build_metrics(load_yaml(Path(run) / FOLDER / CONFIG), trust)


def build_metrics(values: Mapping[str, Any], trust: Sequence[str]) -> dict[str, OwnMetric]:
    """Return the metrics of the user in a configuration.

    Args:
        values: The configuration of a training.
        trust: Top-level packages besides dxn whose code may be used.
    """
    nodes = values.get("trainer", {}).get("metrics") or {}
    return {name: build(nodes[name], key=f"trainer.metrics.{name}", trust=trust) for name in nodes}
