"""Figures and plots of a training and of predictions, for the folder of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from dxn import viz
from dxn.core.display import count
from dxn.data.dataset import Samples
from dxn.models import Model, count_parameters
from dxn.runs.evaluation.printing import Figures
from dxn.tasks import Task
from dxn.training.evaluate import Predictions
from dxn.training.state import State


def training_figures(state: State, model: Model) -> dict[str, object]:
    """Return the keys of metrics.json that describe the training itself."""
    return {
        "validation/best": state.best,
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "train_seconds": round(state.seconds, 1),
        "parameters": count_parameters(model),
    }


def draw(
    folder: Path,
    predictions: Predictions,
    samples: Samples,
    task: Task,
    results: Figures,
    rows: str,
) -> None:
    """Draw the learning curves, the plot of the task, and the metric for each subset of inputs.

    Args:
        folder: Folder to write to. Its parent folder is the run or the evaluation.
        predictions: Predictions from all inputs.
        samples: The samples that they are for.
        task: The fitted task.
        results: Metrics by subset of the inputs.
        rows: Name of the rows in the titles, such as "test".
    """
    folder.mkdir(exist_ok=True)
    # The last parts of outputs/NAME/DATE, or of outputs/NAME/DATE/evaluate/DATE.
    parts = folder.parent.parts
    run = "/".join(parts[-4:] if "evaluate" in parts[-2:] else parts[-2:])
    about = f"{run}; {rows}: {count(len(samples), 'row')}"
    # `dxn evaluate` writes to a folder of its own, which has no log and gets no learning curves.
    log = folder.parent / "metrics.jsonl"
    if log.exists():
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        best = viz.curves.best_epoch(lines, task)
        lines = viz.curves.shown_rows(lines, task)
        viz.curves.draw_curves(lines, folder / "curves.png", best=best, about=run)
    targets = samples.opened.targets
    if targets is not None and task.plots is not None:
        truths = [targets[row] for row in predictions.rows]
        viz.plots.draw_task(task, predictions.predicted, truths, folder, about=about)
    bars = {name: figures.get(task.monitored, math.nan) for name, figures in results.items()}
    # A single bar compares nothing.
    if len(bars) > 1 and all(map(math.isfinite, bars.values())):
        viz.plots.input_bars(bars, task.monitored, folder / "inputs.png", about=about)
