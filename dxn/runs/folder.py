"""The run folder of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from dxn.config.environment import fill
from dxn.core.display import is_main_process
from dxn.core.errors import UserError
from dxn.core.files import new_folder
from dxn.data.rows import Source
from dxn.runs.evaluation import printing as report
from dxn.runs.members import MEMBERS, member_folders
from dxn.runs.record import is_restart, launch, started_by
from dxn.runs.settings import Settings
from dxn.training.checkpoint import all_checkpoints


def run_name(config: Mapping[str, Any], source: Source) -> str:
    """Return the option `name`, or the name of the data set or its target column."""
    return str(config["name"] or source.name or source.target or "run")


def run_folder(config: Mapping[str, Any], name: str, *, main: bool) -> Path:
    """Return the folder of the resumed run, the folder `run`, or output/NAME/DATE_TIME.

    Args:
        config: The configuration.
        name: Name of the run.
        main: Whether this is the main process, which later creates the folder with `new_folder`.

    Raises:
        UserError: If a new run would overwrite another one.
    """
    if config["resume"]["run"]:
        return Path(config["resume"]["run"])
    if not config["run"]:
        # The name of a column can contain a slash, which would create another folder level.
        return Path(config["output"]) / name.replace("/", "_") / report.now()
    folder = Path(config["run"])
    # Only in the main process: in the others the file can already be that of the main process.
    if main:
        refuse_other_run(folder)
    return folder


def refuse_other_run(folder: Path) -> None:
    """Raise a UserError if a folder contains a run that a new one would overwrite."""
    if has_checkpoint(folder) or (folder / "metrics.jsonl").exists():
        raise UserError(
            f"run: {folder} already contains a run; set resume={folder} to continue it, or choose "
            "another folder"
        )


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder contains a checkpoint, so that its training can be resumed."""
    return bool(all_checkpoints(folder / "checkpoints"))


def after_restart(settings: Settings) -> Settings:
    """Return the settings that continue the run, if torchrun has restarted its processes."""
    values = settings.values
    if not is_restart() or settings.is_resumed:
        return settings
    folder = Path(values["run"]) if values["run"] else _folder_of_launch(Path(values["output"]))
    # The processes can also have failed before the training began.
    if folder is None or not started_by(folder, launch()):
        return settings
    saved = Settings.load(folder, settings.trust)
    resume = {"run": str(folder), "force": False}
    # The command and its environment are the same as before the restart.
    values, hidden = fill(saved.values, values)
    values |= {"resume": resume, "run": str(folder)}
    return replace(saved, values=values, hidden=hidden)


def _folder_of_launch(output: Path) -> Path | None:
    """Return the run folder that this torchrun created below the folder `output`."""
    folders = [folder for folder in output.glob("*/*") if started_by(folder, launch())]
    # The folder of an ensemble has no checkpoints of its own.
    members = [path for path in output.glob(f"*/*/{MEMBERS}/*") if started_by(path, launch())]
    folders += [path.parent.parent for path in members]
    return folders[0] if folders else None


def ensemble_folder(settings: Settings) -> Path:
    """Return the run folder of an ensemble: that of the resumed run, `run`, or a new one.

    Raises:
        UserError: If a new run would overwrite another one.
    """
    values = settings.values
    if values["resume"]["run"]:
        return Path(values["resume"]["run"])
    restarted = _folder_of_launch(Path(values["output"])) if is_restart() else None
    if restarted is not None:
        return restarted
    data = values["data"]
    # The target is inferred when the data is read, so only one that the user set is known.
    name = str(values["name"] or data.get("target") or "ensemble")
    # All processes must use the same folder, and each has another time.
    folder = run_folder(values, name, main=is_main_process())
    if not values["run"] and is_main_process():
        folder = new_folder(folder)
    (folder,) = broadcast_object_list([folder])
    if is_main_process() and member_folders(folder):
        raise UserError(
            f"run: {folder} already contains an ensemble; set resume={folder} to continue it, or "
            "choose another folder"
        )
    return folder
