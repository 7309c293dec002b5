"""Checks before a command starts: what they find must not take the seconds of importing torch."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dxn.errors import UserError
from dxn.keys import assign, lookup
from dxn.paths import path_faults
from dxn.run.run_paths import trained_run, weights_of_run
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
    # After the runs have been found, because "latest" is not a path.
    faults += path_faults(values, settings.overrides)
    output_fault = _output_fault(values.get("output"), values.get("input"))
    faults += [output_fault] if output_fault else []
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
