"""Checks before a command starts: what they find must not take the seconds of importing torch."""

from __future__ import annotations

import copy
import importlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from dxn.config.command import Command, PathOption
from dxn.config.keys import assign, lookup
from dxn.config.schema import marks
from dxn.core.errors import UserError
from dxn.runs.settings import Settings

DEVICE_KEYS = ("device", "trainer.device")
MAX_SHOWN = 100  # characters of a path in a message

C = TypeVar("C", bound=Command)


def prepare(command: C) -> C:
    """Check the paths and the device of a command, and find the run folders that it names.

    Raises:
        UserError: One line per problem.
    """
    settings = command.settings
    values = copy.deepcopy(settings.values)
    problems: list[str] = []
    notes = list(settings.notes)
    parts = {name: command.signature().parameters[name] for name in command.groups()}
    for key, parameter in {**command.options(), **parts}.items():
        value = lookup(values, key)[1]
        for mark in marks(parameter.type):
            if not isinstance(mark, PathOption) or value is None:
                continue
            try:
                value, note = mark.check(key, value, settings)
                assign(values, key, value)
                notes += [note] if note else []
            except UserError as error:
                problems += str(error).splitlines()
    if problems:
        raise UserError("\n".join(problems))
    for key in DEVICE_KEYS:
        _check_device(key, lookup(values, key)[1])
    return command.of(replace(settings, values=values, notes=tuple(notes)))


@dataclass(frozen=True)
class Output(PathOption):
    """A path to write, judged by the nearest folder that exists.

    Args:
        is_folder: Whether a folder is written, and not a file.
    """

    is_folder: bool = False

    def check(self, key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
        """Check that the path can be written, and is not that of the input."""
        path, source = Path(value), settings.values.get("input")
        try:
            self._check(key, path, source)
        except UserError:
            raise
        except (OSError, ValueError) as error:  # too long, or with a zero byte
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"{key}: {value[:MAX_SHOWN]} cannot be written ({reason}); choose another path"
            ) from error
        return value, None

    def _check(self, key: str, path: Path, source: Any) -> None:
        if isinstance(source, str) and path.is_file() and path.resolve() == Path(source).resolve():
            raise UserError(
                f"{key}: {path} is also the input and would be overwritten; choose another file"
            )
        if path.is_dir() and not self.is_folder:
            raise UserError(f"{key}: {path} is a folder; choose the name of a file")
        parents = [path, *path.absolute().parents] if self.is_folder else path.absolute().parents
        parent = next(folder for folder in parents if folder.exists())
        if not parent.is_dir():
            raise UserError(
                f"{key}: {parent} is a file, so {path} cannot be written; choose another path"
            )
        # Trying is the only way to know: permissions do not tell about a read-only disk, and root
        # has all of them. A temporary file without a name leaves nothing behind.
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            raise UserError(
                f"{key}: {parent} cannot be written to ({error.strerror}); choose another path"
            ) from error


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
