"""Checks before a command starts: what they find must not take the seconds of importing torch."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.errors import UserError
from dxn.keys import lookup
from dxn.paths import path_faults
from dxn.run.run_paths import trained_run
from dxn.run.settings import Settings

DEVICE_KEYS = ("device", "trainer.device")


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
    values = settings.values
    faults = path_faults(values, settings.overrides)
    output_fault = _output_fault(values.get("output"), values.get("input"))
    faults += [output_fault] if output_fault else []
    notes = settings.notes
    # In a training, `run` is the folder to write.
    if verb != "train" and values.get("run") is not None:
        try:
            folder, note = trained_run(values["run"])
            values = {**values, "run": str(folder)}
            notes = notes if note is None else (*notes, note)
        except UserError as error:
            faults += str(error).splitlines()
    if faults:
        raise UserError("\n".join(faults))
    for key in DEVICE_KEYS:
        _check_device(key, lookup(values, key)[1])
    return replace(settings, values=values, notes=notes)


def _output_fault(output: str | None, source: Any) -> str | None:
    """Return what is wrong with a path to write, judged by the nearest folder that exists.

    Args:
        output: The path to write.
        source: The input of the command, which must not be overwritten.
    """
    if output is None:
        return None
    path = Path(output)
    if isinstance(source, str) and path.is_file() and path.resolve() == Path(source).resolve():
        return f"output: {path} is also the input and would be overwritten; choose another file"
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        return f"output: {parent} is a file, so {path} cannot be written; choose another path"
    # os.access is only a hint (of a network drive, for example): writing can still fail later.
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"output: no permission to write in {parent}; choose another path"
    return None


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
