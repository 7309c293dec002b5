"""A command of the command line: its options as a dataclass, and a method that runs it.

The help pages, the completion, the checks of values and paths, and docs/reference/options.md are
made from the dataclass: the names, types and defaults of its fields, and the section Args of its
docstring.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dxn.config.instantiate import signature_of
from dxn.config.settings import Settings
from dxn.config.signatures import Parameter, marks_of, signature_from
from dxn.config.values import is_below, lookup
from dxn.core.printable import override_value

if TYPE_CHECKING:
    from dxn.config.words import Request


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

    needs_values: ClassVar[bool] = True  # whether no option may lack a value (???)
    # The option of a path that is written without a key.
    path_key: ClassVar[str | None] = None
    usage: ClassVar[Sequence[str]] = ()
    # Options that have an effect only with another one, and options that have none with another
    # one, by the other one: its key, or a word such as engine=ray; for needs also several, such as
    # "data or create".
    needs: ClassVar[Mapping[str, Sequence[str]]] = {}
    excludes: ClassVar[Mapping[str, Sequence[str]]] = {}

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
        for option in fields(cls):
            if option.name in settings.values:
                value = settings.values[option.name]
                default = option.default
                # A group of options, such as weights.
                if is_dataclass(default) and isinstance(value, Mapping):
                    value = type(default)(**value)
                options[option.name] = value
        return cls(settings=settings, **options)

    def without_effect(self) -> list[str]:
        """Return a sentence for each option that the user set, and that has no effect."""
        problems: list[str] = []
        for base in type(self).__mro__:
            for others, keys in vars(base).get("needs", {}).items():
                if not any(map(self._is_set, others.split(" or "))):
                    typed = others.replace(".source", "")  # of weights
                    problems += [
                        f"{key}: has an effect only with {typed}, got {self._written(key)}; leave "
                        "it out"
                        for key in self._chosen(keys)
                    ]
            for other, keys in vars(base).get("excludes", {}).items():
                if self._is_set(other):
                    # A part is a mapping with many options.
                    is_short = "=" in other or other in self.options().groups
                    word = other if is_short else f"{other}={self._written(other)}"
                    problems += [
                        f"{key}: has no effect with {word}, got {self._written(key)}; leave one out"
                        for key in self._chosen(keys)
                    ]
        return problems

    def _written(self, key: str) -> str:
        """Return the value of an option, or the names in it, such as input.NAME=..."""
        value = lookup(self.settings.values, key)[1]
        return (
            ", ".join(map(str, value)) if isinstance(value, Mapping) else override_value(value, str)
        )

    def _is_set(self, word: str) -> bool:
        """Whether an option has a value, or the value of a word such as engine=ray."""
        key, equals, text = word.partition("=")
        value = lookup(self.settings.values, key)[1]
        is_number = isinstance(value, int | float)  # 0.0 is written as 0
        return (f"{value:g}" if is_number else value) == text if equals else bool(value)

    def _chosen(self, keys: Sequence[str]) -> list[str]:
        """Return the options that the user set, and that are one of these keys or below one.

        A part is left out if an option of it is set, because that one was typed.
        """
        typed = self.settings.chosen - self.settings.experiment
        chosen = sorted(key for key in typed if is_below(key, keys))
        return [key for key in chosen if not any(other.startswith(f"{key}.") for other in chosen)]

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
        declared = signature_from(cls, ("settings",)).parameters
        # The options of the command itself come first, and those of its base classes last.
        names = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
        parameters = {name: declared[name] for name in names if name in declared}
        groups: dict[str, Group] = {}
        by_key: dict[str, Parameter] = {}
        for name, parameter in parameters.items():
            if parameter.group is not None:
                below = signature_of(parameter.group, key=name).parameters
                by_key |= {f"{name}.{key}": option for key, option in below.items()}
                continue
            by_key[name] = parameter
            for mark in marks_of(parameter.type):
                if isinstance(mark, Group):
                    groups[name] = mark
                    del by_key[name]
        return Options(parameters, groups, by_key)
