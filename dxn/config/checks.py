"""Checks before a command starts: what they find must not take the seconds of importing torch."""

from __future__ import annotations

import copy
import importlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.config.keys import assign, lookup
from dxn.config.paths import path_faults
from dxn.core.errors import UserError
from dxn.runs.paths import trained_run, weights_of_run
from dxn.runs.settings import Settings

DEVICE_KEYS = ("device", "trainer.device")
# The smallest value of options that are otherwise checked only when a part is built.
AT_LEAST = {
    "batch_size": 1,
    "dim": 1,
    "count": 1,
    "k": 1,
    "max_new": 1,
    "trainer.epochs": 1,
    "loader.num_workers": 0,
}
MAX_SHOWN = 100  # characters of a path in a message
MAX_SEED = 2**63 - 1  # of torch.manual_seed
COMPARE = "compare"  # the command that takes several run folders
# Commands whose option `output` is a folder. That of the others is a file.
WRITE_FOLDERS = ("train", "evaluate", "attend", "index", "export")


def prepare(verb: str, settings: Settings) -> Settings:
    """Check the paths and the device of a command, and find the run folder that `run` names.

    Args:
        verb: Name of the command.
        settings: The composed configuration.

    Returns:
        The configuration with the path of the run folder.

    Raises:
        UserError: One line per problem.
    """
    values = copy.deepcopy(settings.values)
    faults: list[str] = []
    notes = list(settings.notes)
    for key, value in _keys_of_runs(verb, values):
        try:
            option = key.removesuffix(".source")  # as the user types it
            folder, note = trained_run(value) if key == "run" else weights_of_run(value, option)
            assign(values, key, str(folder))
            notes += [note] if note else []
        except UserError as error:
            faults += str(error).splitlines()
            assign(values, key, None)  # one message is enough
    runs = values.get("run")
    if isinstance(runs, list) and verb != COMPARE:
        faults.append(
            f"run: must be one run folder, got a list of {len(runs)}; only dxn compare takes a list"
        )
        values["run"] = None
    elif isinstance(runs, list):
        found = [_found_run(text, faults) for text in runs]
        values["run"] = [folder for folder, _ in found]
        notes += [note for _, note in found if note]
    # After the runs have been found, because "latest" is not a path.
    faults += path_faults(values, settings.overrides)
    faults += _range_faults(values)
    keys = ("output", "run") if verb == "train" else ("output",)
    for key in keys:
        fault = _output_fault(key, values.get(key), values.get("input"), verb in WRITE_FOLDERS)
        faults += [fault] if fault else []
    if faults:
        raise UserError("\n".join(faults))
    for key in DEVICE_KEYS:
        _check_device(key, lookup(values, key)[1])
    return replace(settings, values=values, notes=tuple(notes))


def _keys_of_runs(verb: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keys whose value can be a run folder, with their values."""
    adapters = lookup(values, "weights.adapters")[1] or {}
    keys = ["weights.source", *(f"weights.adapters.{name}" for name in adapters)]
    # In a training, `run` is the folder to write.
    keys += ["run"] if verb != "train" else []
    found = [(key, lookup(values, key)[1]) for key in keys]
    return [(key, value) for key, value in found if isinstance(value, str)]


def _found_run(text: str, faults: list[str]) -> tuple[str, str | None]:
    """Return a run folder of a list, and a line about the choice; add an error to the faults."""
    try:
        folder, note = trained_run(text)
    except UserError as error:
        faults += str(error).splitlines()
        return text, None
    return str(folder), note


def _range_faults(values: Mapping[str, Any]) -> list[str]:
    """Return one line per number that is out of range."""
    faults = []
    for key, smallest in AT_LEAST.items():
        value = lookup(values, key)[1]
        if isinstance(value, int) and value < smallest:
            faults.append(f"{key}: must be at least {smallest}, got {value}")
    seed = values.get("seed")
    if isinstance(seed, int) and abs(seed) > MAX_SEED:
        faults.append(f"seed: must be from {-MAX_SEED} to {MAX_SEED}, got {seed}")
    return faults


def _output_fault(key: str, output: str | None, source: Any, is_folder: bool) -> str | None:
    """Return what is wrong with a path to write, judged by the nearest folder that exists.

    Args:
        key: The option that contains the path.
        output: The path to write.
        source: The input of the command, which must not be overwritten.
        is_folder: Whether a folder is written, and not a file.
    """
    if output is None:
        return None
    path = Path(output)
    try:
        return _path_fault(key, path, source, is_folder)
    except (OSError, ValueError) as error:  # too long, or with a zero byte
        reason = getattr(error, "strerror", None) or error
        return f"{key}: {str(path)[:MAX_SHOWN]} cannot be written ({reason}); choose another path"


def _path_fault(key: str, path: Path, source: Any, is_folder: bool) -> str | None:
    if isinstance(source, str) and path.is_file() and path.resolve() == Path(source).resolve():
        return f"{key}: {path} is also the input and would be overwritten; choose another file"
    if path.is_dir() and not is_folder:
        return f"{key}: {path} is a folder; choose the name of a file"
    parents = [path, *path.absolute().parents] if is_folder else path.absolute().parents
    parent = next(folder for folder in parents if folder.exists())
    if not parent.is_dir():
        return f"{key}: {parent} is a file, so {path} cannot be written; choose another path"
    # Trying is the only way to know: permissions do not tell about a read-only disk, and root has
    # all of them. A temporary file without a name leaves nothing behind.
    try:
        with tempfile.TemporaryFile(dir=parent):
            return None
    except OSError as error:
        return f"{key}: {parent} cannot be written to ({error.strerror}); choose another path"


def _check_device(key: str, device: str | None) -> None:
    if device not in ("cuda", "mps"):
        return
    # Only a computer with this device can run the command, and then torch is needed anyway.
    torch = importlib.import_module("torch")
    backend = torch.cuda if device == "cuda" else torch.backends.mps
    if not backend.is_available():
        raise UserError(
            f"{key}: {device} is not available: torch finds no such device or no driver for it; "
            f"use {key}=cpu or {key}=auto"
        )
