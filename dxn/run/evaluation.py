"""Evaluation of a trained model on a split, with all inputs and with some of them left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.data.opening import Opened, open_rows
from dxn.data.rows import TARGET, Rows, Source
from dxn.data.samples import Samples
from dxn.errors import UserError
from dxn.instantiate import resolve
from dxn.run import report
from dxn.run.attention import draw_tokens
from dxn.run.build import open_source
from dxn.run.predictor import Predictor
from dxn.run.samples import print_columns
from dxn.run.settings import FOLDER as CONFIG_FOLDER
from dxn.run.settings import Settings
from dxn.signatures import takes_any_name
from dxn.train.evaluate import Predictions, score

ALL = "all"
# With more inputs than this, "a+b+c" is harder to read than "all but d".
MAX_LISTED_INPUTS = 3
MAX_LISTED_LABELS = 5  # enough to recognize the classes; a vocabulary would fill the screen

Figures = dict[str, dict[str, float]]


def evaluate_model(settings: Settings, predictor: Predictor) -> Path:
    """Evaluate a model for `dxn evaluate`, on the data of its training or on other data.

    Args:
        settings: Settings of the command.
        predictor: The trained model.

    Returns:
        The folder that metrics.json, predictions.csv and plots were written to.

    Raises:
        UserError: If there is no data, or it does not fit the model.
    """
    values = settings.values
    source = _source(settings, predictor)
    split = values["split"] or default_split(source.splits)
    if not source.splits.get(split):
        known = ", ".join(name for name, rows in source.splits.items() if len(rows))
        raise UserError(f"split: the data has {known}, got {split}")
    rows = _rows_for_model(predictor, source, split)
    opened = open_rows(rows, predictor.preprocessors, task=predictor.task, on_bad=source.on_bad)
    _check_targets(predictor, opened.targets, split)
    # The date and time in the default name: an evaluation never overwrites an earlier one.
    folder = Path(values["output"] or Path(values["run"] or "outputs") / "evaluate" / report.now())
    results = evaluate_subsets(
        predictor, opened, split, folder, batch_size=values["batch_size"], only=values["only"]
    )
    extra = {"rows": len(opened)}
    report.write_metrics(folder / "metrics.json", by_split(split, results), extra)
    return folder


def evaluate_subsets(
    predictor: Predictor,
    opened: Opened,
    split: str,
    folder: Path,
    *,
    batch_size: int,
    only: Sequence[str] | None = None,
) -> Figures:
    """Print the metrics for every subset of the inputs, and write predictions.csv and plots/.

    Args:
        predictor: The trained model.
        opened: The opened split.
        split: Name of the split.
        folder: Folder to write to. It is created after the first subset has been evaluated.
        batch_size: Number of samples per batch.
        only: The inputs of the only subset to evaluate. Default: all of `subsets`.

    Returns:
        Metrics by name of the subset; "all" comes last.

    Raises:
        UserError: If `only` names an input that the data or the model does not have, or no row has
            any of the inputs.
    """
    everything = tuple(name for name in predictor.inputs if name in opened.raws)
    chosen = _chosen(only, everything) if only else subsets(everything)
    results: Figures = {}
    last: tuple[Samples, Predictions] | None = None
    for name, shown in chosen.items():
        samples = predictor.task_samples(opened, only=shown)
        # A subset is left out of the table if every row has only other inputs.
        if len(samples):
            predictions = predictor.run(samples, batch_size=batch_size)
            results[name] = score(predictions, samples, predictor.task)
            last = samples, predictions
    if last is None:
        raise UserError(f"only: no row of {split} has any {' or '.join(only or everything)}")
    # The last subset is the most complete one: its predictions are those that are written.
    samples, predictions = last
    report.figures_table(results, predictor.task, f"{split}: {len(samples):,} rows")
    # Only now, so that a wrong `only` leaves no empty folder.
    folder.mkdir(parents=True, exist_ok=True)
    report.draw(folder / "plots", predictions, samples, predictor.task, results)
    if predictor.task.answers:
        _write_predictions(predictor, samples, predictions, folder)
    return results


def subsets(inputs: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the subsets of the inputs that are evaluated: each alone, all but each, and all.

    N inputs have at most 2N + 1 subsets, instead of the 2^N - 1 that are possible. Equal subsets
    are listed once: with two inputs, leaving one out is the same as the other one alone.
    """
    everything = tuple(inputs)
    alone = [(name,) for name in everything]
    all_but_one = []
    # The last input is left out first, which gives pairs the order a+b, a+c, b+c.
    for left_out in reversed(everything):
        all_but_one.append(tuple(name for name in everything if name != left_out))
    candidates = [*alone, *all_but_one] if len(everything) > 1 else []
    named: dict[str, tuple[str, ...]] = {}
    for shown in candidates:
        if shown not in named.values():
            named[subset_name(shown, everything)] = shown
    return {**named, ALL: everything}


def subset_name(shown: Sequence[str], everything: Sequence[str]) -> str:
    """Name a subset of the inputs: "all", "a+b", or "all but c" if the latter is shorter."""
    if len(shown) == len(everything):
        return ALL
    hidden = [name for name in everything if name not in shown]
    if len(everything) > MAX_LISTED_INPUTS and len(hidden) < len(shown):
        return f"{ALL} but {' and '.join(hidden)}"
    return "+".join(shown)


def default_split(splits: Mapping[str, Sized]) -> str:
    """Return the split that is evaluated by default: the first with rows, the test split first."""
    return next(name for name in ("test", "validation", "train") if splits.get(name))


def by_split(split: str, results: Figures) -> Figures:
    """Return results by "test" and "test/front", the keys that `report.write_metrics` expects."""
    return {
        split if name == ALL else f"{split}/{name}": figures for name, figures in results.items()
    }


def _source(settings: Settings, predictor: Predictor) -> Source:
    """Open the data that the user named, or otherwise the data of the run."""
    values = settings.values
    preprocessors = predictor.preprocessors
    if values.get("data"):
        node = _with_columns(values["data"], predictor, settings.trust)
        return open_source({"data": node}, preprocessors, settings.trust)
    if values["run"] is None:
        raise UserError(
            "data: a public checkpoint has no data of its own; set data=table data.path=..."
        )
    folder = Path(values["run"])
    # The user may also name the model folder. The configuration that names the data is in the run
    # folder around it.
    if not (folder / CONFIG_FOLDER).is_dir() and (folder.parent / CONFIG_FOLDER).is_dir():
        folder = folder.parent
    saved = Settings.load(folder, settings.folder_trust).values
    # The run folder may come from a stranger, so the type of the node is checked.
    if not isinstance(saved.get("data"), Mapping):
        raise UserError(
            f"{folder}: the saved configuration has no data; set data=table data.path=..."
        )
    return open_source(saved, preprocessors, settings.folder_trust)


def _with_columns(
    node: Mapping[str, Any], predictor: Predictor, trust: tuple[str, ...]
) -> dict[str, Any]:
    """Add the columns of the training to the node of a table, unless the user named columns."""
    takes_columns = takes_any_name(resolve(node.get("_target_"), key="data", trust=trust))
    by_modality: dict[str, list[str]] = {}
    for name, column in predictor.columns.items():
        by_modality.setdefault(predictor.preprocessors[name].modality, []).append(column)
    is_named = any(node.get(modality) is not None for modality in by_modality)
    if not takes_columns or is_named or not by_modality:
        return dict(node)
    print_columns(predictor.columns)
    return {**node, **by_modality}


def _rows_for_model(predictor: Predictor, source: Source, split: str) -> Rows:
    """Return a split whose columns have the names of the model's inputs.

    Each input of the model reads the column of the same name and modality that it was trained on.
    If there is none, it reads the input of the data with the same name, and otherwise the only
    input of its modality. Inputs that the data does not have are left out.
    """
    rows = source.splits[split]
    cells = {name: values for name, values in rows.cells.items() if name == TARGET}
    for name, prepare in predictor.preprocessors.items():
        same = [n for n, spec in source.inputs.items() if spec.modality == prepare.modality]
        column = predictor.columns.get(name)
        exact = [n for n in same if column is not None and source.inputs[n].column == column]
        # With two inputs of a modality on either side, it is not clear which belongs to which.
        own = [p for p in predictor.preprocessors.values() if p.modality == prepare.modality]
        only = same if len(same) == len(own) == 1 else []
        matches = exact or [n for n in same if n == name] or only
        if matches:
            cells[name] = rows.cells[matches[0]]
    return replace(rows, cells=cells)


def _check_targets(predictor: Predictor, targets: Any, split: str) -> None:
    """Refuse data whose class names have nothing in common with those of the model."""
    # Some unknown targets are normal and count as wrong. If all are unknown, the names differ, such
    # as "cat" and 3, and metrics of 0 would hide the reason.
    if not targets or predictor.task.unknown(targets) < len(targets):
        return
    names = ", ".join((predictor.labels or ())[:MAX_LISTED_LABELS])
    raise UserError(
        f"data: all targets of {split} are unknown to the model, which was trained with {names} "
        "...; use the same names"
    )


def _chosen(only: Sequence[str], everything: Sequence[str]) -> dict[str, tuple[str, ...]]:
    if unknown := [name for name in only if name not in everything]:
        raise UserError(
            f"only: the data and the model share the inputs {', '.join(everything)}, "
            f"got {', '.join(unknown)}"
        )
    # In the order of the model, so that the name of the subset does not depend on the command.
    shown = tuple(name for name in everything if name in only)
    return {subset_name(shown, everything): shown}


def _write_predictions(
    predictor: Predictor, samples: Samples, predictions: Predictions, folder: Path
) -> None:
    """Write predictions.csv, and draw the tokens of the first sample as an example."""
    answers = [predictor.answer(predicted) for predicted in predictions.predicted]
    report.write_predictions(
        folder / "predictions.csv", predictions, samples, predictor.task, answers
    )
    first = samples.rows[0]
    raws = {name: column[first] for name, column in samples.opened.raws.items()}
    tokens = predictor.tokens_of(samples, 0)
    draw_tokens(predictor.preprocessors, raws, tokens, folder / "plots" / "tokens.png")
