"""The output of a run: printed lines, metrics, predictions and plots."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dxn.core.display import count, list_names, prints
from dxn.core.files import write_text
from dxn.core.printable import json_text, printable
from dxn.core.randomness import spaced_rows
from dxn.data.inspect.check import Truncation, count_truncated
from dxn.data.inspect.quality import check_known_targets
from dxn.data.raws import memory_lines, take_rows
from dxn.data.reading import Opened
from dxn.data.rows import Source
from dxn.report.intervals import Interval
from dxn.runs.record import Input, Plan
from dxn.tasks import Task
from dxn.tasks.metric import defined
from dxn.tokenize.base import Tokenizer

# Without highlighting, numbers are not coloured. Soft wrapping leaves long lines to the terminal:
# rich would break them at 80 columns when the output is a pipe or a file.
# force_jupyter: in a notebook, rich would make a block with margins of each line.
console = Console(highlight=False, soft_wrap=True, force_jupyter=False)
# Truncation is counted in this many rows only, because preparing all rows of a large data set takes
# as long as an epoch.
MAX_COUNTED_ROWS = 2000

# Columns of a modality that are printed one per line. More are printed in one line.
MAX_LINES = 4
MAX_NAMED = 6  # columns that this line names

ALL = "all"  # the row of all inputs, in metrics.json and in tables
MIN_CHECKED = 10  # rows of a split, below which all of its classes may be unknown
MAX_UNKNOWN = 5  # names of classes in a note
WIDE = 1000  # characters; more than any table needs

Figures = Mapping[str, Mapping[str, float]]
Row = TypeVar("Row")  # of a table: its metrics, or their intervals


def print_line(line: str) -> None:
    """Print a line verbatim, except for control characters and secrets."""
    if prints():
        # With markup, rich would remove brackets, such as those of a list of columns.
        console.print(printable(line), markup=False)


def print_rule(title: str = "") -> None:
    """Print a horizontal line, with a title in its middle."""
    if prints():
        # Text, because rich would read brackets in a title as markup.
        console.rule(Text(title), style="none")


def next_step(*words: str) -> None:
    """Print a command that the user may want to run next. It must run as it is printed."""
    line = shlex.join(words)
    # A line without its secrets or control characters would be another command.
    if printable(line) == line:
        print_line(f"next: {line}")


def format_number(value: float, largest: float | None = None) -> str:
    """Return a number with at least five significant digits, such as 0.8925 or 612901.6.

    Args:
        value: The number.
        largest: The largest number of its column, so that all have the same number of decimals.
            Default: the number itself.
    """
    magnitude = abs(value if largest is None else largest)
    digits = len(f"{magnitude:.0f}") if magnitude < 1e15 else 15
    return f"{value:.{min(max(5 - digits, 1), 4)}f}"


def describe(
    source: Source,
    splits: Mapping[str, Opened],
    task: Task,
    plan: Plan,
    truncations: Mapping[str, Truncation],
) -> None:
    """Print the inputs, the target, the splits and the truncated inputs of a training."""
    for line in input_lines(plan.inputs):
        print_line(line)
    if source.target is not None and task.is_supervised:
        print_line(f"target: {source.target} ({task.name})")
    for note in source.notes:
        print_line(f"note: {note}")
    for name, split in splits.items():
        print_line(f"{name}: {count(len(split), 'row')}{_missing_and_skipped(split)}")
        # A drawn split of very few rows can consist of rare classes.
        if len(split) >= MIN_CHECKED:
            check_known_targets(task, split.targets or (), name)
        print_unknown(task, split.targets or (), name)
    if task.is_supervised:
        print_line(f"target values: {task.target.describe(splits['train'].targets or ())}")
    for line in memory_lines([split.raws for split in splits.values()]):
        print_line(line)
    for name, truncation in truncations.items():
        key = plan.inputs[name].adapter
        # The adapter of a user may have another option that limits the length.
        advice = f"; set adapters.{key}.max_len" if "max_len" in plan.adapters[key] else ""
        print_line(f"note: {name}: {truncation}{advice}")


def input_lines(specs: Mapping[str, Input]) -> list[str]:
    """Return the lines that describe the inputs of a training, one for many columns."""
    by_modality: dict[str, list[str]] = {}
    for spec in specs.values():
        by_modality.setdefault(spec.modality, []).append(spec.column)
    lines: list[str] = []
    for name, spec in specs.items():
        columns = by_modality[spec.modality]
        if len(columns) > MAX_LINES:
            # The first input of a modality stands for all of them.
            if spec.column == columns[0]:
                lines.append(f"{spec.modality}: {len(columns)} columns ({named(columns)})")
        elif spec.modality == name:
            lines.append(f"{name}: {spec.column}")
        elif spec.column == name:
            lines.append(f"{name} ({spec.modality})")
        else:
            lines.append(f"{name}: {spec.column} ({spec.modality})")
    return lines


def named(names: Sequence[str], maximum: int = MAX_NAMED) -> str:
    """Return the first names of a list, and "..." if there are more."""
    more = ", ..." if len(names) > maximum else ""
    return ", ".join(names[:maximum]) + more


def print_unknown(task: Task, targets: Sequence[Any], where: str) -> None:
    """Print a note that names the classes of rows that the model does not know.

    Args:
        task: The fitted task.
        targets: The targets of the rows.
        where: What the rows are, such as "validation".
    """
    unknown = task.target.unknown(targets)
    if unknown:
        names = list_names(list(dict.fromkeys(unknown)), MAX_UNKNOWN)
        print_line(
            f"note: {where}: the target of {count(len(unknown), 'row')} is not in the training "
            f"split ({names}), which counts as wrong"
        )


def truncations(opened: Opened, tokenizers: Mapping[str, Tokenizer]) -> dict[str, Truncation]:
    """Return the truncated inputs of a split, counted in at most MAX_COUNTED_ROWS rows."""
    rows = spaced_rows(len(opened), MAX_COUNTED_ROWS)
    counted = {name: take_rows(column, rows) for name, column in opened.raws.items()}
    return count_truncated(replace(opened, raws=counted), tokenizers)


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


def print_table(table: Table) -> None:
    """Print a table. Outside of a terminal, all of its columns have their full width."""
    if console.is_terminal:
        if prints():
            console.print(table)
        return
    # A pipe has no width, and rich would shorten the names of columns to fit into 80 characters.
    text = StringIO()
    Console(file=text, width=WIDE).print(table)
    print_line(text.getvalue().rstrip("\n"))


def records_table(records: Sequence[Mapping[str, object]]) -> None:
    """Print one row per record and one column per key."""
    columns: dict[str, None] = {}  # a set that keeps the order of the keys
    for record in records:
        columns |= dict.fromkeys(record)
    table = Table()
    for name in columns:
        table.add_column(Text(printable(name)))
    for record in records:
        cells = [record.get(name, "") for name in columns]
        # Text, because rich would read brackets in a cell as markup.
        texts = [f"{c:.4f}" if isinstance(c, float) else printable(str(c)) for c in cells]
        table.add_row(*map(Text, texts))
    print_table(table)


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


def plain_text(text: str) -> Text:
    """Return a text for a table cell, in which leading spaces are visible as dots.

    Many vocabularies have the same word with and without a space in front of it.
    """
    # A text of nothing but whitespace is shown by its escape sequences, such as '\n'.
    spaces = len(text) - len(text.lstrip())
    return Text("·" * spaces + printable(text.strip())) if text.strip() else Text(repr(text))


def now() -> str:
    """Return the name of a folder for the current time, such as 2026-01-31_12-00-00.00."""
    # Hundredths of a second, because short runs of a sweep can start within the same second.
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-4]


def _largest(results: Figures, metric: str) -> float:
    """Return the largest absolute value of a metric, without NaN and infinity."""
    values = [abs(figures.get(metric, 0.0)) for figures in results.values()]
    return max((value for value in values if math.isfinite(value)), default=0.0)


def _missing_and_skipped(split: Opened) -> str:
    missing = {name: number for name, number in split.missing.items() if number}
    parts = [f"{number} without {name}" for name, number in missing.items()]
    if len(missing) > MAX_LINES:
        parts = [f"{len(missing)} inputs have missing values, {sum(missing.values()):,} in all"]
    if split.skipped:
        parts.append(f"{split.skipped} skipped")
    return f" ({', '.join(parts)})" if parts else ""
