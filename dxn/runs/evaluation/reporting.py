"""The report of a run: what it contains, and when it is written (dxn.report draws it)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn import report as pages
from dxn import viz
from dxn.config.settings import Settings, dump_yaml
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.untrusted import check_file, load_json
from dxn.data.dataset import Opened, Samples
from dxn.runs.data import input_lines
from dxn.runs.evaluation.data import open_evaluation_data
from dxn.runs.evaluation.evaluate import evaluated_groups, subsets
from dxn.runs.evaluation.next_commands import report_again
from dxn.runs.predictor.attention import MAX_WEIGHTS, attention_on, limits_of
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.prepare import Training
from dxn.runs.saved.card import data_name
from dxn.stacking.stacked import formula_of
from dxn.training.log import read_log
from dxn.training.predict import Predictions

LOG = "metrics.jsonl"
METRICS = "metrics.json"
MAX_REASON = 200  # characters of an error in a warning
# Predictions of a set of inputs that are kept for its interval. Those from all inputs are complete.
MAX_KEPT = 10_000


class Recorder:
    """Keeps the predictions of `evaluate_subsets`, from each set of inputs."""

    def __init__(self):
        self.subsets: list[tuple[str, Samples, Predictions, int]] = []

    def __call__(self, name: str, samples: Samples, predictions: Predictions) -> None:
        """Keep the predictions of one more set of inputs."""
        if self.subsets:
            # Another set follows, so the one before is not that of all inputs.
            last, old, kept, num_rows = self.subsets[-1]
            chosen = pages.intervals.sample_rows(num_rows, MAX_KEPT)
            part = replace(
                kept,
                rows=[kept.rows[i] for i in chosen],
                predicted=[kept.predicted[i] for i in chosen],
            )
            self.subsets[-1] = last, old, part, num_rows
        self.subsets.append((name, samples, predictions, len(predictions.rows)))


def report_of_training(
    run: Training,
    best: Predictor,
    recorder: Recorder,
    metrics: Mapping[str, Any],
    *,
    remarks: Sequence[str] = (),
) -> None:
    """Write the report at the end of a training, if the option `report` says so.

    Args:
        run: The training.
        best: The model of its best epoch.
        recorder: The predictions of the evaluation.
        metrics: Content of metrics.json.
        remarks: Sentences about the metrics, as they were printed.
    """
    # A run that was started before this option existed has no such key.
    if not run.settings.values.get("report", True):
        return
    with _as_warning(run.folder, run.settings):
        splits = run.splits
        task = best.task
        targets = {}
        if task.is_supervised:
            targets = {name: each.targets or () for name, each in splits.items()}
        facts = pages.saved.Facts(
            inputs=input_lines(run.plan.inputs),
            targets={name: task.target.describe(values) for name, values in targets.items()},
            classes=pages.saved.count_classes(task, targets),
            warnings=list(run.warnings),
            remarks=[_without_label(line) for line in remarks],
            environment=pages.saved.environment(str(run.trainer.accelerator.device)),
        )
        target = run.source.target if task.is_supervised else None
        info = _info(run.folder, run.settings, run.overrides, metrics, facts, best, target)
        pages.run.write_report(info, evidence(best, recorder))


def report_of_ensemble(
    settings: Settings,
    folder: Path,
    best: Predictor,
    recorder: Recorder,
    metrics: Mapping[str, Any],
    member: Path,
) -> None:
    """Write the report of an ensemble, if the option `report` says so.

    Args:
        settings: Settings of the ensemble.
        folder: Its run folder.
        best: The ensemble.
        recorder: The predictions of the evaluation.
        metrics: Content of metrics.json.
        member: Run folder of a member, whose report describes the data.
    """
    if not settings.values.get("report", True):
        return
    with _as_warning(folder, settings):
        saved = pages.saved.read(member)
        facts = pages.saved.Facts() if saved is None else saved.facts
        # The remarks are about the metrics of the member.
        facts = facts.model_copy(update={"remarks": []})
        overrides = settings.overrides
        info = _info(folder, settings, overrides, metrics, facts, best, best.target)
        pages.run.write_report(info, evidence(best, recorder))


@contextmanager
def _as_warning(folder: Path, settings: Settings) -> Iterator[None]:
    """Print a failure as a warning: the results of a training are complete without a report."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_REASON]
        print_line(
            f"warning: report.html is not written ({reason}); the run is complete without it, and "
            f"{report_again(folder, settings)} tries again"
        )


def write_again(
    folder: Path,
    predictor: Predictor,
    *,
    batch_size: int,
    confine: bool,
    trust: Sequence[str],
) -> Path:
    """Write the report of a run folder, which may come from an untrusted source.

    Args:
        folder: The run folder.
        predictor: Its model.
        batch_size: Number of samples per batch.
        confine: Whether the data of the run may not lead out of its folder.
        trust: Top-level packages besides dxn whose code the folder may use.

    Returns:
        The page.
    """
    saved = Settings.load(folder, trust)
    metrics = read_metrics(folder)
    recorder = Recorder()
    notes: list[str] = []
    if not metrics:
        notes.append("The training has not finished, so there are no metrics yet.")
    else:
        try:
            split = pages.tables.split_of(metrics)
            opened = open_evaluation_data(
                predictor, str(folder), split=split, confine=confine, folder_trust=trust
            ).opened
            inputs = tuple(name for name in predictor.inputs if name in opened.raws)
            groups = evaluated_groups(predictor.model_inputs.readers, inputs)
            least = 2 if predictor.task.separates_inputs else 1
            for name, shown in subsets(inputs, least, groups).items():
                samples = predictor.task_samples(opened, only=shown)
                if len(samples):
                    recorder(name, samples, predictor.run(samples, batch_size=batch_size))
        except UserError as error:
            notes.append(f"Single rows are missing, because the data cannot be read: {error}")
            print_line(f"warning: {notes[-1]}")
    old = pages.saved.read(folder)
    if old is None:
        notes.append(
            "The warnings about the data and the versions of the training are not known, because "
            "it wrote no report."
        )
    facts = pages.saved.Facts() if old is None else old.facts
    target = predictor.target
    info = _info(folder, saved, saved.overrides, metrics, facts, predictor, target)
    return pages.run.write_report(replace(info, notes=notes), evidence(predictor, recorder))


def evidence(predictor: Predictor, recorder: Recorder) -> Any:
    """Return the model and its predictions in the form that the report needs."""
    subsets = [pages.run.Subset(*each) for each in recorder.subsets]
    samples = subsets[-1].samples if subsets else None

    def shown(row: int) -> Any:
        assert samples is not None
        return _shown(predictor, samples.opened, row)

    def attended(i: int, names: Sequence[str]) -> Any:
        assert samples is not None
        batch = predictor.batch(samples, i)
        try:
            found = attention_on(predictor, batch, names, max_weights=MAX_WEIGHTS)
        except UserError:  # no attention, or a sample that is too long
            return None
        return found.encoded, found.shares.cpu().numpy()

    return pages.run.Evidence(
        list(predictor.model.inputs),
        predictor.task,
        subsets,
        shown,
        attended,
        formula=formula_of(predictor.network),
        limits=limits_of(predictor),
    )


def _shown(predictor: Predictor, opened: Opened, row: int) -> Any:
    raws = {name: column[row] for name, column in opened.raws.items()}
    sources = {name: cells[row] for name, cells in opened.cells.items()}
    return viz.sample.shown_inputs(predictor.adapters, raws, sources)


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return metrics.json, {} if the training has not finished."""
    path = folder / METRICS
    if not path.exists():
        return {}
    # A metric can be NaN, such as R² of equal targets.
    metrics = load_json(path, allow_nan=True)
    if not isinstance(metrics, dict):
        raise UserError(f"{path}: must be a mapping, got {type(metrics).__name__}")
    return metrics


def read_log_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl; none for an ensemble, whose members have their own."""
    path = folder / LOG
    if not path.exists():
        return []
    check_file(path)
    # The folder may come from an untrusted source, and only numbers can be drawn.
    return [
        {key: value for key, value in row.items() if isinstance(value, int | float)}
        for row in read_log(path)
    ]


def _info(
    folder: Path,
    settings: Settings,
    overrides: Sequence[str],
    metrics: Mapping[str, Any],
    facts: Any,
    predictor: Predictor,
    target: str | None,
) -> Any:
    values = settings.values
    about = [
        ("run folder", "/".join(folder.parts[-2:])),
        ("data", data_name(values["data"], values.get("name"))),
        ("backbone", f"{_part(values['backbone'])}, D = {values['dim']}"),
        ("fusion", _part(values["fusion"])),
        ("optimizer", f"{_part(values['optimizer'])}, lr {values['optimizer'].get('lr', '')}"),
        ("batch size", str(values["batch_size"])),
        ("seed", str(values["seed"])),
    ]
    if isinstance(precision := metrics.get("precision"), str):
        about.append(("precision", precision))
    if values["weights"].get("source"):
        about.append(("initial weights", str(values["weights"]["source"])))
    return pages.run.RunInfo(
        folder=folder,
        title=str(values.get("name") or target or folder.parent.name or folder.name),
        command=shlex.join(["dxn", "train", *overrides]),
        config=dump_yaml(settings.plain()),
        about=about,
        metrics=metrics,
        log=read_log_of(folder),
        facts=facts,
        target=target,
        columns=predictor.columns,
    )


def _part(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).rpartition(".")[2]


def _without_label(line: str) -> str:
    """Return a line of the terminal without its label, such as "warning: "."""
    return line.removeprefix("warning: ").removeprefix("note: ")
