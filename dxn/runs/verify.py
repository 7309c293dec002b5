"""The command `dxn verify`: checksums, whether the files load, whether all metrics are finite.

Nothing is written, and one problem does not hide another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dxn.config.settings import Settings
from dxn.core.display import count, list_names
from dxn.core.errors import UserError
from dxn.core.files import (
    CARD,
    CHECKPOINTS,
    LOG,
    METRICS,
    MODEL,
    PRETRAINING,
    UNFINISHED,
    check_sums,
)
from dxn.core.results import read_results
from dxn.core.schema import validated
from dxn.core.untrusted import check_file
from dxn.runs import plan as start
from dxn.runs.folder import is_run, member_folders
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

    def attempt(self, check: Callable[[], Result]) -> Result | None:
        """Return the result of a check; None if it failed, which is recorded."""
        try:
            return check()
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
    settings = result.attempt(lambda: Settings.load(folder, trust))
    members = member_folders(folder)
    for path in members:
        _check_run(path, result.attempt(lambda: Settings.load(path, trust)), result, trust)  # noqa: B023
    if members:
        # The ensemble itself has no checkpoints.
        finished = (folder / METRICS).exists()
        _check_model(folder, result, trust, finished=finished)
    else:
        _check_run(folder, settings, result, trust)
    # A killed process leaves these behind. The next training in this folder removes them.
    unfinished = [path.name for path in sorted(folder.rglob(f"{UNFINISHED}*"))]
    if unfinished:
        result.notes.append(
            f"{folder}: unfinished files of a killed process: {list_names(unfinished, MAX_LISTED)}"
        )
    return result


def _check_run(
    folder: Path, settings: Settings | None, result: Verified, trust: Sequence[str]
) -> None:
    """Check the training in a run folder, with its pretraining."""
    _check_start(folder, settings, result)
    for path in (folder / PRETRAINING, folder):
        if path.is_dir():
            _check_training(path, result, trust)


def _check_start(folder: Path, settings: Settings | None, result: Verified) -> None:
    """Check what a resumed training reads besides the checkpoints.

    Args:
        folder: The run folder.
        settings: Its configuration. None: it cannot be read.
        result: Receives what was found.
    """
    path = folder / start.FOLDER
    if not path.is_dir():
        result.problems.append(f"{path}: not found, so this run cannot be resumed")
        return
    plan = result.attempt(lambda: start.read_plan(folder))
    if plan is None:
        return
    # .hydra/config.yaml has no checksum, but the plan has the same content.
    if settings is not None and plan.config != settings.values:
        result.problems.append(
            f"{folder / '.hydra' / 'config.yaml'}: differs from {path / start.PLAN}; copy its "
            "config to it"
        )
        return
    result.checked.append(f"{path}: checksums, configuration and fingerprint of the data")


def _check_training(folder: Path, result: Verified, trust: Sequence[str]) -> None:
    """Check the model, the checkpoints and the metrics of a training or of its pretraining."""
    finished = (folder / METRICS).exists()
    weights = _check_model(folder, result, trust, finished=finished)
    checkpoints = folder / CHECKPOINTS
    paths = checkpoint.all_checkpoints(checkpoints)
    intact: list[str] = []
    for path in paths:
        state = result.attempt(lambda: _check_checkpoint(path, weights))  # noqa: B023
        if state is not None:
            intact.append(f"step {state['step']:,}")
    if intact:
        result.checked.append(
            f"{checkpoints}: {count(len(intact), 'checkpoint')} ({', '.join(intact)}): checksums, "
            "finite tensors" + (", weights of the model" if weights else "")
        )
    if not paths:
        result.problems.append(f"{checkpoints}: no checkpoint, so this run cannot be resumed")
    damaged = [path.name for path in sorted(checkpoints.glob(f"{checkpoint.DAMAGED}*"))]
    if damaged:
        listed = list_names(damaged, MAX_LISTED)
        result.notes.append(f"{checkpoints}: damaged earlier, not used: {listed}")
    _check_figures(folder, result, finished=finished)


def _check_model(
    folder: Path, result: Verified, trust: Sequence[str], *, finished: bool
) -> dict[str, Tensor]:
    """Load the model folder, and return its weights; none if it cannot be loaded."""
    path = folder / MODEL
    if not path.is_dir():
        if finished:
            result.problems.append(f"{path}: not found, although the training has finished")
        else:
            result.notes.append(f"{path}: not there yet, no epoch has finished")
        return {}
    predictor = result.attempt(lambda: model_folder.load(path, trust=trust))
    if predictor is None:
        return {}
    # The model card too, which may be edited without harm to the model.
    try:
        listed = check_sums(path)
    except UserError:
        listed = check_sums(path, may_differ=[CARD])
        result.notes.append(f"{path / CARD}: edited since it was written")
    weights = dict(predictor.model.state_dict())
    total = sum(tensor.numel() for tensor in weights.values())
    result.checked.append(
        f"{path}: checksums of {count(len(listed), 'file')}, loads, {total:,} finite weights"
    )
    return weights


def _check_checkpoint(folder: Path, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Check one checkpoint, and return the state of the training in it.

    Args:
        folder: The checkpoint.
        weights: Weights of the model folder, which the checkpoint must also have. Empty: unknown.
    """
    check_file(folder / checkpoint.FILE)
    tensors, state = checkpoint.read(folder)
    path = folder / checkpoint.FILE
    for name, tensor in tensors.items():
        if not name.startswith(LOSSES):
            _check_finite(name, tensor, path)
    state = validated(State, state, path).model_dump()
    checkpoint.check_log(
        {n.removeprefix(LOSSES): t for n, t in tensors.items() if n.startswith(LOSSES)}, path
    )
    prefix = "model/"
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    wrong = [
        name
        for name, tensor in weights.items()
        # A quantized matrix of a fine-tuning can have two weights per byte.
        if name not in own or (own[name].shape != tensor.shape and own[name].dtype != torch.uint8)
    ]
    if wrong:
        raise UserError(
            f"{path}: does not fit the model in model/: missing or of another shape: "
            f"{list_names(wrong, MAX_LISTED)}"
        )
    return state


def _check_finite(name: str, tensor: Tensor, path: Path) -> None:
    number = int((~tensor.isfinite()).sum()) if tensor.is_floating_point() else 0
    if number:
        raise UserError(f"{path}: {name} has {number:,} values that are NaN or infinite")


def _check_figures(folder: Path, result: Verified, *, finished: bool) -> None:
    """Check that all metrics of metrics.jsonl and metrics.json are finite."""
    log = folder / LOG
    problems = len(result.problems)
    rows: list[dict[str, Any]] = []
    if log.exists():
        rows = result.attempt(lambda: _read_log(log)) or []
        for i, row in enumerate(rows):
            result.problems += [f"{log} line {i + 1}: {name}" for name in _not_finite(row)]
    else:
        result.notes.append(f"{log}: not there yet, no batch has been logged")
    if finished:
        results = result.attempt(lambda: read_results(folder))
        metrics = {} if results is None else results.metrics
        result.problems += [f"{folder / METRICS}: {name}" for name in _not_finite(metrics)]
        names = f"{LOG} and {METRICS}"
    else:
        result.notes.append(f"{folder / METRICS}: not there yet, the training has not finished")
        names = LOG
    if rows and len(result.problems) == problems:
        result.checked.append(f"{folder}: {names}: {count(len(rows), 'line')}")


def _read_log(path: Path) -> list[dict[str, Any]]:
    check_file(path)
    return read_log(path)


def _not_finite(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each number that is NaN or infinite."""
    return [
        f"{name} must be finite, got {value}"
        for name, value in metrics.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]
