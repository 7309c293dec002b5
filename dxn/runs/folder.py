"""The folder of a run: how `run=`, `resume=` and `weights=` name it, and who may write in it.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dxn.config.settings import FOLDER
from dxn.core.display import now
from dxn.core.errors import UserError, similar
from dxn.core.files import (
    CHECKPOINTS,
    CONFIG,
    LABELS,
    METRICS,
    MODEL,
    PRETRAINING,
    WEIGHTS,
    lock,
    open_own,
)
from dxn.runs.hub import HUB, download

LOCK = ".lock"
MEMBERS = "members"
TRIALS = "trials"  # folder of the runs of a search
BEST_RUN = "best"  # folder of the best of them
LATEST = "latest"
AUTO = "auto"  # of `resume`: the newest unfinished run of the same command
TIME = re.compile(r"\d{4}-\d\d-\d\d_[\d.-]+")  # folder of a run without a name
RUNS = Path("outputs")  # default of the key `output` of dxn train
MAX_DEPTH = 3  # a search has the folder of its best run below that of its name


def member_folder(folder: Path, number: int) -> Path:
    """Return the run folder of a member."""
    return folder / MEMBERS / str(number)


def member_folders(folder: Path) -> list[Path]:
    """Return the run folders of the members in a run folder; none if it is not an ensemble."""
    paths = [path for path in (folder / MEMBERS).glob("*") if path.name.isdecimal()]
    return sorted(paths, key=lambda path: int(path.name))


def name_of(folder: Path) -> str:
    """Return the name of a run for its title: that of its folder, unless it is a time.

    The best run of a search has the name of the search.
    """
    folder = folder.absolute()
    if folder.name == BEST_RUN and (folder.parent / TRIALS).is_dir():
        folder = folder.parent
    return folder.parent.name if TIME.fullmatch(folder.name) else folder.name


def is_part(folder: Path) -> bool:
    """Whether a run folder is that of a member of an ensemble or of a trial of a search."""
    return folder.parent.name in (MEMBERS, TRIALS)


def trained_run(text: str, key: str = "run") -> tuple[Path, str | None]:
    """Return the run folder or model folder that `run=` names.

    Args:
        text: A run folder, a model folder, a folder of runs, "latest", or a model on the hub
            (hf://OWNER/NAME).
        key: The option, for messages.

    Returns:
        The folder, and a line about the choice if there are several runs.

    Raises:
        UserError: If it does not exist, or contains no trained model.
    """
    if text.startswith(HUB):
        return download(text), None
    return _find(text, key, has_model)


def interrupted_run(text: str) -> tuple[Path, str | None]:
    """Return the run folder that `resume=` names, and a line about the choice, see `trained_run`.

    Raises:
        UserError: If it does not exist, or is not a run folder.
    """
    return _find(text, "resume", is_run)


def weights_of_run(text: str, key: str = "weights") -> tuple[str, str | None]:
    """Return what `weights=` names, where a folder of runs is replaced by its newest run.

    Args:
        text: A run folder, a folder of runs, "latest", or another source of weights, which is
            returned as it is.
        key: The option, for messages.

    Returns:
        The source of the weights, and a line about the choice if there are several runs.

    Raises:
        UserError: If it is "latest", and there is no run with a model.
    """
    folder = Path(text).expanduser()
    is_single = has_model(folder) or is_run(folder)
    has_runs = not is_single and any(map(has_model, runs_below(folder)))
    if has_runs or (text == LATEST and not folder.exists()):
        newest, note = _find(text, key, has_model)
        return str(newest), note
    return text, None


def is_run(folder: Path) -> bool:
    """Whether a folder contains the configuration of a run."""
    return (folder / FOLDER / CONFIG).is_file()


def has_model(folder: Path) -> bool:
    """Whether a folder is a model folder, or the run folder of a finished training."""
    return any((path / CONFIG).is_file() for path in (folder, folder / MODEL))


def model_folder(folder: Path) -> Path:
    """Return the path of the model folder in a run folder, or the folder itself if it is one.

    Raises:
        UserError: If a file of the model folder is missing.
    """
    if (folder / MODEL / CONFIG).exists():
        folder = folder / MODEL
    if not folder.is_dir():
        raise UserError(f"{folder}: folder not found (current directory: {Path.cwd()})")
    for name in (WEIGHTS, CONFIG, LABELS):
        if not (folder / name).exists():
            if runs := [run for run in runs_below(folder) if has_model(run)]:
                raise UserError(
                    f"{folder}: a folder of runs; name one of them, such as {max(runs)}"
                )
            raise UserError(f"{folder}: not a run folder or model folder; {name} is missing")
    return folder


def _find(text: str, key: str, is_complete: Callable[[Path], bool]) -> tuple[Path, str | None]:
    folder = Path(text).expanduser()
    # A run folder that somebody called "latest" has priority.
    if text == LATEST and not folder.is_dir():
        folder = RUNS
    if not folder.is_dir():
        raise UserError(_not_found(folder, key))
    # A model folder with a missing file has a message of its own when it is loaded.
    if is_complete(folder) or is_run(folder):
        return folder, None
    runs = [run for run in runs_below(folder) if is_complete(run)]
    if not runs:
        purpose = "a run" if is_complete is is_run else "a trained model"
        raise UserError(
            f"{key}: {folder}: not a run folder, and no folder in it contains {purpose}"
        )
    newest = max(runs, key=lambda run: ((run / FOLDER / CONFIG).stat().st_mtime_ns, run))
    return newest, f"{key}: {newest} (newest of {len(runs)})"


def runs_below(folder: Path) -> list[Path]:
    """Return the run folders below a folder, without the members of ensembles."""
    runs = []
    for depth in range(1, MAX_DEPTH + 1):
        pattern = "/".join(["*"] * depth)
        runs += [path for path in folder.glob(pattern) if is_run(path) and not is_part(path)]
    return runs


def _not_found(folder: Path, key: str) -> str:
    """Return the message about a folder that does not exist, with the most similar one."""
    parent = folder.parent
    siblings = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    # `run=label` means outputs/label.
    folders = [*siblings, *RUNS.glob("*"), *runs_below(RUNS)]
    by_name = {path.name: path for path in reversed(folders)}
    by_path = {str(path): path for path in reversed(folders)}
    close = by_name.get(folder.name)
    if match := similar(str(folder), by_path):
        close = close or by_path[match]
    if match := similar(folder.name, by_name):
        close = close or by_name[match]
    advice = f"; did you mean {close}?" if close else ""
    return f"{key}: folder not found: {folder} (current directory: {Path.cwd()}){advice}"


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
    # An ensemble has no checkpoint of its own.
    if any(map(is_started, (folder, *member_folders(folder)))):
        raise UserError(
            f"run: {folder} already contains a run; set resume={folder} to continue it, or choose "
            "another folder"
        )
    # A run that stopped before its first checkpoint starts again. If it stopped while it wrote that
    # checkpoint, it has a model already, which the same training writes again.
    has_model_only = (folder / MODEL).exists() and not (folder / CHECKPOINTS).exists()
    if (folder / METRICS).exists() or has_model_only:
        raise UserError(
            f"run: {folder} already contains a run, which has no checkpoint to continue from; "
            "choose another folder, or delete this one"
        )


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder contains a checkpoint, so that its training can be resumed."""
    from dxn.training.checkpoint import all_checkpoints  # imports torch

    return bool(all_checkpoints(folder / CHECKPOINTS))


def is_started(folder: Path) -> bool:
    """Whether a run has a checkpoint of its training or of its pretraining."""
    return has_checkpoint(folder) or has_checkpoint(folder / PRETRAINING)


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


def in_use(folder: Path) -> bool:
    """Whether another process holds the lock of a run folder."""
    try:
        with locked(folder, main=True):
            return False
    except UserError:
        return True
