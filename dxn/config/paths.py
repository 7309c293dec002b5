"""Paths in a configuration: the home folder in them, and whether they exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.config.arguments import is_path
from dxn.config.hints import similar
from dxn.config.keys import assign, lookup
from dxn.core.errors import UserError
from dxn.data.sources.detect import require_path, table_format

HOME = "~/"
# Keys whose values are paths, besides all keys called path.
PATHS = (
    "data.train",
    "data.validation",
    "data.test",
    "run",
    "index",
    "resume.run",
    "output",
    "weights.source",
    "weights.adapters",
)
DATA_PATHS = ("data.path", "data.train", "data.validation", "data.test")
# A model on the hub. A single name, such as a misspelt folder, is not one.
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
PATTERN = re.compile(r"[*?\[]|://")  # a pattern of paths or an address, instead of one path


def expand_home(values: dict[str, Any]) -> None:
    """Replace "~" at the start of paths by the home folder, in place."""
    for key in PATHS:
        exists, value = lookup(values, key)
        if exists:
            assign(values, key, _expanded(value))
    for key, value in list(_keys_called_path(values)):
        assign(values, key, _expanded(value))
    if "input" in values:
        values["input"] = _expanded_input(values["input"])


def path_faults(values: Mapping[str, Any], words: Sequence[str] = ()) -> list[str]:
    """Return one line per path of data, input or weights that does not exist.

    Args:
        values: The composed configuration.
        words: Words of the command line. Those without a key are paths.
    """
    faults: list[str] = []
    # Other packages can have data sources whose paths are something else, such as an address.
    target = str(lookup(values, "data._target_")[1])
    for key in DATA_PATHS if target.startswith("dxn.") else ():
        value = lookup(values, key)[1]
        for path in value if isinstance(value, list) else [value]:
            faults += _missing(key, path)
    value = values.get("input")
    # Without a key, the input is a path. Otherwise it can also be a text.
    is_file = any(is_path(word) for word in words)
    if isinstance(value, str) and (is_file or table_format(value) is not None):
        advice = "; a text is written input.NAME=..." if " " in value else ""
        faults += [f"{fault}{advice}" for fault in _missing("input", value)]
    adapters = lookup(values, "weights.adapters")[1] or {}
    sources = {"weights": lookup(values, "weights.source")[1]}
    sources |= {f"weights.adapters.{name}": source for name, source in adapters.items()}
    for key, source in sources.items():
        if fault := _weights_fault(key, source):
            faults.append(fault)
    return faults


def _missing(key: str, path: Any) -> list[str]:
    # Data sources and predictors read patterns themselves.
    if not isinstance(path, str) or (PATTERN.search(path) and not Path(path).exists()):
        return []
    try:
        require_path(Path(path), key)
    except UserError as error:
        return [str(error)]
    return []


def _weights_fault(key: str, source: Any) -> str | None:
    """Return what is wrong with the path of a checkpoint that is surely not a model on the hub."""
    if not isinstance(source, str) or Path(source).exists():
        return None
    path = Path(source)
    # In outputs/lable, the folder exists, so its subfolder is misspelt.
    if HUB_ID.fullmatch(source) and not path.parent.is_dir():
        return None
    names = [str(each) for each in path.parent.iterdir()] if path.parent.is_dir() else []
    match = similar(str(path), names)
    advice = f"did you mean {match}?" if match else "a model on the hub is written OWNER/NAME"
    return f"{key}: file or folder not found: {source} (current directory: {Path.cwd()}); {advice}"


def _keys_called_path(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items() if isinstance(node, Mapping) else ():
        if name == "path":
            yield f"{prefix}{name}", value
        yield from _keys_called_path(value, f"{prefix}{name}.")


def _expanded(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(HOME):
        return str(Path(value).expanduser())
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _expanded(item) for name, item in value.items()}
    return value


def _expanded_input(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _expanded_input(item) for name, item in value.items()}
    # An input can also be a text that starts with "~/".
    expanded = _expanded(value)
    if not isinstance(expanded, str) or expanded == value:
        return value
    try:
        return expanded if Path(expanded).exists() else value
    except OSError:  # a text is longer than a path can be
        return value
