"""A command of the command line: its options as a dataclass, and a method that runs it.

The help pages, the completion, the checks of values and paths, and docs/config.md are made from
the dataclass: the names, types and defaults of its fields, and the section Args of its docstring.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dxn.config.schema import Parameter, Signature, marks, option_group, signature_from
from dxn.config.targets import signature_of
from dxn.runs.settings import Settings

if TYPE_CHECKING:
    from dxn.config.words import Request

Node = Mapping[str, Any]  # the configuration of a part
# Marks an option whose text is taken as it was typed: numbers, brackets and ${...} in it are text.
AS_TYPED = "as typed"
# Short forms of the options that are typed most.
SHORT = {"target": "data.target", "weights": "weights.source", "resume": "resume.run"}


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


class PathOption:
    """Marks an option that contains paths. Subclasses check them before torch is imported."""

    def check(self, key: str, value: Any, settings: Settings) -> tuple[Any, str | None]:
        """Check the value of the option.

        Args:
            key: The option.
            value: Its value, which is not None.
            settings: The values of all options, and the words of the command line.

        Returns:
            The value that the command uses, and a line to print about the choice, or None.

        Raises:
            UserError: If the command would fail. One line per problem.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Command:
    """Base class of the commands. The fields are the options, the first ones in the help pages.

    Args:
        settings: How the command was called, and the values of all options as plain data.
        trust: Top-level packages besides dxn whose code a loaded folder may use.
    """

    # The option of a path that is written without a key.
    path_key: ClassVar[str | None] = None
    usage: ClassVar[Sequence[str]] = ()

    settings: Settings
    trust: Sequence[str] = ()

    def execute(self) -> int:
        """Run the command, and return its exit code."""
        raise NotImplementedError

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
    def verb(cls) -> str:
        """Return the name of the command."""
        return cls.__name__.lower()

    @classmethod
    def signature(cls) -> Signature:
        """Return the options with their types, defaults and meanings."""
        signature = signature_from(cls, ("settings",))
        # The options of the command itself come first, and those of its base classes last.
        names = [name for each in cls.__mro__ for name in inspect.get_annotations(each)]
        parameters = {n: signature.parameters[n] for n in names if n in signature.parameters}
        return replace(signature, parameters=parameters)

    @classmethod
    def groups(cls) -> dict[str, Group]:
        """Return the options that are groups of files."""
        parameters = cls.signature().parameters
        return {
            name: mark
            for name, each in parameters.items()
            for mark in marks(each.type)
            if isinstance(mark, Group)
        }

    @classmethod
    def options(cls) -> dict[str, Parameter]:
        """Return all options except for the groups of files, by dotted name."""
        groups = cls.groups()
        found: dict[str, Parameter] = {}
        for name, parameter in cls.signature().parameters.items():
            nested = option_group(parameter.type)
            if nested is not None:
                below = signature_of(nested, key=name).parameters
                found |= {f"{name}.{key}": each for key, each in below.items()}
            elif name not in groups:
                found[name] = parameter
        return found


def is_path(word: str) -> bool:
    """Whether a word of the command line is a path: it is neither an option nor a flag."""
    # ~KEY deletes a key in Hydra's grammar, and is refused with a message of its own.
    is_deletion = word.startswith("~") and not word.startswith("~/")
    return "=" not in word and not word.startswith("-") and not is_deletion
