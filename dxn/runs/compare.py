"""The command `dxn compare`: the metrics and options of runs side by side, and a paired test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dxn.config.model_plan import read_model_plan
from dxn.config.settings import Settings
from dxn.config.values import leaves, lookup
from dxn.core.display import count, cut, number, print_table
from dxn.core.errors import UserError
from dxn.core.files import METRICS, MODEL, VALIDATION
from dxn.core.printable import printable
from dxn.core.results import ALL, Results, read_results
from dxn.report.answers import Scores, common_scores, read_scores
from dxn.report.intervals import MIN_ROWS, paired
from dxn.report.tables import interval_text
from dxn.runs.folder import TRIALS, is_run
from dxn.tasks.metric import MIN_BLOCKS

# Options that only name where a run is written or continued.
IGNORED = ("run", "resume", "output", "name")
SIGNIFICANT = 0.05
MAX_VALUE = 80  # characters of an option


@dataclass(frozen=True)
class ComparedRun:
    """A run that is compared.

    Args:
        name: Short name of the run, different from that of the others.
        options: Values of its configuration, by dotted key.
        results: Content of metrics.json, or of validation.json of a trial.
        scores: Content of scores.json. None: there is none.
        is_trial: Whether it is a trial of a search that was not evaluated.
    """

    name: str
    options: Mapping[str, Any]
    results: Results
    scores: Scores | None
    is_trial: bool = False


def compared_runs(folders: Sequence[Path], settings: Settings) -> list[ComparedRun]:
    """Read the runs that are compared.

    Args:
        folders: The run folders.
        settings: The packages whose code the folders may use.

    Raises:
        UserError: If there are fewer than two runs, or one of them has not finished.
    """
    if len(folders) < 2:
        raise UserError(f"run: must be at least two run folders, got {len(folders)}; set run=[A,B]")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("run: the run folders must be different; remove the repeated one")
    names = _names(folders)
    return [_read(folder, name, settings) for folder, name in zip(folders, names, strict=True)]


def print_comparison(runs: Sequence[ComparedRun]) -> None:
    """Print the metrics with all inputs and their 95% intervals, and the options that differ.

    Parts of the models and simple methods have a row with the monitored metric.
    """
    splits = [run.results.split for run in runs]
    if validation := _validation_figures(runs):
        figures, splits = validation, ["validation"] * len(runs)
    else:
        figures = [run.results.figures().get(ALL, {}) for run in runs]
    metrics = dict.fromkeys(name for values in figures for name in values)
    _print_rows(
        "metric",
        runs,
        {
            name: [
                _figure(values.get(name), _interval(run.results, split, name))
                for run, values, split in zip(runs, figures, splits, strict=True)
            ]
            for name in metrics
        },
    )
    if not validation and (references := _references(runs)):
        _print_rows(f"{runs[0].results.monitored}, for comparison", runs, references)
    if options := differing_options(runs):
        _print_rows("option", runs, options)


def _references(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Return the monitored metric of the parts of models and of simple methods, for each run."""
    monitored = runs[0].results.monitored
    rows: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.results.references):
        values = [run.results.figures().get(name, {}).get(monitored) for run in runs]
        if any(value is not None for value in values):
            rows[name] = [_figure(value, None) for value in values]
    return rows


def differing_options(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Return the options whose values differ, with the value of each run.

    Of different classes, such as two backbones, only the names are listed, and not their options.
    """
    rows: dict[str, list[str]] = {}
    for key in dict.fromkeys(key for run in runs for key in run.options):
        values = [_text(run.options[key]) if key in run.options else "" for run in runs]
        if len(set(values)) > 1 and not _belongs_to_different_classes(key, runs):
            rows[key] = values
    return rows


def comparison_lines(runs: Sequence[ComparedRun]) -> list[str]:
    """Return why metrics cannot be compared, and the paired test of each run with the first one."""
    lines: list[str] = []
    if len({run.results.task for run in runs}) > 1:
        lines.append("note: the runs have different tasks, so most metrics differ in meaning")
    if len({run.results.split for run in runs}) > 1:
        shown = ", so the metrics of the validation split are shown"
        lines.append(
            "note: the runs were evaluated on different splits"
            + (shown if _validation_figures(runs) else "")
        )
    elif len(counts := {run.results.evaluated for run in runs}) > 1:
        shown = " and ".join(f"{number:,}" for number in sorted(counts))
        lines.append(f"note: the runs were evaluated on different numbers of rows: {shown}")
    return [*lines, *(_test(runs[0], other) for other in runs[1:])]


def _validation_figures(runs: Sequence[ComparedRun]) -> list[Mapping[str, float]]:
    """Return the validation metrics of runs of different splits; none if a run has none."""
    figures = [run.results.figures("validation").get(ALL, {}) for run in runs]
    are_different = len({run.results.split for run in runs}) > 1
    return [*figures] if are_different and all(figures) else []


def _interval(results: Results, split: str, name: str) -> tuple[float, float] | None:
    """Return the interval of a metric, which only the evaluated split has."""
    return results.interval(ALL, name) if split == results.split else None


def _belongs_to_different_classes(key: str, runs: Sequence[ComparedRun]) -> bool:
    names = key.split(".")
    targets = [".".join([*names[:i], "_target_"]) for i in range(1, len(names))]
    return any(
        target != key and len({run.options.get(target) for run in runs}) > 1 for target in targets
    )


def _print_rows(
    heading: str, runs: Sequence[ComparedRun], rows: Mapping[str, Sequence[str]]
) -> None:
    table = Table()
    table.add_column(heading, overflow="fold")
    for run in runs:
        table.add_column(Text(printable(run.name)), justify="right", overflow="fold")
    for name, cells in rows.items():
        # Text, because rich would read brackets in an option as markup.
        table.add_row(*(Text(printable(cell)) for cell in (name, *cells)))
    print_table(table)


def _figure(value: float | None, ends: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    interval = interval_text(ends, value)
    return f"{number(value)} ({interval})" if interval else number(value)


def _test(first: ComparedRun, other: ComparedRun) -> str:
    a, b = first.scores, other.scores
    if first.is_trial or other.is_trial:
        return (
            f"{other.name}: no paired test, because dxn tune evaluates single rows of the best "
            "trial only."
        )
    if a is None or b is None or a.name != b.name:
        return (
            f"{other.name}: no paired test, because the runs have no common scores of single rows; "
            "dxn report writes those of a run, if its task has any."
        )
    pairs, blocks = common_scores(a, b)
    result = paired([x for x, _ in pairs], [y for _, y in pairs], blocks)
    if result is None and blocks is not None and len(pairs) >= MIN_ROWS:
        return (
            f"{other.name}: no paired test, because the {len(pairs):,} common rows depend on each "
            f"other (groups, or overlapping windows): they are {len(set(blocks.ids))} independent "
            f"blocks, and a test needs {MIN_BLOCKS}; evaluate more rows."
        )
    if result is None:
        return (
            f"{other.name}: no paired test, because the runs have evaluated "
            f"{count(len(pairs), 'common row')}, and a test needs {MIN_ROWS}; use the same data "
            "and data.seed."
        )
    rows, difference, (low, high), p = result
    better = (difference > 0) == a.higher_is_better
    shown = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    detail = (
        f'the mean of "{a.name}" differs by {difference:+.3g} (95% interval '
        f"{low:+.3g} to {high:+.3g}, {shown}) on {rows:,} common rows"
    )
    if p >= SIGNIFICANT:
        verdict = f"{other.name} does not differ significantly from {first.name}"
    else:
        direction = "better" if better else "worse"
        verdict = f"{other.name} is significantly {direction} than {first.name}"
    return f"{verdict}: {detail}."


def _text(value: Any) -> str:
    text = str(value)
    return cut(text, MAX_VALUE)


def _read(folder: Path, name: str, settings: Settings) -> ComparedRun:
    if not is_run(folder):
        raise UserError(f"run: {folder}: not a run folder, it has no .hydra/config.yaml")
    values = Settings.load(folder, settings.folder_trust).values
    results = read_results(folder)
    is_trial = results is None
    if is_trial:
        results = read_results(folder, VALIDATION)
    if results is None:
        reason = "its training has not finished"
        if folder.parent.name == TRIALS:
            reason = "the trial was pruned, has failed or has not finished; see trials.csv"
        raise UserError(f"run: {folder}: has no {METRICS}, because {reason}")
    # The options of a run also have the adapters of modalities that its data does not have.
    plan = read_model_plan(folder / MODEL, trust=settings.folder_trust)
    used = {*plan.adapters, *(spec.modality for spec in plan.inputs.values())}
    adapters = {name: node for name, node in values["adapters"].items() if name in used}
    values = {**values, "adapters": adapters}
    options = {
        key: lookup(values, key)[1]
        for key in leaves(values)
        if key.partition(".")[0] not in IGNORED
    }
    return ComparedRun(name, options, results, read_scores(folder), is_trial)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are all different."""
    longest = max(len(folder.parts) for folder in folders)
    for length in range(1, longest + 1):
        names = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
