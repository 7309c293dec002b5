"""Evaluation of a trained model on a split, with all inputs and with some of them left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from dxn import viz
from dxn.core.display import count, is_main_process, now, number, print_line, print_table
from dxn.core.errors import UserError
from dxn.core.files import PREDICTIONS, TOKENS, new_folder, refuse_links_out
from dxn.core.marks import Described
from dxn.core.printable import printable
from dxn.core.processes import from_first
from dxn.core.results import DataFacts, Figures, Interval, Results
from dxn.data.dataset import Opened, Samples
from dxn.data.inspect.quality import check_known_targets
from dxn.report.answers import Answers
from dxn.report.intervals import metric_intervals
from dxn.runs.evaluation.data import EvaluationData
from dxn.runs.evaluation.subsets import evaluated_groups, subset_name, subsets
from dxn.runs.predictor.output import write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import prediction_records
from dxn.stacking.metrics import about_stack, metrics_of_parts
from dxn.tasks import Task
from dxn.tasks.metric import defined
from dxn.training.predict import score, task_results


def evaluate_data(
    predictor: Predictor,
    data: EvaluationData,
    folder: Path,
    *,
    batch_size: int,
    only: Sequence[str] | None = None,
) -> None:
    """Evaluate a model for `dxn evaluate`, and write metrics.json, predictions.csv and tokens.png.

    Args:
        predictor: The model.
        data: The opened rows.
        folder: Folder to write to.
        batch_size: Number of samples per batch.
        only: Inputs to use. Default: all subsets.
    """
    for note in check_known_targets(predictor.task, data.opened.targets or (), data.about):
        print_line(f"note: {note}")
    evaluated = evaluate_subsets(predictor, data, folder, batch_size=batch_size, only=only)
    if evaluated is None:
        return
    results, _ = evaluated
    facts = DataFacts(name=data.about, rows={data.split: len(data.opened)})
    results.model_copy(update={"data": facts, "dtype": predictor.dtype}).write(folder)


@contextmanager
def new_evaluation(run: str | None) -> Iterator[Path]:
    """Yield a new folder with the date and time in its name.

    It is removed after an error, if nothing was written to it.

    Args:
        run: The run folder that contains it. None: the folder outputs.

    Raises:
        UserError: If a link in the run folder, which may come from an untrusted source, leads out
        of it.
    """
    root = Path(run or "outputs")
    parent = root / "evaluate"
    if run:
        refuse_links_out(parent, root)
    folder = from_first(lambda: new_folder(parent / now()))
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # not empty
            folder.rmdir()
            parent.rmdir()
        raise


def evaluate_subsets(
    predictor: Predictor,
    data: EvaluationData,
    folder: Path,
    *,
    batch_size: int,
    only: Sequence[str] | None = None,
    max_samples: int | None = None,
    further: Figures | None = None,
    train: Opened | None = None,
    share: float = 1.0,
    compares: bool = True,
) -> tuple[Results, Answers] | None:
    """Print the metrics for every subset of the inputs, and write predictions.csv and tokens.png.

    The processes share the rows. All of them must call this, and the first one writes the files.

    Args:
        predictor: The trained model.
        data: The opened split.
        folder: Folder to write to. It is created if necessary, after the subsets are evaluated.
        batch_size: Number of samples per batch.
        only: The inputs of the only subset to evaluate. Default: all of `subsets`.
        max_samples: Number of samples, which are spread over the split. Default: all of them.
        further: Metrics of further rows of the table, by the name of the row.
        train: The training split, from which simple methods learn. None: there are none.
        share: Share of the usual time of slow ones among them, 0 to 1.
        compares: Whether simple methods stand beside the model.

    Returns:
        The results, and the predictions from the largest subset. None in all processes except the
        first one.

    Raises:
        UserError: If `only` names an input that the data or the model does not have, or no row has
            any of the inputs.
    """
    task, opened = predictor.task, data.opened
    everything = tuple(name for name in predictor.inputs if name in opened.raws)
    least = task.min_inputs
    groups = evaluated_groups(predictor.model_inputs.readers, everything)
    chosen = _chosen(only, everything, least) if only else subsets(everything, least, groups)
    if not only and len(groups) < len(everything):
        how = "by kind" if len(groups) > 1 else "only together"
        print_line(
            f"note: {len(everything)} inputs are evaluated {how}; dxn evaluate only=[NAME,...] "
            "evaluates any of them"
        )
    figures: dict[str, Mapping[str, float]] = {}
    intervals: dict[str, dict[str, Interval]] = {}
    last: Answers | None = None
    for name, shown in chosen.items():
        samples = predictor.task_samples(opened, only=shown)
        if max_samples is not None:
            samples.keep(max_samples)
        # A subset is left out of the table if every row has only other inputs.
        if len(samples):
            last = Answers(samples, predictor.run(samples, batch_size=batch_size, divided=True))
            if not is_main_process():
                continue
            figures[name] = score(last.predictions, samples, task)
            if ends := metric_intervals(
                task,
                last.predictions.predicted,
                last.truths,
                figures[name],
                last.blocks(task.metric),
            ):
                intervals[name] = ends
    if last is None:
        raise UserError(f"only: no row of {data.split} has any {' or '.join(only or everything)}")
    parts = metrics_of_parts(predictor.network, task, last.samples, batch_size=batch_size)
    if not is_main_process():
        return None
    sets = list(figures)
    best = figures[sets[-1]]
    figures |= parts
    figures |= further or {}
    simple: dict[str, Mapping[str, float]] = {}
    if compares:
        simple |= {} if train is None else simple_figures(task, train, last, share)
        simple |= trivial_figures(task, last)
    figures |= simple
    figures |= task.metric.further_rows(last.predictions.predicted)
    results = task_results(
        task,
        data.split,
        figures,
        target=predictor.target if task.is_supervised else None,
        inputs=list(everything),
        subsets=sets,
        references=[name for name in figures if name not in sets],
        intervals=intervals,
        evaluated=len(last.samples),
        remarks=[*task.metric.notes(last.predictions.predicted), *about_simple(task, best, simple)],
        **about_stack(predictor.network),
    )
    print_line(f"{data.about}: {count(len(last.samples), 'row')}")
    print_results(results)
    for remark in results.remarks:
        print_line(f"note: {remark}")
    _explain_undefined(task, last, best)
    # Only now, so that a wrong `only` leaves no empty folder.
    folder.mkdir(parents=True, exist_ok=True)
    if task.is_supervised:
        records = prediction_records(last.predictions, last.samples.opened, task)
        write_records(folder / PREDICTIONS, records, separator=task.target.separator)
        draw_tokens(predictor, last.samples, folder / TOKENS)
    return results, last


def draw_tokens(predictor: Predictor, samples: Samples, path: Path) -> None:
    """Draw the inputs of the first sample with their tokens, and the D×N matrix."""
    first = samples.rows[0]
    raws = {name: column[first] for name, column in samples.opened.raws.items()}
    tokens = predictor.tokens_of(samples, 0)
    viz.tokens.token_picture(viz.sample.SampleView.of(tokens, predictor.adapters, raws), path)


def trivial_figures(task: Task, last: Answers) -> Figures:
    """Return the metrics of the answers of a simple rule for the same rows, by its description.

    Empty if the task has no such rule, or there are no targets.
    """
    if last.samples.opened.targets is None:
        return {}
    raws, rows = last.samples.opened.raws, last.predictions.rows
    used = {name: raws[name] for name in task.target.required}
    naive = task.naive([{name: column[row] for name, column in used.items()} for row in rows])
    if naive is None:
        return {}
    description, answers = naive
    return {description: task.score_answers(answers, last.truths)}


def about_simple(task: Task, best: Mapping[str, float], simple: Figures) -> list[str]:
    """Return a remark if simple methods are better than the model.

    Args:
        task: The task, whose monitored metric is compared.
        best: Metrics of the model.
        simple: Those of simple methods, by their description.
    """
    name = task.metric.monitored
    own = best.get(name, math.nan)
    values = {about: figures.get(name, math.nan) for about, figures in simple.items()}
    better = {about: x for about, x in values.items() if task.metric.is_better(x, own)}
    if not better or math.isnan(own):
        return []
    named = ", ".join(f"{about} {number(x, own)}" for about, x in better.items())
    return [
        f"simple methods are better than the model ({name} {number(own)}): {named}; train longer "
        "(trainer.max_minutes, trainer.epochs), or collect more rows"
    ]


def simple_figures(task: Task, train: Opened, last: Answers, share: float) -> Figures:
    """Return the metrics of simple methods that learn from the training split.

    Args:
        task: The fitted task.
        train: The training split.
        last: The answers of the model for the same rows.
        share: Share of the usual time of slow methods, 0 to 1.
    """
    known, targets = np.arange(len(train)), []
    if task.is_supervised:
        if train.targets is None or not last.truths:
            return {}
        # Missing targets, such as those of a row without its input, teach nothing.
        known = np.flatnonzero([target is not None for target in train.targets])
        targets = [train.targets[row] for row in known.tolist()]
    known_raws = {name: column.take(known) for name, column in train.raws.items()}
    rows = np.array(last.predictions.rows, np.int64)
    raws = {name: column.take(rows) for name, column in last.samples.opened.raws.items()}
    return dict(
        task.simple_figures(
            known_raws, targets, raws, last.truths, last.predictions.predicted, share=share
        )
    )


def _explain_undefined(task: Task, last: Answers, figures: Mapping[str, float]) -> None:
    """Print why metrics of the table have no figure."""
    defined_figures = defined(figures)
    names = [name for name in task.metric.shown(figures) if name not in defined_figures]
    if not names or not last.truths:
        return
    values = {str(true) if isinstance(true, Described) else repr(true) for true in last.truths}
    reason = ""
    if len(values) == 1:
        reason = f": all targets are {values.pop()}"
    elif task.target.labels:
        reason = ": no row has the class"
    are = "is" if len(names) == 1 else "are"
    print_line(f"note: {', '.join(names)} {are} not defined for these rows{reason}")


def _chosen(
    only: Sequence[str], everything: Sequence[str], least: int
) -> dict[str, tuple[str, ...]]:
    if unknown := [name for name in only if name not in everything]:
        raise UserError(
            f"only: the data and the model share the inputs {', '.join(everything)}, "
            f"got {', '.join(unknown)}"
        )
    if len(set(only)) < least:
        raise UserError(
            f"only: this model needs at least {least} inputs of a row; set {least} or more of "
            f"{', '.join(everything)}, got {', '.join(only)}"
        )
    # In the order of the model, so that the name of the subset does not depend on the command.
    shown = tuple(name for name in everything if name in only)
    return {subset_name(shown, everything): shown}


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
    largest = {metric: results.largest(metric) for metric in results.shown}
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
