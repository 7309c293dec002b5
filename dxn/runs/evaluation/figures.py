"""The table and the plots of an evaluation."""

from __future__ import annotations

import math
from pathlib import Path

from rich.table import Table
from rich.text import Text

from dxn import viz
from dxn.core.display import count, format_number, print_table
from dxn.core.files import LOG
from dxn.core.printable import printable
from dxn.core.results import Figures, Results
from dxn.data.dataset import Samples
from dxn.report.evidence import Answers
from dxn.runs.predictor.predictor import Predictor
from dxn.tasks import Task
from dxn.training.log import read_log


def print_results(results: Results) -> None:
    """Print one row per subset of the inputs and one column per metric.

    The 95% intervals of the largest subset are two rows below it.
    """
    figures = results.figures()
    table = Table()
    table.add_column("inputs")
    for metric in results.shown:
        # Bold: the metric that selected the best epoch.
        style = "bold" if metric == results.monitored else None
        heading = Text(printable(metric))
        table.add_column(heading, justify="right", style=style, overflow="fold")
    largest = {metric: _largest(figures, metric) for metric in results.shown}
    for row, heading in results.headings().items():
        # A row can lack a metric, such as the loss of an input that its subset does not contain.
        cells = [
            format_number(figures[row][metric], largest[metric]) if metric in figures[row] else ""
            for metric in results.shown
        ]
        # Text, because rich would read brackets in the name of a column as markup.
        table.add_row(Text(printable(heading)), *cells)
        # Two rows, because both ends in one cell would not fit into a terminal of 80 characters.
        ends = results.intervals.get(row, {}) if row == results.subsets[-1] else {}
        for i, name in enumerate(("95% from", "95% to") if ends else ()):
            cells = [
                format_number(ends[metric][i], largest[metric]) if metric in ends else ""
                for metric in results.shown
            ]
            table.add_row(name, *cells, style="dim")
    print_table(table)


def draw(folder: Path, last: Answers, task: Task, results: Results, rows: str) -> None:
    """Draw the learning curves, the plot of the task, and the metric for each subset of inputs.

    Args:
        folder: Folder to write to. Its parent folder is the run or the evaluation.
        last: Predictions from all inputs.
        task: The fitted task.
        results: Metrics by subset of the inputs.
        rows: Name of the rows in the titles, such as "test".
    """
    # The last parts of outputs/NAME/DATE, or of outputs/NAME/DATE/evaluate/DATE.
    parts = folder.parent.parts
    run = "/".join(parts[-4:] if "evaluate" in parts[-2:] else parts[-2:])
    about = f"{run}; {rows}: {count(len(last.samples), 'row')}"
    # `dxn evaluate` writes to a folder of its own, which has no log and gets no learning curves.
    log = folder.parent / LOG
    if log.exists():
        lines = read_log(log)
        best = viz.curves.best_epoch(lines, task)
        lines = viz.curves.shown_rows(lines, task)
        charts = viz.curves.curve_charts(lines, best=best)
        viz.chart.write_png(charts, folder / "curves.png", title="Learning curves", about=run)
    if charts_of_task := viz.charts.task_charts(task, last.predictions.predicted, last.truths):
        charts_of_task.write(folder, about=about)
    figures = results.figures()
    bars = {name: figures[name].get(results.monitored, math.nan) for name in results.subsets}
    # A single bar compares nothing.
    if len(bars) > 1 and all(map(math.isfinite, bars.values())):
        chart = viz.charts.input_chart(bars, results.monitored)
        viz.chart.write_png([chart], folder / "inputs.png", title=chart.title, about=about)


def draw_tokens(predictor: Predictor, samples: Samples, path: Path) -> None:
    """Draw the inputs of the first sample with their tokens, and the D×N matrix."""
    first = samples.rows[0]
    raws = {name: column[first] for name, column in samples.opened.raws.items()}
    tokens = predictor.tokens_of(samples, 0)
    viz.tokens.token_picture(viz.sample.SampleView.of(tokens, predictor.adapters, raws), path)


def _largest(results: Figures, metric: str) -> float:
    """Return the largest absolute value of a metric, without NaN and infinity."""
    values = [abs(figures.get(metric, 0.0)) for figures in results.values()]
    return max((value for value in values if math.isfinite(value)), default=0.0)
