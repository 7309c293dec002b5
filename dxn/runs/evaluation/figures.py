"""Metrics and plots of a training and of predictions, for the folder of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from dxn import viz
from dxn.core.display import count
from dxn.data.dataset import Samples
from dxn.models.model import MultimodalModel, count_parameters
from dxn.runs.evaluation.results import Figures
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks import Task
from dxn.training.predict import Predictions
from dxn.training.state import State


def training_figures(state: State, model: MultimodalModel) -> dict[str, object]:
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
        charts = viz.curves.curve_charts(lines, best=best)
        viz.chart.write_png(charts, folder / "curves.png", title="Learning curves", about=run)
    targets = samples.opened.targets
    if targets is not None:
        truths = [targets[row] for row in predictions.rows]
        if charts_of_task := viz.charts.task_charts(task, predictions.predicted, truths):
            charts_of_task.write(folder, about=about)
    bars = {name: figures.get(task.metric.monitored, math.nan) for name, figures in results.items()}
    # A single bar compares nothing.
    if len(bars) > 1 and all(map(math.isfinite, bars.values())):
        chart = viz.charts.input_chart(bars, task.metric.monitored)
        viz.chart.write_png([chart], folder / "inputs.png", title=chart.title, about=about)


def draw_tokens(predictor: Predictor, samples: Samples, path: Path) -> None:
    """Draw the inputs of the first sample with their tokens, and the D×N matrix."""
    first = samples.rows[0]
    raws = {name: column[first] for name, column in samples.opened.raws.items()}
    tokens = predictor.tokens_of(samples, 0)
    viz.tokens.token_picture(viz.sample.SampleView.of(tokens, predictor.adapters, raws), path)
