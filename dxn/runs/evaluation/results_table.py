"""The table of the metrics of an evaluation, as it is printed."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from dxn.core.display import number, print_table
from dxn.core.printable import printable
from dxn.core.results import Figures, Results


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
            number(figures[row][metric], largest[metric]) if metric in figures[row] else ""
            for metric in results.shown
        ]
        # Text, because rich would read brackets in the name of a column as markup.
        table.add_row(Text(printable(heading)), *cells)
        # Two rows, because both ends in one cell would not fit into a terminal of 80 characters.
        ends = results.intervals.get(row, {}) if row == results.subsets[-1] else {}
        for i, name in enumerate(("95% from", "95% to") if ends else ()):
            cells = [
                number(ends[metric][i], largest[metric]) if metric in ends else ""
                for metric in results.shown
            ]
            table.add_row(name, *cells, style="dim")
    print_table(table)


def _largest(results: Figures, metric: str) -> float:
    """Return the largest absolute value of a metric, without NaN and infinity."""
    values = [abs(figures.get(metric, 0.0)) for figures in results.values()]
    return max((value for value in values if math.isfinite(value)), default=0.0)
