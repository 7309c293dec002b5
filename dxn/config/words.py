"""The words of a command line, and the YAML files that they choose.

Words are paths without a key, short forms, and overrides in the grammar of Hydra. YAML files are
those of dxn, of the user, and of installed packages.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dxn.config.signatures import CONF, marks_of
from dxn.config.values import leaves
from dxn.core.errors import UserError, similar
from dxn.core.printable import quoted

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override as HydraOverride

    from dxn.config.command import Command


# Marks an option whose text is taken as it was typed: numbers, brackets and ${...} in it are text.
AS_TYPED = "as typed"
# Short forms of the options that are typed most.
SHORT = {"target": "data.target", "weights": "weights.source", "resume": "resume.run"}
FILES = ("data.name", "data.path", "data.validation", "data.test")  # options that name files
ENTRY_POINTS = "dxn.conf"
KEY_OF_COLUMN = re.compile(r"\w+(\.\w[^.=@~+]*)*")  # such as data.holdout.größe
# Words whose value in the grammar of Hydra is a whole number, a number or this text.
PLAIN = re.compile(
    r"(?P<key>[a-z_]\w*(\.[a-z_]\w*)*)="
    r"((?P<numeral>(0|[1-9]\d*)(\.\d+)?)|(?P<word>[A-Za-z/][\w/.-]*))",
    re.ASCII,
)
CONSTANTS = ("true", "false", "null", "nan", "inf")


@dataclass(frozen=True)
class Override:
    """A parsed word of the command line.

    Args:
        key: Name of a group, or dotted name of an option.
        value: The value as plain data.
        line: The word, with a value that can be parsed.
    """

    key: str
    value: Any
    line: str


@dataclass
class Request:
    """The parsed words of one command line.

    Args:
        folders: Folders of YAML files. That of dxn is the first.
        trust: Packages that this command names, by trust= or conf_dir=. Any folder may use them.
        literal: Texts that are not parsed, by key, such as that of input.image.
        groups: Overrides that choose files.
        values: Overrides that set keys.
        experiment: Keys and groups that the chosen experiment sets.
        problems: The problems so far, one line each. They are collected, so that the user can
            correct all of them at once.
        trust_all: Packages that the composed configuration may use: also those with an entry point,
            which a loaded folder may not use, because it could be untrusted.
    """

    folders: list[Path]
    trust: tuple[str, ...] = ()
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
    request = Request([CONF], literal=texts)
    folders, installed, request.trust = further_folders(conf_dirs, request.problems)
    request.folders += folders
    typed = {key.lstrip("+"): value for key, _, value in (line.partition("=") for line in lines)}
    if "experiment" in typed:
        request.experiment = keys_of_experiment(typed["experiment"], request.folders)
    inferred = command.infer(typed) if infers else {}
    chosen = {*typed, *request.experiment}
    lines = [*(f"{k}={v}" for k, v in inferred.items() if k not in chosen), *lines]
    for override in _parse(lines, request.problems):
        # A mapping, such as backbone={dropout: 0.1}, sets values of the part instead.
        key, value = override.key, override.value
        is_group = key in options.groups and not isinstance(value, dict)
        (request.groups if is_group else request.values).append(override)
        # Needed now: composing the files already imports the parts that they name.
        if key == "trust":
            trusted = value if isinstance(value, list) else [value]
            request.trust = (*request.trust, *(str(name) for name in trusted if name))
    request.trust_all = (*request.trust, *installed)
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
    # A comma in a path is not a list of values.
    override = None if is_path(word) else _parse_with_hydra(word, sweep=True)
    if override is None or not override.is_sweep_override():
        return []
    if not override.is_discrete_sweep():
        raise UserError(
            f"{word}: must be a list of values such as 1,2,3 or a range such as 1..3; "
            "dxn tune --help shows both"
        )
    return list(dict.fromkeys(map(str, override.sweep_string_iterator())))


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
        is_run = "run" in command.__dataclass_fields__ and Path(paths[0]).is_dir()
        advice = f"write run={paths[0]}" if is_run else "options are written key=value"
        raise UserError(
            f"{paths[0]}: dxn {verb} takes no path; {advice}, dxn {verb} --help lists the options"
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
    # A program may set another option twice, but not by a word without a key.
    twice = next((word for word in words if word.lstrip("+").startswith(f"{key}=")), None)
    if paths and twice is not None:
        raise UserError(
            f"{key}: must be one value, got {paths[0]} and {twice}; leave one of them out"
        )
    if len(paths) > 1:
        # In quotes, because commas and brackets have a meaning in a list.
        listed = ",".join(map(quoted, paths))
        lines = [f"{key}=[{listed}]"]
    for word in words:
        short, _, value = word.partition("=")
        if not is_path(word):
            # An empty value stays, so that the message about it names the option that was typed.
            is_short = short in SHORT and value
            lines.append(f"{SHORT[short]}={value}" if is_short else word)
    return lines


def _parse(lines: Sequence[str], problems: list[str]) -> list[Override]:
    """Parse overrides. Those that cannot be parsed are added to the problems."""
    parsed: list[Override] = []
    for line in lines:
        plain = PLAIN.fullmatch(line)
        # Without Hydra: importing it takes longer than the other steps of most commands.
        if plain and (plain["word"] or "").lower() not in CONSTANTS:
            parsed.append(
                Override(plain["key"], plain["word"] or json.loads(plain["numeral"]), line)
            )
            continue
        try:
            override = _parse_with_hydra(line)
        except UserError as error:
            problems.append(str(error))
        else:
            key = str(override.key_or_group)
            parsed.append(Override(key, override.value(), str(override.input_line)))
    return parsed


def _parse_with_hydra(line: str, *, sweep: bool = False) -> HydraOverride:
    """Parse an override.

    A value that is not valid in Hydra's grammar is taken as text, and so is a list of values
    outside of a sweep: paths and sentences contain commas, brackets and quotes.

    Raises:
        UserError: If it cannot be parsed.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = line.partition("=")
    # The name of a column can have letters and spaces that Hydra's grammar does not allow.
    has_column = not key.isascii() or " " in key
    name = "key" if has_column and KEY_OF_COLUMN.fullmatch(key) else key
    empty = line.replace(key, name, 1)  # also a word such as ~key
    for text in (f"{name}={value}", f"{name}={quoted(value)}") if value else (empty,):
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            continue
        override.key_or_group = key if name != key else override.key_or_group
        if override.is_delete():
            # Every part takes its defaults from a signature, so a deleted key would come back.
            raise UserError(f"{line}: a key cannot be deleted; set it to null")
        if sweep or not override.is_sweep_override():
            return override
    raise UserError(f"{line}: not an override; write key=value")


def options(group: str, folders: Sequence[Path] = (CONF,)) -> list[str]:
    """Return the names of a group's files: the possible values of `group=`."""
    names = {path.stem for folder in folders for path in (folder / group).glob("*.yaml")}
    # A file such as head/_decoder.yaml is included by others, and cannot be chosen.
    return sorted(name for name in names if not name.startswith("_"))


# By default, a table may have inputs of all built-in modalities.
# Without those of codes, which need the run of a codec.
USUAL_ADAPTERS = tuple(name for name in options("adapters") if not name.endswith("_codes"))


def groups(folders: Sequence[Path] = (CONF,)) -> list[str]:
    """Return the names of all groups."""
    names: set[str] = set()
    for folder in folders:
        # A folder without YAML files, such as __pycache__, is not a group.
        names |= {path.parent.name for path in folder.glob("*/*.yaml")}
    return sorted(names)


def no_such_option(group: str, option: str, available: Sequence[str]) -> str:
    """Return the sentence about an option that a group does not have."""
    if option == "null":
        return f"{group}=null: cannot be left out; options: {', '.join(available)}"
    match = similar(option, available)
    hint = f" did you mean {match}?" if match else ""
    if "," in option:
        hint = f" a list is written {group}=[{option}];"
    return f"{group}={option}: no such option;{hint} options: {', '.join(available)}"


def file_of(group: str, option: str, folders: Sequence[Path] = (CONF,)) -> Path:
    """Return the file of an option that exists, see `options`."""
    return next(p for f in folders if (p := f / group / f"{option}.yaml").is_file())


def node_of(group: str, option: str, folders: Sequence[Path] = (CONF,)) -> dict[str, Any]:
    """Return the node that a file contains, without resolving interpolations.

    Most files contain only the node. A file with `# @package _global_` contains it under the name
    of the group, and a file of the group `adapters` under the name of the adapter. Included files
    are inserted.
    """
    # Hydra could compose the node, but only as part of a complete configuration.
    path = file_of(group, option, folders)
    content = _read_yaml(path)
    for entry in content.pop("defaults", ()):
        # Hydra's syntax FILE@KEY inserts another file under a key.
        if isinstance(entry, str) and "@" in entry:
            included, _, key = entry.partition("@")
            content[key] = _read_yaml(path.with_name(f"{included}.yaml"))
    if "@package _global_" in path.read_text(encoding="utf-8"):
        return content.get(group, {})
    if "_target_" not in content and isinstance(content.get(option), dict):
        return content[option]
    return content


def keys_of_experiment(name: str, folders: Sequence[Path]) -> set[str]:
    """Return the keys and groups that an experiment sets, including the experiments it extends.

    The set is empty if there is no such experiment.

    Raises:
        UserError: If experiments extend each other in a circle, or a file cannot be read.
    """
    remaining = [name]
    read: set[str] = set()
    keys: set[str] = set()
    while remaining:
        # An experiment can extend another one by NAME or by /experiment/NAME.
        name = remaining.pop().rpartition("/")[2]
        if name not in options("experiment", folders):
            continue  # which is reported when the files are composed
        if name in read:
            raise UserError(
                f"experiment={name}: an experiment must not extend itself, or another one twice; "
                f"change the defaults of {file_of('experiment', name, folders)}"
            )
        read.add(name)
        values = _read_yaml(file_of("experiment", name, folders))
        for entry in values.pop("defaults", ()):
            if isinstance(entry, Mapping):
                # An entry such as {"override /data": "table"} chooses a file of the group data.
                keys |= {key.rpartition("/")[2] for key in entry}
            elif entry != "_self_":
                remaining.append(entry)
        keys |= set(leaves(values))
    return keys


def _read_yaml(path: Path) -> dict[str, Any]:
    """Read a file of a group.

    Raises:
        UserError: If it is not valid YAML, or not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must be a mapping, got {type(content).__name__}")
    return content


def further_folders(
    conf_dirs: Sequence[str], problems: list[str]
) -> tuple[list[Path], tuple[str, ...], tuple[str, ...]]:
    """Find the folders of YAML files besides that of dxn, and make their modules importable.

    Args:
        conf_dirs: Values of conf_dir=. A value is such a folder, the folder of a package that
            contains it as `conf`, or the folder of a project, whose pyproject.toml names its
            packages in the same entry points that an installed package has.
        problems: List to which problems are appended, one line each.

    Returns:
        The folders of installed packages, which register them by an entry point, and those of the
        user; the packages that the former use; and those that the latter use. A configuration may
        use these packages: the user installed them, or named them by conf_dir.

    Raises:
        UserError: If the module of an entry point does not exist, or a pyproject.toml or the
            encoding of a file is not valid.
    """
    folders: list[Path] = []
    used: list[tuple[str, ...]] = []
    for group in yaml_folders(conf_dirs):
        modules: dict[str, None] = {}  # a set that keeps the order
        for folder in group:
            if folder.is_dir():
                folders.append(folder)
                modules |= dict.fromkeys(_modules_of(folder, problems))
            else:
                problems.append(f"conf_dir: folder not found: {folder}")
        modules.pop("dxn", None)
        used.append(tuple(modules))
    return folders, used[0], used[1]


def yaml_folders(conf_dirs: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the folders of YAML files of installed packages, and those that conf_dir= names.

    They are not read.

    Raises:
        UserError: If the module of an entry point does not exist, or a pyproject.toml is not valid.
    """
    installed: list[Path] = []
    for entry in entry_points(group=ENTRY_POINTS):
        # find_spec does not run the module: importing every installed extension would be slow.
        spec = find_spec(entry.value)
        if spec is None or spec.origin is None:
            raise UserError(
                f"entry point {entry.name} of {ENTRY_POINTS}: module {entry.value} not found; "
                "install the package again or uninstall it"
            )
        installed.append(Path(spec.origin).parent)
    named = [package for value in conf_dirs for package in _packages_of(value)]

    def within(package: Path) -> Path:
        return package / "conf" if (package / "conf").is_dir() else package

    return list(map(within, installed)), list(map(within, named))


def _packages_of(conf_dir: str) -> list[Path]:
    """Return the packages of a project, or the folder itself if it is none."""
    folder = Path(conf_dir).expanduser().absolute()
    project = folder / "pyproject.toml"
    packages: Any = {}
    if project.is_file():
        import tomllib  # most commands do not need it

        try:
            content: Any = tomllib.loads(project.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"conf_dir: {project}: {error}") from error
        # Without these keys, it is the project of a folder that has the YAML files itself.
        for key in ("project", "entry-points", ENTRY_POINTS):
            content = content.get(key, {}) if isinstance(content, dict) else content
        packages = content
        names = packages.values() if isinstance(packages, dict) else [None]
        if not all(isinstance(name, str) for name in names):
            raise UserError(
                f"conf_dir: {project}: entry-points: {ENTRY_POINTS} must be a table with lines "
                f'such as NAME = "PACKAGE", got {packages!r}'
            )
    return [folder / name.replace(".", "/") for name in packages.values()] or [folder]


def _modules_of(folder: Path, problems: list[str]) -> list[str]:
    """Check a folder of YAML files, make its modules importable, and return those that it names."""
    if not groups([folder]):
        problems.append(
            f"conf_dir: {folder}: has no YAML file of a group, such as head/NAME.yaml; set "
            "conf_dir to the folder that contains the folders of the groups"
        )
    modules: list[str] = []
    for path in sorted(folder.rglob("*.yaml")):
        name = path.relative_to(folder)
        if (CONF / name).exists():
            problems.append(f"conf_dir: {path}: dxn already has a file {name}; rename yours")
        # A search in the text finds a `_target_` at any depth of the file.
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"conf_dir: {path}: not valid YAML: {error}") from error
        modules += re.findall(r"_target_:\s*[\"']?(\w+)\.", text)
    # Files can name a module next to the folder, or the package that contains the folder, without
    # installing it. At the end of sys.path it cannot shadow an installed module.
    root = folder.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return modules
