"""The output of a run: printed lines, metrics, predictions, plots and the model card."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from dxn.data.check import Truncation, count_truncated
from dxn.data.opening import Opened
from dxn.data.samples import Samples
from dxn.explain import plots
from dxn.models import Model, count_parameters
from dxn.run.build import Data, Inputs
from dxn.tasks import Task, format_cell
from dxn.tokenize.adapter import Preprocessor
from dxn.train.evaluate import Predictions
from dxn.train.trainer import State

# Without highlighting, numbers are not coloured. Soft wrapping leaves long lines to the terminal:
# rich would break them at 80 columns when the output is a pipe or a file.
console = Console(highlight=False, soft_wrap=True)
# Truncation is counted in this many rows only, because preparing all rows of a large data set takes
# as long as an epoch.
MAX_COUNTED_ROWS = 2000

Figures = Mapping[str, Mapping[str, float]]


def print_line(line: str) -> None:
    """Print a line verbatim."""
    # With markup, rich would remove brackets, such as those of a list of columns.
    console.print(line, markup=False)


def describe(data: Data, task: Task, inputs: Inputs, truncations: Mapping[str, Truncation]) -> None:
    """Print the inputs, the target, the splits and the truncated inputs of a training."""
    source = data.source
    for name, spec in inputs.specs.items():
        if spec.modality == name:
            print_line(f"{name}: {spec.column}")
        elif spec.column == name:  # an input is called like its column if its modality has several
            print_line(f"{name} ({spec.modality})")
        else:
            print_line(f"{name}: {spec.column} ({spec.modality})")
    if source.target is not None and task.needs_target:
        print_line(f"target: {source.target} ({task.name})")
    for note in source.notes:
        print_line(f"note: {note}")
    for name, split in data.splits.items():
        print_line(f"{name}: {len(split):,} rows{_missing_and_skipped(split)}")
        unknown = task.unknown(split.targets or ())
        if unknown:
            print_line(
                f"note: {unknown} rows of {name} have a target that is not in the training split; "
                "they count as wrong"
            )
    if task.needs_target:
        print_line(f"target values: {task.describe(data.splits['train'].targets or ())}")
    for name, truncation in truncations.items():
        print_line(f"note: {name}: {truncation}")


def truncations(opened: Opened, preprocessors: Mapping[str, Preprocessor]) -> dict[str, Truncation]:
    """Return the truncated inputs of a split, counted in its first MAX_COUNTED_ROWS rows."""
    first = {name: column[:MAX_COUNTED_ROWS] for name, column in opened.raws.items()}
    return count_truncated(replace(opened, raws=first), preprocessors)


def figures_table(results: Figures, task: Task, title: str) -> None:
    """Print one row per subset of the inputs and one column per metric."""
    table = Table(title=title)
    names: dict[str, None] = {}  # a set that keeps the order of the metrics
    for figures in results.values():
        names |= dict.fromkeys(figures)
    metrics = [name for name in names if name != "rows"]
    table.add_column("inputs")
    for metric in metrics:
        # Bold: the metric that selected the best epoch.
        style = "bold" if metric == task.monitored else None
        table.add_column(metric, justify="right", style=style)
    for name, figures in results.items():
        # A subset can lack a metric, such as the loss of an input that it does not contain.
        cells = [f"{figures.get(metric, float('nan')):.4f}" for metric in metrics]
        # Text, because rich would read brackets in the name of a column as markup.
        table.add_row(Text(name), *cells)
    console.print(table)


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
        for metric, value in figures.items():
            flat[f"{split}/{metric}[{shown}]" if shown else f"{split}/{metric}"] = value
    path.write_text(json.dumps({**flat, **extra}, indent=1, ensure_ascii=False), encoding="utf-8")


def training_figures(state: State, model: Model) -> dict[str, object]:
    """Return the keys of metrics.json that describe the training itself."""
    return {
        "validation/best": state.best,
        "best_epoch": state.best_epoch,
        "epochs": state.epoch,
        "train_seconds": round(state.seconds, 1),
        "parameters": count_parameters(model),
    }


def write_predictions(
    path: Path,
    predictions: Predictions,
    samples: Samples,
    task: Task,
    answers: Sequence[Mapping[str, Any]],
) -> None:
    """Write a CSV with the origin of each row, its target if it is known, and the prediction."""
    opened = samples.opened
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        targets = opened.targets
        true_column = [] if targets is None else ["true"]
        writer.writerow(["row", *true_column, *task.columns()])
        for i, answer in zip(predictions.rows, answers, strict=True):
            true = [] if targets is None else [format_cell(targets[i])]
            writer.writerow([opened.origin[i], *true, *task.cells(answer)])


def write_vectors(path: Path, origin: Sequence[str], vectors: Tensor) -> None:
    """Write one embedding per row.

    Args:
        path: File to write. A .npy file contains a float32 array (rows, E), a .csv file also the
            origin of each row.
        origin: File and row of each embedding.
        vectors: (rows, E). The embeddings.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, vectors.numpy())
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["row", *map(str, range(vectors.shape[1]))])
        for name, row in zip(origin, vectors.tolist(), strict=True):
            # Seven significant digits are the precision of float32.
            writer.writerow([name, *(f"{value:.7g}" for value in row)])


def draw(
    folder: Path, predictions: Predictions, samples: Samples, task: Task, results: Figures
) -> None:
    """Draw the learning curves, the plot of the task, and the metric for each subset of inputs."""
    folder.mkdir(exist_ok=True)
    # `dxn evaluate` writes to a folder of its own, which has no log and gets no learning curves.
    log = folder.parent / "metrics.jsonl"
    if log.exists():
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        plots.curves(lines, folder / "curves.png")
    targets = samples.opened.targets
    if targets is not None and task.plots is not None:
        truths = [targets[row] for row in predictions.rows]
        plots.draw_task(task, predictions.predicted, truths, folder)
    bars = {name: figures[task.monitored] for name, figures in results.items()}
    if len(bars) > 1:  # a single bar compares nothing
        plots.input_bars(bars, task.monitored, folder / "inputs.png")


def card(
    *,
    name: str,
    nodes: Mapping[str, Any],
    task: Task,
    about_target: str,
    sizes: Mapping[str, int],
    figures: Mapping[str, float],
    parameters: int,
) -> str:
    """Return the model card of a model folder in Markdown.

    Args:
        name: Title of the card.
        nodes: Content of config.yaml in the model folder.
        task: The fitted task.
        about_target: Description of the target values. Empty for a task without targets.
        sizes: Number of rows of each split.
        figures: Validation metrics of the saved epoch.
        parameters: Number of parameters.
    """
    rows = ", ".join(f"{split} {count:,}" for split, count in sizes.items())
    inputs = ", ".join(f"{name} ({spec['modality']})" for name, spec in nodes["inputs"].items())
    lines = [
        f"# {name}",
        "",
        f"Trained with dxn. {parameters:,} parameters. Inputs: {inputs}. Task: {task.name}.",
        *(["", f"Target: {about_target}."] if about_target else []),
        "",
        f"Rows: {rows}.",
        "",
        *(f"- validation {metric}: {value:.4f}" for metric, value in figures.items()),
        "",
        "```python",
        "import dxn",
        "",
        'model = dxn.load("model")',
        f"model.{'predict' if task.answers else 'embed'}({_example(nodes['inputs'])})",
        "```",
        "",
    ]
    return "\n".join(lines)


def plain_text(text: str) -> Text:
    """Return a text for a table cell, in which leading spaces are visible as dots.

    Many vocabularies have the same word with and without a space in front of it.
    """
    # A text of nothing but whitespace is shown by its escape sequences, such as '\n'.
    spaces = len(text) - len(text.lstrip())
    return Text("·" * spaces + text.strip()) if text.strip() else Text(repr(text))


def now() -> str:
    """Return the name of a folder for the current time, such as 2026-01-31_12-00-00.00."""
    # Hundredths of a second, because short runs of a sweep can start within the same second.
    return datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")[:-4]


@contextmanager
def quiet(silent: bool) -> Iterator[None]:
    """Suppress everything printed inside the context, for all processes but the main one."""
    # The previous value, because contexts can be nested.
    before = console.quiet
    console.quiet = silent
    try:
        yield
    finally:
        console.quiet = before


def _missing_and_skipped(split: Opened) -> str:
    parts = [f"{count} without {name}" for name, count in split.missing.items() if count]
    if split.skipped:
        parts.append(f"{split.skipped} skipped")
    return f" ({', '.join(parts)})" if parts else ""


def _example(names: Iterable[str]) -> str:
    """Return the keyword arguments of the example call in the model card."""
    # The name of a column need not be a Python identifier, such as "my text".
    names = list(names)
    if all(name.isidentifier() for name in names):
        return ", ".join(f"{name}=..." for name in names)
    return "**{" + ", ".join(f'"{name}": ...' for name in names) + "}"
