"""The run folder of a training: its name, and what it contains besides results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dxn.data.rows import Source
from dxn.errors import UserError
from dxn.models import Model
from dxn.run import model_folder, report
from dxn.run.build import adapters_of
from dxn.run.settings import Settings
from dxn.tasks import Task
from dxn.train.checkpoint import write_safely

LOADED = "loaded.json"  # names of the tensors that were loaded from a checkpoint
# Model and random generator before pretraining. A run that is interrupted during pretraining has no
# checkpoint of the head yet. Resuming loads the tokenizers instead of training them, which draws
# fewer random numbers, so without this file the head would start from other weights.
INITIAL = "initial.safetensors"
GENERATOR = "generator"


def run_name(config: Mapping[str, Any], source: Source) -> str:
    """Return the option `name`, or the name of the data set or its target column."""
    return str(config["name"] or source.name or source.target or "run")


def run_folder(config: Mapping[str, Any], name: str, *, main: bool) -> Path:
    """Return the folder of the resumed run, the folder `run`, or output/NAME/DATE_TIME.

    Args:
        config: The configuration.
        name: Name of the run.
        main: Whether this is the main process, which creates the folder.

    Raises:
        UserError: If a new run would overwrite another one.
    """
    if config["resume"]:
        return Path(config["resume"])
    if config["run"]:
        folder = Path(config["run"])
    else:
        # The name of a column can contain a slash, which would create another folder level.
        folder = Path(config["output"]) / name.replace("/", "_") / report.now()
    # Only in the main process: in the others the file can already be that of the main process.
    if main and (folder / "metrics.jsonl").exists():
        raise UserError(
            f"run: {folder} already contains a run; set resume={folder} to continue it, or choose "
            "another folder"
        )
    return folder


def create_run_folder(
    folder: Path, settings: Settings, model: Model, task: Task, loaded: set[str]
) -> None:
    """Create the run folder with everything that resuming needs besides checkpoints."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    settings.save(folder)
    model_folder.save_fitted(checkpoints, adapters_of(model), task)
    if loaded:
        (checkpoints / LOADED).write_text(json.dumps(sorted(loaded)), encoding="utf-8")


def keep_initial_state(folder: Path, model: Model, *, main: bool, resume: bool) -> None:
    """Save the model and the random generator, or restore them if the run is resumed.

    Args:
        folder: The run folder.
        model: The model before pretraining.
        main: Whether this is the main process, which writes.
        resume: Whether the run is resumed.

    Raises:
        UserError: If the run is resumed but the file is missing.
    """
    path = folder / "checkpoints" / INITIAL
    if not resume:
        if main:
            state = {name: t.cpu().contiguous() for name, t in model.state_dict().items()}
            write_safely(path, {**state, GENERATOR: torch.get_rng_state()})
        return
    if not path.exists():
        raise UserError(f"{path}: file not found; this run cannot be resumed, start a new one")
    state = load_file(path)
    torch.set_rng_state(state.pop(GENERATOR))
    model.load_state_dict(state)


def read_loaded(folder: Path) -> set[str]:
    """Return the names of the tensors that were loaded from a checkpoint when the run started."""
    # The file exists only if the run started from a checkpoint.
    path = folder / "checkpoints" / LOADED
    return set(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else set()
