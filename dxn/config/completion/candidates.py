"""What can follow the words of a command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.config.arguments import PATH_KEYS, SHORT
from dxn.config.describe import verb_rows
from dxn.config.groups import defaults_of, groups, node_of, options
from dxn.config.hints import option_group
from dxn.config.signature_index import find_stored
from dxn.config.verbs import VERBS

FLAGS = ("--help", "--version", "--install-completion")
SHELLS = ("bash", "zsh", "fish")
RUN_KEYS = ("run", "resume", "resume.run")  # their value can be "latest"
# Values that every key of such a type takes.
BOOLEANS = ("true", "false")
MAX_FILES = 200  # entries of a folder; nobody reads more
MAX_DEPTH = 3  # dots in a key, such as adapters.text.tokenizer.kind


def complete(line: str) -> list[str]:
    """Return the words that can stand at the end of a command line.

    Args:
        line: The command line up to the cursor, with the name of the program.
    """
    words = _words(line)[1:]
    current = words.pop() if words else ""
    if not words:
        return _matching(current, [*VERBS, "help", *FLAGS])
    verb, *others = words
    if verb == "--install-completion":
        return _matching(current, SHELLS)
    if verb == "help":
        return _matching(current, [*VERBS, *groups(), *_keys("train", current, others)])
    if verb not in VERBS:
        return []
    key, equals, value = current.partition("=")
    if equals:
        return [f"{key}={text}" for text in _values(verb, SHORT.get(key, key), value)]
    found = _matching(current, [f"{name}=" for name in _keys(verb, current, others)])
    found += _matching(current, ["--help"]) if current.startswith("-") else []
    return found + (_files(current) if verb in PATH_KEYS else [])


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


def _keys(verb: str, current: str, others: Sequence[str]) -> list[str]:
    """Return the keys and groups of a command that begin with a prefix of dotted names."""
    used = defaults_of(verb)
    group, dot, _ = current.partition(".")
    if dot and group in used:
        return [*_keys_of_group(group, used, others)]
    # Without a dot, only the names of groups: all keys would be hundreds.
    names = [row.key for row in verb_rows(verb)]
    short = [name for name, key in SHORT.items() if key.partition(".")[0] in (*used, *names)]
    short += [name for name, key in SHORT.items() if key in names]
    return list(dict.fromkeys([*used, *names, *short]))


def _keys_of_group(group: str, used: Mapping[str, Any], others: Sequence[str]) -> Iterator[str]:
    """Yield the keys of the options of a group: those on the line, or the default ones."""
    chosen = dict(word.split("=", 1) for word in others if "=" in word).get(group)
    default = used[group]
    names = default if isinstance(default, list) else [str(default)]
    # A path on the line is usually a table.
    if group == "data" and chosen is None:
        names = ["table"]
    names = chosen.strip("[]").split(",") if chosen else names
    for name in names:
        if name in options(group):
            # Only adapters have a level of names: a model can have several of them.
            prefix = f"{group}.{name}" if group == "adapters" else group
            yield from _keys_of_part(node_of(group, name), prefix)


def _keys_of_part(node: Mapping[str, Any], prefix: str, depth: int = 1) -> Iterator[str]:
    signature = find_stored(str(node.get("_target_", "")))
    if signature is None or depth > MAX_DEPTH:
        return
    for name, parameter in signature.parameters.items():
        key = f"{prefix}.{name}"
        part = option_group(parameter.hint)
        value = node.get(name)
        if part is not None:
            yield from _keys_of_part({"_target_": part}, key, depth + 1)
        elif isinstance(value, Mapping) and "_target_" in value:
            yield from _keys_of_part(value, key, depth + 1)
        elif not parameter.required or name in node:
            yield key


def _values(verb: str, key: str, value: str) -> list[str]:
    """Return the values of a key that begin with a text."""
    if key in groups():
        # In a list, the last name is completed.
        at = max(value.rfind("["), value.rfind(",")) + 1
        chosen = value[:at].strip("[]").split(",")
        names = [name for name in options(key) if name not in chosen]
        return [f"{value[:at]}{name}" for name in _matching(value[at:], names)]
    rows = {row.key: row.default for row in verb_rows(verb)}
    if rows.get(key) in BOOLEANS:
        return _matching(value, BOOLEANS)
    latest = _matching(value, ["latest"]) if key in RUN_KEYS else []
    return latest + _files(value)


def _files(text: str) -> list[str]:
    """Return the files and folders whose path begins with a text. Folders end with a slash."""
    folder, slash, name = text.rpartition("/")
    where = Path(folder + slash).expanduser()
    try:
        entries = sorted(where.iterdir())
        found = [
            f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
            for path in entries
            if path.name.startswith(name) and (name.startswith(".") or path.name[0] != ".")
        ]
    except OSError:  # no such folder
        return []
    # A line break in a name would make two candidates.
    return [path for path in found if path.isprintable()][:MAX_FILES]


def _matching(text: str, names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(text)]
