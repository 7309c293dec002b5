"""What a run decided when it started, so that a resumed run continues in the same way.

The folder checkpoints/start contains the configuration, the fitted tokenizers and labels, the
precision that was measured, and a fingerprint of the data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import PositiveInt

from dxn.config.keys import leaves, lookup
from dxn.config.schema import Strict, validated
from dxn.core.errors import UserError
from dxn.core.files import SUMS, check_sums, link, replace_folder, write_sums
from dxn.core.untrusted import load_json, load_yaml
from dxn.data.inspect.fingerprint import Fingerprint, differences
from dxn.models import Model
from dxn.runs.build import adapters_of
from dxn.runs.run_config import RunConfig
from dxn.runs.saved import model_folder
from dxn.runs.settings import Settings, merge_overrides
from dxn.tasks import Task
from dxn.training.distributed import LAUNCH, RESTARTS

FOLDER = Path("checkpoints") / "start"
CONFIG = "config.yaml"
DECISIONS = "decisions.json"
DATA = "data.json"
LOADED = "loaded.json"  # names of the tensors that were loaded from a checkpoint
# Keys that have no effect on the weights, or only on the end of the training.
MAY_CHANGE = (
    *("resume", "run", "output", "name", "trust", "report"),
    *("loader.num_workers", "loader.cache_gb", "loader.timeout"),
    *("trainer.epochs", "trainer.patience", "trainer.patience_below", "trainer.max_minutes"),
    *("trainer.log_every", "trainer.checkpoint_minutes", "trainer.checkpoint_every"),
    *("trainer.max_skipped_steps", "trainer.tracker"),
    # The fingerprint tells whether it is the same data.
    *("data.path", "data.train", "data.validation", "data.test", "data.confine"),
    # Compared as the batch size over all processes.
    *("batch_size", "trainer.batch_size"),
)


class Decisions(Strict):
    """Decisions that a resumed run does not take again.

    Args:
        precision: Precision of matrix products, which is measured by default.
        batch_size: Number of samples per batch over all processes.
        launch: Identifies the torchrun that started the run. Empty without torchrun.
    """

    precision: Literal["float32", "bf16"]
    batch_size: PositiveInt
    launch: str = ""


class SavedFingerprint(Strict):
    """The fingerprint of one split."""

    rows: int
    columns: dict[str, str]
    order: str
    set: str


class SavedData(Strict):
    """The content of data.json."""

    splits: dict[str, SavedFingerprint]


class SavedNames(Strict):
    """The content of loaded.json."""

    names: list[str]


def write_start(
    folder: Path,
    settings: Settings,
    decisions: Decisions,
    *,
    data: Mapping[str, Fingerprint],
    model: Model,
    task: Task,
    loaded: set[str],
) -> None:
    """Write the files of a new run that resuming needs besides checkpoints.

    Args:
        folder: The run folder.
        settings: The settings.
        decisions: The decisions of this start.
        data: Fingerprint of the data.
        model: The model, with its fitted adapters.
        task: The fitted task.
        loaded: Names of the tensors that were loaded from a checkpoint.
    """
    settings.save(folder)
    with replace_folder(folder / FOLDER) as new:
        model_folder.save_fitted(new, adapters_of(model), task)
        (new / CONFIG).write_text(settings.yaml(), encoding="utf-8")
        (new / DECISIONS).write_text(decisions.model_dump_json(), encoding="utf-8")
        (new / DATA).write_text(json.dumps(data), encoding="utf-8")
        if loaded:
            (new / LOADED).write_text(json.dumps(sorted(loaded)), encoding="utf-8")
        write_sums(new)


def read_decisions(folder: Path) -> Decisions:
    """Return the decisions of a run, after checking the files of its start.

    Raises:
        UserError: If a file is missing or damaged.
    """
    start = folder / FOLDER
    if not (start / SUMS).is_file():
        raise UserError(
            f"resume: {start} is missing, so the run stopped before its training began; start it "
            "again"
        )
    unlisted = [name for name in (CONFIG, DECISIONS, DATA) if name not in check_sums(start)]
    if unlisted:
        # A cut or empty list would otherwise hide damage.
        raise UserError(f"{start / SUMS}: must list {unlisted[0]}; copy the whole folder again")
    return validated(Decisions, load_json(start / DECISIONS), start / DECISIONS)


def check_config(folder: Path, settings: Settings, num_processes: int) -> int:
    """Compare the settings with those of the start of the run.

    Args:
        folder: The run folder.
        settings: The settings of the resumed run.
        num_processes: Number of processes of the resumed run.

    Returns:
        Number of samples per batch over all processes.

    Raises:
        UserError: If an option changed, and resume.force is not set.
    """
    decisions = read_decisions(folder)
    path = folder / FOLDER / CONFIG
    old = load_yaml(path)
    validated(RunConfig, old, path)
    # Written and read in the same way as the old ones, so that equal values are equal.
    new = settings.plain()
    keys = [key for key in dict.fromkeys([*leaves(old), *leaves(new)]) if not _may_change(key)]
    changed = [
        f"{key} was {lookup(old, key)[1]!r} and is now {lookup(new, key)[1]!r}"
        for key in keys
        if lookup(old, key) != lookup(new, key)
    ]
    batch_size = decisions.batch_size
    # A run that continues with another number of processes keeps its batches. Only a user who
    # asks for another number of samples per process changes them.
    if old["batch_size"] != new["batch_size"]:
        batch_size = new["batch_size"] * num_processes
    if batch_size != decisions.batch_size:
        changed.append(
            f"batch_size: {decisions.batch_size} samples per batch over all processes, and now "
            f"{batch_size}"
        )
    stop_if_changed(changed, settings, "the configuration")
    return batch_size


def check_data(folder: Path, settings: Settings, data: Mapping[str, Fingerprint]) -> None:
    """Compare the data with that of the start of the run.

    Raises:
        UserError: If it changed, and resume.force is not set.
    """
    path = folder / FOLDER / DATA
    old = load_json(path)
    validated(SavedData, {"splits": old}, path)
    # Through JSON, as the old one.
    stop_if_changed(differences(old, json.loads(json.dumps(data))), settings, "the data")


def stop_if_changed(changes: Sequence[str], settings: Settings, what: str) -> None:
    """Raise an error that lists the changes, unless resume.force is set."""
    if changes and not settings.values["resume"]["force"]:
        raise UserError(
            f"resume: {what} changed since the run started: {'; '.join(changes)}; undo the change, "
            "train a new run, or set resume.force=true to continue nevertheless"
        )


def write_changes(
    folder: Path, settings: Settings, batch_size: int, data: Mapping[str, Fingerprint]
) -> None:
    """Save the options of a resumed run, so that the next resume continues with them.

    Args:
        folder: The run folder.
        settings: The settings of the resumed run.
        batch_size: Number of samples per batch over all processes.
        data: Fingerprint of the data.
    """
    start = folder / FOLDER
    # The next resume must be asked again, and it may be a resume of a copy of this folder.
    values = {**settings.values, "resume": {"run": None, "force": False}}
    saved = Settings.load(folder, settings.trust)
    overrides = merge_overrides(saved.overrides, settings.overrides)
    settings = replace(settings, values=values, overrides=overrides)
    decisions = read_decisions(folder).model_copy(update={"batch_size": batch_size})
    files = {
        CONFIG: settings.yaml(),
        DECISIONS: decisions.model_dump_json(),
        DATA: json.dumps(data),
    }
    if all((start / name).read_text(encoding="utf-8") == text for name, text in files.items()):
        return
    settings.save(folder)
    with replace_folder(start) as new:
        for path in start.iterdir():
            if path.name not in (*files, SUMS):
                link(path, new / path.name)
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
        write_sums(new)


def read_loaded(folder: Path) -> set[str]:
    """Return the names of the tensors that were loaded from a checkpoint when the run started."""
    # The file exists only if the run started from a checkpoint.
    path = folder / FOLDER / LOADED
    if not path.exists():
        return set()
    return set(validated(SavedNames, {"names": load_json(path)}, path).names)


def read_fitted(folder: Path, adapters: Mapping[str, Any], task: Task) -> None:
    """Read what adapters and task learned from the training split, such as vocabularies.

    Raises:
        UserError: If a file is missing or damaged, or does not fit the configuration.
    """
    path = folder / FOLDER
    try:
        model_folder.load_fitted(path, adapters, task)
    except (UserError, MemoryError):
        raise
    # Everything comes from the files, so any other failure means that they contradict each other.
    except Exception as error:
        raise UserError(
            f"{path}: its files do not fit the configuration ({type(error).__name__}: {error}); "
            "copy the whole run folder again"
        ) from error


def launch() -> str:
    """Return what identifies the torchrun that started this process; "" without torchrun."""
    return f"{os.environ[LAUNCH]}/{os.getppid()}" if LAUNCH in os.environ else ""


def is_restart() -> bool:
    """Whether torchrun has started this process again, after one of the processes failed."""
    return os.environ.get(RESTARTS, "0") != "0"


def started_by(folder: Path, launched: str) -> bool:
    """Whether a folder is the run of this torchrun."""
    path = folder / FOLDER / DECISIONS
    return bool(launched) and path.is_file() and read_decisions(folder).launch == launched


def _may_change(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)
