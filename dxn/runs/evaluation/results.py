"""The metrics of an evaluation: as a table on the console, and in metrics.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.table import Table
from rich.text import Text

from dxn.core.display import format_number, print_line, print_table
from dxn.core.files import write_text
from dxn.core.printable import json_text, printable
from dxn.tasks import Task
from dxn.tasks.metric import defined

if TYPE_CHECKING:
    from dxn.report.intervals import Interval

ALL = "all"  # the row of all inputs, in metrics.json and in tables

Figures = Mapping[str, Mapping[str, float]]
Row = TypeVar("Row")  # of a table: its metrics, or their intervals


def figures_table(
    results: Figures,
    task: Task,
    title: str,
    intervals: Mapping[str, Mapping[str, Interval]] | None = None,
) -> None:
    """Print one row per subset of the inputs and one column per metric.

    Args:
        results: Metrics by name of the row.
        task: The task, whose monitored metric is printed in bold.
        title: Line above the table.
        intervals: 95% intervals of metrics by name of the row, which are printed below it.
    """
    table = Table()
    names: dict[str, None] = {}  # a set that keeps the order of the metrics
    for figures in results.values():
        names |= dict.fromkeys(figures)
    metrics = task.metric.shown(name for name in names if name != "rows")
    table.add_column("inputs")
    for metric in metrics:
        # Bold: the metric that selected the best epoch.
        style = "bold" if metric == task.metric.monitored else None
        heading = Text(printable(metric))
        table.add_column(heading, justify="right", style=style, overflow="fold")
    largest = {metric: _largest(results, metric) for metric in metrics}
    for name, figures in results.items():
        # A row can lack a metric, such as the loss of an input that its subset does not contain.
        cells = [
            format_number(value, largest[metric])
            if (value := defined(figures).get(metric)) is not None
            else ""
            for metric in metrics
        ]
        # Text, because rich would read brackets in the name of a column as markup.
        table.add_row(Text(printable(name)), *cells)
        # Two rows, because both ends in one cell would not fit into a terminal of 80 characters.
        ends = (intervals or {}).get(name, {})
        for i, heading in enumerate(("95% from", "95% to") if ends else ()):
            cells = [
                format_number(ends[metric][i], largest[metric]) if metric in ends else ""
                for metric in metrics
            ]
            table.add_row(heading, *cells, style="dim")
    # A title of the table itself would be broken into lines as narrow as the table.
    print_line(title)
    print_table(table)


def name_answers(
    results: Mapping[str, Row], answers: str | None, *, all_inputs: str = ALL
) -> dict[str, Row]:
    """Return the rows of a table, in which the row "all" has the name of what answers.

    Args:
        results: Metrics by name of the row.
        answers: The part of the model that answers: "transformer alone" or "mixture". None: the
            model has no baseline.
        all_inputs: Name of the row "all" if there is no baseline.
    """
    name = all_inputs if answers is None else f"{answers} (answers)"
    # A transformer that answers has only one row. The mixture is another model.
    return {name if row == ALL else row: results[row] for row in results if row != answers}


def write_metrics(path: Path, results: Figures, extra: Mapping[str, object]) -> None:
    """Write metrics.json.

    Args:
        path: File to write.
        results: Metrics by "test" for all inputs, and by "test/front" for a subset of the inputs.
            The keys in the file are test/accuracy and test/accuracy[front].
        extra: Further keys and values.
    """
    flat: dict[str, object] = {}
    for name, figures in results.items():
        split, _, shown = name.partition("/")
        for metric, value in defined(figures).items():
            flat[f"{split}/{metric}[{shown}]" if shown else f"{split}/{metric}"] = value
    write_text(path, json_text({**flat, **extra}, indent=1))


def _largest(results: Figures, metric: str) -> float:
    """Return the largest absolute value of a metric, without NaN and infinity."""
    values = [abs(figures.get(metric, 0.0)) for figures in results.values()]
    return max((value for value in values if math.isfinite(value)), default=0.0)
