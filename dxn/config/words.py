"""The words of a command line: paths without a key, short forms, and the grammar of Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dxn.config.groups import (
    CONF,
    add_folders,
    folders_of,
    installed_folders,
    keys_of_experiment,
)
from dxn.config.signatures import marks_of
from dxn.core.errors import UserError
from dxn.core.printable import quoted

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from dxn.config.command import Command

# Marks an option whose text is taken as it was typed: numbers, brackets and ${...} in it are text.
AS_TYPED = "as typed"
# Short forms of the options that are typed most.
SHORT = {"target": "data.target", "weights": "weights.source", "resume": "resume.run"}
FILES = ("data.name", "data.path", "data.validation", "data.test")  # options that name files


@dataclass
class Request:
    """The parsed words of one command line.

    Args:
        folders: Folders of YAML files. That of dxn is the first.
        trust: Packages that this command names, by trust= or conf_dir=. Any folder may use them.
        installed: Packages with an entry point. The composed configuration may use them, but a
            loaded folder may not: it could be untrusted.
        literal: Texts that are not parsed, by key, such as that of input.image.
        groups: Overrides that choose files.
        values: Overrides that set keys.
        experiment: Keys and groups that the chosen experiment sets.
        problems: The problems so far, one line each. They are collected, so that the user can
            correct all of them at once.
        trust_all: Packages that the composed configuration may use: trust and installed.
    """

    folders: list[Path]
    trust: tuple[str, ...] = ()
    installed: tuple[str, ...] = ()
    literal: dict[str, str] = field(default_factory=dict)
    groups: list[Override] = field(default_factory=list)
    values: list[Override] = field(default_factory=list)
    experiment: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    trust_all: tuple[str, ...] = ()

    def error(self, *problems: str) -> UserError:
        """Return the error with all problems so far, and further ones."""
        lines = [line for text in (*self.problems, *problems) for line in text.splitlines()]
        # Several steps can find the same problem, so duplicates are removed.
        return UserError("\n".join(dict.fromkeys(lines)))


def parse(command: type[Command], words: Sequence[str], *, infers: bool = True) -> Request:
    """Parse the words of a command line, and sort them into folders, texts, groups and values.

    Args:
        command: The command.
        words: Words of the command line.
        infers: Whether files of groups are inferred from other options, see `Command.infer`.
    """
    options = command.options()
    literal = {
        name
        for name, parameter in options.parameters.items()
        if AS_TYPED in marks_of(parameter.type)
    }
    conf_dirs: list[str] = []
    texts: dict[str, str] = {}
    lines: list[str] = []
    for line in _with_keys(command, words):
        key, _, value = line.partition("=")
        if key == "conf_dir" and value:
            conf_dirs.append(value)
        elif key.partition(".")[0] in literal and "=" in line:
            texts[key] = value
        else:
            lines.append(line)
    folders = folders_of(conf_dirs)
    installed = installed_folders()
    existing = [folder for folder in (*installed, *folders) if folder.is_dir()]
    request = Request([CONF, *existing], literal=texts)
    if installed or folders:
        request.installed = add_folders(installed, request.problems)
        request.trust = add_folders(folders, request.problems)
    typed = {key.lstrip("+"): value for key, _, value in (line.partition("=") for line in lines)}
    if "experiment" in typed:
        request.experiment = keys_of_experiment(typed["experiment"], request.folders)
    inferred = command.infer(typed) if infers else {}
    chosen = {*typed, *request.experiment}
    lines = [*(f"{k}={v}" for k, v in inferred.items() if k not in chosen), *lines]
    for override in _parse(lines, request.problems):
        # A mapping, such as backbone={dropout: 0.1}, sets values of the part instead.
        key, value = override.key_or_group, override.value()
        is_group = key in options.groups and not isinstance(value, dict)
        (request.groups if is_group else request.values).append(override)
        # Needed now: composing the files already imports the parts that they name.
        if key == "trust":
            trusted = value if isinstance(value, list) else [value]
            request.trust = (*request.trust, *(str(name) for name in trusted if name))
    request.trust_all = (*request.trust, *request.installed)
    return request


def is_path(word: str) -> bool:
    """Whether a word of the command line is a path: it is neither an option nor a flag."""
    # ~KEY deletes a key in Hydra's grammar, and is refused with a message of its own.
    is_deletion = word.startswith("~") and not word.startswith("~/")
    return "=" not in word and not word.startswith("-") and not is_deletion


def refuse_repeated(words: Sequence[str]) -> None:
    """Check that no option occurs twice: only the last of its values would have an effect.

    Args:
        words: Words of a command line after the command.

    Raises:
        UserError: If one does.
    """
    by_key: dict[str, str] = {}
    for word in words:
        name, equals, _ = word.lstrip("+").partition("=")
        key = SHORT.get(name, name)
        if not equals or is_path(word) or key == "conf_dir":  # there can be several folders
            continue
        if key in by_key:
            # A shell replaces train-{000..099}.tar outside of quotes by a word for each number.
            hint = f"put a range such as {{000..099}} in quotes: '{key}=...'"
            raise UserError(
                f"{key}: must be one value, got {by_key[key]} and {word}; "
                f"{hint if key in FILES else 'leave one of them out'}"
            )
        by_key[key] = word


def alternatives(word: str) -> list[str]:
    """Return the values of a word such as `key=a,b` (Hydra's sweep grammar); none of other words.

    Raises:
        UserError: If it cannot be parsed, or is a function such as interval(0, 1).
    """
    problems: list[str] = []
    # A comma in a path is not a list of values.
    overrides = [] if is_path(word) else _parse([word], problems, sweep=True)
    if problems:
        raise UserError("\n".join(problems))
    if not overrides or not overrides[0].is_sweep_override():
        return []
    if not overrides[0].is_discrete_sweep():
        raise UserError(
            f"{word}: must be a list of values such as 1,2,3 or a range such as 1..3; "
            "dxn tune --help shows both"
        )
    return list(dict.fromkeys(map(str, overrides[0].sweep_string_iterator())))


def _with_keys(command: type[Command], words: Sequence[str]) -> list[str]:
    """Return the words of a command line with paths and short forms replaced by key=value.

    Raises:
        UserError: If there is a path for which the command has no key, there are several paths for
            one sample, or spaces without quotes split an option.
    """
    if misplaced := [word for word in words if word.startswith("=")]:
        raise UserError(f"{misplaced[0]}: write key=value without spaces around the equals sign")
    paths = [word for word in words if is_path(word)]
    verb, key = command.verb(), command.path_key
    if paths and key is None:
        raise UserError(
            f"{paths[0]}: dxn {verb} takes no path; options are written key=value, "
            f"dxn {verb} --help lists them"
        )
    # An unquoted space splits a text or a file name into several words.
    named = next((word for word in words if word.startswith("input.")), None)
    if paths and named is not None:
        raise UserError(
            f"{paths[0]}: cannot be combined with {named.partition('=')[0]}; put a text that "
            'contains spaces in quotes, such as input.text="a fine film"'
        )
    # A word without a suffix is a part of a name, such as "my" of "my table.csv".
    incomplete = [p for p in paths if not Path(p).suffix and not Path(p).expanduser().exists()]
    if len(paths) > 1 and incomplete:
        raise UserError(
            f"{incomplete[0]}: file or folder not found; put names that contain spaces in quotes, "
            f"such as {' '.join(paths)!r}"
        )
    # A data set can consist of several tables, but one option cannot hold several samples.
    if len(paths) > 1 and key == "input":
        raise UserError(
            f"{paths[1]}: dxn {verb} takes one path, got {len(paths)}; put a pattern in quotes, "
            "such as 'photos/*.jpg', or pass their folder"
        )
    lines = [f"{key}={path}" for path in paths]
    if len(paths) > 1:
        # In quotes, because commas and brackets have a meaning in a list.
        listed = ",".join(f'"{path}"' for path in paths)
        lines = [f"{key}=[{listed}]"]
    for word in words:
        short, equals, value = word.partition("=")
        if not is_path(word):
            # An empty value is kept, so that the message about it names the option that was typed.
            is_short = short in SHORT and equals and value
            lines.append(f"{SHORT[short]}={value}" if is_short else word)
    return lines


def _parse(lines: Sequence[str], problems: list[str], *, sweep: bool = False) -> list[Override]:
    """Parse overrides. Those that cannot be parsed are added to the problems.

    A value that is not valid in Hydra's grammar is taken as text, and so is a list of values
    outside of a sweep: paths and sentences contain commas, brackets and quotes.
    """
    # It takes a tenth of a second, and the help pages do not need it.
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parsed = []
    for line in lines:
        key, _, value = line.partition("=")
        for text in (line, f"{key}={quoted(value)}" if value else line):
            try:
                override = OverridesParser.create().parse_override(text)
            except HydraException:
                continue
            if override.is_delete():
                # Every part takes its defaults from a signature, so a deleted key would come back.
                problems.append(f"{line}: a key cannot be deleted; set it to null")
            elif override.is_sweep_override() and not sweep:
                continue
            else:
                parsed.append(override)
            break
        else:
            problems.append(f"{line}: not an override; write key=value")
    return parsed
