"""Completion of the command line in bash, zsh and fish. Nothing here imports torch or Hydra."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.config.command import Command, Group
from dxn.config.signatures import read
from dxn.config.values import choices
from dxn.config.words import CONF, SHORT, groups, node_of, options, yaml_folders
from dxn.core.errors import UserError

FLAGS = ("--help", "--version", "--completion")
SHELLS = ("bash", "zsh", "fish")
RUN_KEYS = ("run", "resume", "resume.run")  # their value can be "latest"
MAX_FILES = 200  # entries of a folder; nobody reads more
MAX_DEPTH = 3  # dots in a key, such as adapters.text.tokenizer.kind


def script(words: Sequence[str]) -> str:
    """Return the script of a shell, which asks `dxn --complete` for the words that fit.

    Args:
        words: The words after --completion: the name of the shell.

    Raises:
        UserError: If dxn has no completion for this shell.
    """
    shell = " ".join(words)
    if shell not in SHELLS:
        raise UserError(
            f"--completion: must be one of {', '.join(SHELLS)}, got {shell or 'nothing'}; name "
            "one, such as --completion bash"
        )
    return (Path(__file__).with_name("shells") / shell).read_text(encoding="utf-8")


def complete(line: str, commands: Mapping[str, type[Command]]) -> list[str]:
    """Return the words that can stand at the end of a command line.

    Args:
        line: The command line up to the cursor, with the name of the program.
        commands: All commands by name.
    """
    words = _words(line)[1:]
    current = words.pop() if words else ""
    if not words:
        return _matching(current, [*commands, "help", *FLAGS])
    verb, *others = words
    if verb == "--completion":
        return _matching(current, SHELLS)
    if verb == "help":
        keys = _keys(commands["train"], current, others)
        return _matching(current, [*commands, *groups(), *keys])
    if verb not in commands:
        return []
    command = commands[verb]
    conf_dirs = [word.removeprefix("conf_dir=") for word in others if word.startswith("conf_dir=")]
    installed, named = yaml_folders(conf_dirs)
    folders = [CONF, *installed, *named]
    key, equals, value = current.partition("=")
    if equals:
        return [f"{key}={text}" for text in _values(command, SHORT.get(key, key), value, folders)]
    candidates = _matching(current, [f"{name}=" for name in _keys(command, current, others)])
    candidates += _matching(current, ["--help"]) if current.startswith("-") else []
    return candidates + (_files(current) if command.path_key is not None else [])


def _words(line: str) -> list[str]:
    """Return the words of a line; the last one is empty after a space. Quotes may be open."""
    words = [""]
    quote = ""
    escaped = False
    for character in line:
        if escaped:
            words[-1] += character
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote = character
        elif not quote and character.isspace():
            words += [""] if words[-1] else []
        else:
            words[-1] += character
    return words


def _keys(command: type[Command], current: str, others: Sequence[str]) -> list[str]:
    """Return the keys and groups of a command that begin with a prefix of dotted names."""
    used = command.options().groups
    group, dot, _ = current.partition(".")
    if dot and group in used:
        return [*_keys_of_group(group, used[group], others)]
    # Without a dot, only the names of groups: all keys would be hundreds.
    names = [*command.options().by_key]
    short = [name for name, key in SHORT.items() if key.partition(".")[0] in (*used, *names)]
    short += [name for name, key in SHORT.items() if key in names]
    return list(dict.fromkeys([*used, *names, *short]))


def _keys_of_group(name: str, group: Group, others: Sequence[str]) -> Iterator[str]:
    """Yield the keys of the options of a group: those on the line, or the default ones."""
    chosen = dict(word.split("=", 1) for word in others if "=" in word).get(name)
    default = group.default
    files = list(default) if isinstance(default, tuple) else [str(default)]
    # A path on the line is usually a table.
    if name == "data" and chosen is None:
        files = ["table"]
    files = chosen.strip("[]").split(",") if chosen else files
    for file in files:
        if file in options(name):
            # Only adapters have a level of names: a model can have several of them.
            prefix = f"{name}.{file}" if name == "adapters" else name
            yield from _keys_of_part(node_of(name, file), prefix)


def _keys_of_part(node: Mapping[str, Any], prefix: str, depth: int = 1) -> Iterator[str]:
    # Even if the file is not current: to import the part would take seconds.
    stored = read().signatures
    signature = stored.get(str(node.get("_target_", "")))
    if signature is None or depth > MAX_DEPTH:
        return
    for name, parameter in signature.parameters.items():
        key = f"{prefix}.{name}"
        part = parameter.group
        value = node.get(name)
        if part is not None:
            yield from _keys_of_part({"_target_": part}, key, depth + 1)
        elif isinstance(value, Mapping) and "_target_" in value:
            yield from _keys_of_part(value, key, depth + 1)
        elif not parameter.required or name in node:
            yield key


def _values(command: type[Command], key: str, value: str, folders: Sequence[Path]) -> list[str]:
    """Return the values of a key that begin with a text."""
    if key in groups(folders):
        # In a list, the last name is completed.
        at = max(value.rfind("["), value.rfind(",")) + 1
        chosen = value[:at].strip("[]").split(",")
        names = [name for name in options(key, folders) if name not in chosen]
        return [f"{value[:at]}{name}" for name in _matching(value[at:], names)]
    parameter = command.options().by_key.get(key)
    if parameter is not None and (listed := choices(parameter.type)):
        return _matching(value, listed)
    latest = _matching(value, ["latest"]) if key in RUN_KEYS else []
    return latest + _files(value)


def _files(text: str) -> list[str]:
    """Return the files and folders whose path begins with a text. Folders end with a slash."""
    folder, slash, name = text.rpartition("/")
    where = Path(folder + slash).expanduser()
    try:
        entries = sorted(where.iterdir())
        paths = [
            f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
            for path in entries
            if path.name.startswith(name) and (name.startswith(".") or path.name[0] != ".")
        ]
    except OSError:  # no such folder
        return []
    # A line break in a name would make two candidates.
    return [path for path in paths if path.isprintable()][:MAX_FILES]


def _matching(text: str, names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(text)]
