"""The options that `dxn tune` searches: ranges and lists of values, also from a YAML file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from dxn.config.command import Command
from dxn.config.compose import type_of
from dxn.config.settings import Settings
from dxn.config.values import leaves, lookup, members
from dxn.config.words import SHORT, alternatives
from dxn.core.errors import UserError
from dxn.core.printable import override_value, plain_or_quoted
from dxn.core.untrusted import load_yaml

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
# Such as 2..6, 1e-4..1e-2:log and 64..512:64.
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(?::(log|{NUMBER}))?")
RANGE_START = re.compile(rf"{NUMBER}\.\.[^/]*")  # a path has a slash
MAX_DIGITS = 1e15  # above it, a whole number is written as 1e+15
MAX_GRID = 10_000  # steps of a range in a grid


@dataclass(frozen=True)
class Dimension:
    """An option that a search chooses.

    Args:
        key: The option, as the user typed it.
        values: The texts of its values; the two ends of a range.
        is_range: Whether the numbers between both ends are values too.
        is_log: Whether the range is searched on a logarithmic scale.
        step: Distance of the numbers of a range. None: 1 for whole numbers, otherwise any distance.
        is_whole: Whether the option is a whole number.
    """

    key: str
    values: tuple[str, ...]
    is_range: bool = False
    is_log: bool = False
    step: str | None = None
    is_whole: bool = False

    @property
    def word(self) -> str:
        """The dimension as a word of a command line."""
        if not self.is_range:
            return f"{self.key}={','.join(self.values)}"
        scale = ":log" if self.is_log else "" if self.step is None else f":{self.step}"
        return f"{self.key}={'..'.join(self.values)}{scale}"

    def grid(self) -> list[str]:
        """Return all values.

        Raises:
            UserError: If a range has no step.
        """
        if not self.is_range:
            return list(self.values)
        if self.is_log or (self.step is None and not self.is_whole):
            raise UserError(
                f"{self.key}: a grid needs a list of values or a range with a step, such as "
                f"{self.key}={'..'.join(self.values)}:0.1, got {self.word}"
            )
        # Decimal, because 0.1 + 2 * 0.1 is more than 0.3.
        low, high = map(Decimal, self.values)
        step = Decimal(self.step or 1)
        count = int((high - low) / step) + 1
        if count > MAX_GRID:
            raise UserError(
                f"{self.key}: {self.word} has {count:,} values; use a larger step, or sampler=tpe"
            )
        return [number_text(float(low + i * step)) for i in range(count)]


def covering(space: Sequence[Dimension]) -> list[list[str]]:
    """Return words for a few trials in which each value of each option occurs once or more."""
    longest = max(len(dimension.values) for dimension in space)
    return [
        [
            f"{dimension.key}={dimension.values[min(i, len(dimension.values) - 1)]}"
            for dimension in space
        ]
        for i in range(longest)
    ]


def with_types(
    space: Sequence[Dimension], command: type[Command], settings: Settings
) -> list[Dimension]:
    """Return the options with `is_whole`, which the types of the command tell.

    Raises:
        UserError: If all combinations are wanted and a range has no step, or the step of an option
            that is a whole number is none.
    """
    parameters = command.options().parameters
    typed: list[Dimension] = []
    for dimension in space:
        key = SHORT.get(dimension.key, dimension.key)
        annotation = type_of(key, settings.values, parameters, settings.trust)
        kinds = members(annotation)
        is_whole = dimension.is_range and int in kinds and float not in kinds
        if is_whole and Decimal(dimension.step or 1) % 1:
            raise UserError(
                f"{dimension.key}: the step must be a whole number, got {dimension.word}"
            )
        typed.append(replace(dimension, is_whole=is_whole))
    if settings.values["sampler"] == "grid":
        for dimension in typed:
            dimension.grid()
    return typed


def number_text(value: float) -> str:
    """Return a number as an exact value of an option."""
    is_short = abs(value) < MAX_DIGITS and value == int(value)
    return str(int(value)) if is_short else repr(value)


def words_of(path: Path) -> list[str]:
    """Return the search space in a YAML file as words of a command line.

    The keys are dotted or nested. A value is a list, a range such as 2..6, or a single value.

    Raises:
        UserError: If the file cannot be read, or is not a mapping.
    """
    if not path.is_file():
        raise UserError(f"space: file not found: {path} (current directory: {Path.cwd()})")
    content = load_yaml(path)
    # A dotted key is a single name for `lookup`.
    values: dict[str, Any] = {}
    for name, value in content.items():
        below = leaves(value) if isinstance(value, Mapping) else []
        new = {f"{name}.{key}": lookup(value, key)[1] for key in below} or {name: value}
        if twice := next((key for key in new if key in values), None):
            raise UserError(f"{path}: {twice}: must occur once, got a dotted and a nested key")
        values |= new
    words: list[str] = []
    for key, value in values.items():
        if value == []:
            raise UserError(f"{path}: {key}: must have at least one value, got []")
        is_range = isinstance(value, str) and RANGE_START.fullmatch(value)
        alternatives = value if isinstance(value, list) else [value]
        words.append(f"{key}={value if is_range else ','.join(map(_text, alternatives))}")
    return words


def _text(value: Any) -> str:
    return override_value(value, plain_or_quoted)


def split(words: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """Return the words of a command line that have one value, and the options to search.

    Raises:
        UserError: One line per wrong range, or if no option has several values.
    """
    fixed: list[str] = []
    space: dict[str, Dimension] = {}
    problems: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        try:
            if match := RANGE.fullmatch(value):
                space[key] = _range(word, *match.groups())
            elif RANGE_START.fullmatch(value):
                raise UserError(
                    f"{key}: a range must be like 2..6, 64..512:64 or 1e-4..1e-2:log, got {word}"
                )
            elif values := alternatives(word):
                space[key] = Dimension(key, tuple(values))
            else:
                fixed.append(word)
                space.pop(key, None)  # the last word of a key counts
        except UserError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    if not space:
        raise UserError(
            "tune: no option has several values; give at least one of them a range or a list, such "
            "as optimizer.lr=1e-4..1e-2:log or backbone.depth=2,4,6"
        )
    return fixed, list(space.values())


def _range(word: str, low: str, high: str, scale: str | None) -> Dimension:
    key = word.partition("=")[0]
    is_log = scale == "log"
    if float(low) >= float(high):
        raise UserError(f"{key}: a range must begin with its lower end, got {word}")
    if is_log and float(low) <= 0:
        raise UserError(f"{key}: a range with :log must begin above 0, got {word}")
    step = None if is_log else scale
    if step is not None and not 0 < float(step) <= float(high) - float(low):
        raise UserError(f"{key}: the step must be above 0 and fit into the range, got {word}")
    return Dimension(key, (low, high), is_range=True, is_log=is_log, step=step)
