"""Parse the overrides of a command with the grammar of Hydra."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from dxn.config.arguments import is_path, with_keys, with_source
from dxn.config.groups import CONF, add_folders, groups, installed_folders
from dxn.config.hints import Hint, fits
from dxn.core.errors import UserError
from dxn.core.printable import quoted

# Keys whose value is taken literally: numbers, brackets and ${...} in it are text.
LITERAL = ("input", "prompt", "token")


@dataclass
class Request:
    """The parsed overrides of one command.

    Args:
        folders: Folders of YAML files. That of dxn is the first.
        trust: Packages that this command names, by trust= or conf_dir=. Any folder may use them.
        installed: Packages with an entry point. The composed configuration may use them, but a
            loaded folder may not: it could come from a stranger.
        literal: Text of each key in LITERAL, and of keys below them such as input.image.
        groups: Overrides that choose files.
        values: Overrides that set keys.
        faults: The problems so far, one line each. They are collected, so that the user can correct
            all of them at once.
    """

    folders: list[Path]
    trust: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    literal: dict[str, str] = field(default_factory=dict)
    groups: list[Override] = field(default_factory=list)
    values: list[Override] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def composed_trust(self) -> tuple[str, ...]:
        """Packages that the composed configuration may use."""
        return (*self.trust, *self.installed)

    def value(self, key: str) -> Any:
        """Return the value of an override; None if the key is not set."""
        return next((o.value() for o in self.values if o.key_or_group == key), None)

    def stop_on_faults(self) -> None:
        """Raise UserError with all faults, if there are any."""
        # Several steps can find the same fault, so duplicates are removed.
        if self.faults:
            raise UserError("\n".join(dict.fromkeys(self.faults)))


def parse_request(verb: str, words: Sequence[str], *, infers: bool = True) -> Request:
    """Parse the words of a command line, and sort them into folders, texts, groups and values.

    Args:
        verb: Name of the command.
        words: Words of the command line.
        infers: Whether the data source is inferred from the path of the data.
    """
    installed = installed_folders()
    folders: list[Path] = []
    literal: dict[str, str] = {}
    lines: list[str] = []
    for line in with_keys(verb, words):
        key, _, value = line.partition("=")
        if key == "conf_dir" and value:
            folders.append(Path(value).expanduser().absolute())
        elif key.partition(".")[0] in LITERAL and "=" in line:
            literal[key] = value
        else:
            lines.append(line)
    existing = [folder for folder in (*installed, *folders) if folder.is_dir()]
    request = Request([CONF, *existing], literal=literal)
    request.installed = add_folders(installed, request.faults)
    request.trust = add_folders(folders, request.faults)
    # The configuration of a resumed run is complete, and its data source cannot be replaced.
    if infers and not any(line.startswith("resume=") for line in lines):
        lines = with_source(verb, lines, request.folders)
    known = set(groups(request.folders))
    for override in _parse(lines, request):
        # A mapping, such as backbone={dropout: 0.1}, sets values of the part instead.
        is_group = override.key_or_group in known and not isinstance(override.value(), dict)
        (request.groups if is_group else request.values).append(override)
        # Needed now: composing the files already imports the parts that they name.
        if override.key_or_group == "trust":
            value = override.value()
            trusted = value if isinstance(value, list) else [value]
            request.trust = (*request.trust, *(str(name) for name in trusted if name))
    return request


def expand(words: Sequence[str]) -> list[list[str]]:
    """Expand overrides such as `key=a,b` (Hydra's sweep grammar) to all combinations.

    Args:
        words: Words of the command line.

    Returns:
        The words of each run. The values of the last key change fastest.

    Raises:
        UserError: If an override cannot be parsed, or is a range instead of a list.
    """
    request = Request([CONF])
    alternatives = []
    for word in words:
        # A comma in a path is not a list of values.
        overrides = [] if is_path(word) else _parse([word], request, sweep=True)
        if not overrides or not overrides[0].is_sweep_override():
            alternatives.append([word])
            continue
        override = overrides[0]
        if not override.is_discrete_sweep():
            raise UserError(
                f"{word}: only lists of values can be swept, such as {override.key_or_group}=1,2,3"
            )
        key = override.get_key_element()
        alternatives.append([f"{key}={value}" for value in override.sweep_string_iterator()])
    request.stop_on_faults()
    return [list(combination) for combination in itertools.product(*alternatives)]


def typed_value(override: Override, hint: Hint) -> Any:
    """Return the value of an override in the type that its key expects.

    A number or Boolean can be meant as text, such as the name of a column 2024.
    """
    value = override.value()
    is_scalar = isinstance(value, bool | int | float)
    if is_scalar and not fits(value, hint) and fits("", hint):
        return str(override.input_line).partition("=")[2]
    return value


def _parse(lines: Sequence[str], request: Request, *, sweep: bool = False) -> list[Override]:
    """Parse overrides. Those that cannot be parsed are added to the faults.

    A value that is not valid in Hydra's grammar is taken as text, and so is a list of values
    outside of a sweep: paths and sentences contain commas, brackets and quotes.
    """
    parsed = []
    for line in lines:
        override = _parse_override(line)
        if override is None or (override.is_sweep_override() and not sweep):
            key, _, value = line.partition("=")
            override = _parse_override(f"{key}={quoted(value)}") if value else None
        if override is None:
            request.faults.append(f"{line}: not an override; write key=value")
        elif override.is_delete():
            # Every part takes its defaults from a signature, so a deleted key would come back.
            request.faults.append(f"{line}: a key cannot be deleted; set it to null")
        else:
            parsed.append(override)
    return parsed


def _parse_override(line: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(line)
    except HydraException:
        return None
