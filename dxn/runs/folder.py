"""The run folder of a training: its name, its lock, and how a restarted process finds it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.config.environment import fill
from dxn.config.settings import FOLDER as CONFIG_FOLDER
from dxn.config.settings import Settings
from dxn.core.display import now, print_line
from dxn.core.errors import UserError
from dxn.core.files import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    METRICS,
    PRETRAINING,
    lock,
    new_folder,
    open_own,
)
from dxn.core.processes import launch
from dxn.runs.paths import is_run, member_folders, runs_below
from dxn.runs.plan import started_by
from dxn.training.checkpoint import all_checkpoints

LOCK = ".lock"


def run_folder(config: Mapping[str, Any], name: str) -> Path:
    """Return the folder of the resumed run, the folder `run`, or output/NAME/DATE_TIME.

    Args:
        config: The configuration.
        name: Name of the run.

    Raises:
        UserError: If a new run would overwrite another one.
    """
    if config["resume"]["run"]:
        return Path(config["resume"]["run"])
    if not config["run"]:
        # The name of a column can contain a slash, which would create another folder level.
        return Path(config["output"]) / name.replace("/", "_") / now()
    folder = Path(config["run"])
    refuse_other_run(folder)
    return folder


def refuse_other_run(folder: Path) -> None:
    """Raise a UserError if a folder contains a run that a new one would overwrite."""
    if has_checkpoint(folder) or (folder / LOG).exists():
        raise UserError(
            f"run: {folder} already contains a run; set resume={folder} to continue it, or choose "
            "another folder"
        )


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder contains a checkpoint, so that its training can be resumed."""
    return bool(all_checkpoints(folder / CHECKPOINTS))


def newest_unfinished(settings: Settings) -> Settings:
    """Return the settings for `resume=auto`, which continue a run of the same command, if any.

    That is the newest run in the folder `run`, or below the folder `output`, whose command had the
    same words, that has a checkpoint, and that has no metrics.json yet. Without one, a new run
    starts.
    """
    values = {**settings.values, "resume": {**settings.values["resume"], "run": None}}
    words = tuple(word for word in settings.overrides if not word.startswith("resume"))
    settings = replace(settings, values=values, overrides=words)
    folders = [Path(values["run"])] if values["run"] else runs_below(Path(values["output"]))
    candidates: list[tuple[int, Path]] = []
    for folder in folders:
        own = [folder, *member_folders(folder)]
        started = any(has_checkpoint(each) or has_checkpoint(each / PRETRAINING) for each in own)
        if not started or (folder / METRICS).exists() or not is_run(folder):
            continue
        if Settings.load(folder, settings.trust).overrides == words:
            written = (folder / CONFIG_FOLDER / CONFIG).stat().st_mtime_ns
            candidates.append((written, folder))
    if not candidates:
        return settings
    _, folder = max(candidates)
    print_line(f"resume: {folder}")
    return continued(folder, settings)


def continued(folder: Path, settings: Settings) -> Settings:
    """Return the settings that continue a run, whose command and environment are the same.

    Args:
        folder: The run folder.
        settings: The settings of the command.
    """
    saved = Settings.load(folder, settings.trust)
    values, hidden = fill(saved.values, settings.values)
    values |= {"resume": {"run": str(folder), "force": False}, "run": str(folder)}
    return replace(saved, values=values, hidden=hidden)


def folder_before_restart(values: Mapping[str, Any]) -> Path | None:
    """Return the run folder of this training before torchrun restarted its processes.

    Returns:
        The folder. None if there was no restart, or the processes failed before they created it.
    """
    started = launch()
    if started is None or not started.is_restart:
        return None
    folders = [Path(values["run"])] if values["run"] else Path(values["output"]).glob("*/*")
    for folder in folders:
        # The folder of an ensemble has no plan of its own.
        runs = [folder] if values["ensemble"] == 1 else member_folders(folder)
        if any(started_by(each, started) for each in runs):
            return folder
    return None


def ensemble_folder(settings: Settings) -> Path:
    """Return the run folder of an ensemble: that of the resumed run, `run`, or a new one.

    Raises:
        UserError: If a new run would overwrite another one.
    """
    values = settings.values
    if values["resume"]["run"]:
        return Path(values["resume"]["run"])
    own = folder_before_restart(values)
    if own is not None:
        return own
    data = values["data"]
    # The target is inferred when the data is read, so only one that the user set is known.
    name = str(values["name"] or data.get("target") or "ensemble")
    folder = run_folder(values, name)
    if not values["run"]:
        folder = new_folder(folder)
    if member_folders(folder):
        raise UserError(
            f"run: {folder} already contains an ensemble; set resume={folder} to continue it, or "
            "choose another folder"
        )
    return folder


@contextmanager
def locked(folder: Path, *, main: bool) -> Iterator[None]:
    """Hold the lock of a run folder. The operating system releases it when the process ends.

    Args:
        folder: The run folder. It is created if necessary.
        main: Whether this is the main process, which alone takes the lock.

    Raises:
        UserError: If another process holds the lock, or its file is a link.
    """
    if not main:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with open_own(path) as file:
        if not lock(file):
            file.seek(0)
            owner = file.read(200).strip() or "another process"
            raise UserError(
                f"run: {folder} is in use by {owner}; wait until it ends, or choose another folder"
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
        # The file stays. Two processes could hold locks of two files, if one of them deleted it.
