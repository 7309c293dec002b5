"""The command `dxn verify`: load everything that a run folder contains, and collect the errors.

Nothing is written, and one problem does not hide another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dxn.config.settings import FOLDER as CONFIG_FOLDER
from dxn.config.settings import Settings
from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.core.files import CHECKPOINTS, CONFIG, LOG, METRICS, MODEL, PRETRAINING, UNFINISHED
from dxn.core.results import read_results
from dxn.core.schema import validated
from dxn.core.tensors import check_after_loading
from dxn.core.untrusted import check_file
from dxn.runs.folder import is_run, member_folders
from dxn.runs.plan import FOLDER, PLAN, read_plan
from dxn.runs.saved import model_folder
from dxn.training import checkpoint
from dxn.training.log import read_log
from dxn.training.state import State

LOSSES = "log/"  # losses in a checkpoint, where NaN is a step that was skipped
MAX_LISTED = 5  # names in one line

Result = TypeVar("Result")


@dataclass
class Verified:
    """The result of `verify`.

    Args:
        checked: One line per part that was checked.
        notes: One line per thing that is not a problem, but good to know.
        problems: One line per problem.
    """

    checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def attempt(self, load: Callable[[], Result]) -> Result | None:
        """Return what a function loads; None if it failed, which is recorded."""
        try:
            return load()
        except UserError as error:
            self.problems += str(error).splitlines()
        except OSError as error:
            self.problems.append(f"{error.filename}: {error.strerror}")
        return None


def verify(folder: Path, *, trust: Sequence[str] = ()) -> Verified:
    """Check a run folder, which may come from an untrusted source.

    Args:
        folder: The run folder.
        trust: Top-level packages besides dxn whose code the folder may use.

    Raises:
        UserError: If it is not a run folder.
    """
    if not is_run(folder):
        raise UserError(f"run: {folder}: not a run folder, it has no .hydra/config.yaml")
    result = Verified()
    members = member_folders(folder)
    for run in members or [folder]:
        _load_start(run, result, trust)
        for training in (run / PRETRAINING, run):
            if training.is_dir():
                _load_model(training, result, trust)
                _load_checkpoints(training / CHECKPOINTS, result)
                _load_metrics(training, result)
    if members:
        # The ensemble itself has a configuration and a model, but no checkpoints.
        result.attempt(lambda: Settings.load(folder, trust))
        _load_model(folder, result, trust)
    # A killed process leaves these behind. The next training in this folder removes them.
    unfinished = [path.name for path in sorted(folder.rglob(f"{UNFINISHED}*"))]
    if unfinished:
        result.notes.append(
            f"{folder}: unfinished files of a killed process: {list_names(unfinished, MAX_LISTED)}"
        )
    return result


def _load_start(run: Path, result: Verified, trust: Sequence[str]) -> None:
    """Load the configuration and the plan of a run, which have the same content."""
    settings = result.attempt(lambda: Settings.load(run, trust))
    plan = result.attempt(lambda: read_plan(run))
    if settings is None or plan is None:
        return
    start = run / FOLDER
    if plan.config == settings.values:
        result.checked.append(f"{start}: checksums, configuration and fingerprint of the data")
    else:
        config = run / CONFIG_FOLDER / CONFIG
        result.problems.append(f"{config}: differs from {start / PLAN}; copy its config to it")


def _load_model(folder: Path, result: Verified, trust: Sequence[str]) -> None:
    path = folder / MODEL
    if not path.is_dir() and not (folder / METRICS).exists():
        result.notes.append(f"{path}: not there yet, no epoch has finished")
        return
    predictor = result.attempt(lambda: model_folder.load(path, trust=trust))
    if predictor is not None:
        total = sum(tensor.numel() for tensor in predictor.model.state_dict().values())
        result.checked.append(f"{path}: checksums, loads, {total:,} finite weights")


def _load_checkpoints(folder: Path, result: Verified) -> None:
    def load(path: Path) -> State:
        tensors, content = checkpoint.read(path)
        file = path / checkpoint.FILE
        weights = {name: t for name, t in tensors.items() if not name.startswith(LOSSES)}
        check_after_loading(weights, file)
        return validated(State, content, file)

    paths = checkpoint.all_checkpoints(folder)
    if not paths and (folder.parent / MODEL).exists():  # each epoch ends with a checkpoint
        result.problems.append(f"{folder}: no checkpoint, so this run cannot be resumed")
    elif not paths:
        result.notes.append(f"{folder}: no checkpoint yet, no epoch has finished")
    states = [result.attempt(lambda: load(path)) for path in paths]  # noqa: B023
    steps = [f"step {state.step:,}" for state in states if state is not None]
    if steps:
        number = count(len(steps), "checkpoint")
        result.checked.append(f"{folder}: {number} ({', '.join(steps)}): checksums, finite tensors")
    damaged = [path.name for path in sorted(folder.glob(f"{checkpoint.DAMAGED}*"))]
    if damaged:
        listed = list_names(damaged, MAX_LISTED)
        result.notes.append(f"{folder}: damaged earlier, not used: {listed}")


def _load_metrics(folder: Path, result: Verified) -> None:
    """Load metrics.jsonl and metrics.json, whose numbers must be finite."""

    def load() -> list[dict[str, Any]]:
        check_file(log)
        return read_log(log)

    log = folder / LOG
    problems = len(result.problems)
    rows: list[dict[str, Any]] = []
    if log.exists():
        rows = result.attempt(load) or []
        for i, row in enumerate(rows):
            result.problems += [f"{log} line {i + 1}: {name}" for name in _not_finite(row)]
    else:
        result.notes.append(f"{log}: not there yet, no batch has been logged")
    names = LOG
    if (folder / METRICS).exists():
        results = result.attempt(lambda: read_results(folder))
        metrics = {} if results is None else results.metrics
        result.problems += [f"{folder / METRICS}: {name}" for name in _not_finite(metrics)]
        names = f"{LOG} and {METRICS}"
    else:
        result.notes.append(f"{folder / METRICS}: not there yet, the training has not finished")
    if rows and len(result.problems) == problems:
        result.checked.append(f"{folder}: {names}: {count(len(rows), 'line')}")


def _not_finite(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each number that is NaN or infinite."""
    return [
        f"{name} must be finite, got {value}"
        for name, value in metrics.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
