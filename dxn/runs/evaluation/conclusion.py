"""What `dxn train` says after the training: how it ended, and what its metrics mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dxn.core.display import duration
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.prepare import Training
from dxn.tasks import Task
from dxn.training.evaluate import score
from dxn.training.state import State


def about_epochs(state: State, run: Training) -> list[str]:
    """Return how long the training took, and which epoch was saved."""
    took = f"trained {duration(state.seconds)}"
    if state.kept_loss is None:
        return [f"{took}, {state.epoch} epochs; no validation split: the last epoch is kept"]
    lines = [f"{took}, best epoch {state.best_epoch} of {state.epoch} (*)"]
    figure = run.task.metric.monitored
    if state.best is None:
        lines.append(
            f"note: the validation {figure} was NaN in all epochs, so the loss selected the epoch"
        )
        figure = "loss"
    # A model that memorizes a few samples may do so in the first epoch.
    if state.best_epoch == 1 < state.epoch and not run.loader.overfit:
        lines.append(f"note: no epoch after the first one had a better validation {figure}")
    return lines


def about_split(split: str) -> list[str]:
    """Return a note if the metrics are not those of a test split."""
    if split == "train":
        return [
            "warning: there is no test split, so these are the metrics of the training rows; they "
            "do not tell how well the model answers for new data"
        ]
    if split == "validation":
        return [
            "note: there is no test split, so these are the metrics of the validation split, which "
            "also selected the epoch and the factors of a mixture; expect slightly worse ones for "
            "new data"
        ]
    return []


def about_overfitting(run: Training, best: Predictor, batch_size: int) -> list[str]:
    """Return how many of these few samples the model has learned, with loader.overfit."""
    samples = run.validation_samples(best.task)
    if not run.loader.overfit or samples is None:
        return []
    predictions = best.run(samples, batch_size=batch_size)
    targets = samples.opened.targets if best.task.is_supervised else None
    truths = [] if targets is None else [targets[row] for row in predictions.rows]
    if truths and all(_is_exact(truth) for truth in truths):
        pairs = zip(predictions.predicted, truths, strict=True)
        count = sum(_is_learned(best.task, predicted, truth) for predicted, truth in pairs)
        result = f"{count} of {len(truths)} learned"
    else:
        # A number is never predicted exactly, so its error says more than a count.
        value = score(predictions, samples, best.task).get(best.task.metric.monitored, math.nan)
        result = f"{best.task.metric.monitored} {value:.4f} for the {len(samples)} samples"
    return [
        f"loader.overfit={run.loader.overfit}: {result}; the model has seen no other samples, so "
        "the table above says nothing about the data"
    ]


def about_files(run: Training) -> str:
    """Return where the results are."""
    names = ["model/", "plots/", "metrics.json"]
    # A resumed run can have the report of an earlier end.
    if run.settings.values.get("report", True) and (run.folder / "report.html").is_file():
        names.insert(0, "report.html")
    if run.task.is_supervised:
        names.append("predictions.csv")
    return f"written: {run.folder} ({', '.join(names)})"


def _is_exact(target: Any) -> bool:
    """Whether a target is a name, a text or a list of them, which a model can predict exactly."""
    if isinstance(target, str):
        return True
    return isinstance(target, Sequence) and all(isinstance(item, str) for item in target)


def _is_learned(task: Task, predicted: Any, target: Any) -> bool:
    """Whether a prediction equals the target in the form that the model is trained on.

    The order of labels, for example, makes no difference in that form.
    """
    answer = task.answer(predicted)["prediction"]
    return torch.equal(
        *(torch.as_tensor(task.target.encode(value, {})) for value in (answer, target))
    )
