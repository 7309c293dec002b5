"""Evaluation of a trained model on a split, with all inputs and with some of them left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from dxn.core.display import count, now, print_line
from dxn.core.errors import UserError
from dxn.core.files import new_folder, refuse_links_out
from dxn.data.dataset import Opened, Samples
from dxn.data.inspect.quality import check_known_targets
from dxn.report.intervals import Interval, metric_intervals
from dxn.runs.data import print_unknown
from dxn.runs.evaluation.data import EvaluationData
from dxn.runs.evaluation.figures import draw, draw_tokens
from dxn.runs.evaluation.results import ALL, figures_table, name_answers, write_metrics
from dxn.runs.predictor.output import write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import prediction_records
from dxn.stacking.metrics import about_stack, answering, metrics_of_parts
from dxn.tasks import Task
from dxn.tasks.metric import defined
from dxn.tokenize.base import Reader
from dxn.training.predict import Predictions, score

# With more inputs than this, "a+b+c" is harder to read than "all but d".
MAX_LISTED_INPUTS = 3

# With more inputs than this, a table with one row per input would fill the screen.
MAX_SEPARATE = 8

Figures = dict[str, dict[str, float]]
Groups = Mapping[str, tuple[str, ...]]


def evaluate_data(
    predictor: Predictor,
    data: EvaluationData,
    folder: Path,
    *,
    batch_size: int,
    only: Sequence[str] | None = None,
) -> None:
    """Evaluate a model for `dxn evaluate`, and write metrics.json, predictions.csv and plots.

    Args:
        predictor: The model.
        data: The opened rows.
        folder: Folder to write to.
        batch_size: Number of samples per batch.
        only: Inputs to use. Default: all subsets.
    """
    split, about, opened = data.split, data.about, data.opened
    check_known_targets(predictor.task, opened.targets or (), about)
    print_unknown(predictor.task, opened.targets or (), about)
    results = evaluate_subsets(
        predictor, opened, split, folder, batch_size=batch_size, only=only, about=about
    )
    extra = {
        **about_stack(predictor.network),
        "data": about,
        "rows": len(opened),
        "dtype": predictor.dtype,
    }
    write_metrics(folder / "metrics.json", by_split(split, results), extra)


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
    folder = new_folder(parent / now())
    try:
        yield folder
    except BaseException:
        with suppress(OSError):  # not empty
            folder.rmdir()
            parent.rmdir()
        raise


def evaluate_subsets(
    predictor: Predictor,
    opened: Opened,
    split: str,
    folder: Path,
    *,
    batch_size: int,
    only: Sequence[str] | None = None,
    about: str | None = None,
    extra: Figures | None = None,
    record: Callable[[str, Samples, Predictions], None] | None = None,
) -> Figures:
    """Print the metrics for every subset of the inputs, and write predictions.csv and plots/.

    Args:
        predictor: The trained model.
        opened: The opened split.
        split: Name of the split.
        folder: Folder to write to. It is created if necessary, after the subsets are evaluated.
        batch_size: Number of samples per batch.
        only: The inputs of the only subset to evaluate. Default: all of `subsets`.
        about: Description of the rows for the title of the table. Default: the name of the split.
        extra: Metrics of further rows of the table, by the name of the row.
        record: Function that is called with the predictions of each subset, for the report.

    Returns:
        Metrics by name of the subset, "all" after the others, then those of the transformer
        without its baseline and of the baseline, and then those of the trivial answer.

    Raises:
        UserError: If `only` names an input that the data or the model does not have, or no row has
            any of the inputs.
    """
    everything = tuple(name for name in predictor.inputs if name in opened.raws)
    least = 2 if predictor.task.separates_inputs else 1
    groups = evaluated_groups(predictor.model_inputs.readers, everything)
    chosen = _chosen(only, everything, least) if only else subsets(everything, least, groups)
    if not only and len(groups) < len(everything):
        print_line(
            f"note: {len(everything)} inputs are evaluated by kind; dxn evaluate only=[NAME,...] "
            "evaluates any of them"
        )
    results: Figures = {}
    last: tuple[str, Samples, Predictions] | None = None
    for name, shown in chosen.items():
        samples = predictor.task_samples(opened, only=shown)
        # A subset is left out of the table if every row has only other inputs.
        if len(samples):
            predictions = predictor.run(samples, batch_size=batch_size)
            results[name] = score(predictions, samples, predictor.task)
            last = name, samples, predictions
            if record is not None:
                record(name, samples, predictions)
    if last is None:
        raise UserError(f"only: no row of {split} has any {' or '.join(only or everything)}")
    # The last subset is the most complete one: its predictions are those that are written.
    best, samples, predictions = last
    further = predictor.task.metric.further_rows(predictions.predicted)
    trivial = trivial_figures(predictor.task, opened, predictions)
    title = f"{about or split}: {count(len(samples), 'row')}"
    alone = {
        **metrics_of_parts(predictor.network, predictor.task, samples, batch_size=batch_size),
        **(extra or {}),
    }
    every = {**results, **alone, **trivial, **further}
    # With a single input, "all" would not tell which one.
    name = everything[0] if len(everything) == 1 else ALL
    answers = answering(predictor.network)
    shown = name_answers(every, answers, all_inputs=name)
    intervals = {best: _intervals(predictor.task, opened, predictions, results[best])}
    ends = name_answers(intervals, answers, all_inputs=name)
    figures_table(shown, predictor.task, title, ends)
    _explain_undefined(predictor.task, opened, predictions, results[best])
    # Only now, so that a wrong `only` leaves no empty folder.
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder / "plots", predictions, samples, predictor.task, results, about or split)
    if predictor.task.is_supervised:
        _write_predictions(predictor, samples, predictions, folder)
    return every


def trivial_figures(task: Task, opened: Opened, predictions: Predictions) -> Figures:
    """Return the metrics of the answers of a simple rule for the same rows, by its description.

    Empty if the task has no such rule, or there are no targets.
    """
    if opened.targets is None:
        return {}
    used = {name: opened.raws[name] for name in task.target.required}
    naive = task.naive([{n: raws[row] for n, raws in used.items()} for row in predictions.rows])
    if naive is None:
        return {}
    description, answers = naive
    truths = [opened.targets[row] for row in predictions.rows]
    figures = task.score(answers, truths, math.nan)
    # Such an answer has no loss.
    return {description: {name: figures[name] for name in figures if name != "loss"}}


def _intervals(
    task: Task, opened: Opened, predictions: Predictions, figures: Mapping[str, float]
) -> Mapping[str, Interval]:
    """Return the 95% intervals of the metrics that have one and do not take long."""
    if opened.targets is None:
        return {}
    truths = [opened.targets[row] for row in predictions.rows]
    return metric_intervals(task, predictions.predicted, truths, figures)


def _explain_undefined(
    task: Task, opened: Opened, predictions: Predictions, figures: Mapping[str, float]
) -> None:
    """Print why metrics of the table have no figure."""
    known = defined(figures)
    names = [name for name in task.metric.shown(figures) if name not in known]
    if not names or opened.targets is None:
        return
    values = {repr(opened.targets[row]) for row in predictions.rows}
    reason = f"all targets are {values.pop()}" if len(values) == 1 else "no row has the class"
    are = "is" if len(names) == 1 else "are"
    print_line(f"note: {', '.join(names)} {are} not defined for these rows: {reason}")


def subsets(
    inputs: Sequence[str], least: int = 1, groups: Groups | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the subsets of the inputs that are evaluated: each alone, all but each, and all.

    N inputs have at most 2N + 1 subsets, instead of the 2^N - 1 that are possible. Equal subsets
    are listed once: with two inputs, leaving one out is the same as the other one alone.

    Args:
        inputs: Names of all inputs.
        least: Minimum number of inputs of a subset. Smaller subsets are left out.
        groups: Inputs that are alone or left out together, by name of the group. Default: each
            input is a group.
    """
    everything = tuple(inputs)
    groups = groups or {name: (name,) for name in everything}
    names = tuple(groups)
    alone = [(name,) for name in names]
    all_but_one = []
    # The last group is left out first, which gives pairs the order a+b, a+c, b+c.
    for left_out in reversed(names):
        all_but_one.append(tuple(name for name in names if name != left_out))
    candidates = [*alone, *all_but_one] if len(names) > 1 else []
    named: dict[str, tuple[str, ...]] = {}
    for chosen in candidates:
        shown = tuple(chain.from_iterable(groups[name] for name in chosen))
        if shown not in named.values() and len(shown) >= least:
            named[subset_name(chosen, names)] = shown
    return {**named, ALL: everything}


def evaluated_groups(readers: Mapping[str, Reader], inputs: Sequence[str]) -> Groups:
    """Return the groups of inputs that are evaluated alone and left out.

    A model with many inputs has one group per kind of table cells. Each other input is a group of
    its own, under its own name.

    Args:
        readers: Reader of each input, by input name.
        inputs: Names of the inputs.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name in inputs:
        reader = readers[name]
        is_grouped = len(inputs) > MAX_SEPARATE and reader.tabular
        key = f"{reader.modality} columns" if is_grouped else name
        groups[key] = (*groups.get(key, ()), name)
    return groups


def subset_name(shown: Sequence[str], everything: Sequence[str]) -> str:
    """Name a subset of the inputs: "all", "a+b", or "all but c" if the latter is shorter."""
    if len(shown) == len(everything):
        return ALL
    hidden = [name for name in everything if name not in shown]
    if len(everything) > MAX_LISTED_INPUTS and len(hidden) < len(shown):
        return f"{ALL} but {' and '.join(hidden)}"
    return "+".join(shown)


def after_all(results: Figures) -> Figures:
    """Return the rows after "all": parts of the model, and simple rules, for comparison."""
    names = list(results)
    return {name: results[name] for name in names[names.index(ALL) + 1 :]}


def by_split(split: str, results: Figures) -> Figures:
    """Return results by "test" and "test/front", the keys that `write_metrics` expects."""
    return {
        split if name == ALL else f"{split}/{name}": figures for name, figures in results.items()
    }


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
            f"only: this model compares inputs with each other; set at least {least} of "
            f"{', '.join(everything)}, got {', '.join(only)}"
        )
    # In the order of the model, so that the name of the subset does not depend on the command.
    shown = tuple(name for name in everything if name in only)
    return {subset_name(shown, everything): shown}


def _write_predictions(
    predictor: Predictor, samples: Samples, predictions: Predictions, folder: Path
) -> None:
    """Write predictions.csv, and draw the tokens of the first sample as an example."""
    records = prediction_records(predictions, samples.opened, predictor.task)
    write_records(folder / "predictions.csv", records, separator=predictor.task.target.separator)
    draw_tokens(predictor, samples, folder / "plots" / "tokens.png")
