"""A command of the command line: its options as a dataclass, and a method that runs it.

The help pages, the completion, the checks of values and paths, and docs/config.md are made from
the dataclass: the names, types and defaults of its fields, and the section Args of its docstring.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from dxn.config.instantiate import signature_of
from dxn.config.settings import Settings
from dxn.config.signatures import Parameter, marks_of, signature_from
from dxn.config.values import assign, lookup
from dxn.core.errors import UserError

if TYPE_CHECKING:
    from dxn.config.words import Request

DEVICE_KEYS = ("device", "trainer.device")
MAX_SHOWN = 100  # characters of a path in a message


@dataclass(frozen=True)
class Group:
    """Marks an option whose value is a YAML file of a folder in conf/, or a list of files.

    Args:
        default: Name of the default file, or names of several. None: no file.
        is_part: Whether the file describes a part, which is the value of the option. Otherwise it
            sets other options, as an experiment does.
    """

    default: str | tuple[str, ...] | None = None
    is_part: bool = True


@dataclass(frozen=True)
class PathOption:
    """Marks an option that contains paths, which are checked before torch is imported.

    Args:
        check: Function of the name of the option, its value, which is not None, and the settings.
            It returns the value that the command uses, and a line to print about the choice, or
            None. It raises a UserError with one line per problem.
    """

    check: Callable[[str, Any, Settings], tuple[Any, str | None]]


@dataclass(frozen=True)
class Options:
    """The options of a command.

    Args:
        parameters: The fields of its class, those of its base classes last.
        groups: Those that are groups of files.
        by_key: All others by dotted name, such as weights.source.
    """

    parameters: Mapping[str, Parameter]
    groups: Mapping[str, Group]
    by_key: Mapping[str, Parameter]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base class of the commands. The fields are the options.

    Args:
        settings: How the command was called, and the values of all options as plain data.
        trust: Top-level packages besides dxn whose code a loaded folder may use.
    """

    # The option of a path that is written without a key.
    path_key: ClassVar[str | None] = None
    usage: ClassVar[Sequence[str]] = ()

    settings: Settings
    trust: Sequence[str] = ()

    @classmethod
    def verb(cls) -> str:
        """Return the name of the command."""
        return cls.__name__.lower()

    def execute(self) -> int:
        """Run the command, and return its exit code."""
        raise NotImplementedError

    def with_output(self, output: str) -> list[str]:
        """Return the words of the same command, which writes its results to a file."""
        options = [line for line in self.settings.overrides if not line.startswith("output=")]
        return [self.verb(), *options, f"output={output}"]

    @classmethod
    def compose(cls, words: Sequence[str] = ()) -> Self:
        """Return the command that the words of a command line describe.

        Raises:
            UserError: One line per problem, before any data is read.
        """
        # Hydra takes a tenth of a second, and the help pages do not need it.
        from dxn.config.compose import compose

        return cls.of(compose(cls, words))

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the command with the values of settings."""
        options: dict[str, Any] = {}
        for each in fields(cls):
            if each.name in settings.values:
                value = settings.values[each.name]
                default = each.default
                # A group of options, such as weights.
                if is_dataclass(default) and isinstance(value, Mapping):
                    value = type(default)(**value)
                options[each.name] = value
        return cls(settings=settings, **options)

    @classmethod
    def infer(cls, values: Mapping[str, str]) -> dict[str, str]:
        """Return files of groups that follow from other options, such as data=table of data.path.

        Args:
            values: The options that the user typed, without their types.
        """
        return {}

    @classmethod
    def resumed(cls, request: Request, words: Sequence[str]) -> Settings | None:
        """Return saved settings that the words of the command line name; None: there are none.

        Args:
            request: The parsed words.
            words: The words.
        """
        return None

    @classmethod
    @functools.cache
    def options(cls) -> Options:
        """Return the options with their types, defaults and meanings."""
        known = signature_from(cls, ("settings",)).parameters
        # The options of the command itself come first, and those of its base classes last.
        names = [name for each in cls.__mro__ for name in inspect.get_annotations(each)]
        parameters = {name: known[name] for name in names if name in known}
        groups: dict[str, Group] = {}
        by_key: dict[str, Parameter] = {}
        for name, parameter in parameters.items():
            if parameter.group is not None:
                below = signature_of(parameter.group, key=name).parameters
                by_key |= {f"{name}.{key}": each for key, each in below.items()}
                continue
            by_key[name] = parameter
            for mark in marks_of(parameter.type):
                if isinstance(mark, Group):
                    groups[name] = mark
                    del by_key[name]
        return Options(parameters, groups, by_key)


C = TypeVar("C", bound=Command)


def check_paths(command: C) -> C:
    """Check the paths and the device of a command, and find the run folders that it names.

    Raises:
        UserError: One line per problem.
    """
    settings = command.settings
    values = copy.deepcopy(settings.values)
    problems: list[str] = []
    notes = list(settings.notes)
    options = command.options()
    for key, parameter in {**options.parameters, **options.by_key}.items():
        value = lookup(values, key)[1]
        for mark in marks_of(parameter.type):
            if isinstance(mark, PathOption) and value is not None:
                try:
                    value, note = mark.check(key, value, settings)
                    assign(values, key, value)
                    notes += [note] if note else []
                except UserError as error:
                    problems += str(error).splitlines()
    if problems:
        raise UserError("\n".join(problems))
    for key in DEVICE_KEYS:
        device = lookup(values, key)[1]
        if device in ("cuda", "mps"):
            _check_device(key, device)
    return command.of(replace(settings, values=values, notes=tuple(notes)))


def check_output(
    key: str, value: Any, settings: Settings, *, is_folder: bool = False
) -> tuple[Any, str | None]:
    """Check a path to write, judged by the nearest folder that exists, see `PathOption`.

    Args:
        key: The option.
        value: The path.
        settings: The values of all options.
        is_folder: Whether a folder is written, and not a file.

    Raises:
        UserError: If it cannot be written, or is also the input.
    """
    path, source = Path(value), settings.values.get("input")
    try:
        if isinstance(source, str) and path.is_file() and path.resolve() == Path(source).resolve():
            wrong = f"{path} is also the input and would be overwritten; choose another file"
            raise UserError(f"{key}: {wrong}")
        # Ray writes a folder, and continues in one that exists.
        is_folder = is_folder or settings.values.get("engine") == "ray"
        if path.is_dir() and not is_folder:
            raise UserError(f"{key}: {path} is a folder that exists; choose another name")
        parents = [path, *path.absolute().parents] if is_folder else path.absolute().parents
        parent = next(folder for folder in parents if folder.exists())
        if not parent.is_dir():
            raise UserError(
                f"{key}: {parent} is a file, so {path} cannot be written; choose another path"
            )
    except UserError:
        raise
    except (OSError, ValueError) as error:  # too long, or with a zero byte
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(
            f"{key}: {value[:MAX_SHOWN]} cannot be written ({reason}); choose another path"
        ) from error
    # Trying is the only way to know: permissions do not tell about a read-only disk, and root has
    # all of them. A temporary file without a name leaves nothing behind.
    try:
        with tempfile.TemporaryFile(dir=parent):
            return value, None
    except OSError as error:
        raise UserError(
            f"{key}: {parent} cannot be written to ({error.strerror}); choose another path"
        ) from error


OUTPUT_FILE = PathOption(check_output)
OUTPUT_FOLDER = PathOption(functools.partial(check_output, is_folder=True))


def _check_device(key: str, device: str) -> None:
    # Only a computer with this device can run the command, and then torch is needed anyway.
    torch = importlib.import_module("torch")
    backend = torch.cuda if device == "cuda" else torch.backends.mps
    if not backend.is_available():
        raise UserError(
            f"{key}: {device} is not available: torch finds no such device or no driver for it; "
            f"use {key}=cpu or {key}=auto"
        )
