"""Reads small data files that may come from an untrusted source: configurations, labels, indices.

A file is read only if it is a regular file inside of its folder and not too large. Its content must
be plain data without deep nesting. `dxn.config.values` then checks the types and ranges of its
values.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from dxn.core.errors import UserError

# The configuration of a model for a table of 1,000 columns has about 0.4 MB. Larger files would
# take seconds to parse.
MAX_YAML_BYTES = 2_000_000
# A model with 1,000,000 classes has a labels.json of about 20 MB.
MAX_JSON_BYTES = 64_000_000
MAX_DEPTH = 32  # mappings and lists inside of each other; the models of dxn need at most ten
SIMPLE = (str, int, float, bool, type(None))
# The parser in C is ten times faster. Not every build of PyYAML contains it.
SAFE_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
MAX_SHOWN = 60  # characters of a value in a message
# How pandas writes an array in a cell of a CSV file.
ARRAY = re.compile(r"array\((\[.*?\])(?:, dtype=\w+)?\)", re.DOTALL)


def read_text(path: Path, *, max_bytes: int = MAX_JSON_BYTES, allow_links: bool = False) -> str:
    """Read a text file of a folder that may come from an untrusted source.

    Args:
        path: The file.
        max_bytes: Maximum size of the file.
        allow_links: Whether the file may be a link to a file outside of its folder.

    Raises:
        UserError: If it is not a regular file inside of its folder, is too large, or is not UTF-8.
    """
    check_file(path, allow_links=allow_links)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise UserError(f"{path}: must have at most {max_bytes:,} bytes, got {size:,}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def check_file(path: Path, *, allow_links: bool = False) -> None:
    """Check that a file of an untrusted folder is a regular file that is not outside of it.

    Args:
        path: The file.
        allow_links: Whether it may be a link to a file outside of its folder.

    Raises:
        UserError: If it does not exist, is a folder or a device, or is a link to another place.
    """
    # Reading a named pipe or a device could block forever or never end.
    if not path.is_file():
        reason = "must be a regular file" if path.exists() else "file not found; check the path"
        raise UserError(f"{path}: {reason}")
    folder = path.parent.resolve()
    # The cache of the Hugging Face Hub links the files of a snapshot to the folder "blobs" of the
    # same repository.
    root = folder.parent.parent if folder.parent.name == "snapshots" else folder
    if not allow_links and not path.resolve().is_relative_to(root):
        raise UserError(
            f"{path}: must not be a link to a file outside of its folder, got a link to "
            f"{path.resolve()}; copy the file itself"
        )


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping that may come from an untrusted source, see `load_any_yaml`.

    Raises:
        UserError: If the file cannot be read or is not a mapping of plain data.
    """
    content = load_any_yaml(path)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError(
            f"{path}: must be a mapping whose keys are strings, got {type(content).__name__}"
        )
    return content


def load_any_yaml(path: Path) -> Any:
    """Read a YAML file that may come from an untrusted source.

    Only plain data is read: interpolations such as `${oc.env:TOKEN}` are not resolved. Aliases are
    refused, because nested aliases in a small file can expand to gigabytes.

    Raises:
        UserError: If the file cannot be read or contains anything but plain data.
    """
    text = read_text(path, max_bytes=MAX_YAML_BYTES)
    try:
        # Parsing only the events first takes no memory, whatever the file contains.
        _check_events(yaml.parse(text, SAFE_LOADER))
        content = yaml.load(text, SAFE_LOADER)
    # ValueError: for example, a date in the file does not exist.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    _check_plain(content, path)
    return content


def load_json(
    path: Path,
    *,
    max_bytes: int = MAX_JSON_BYTES,
    allow_nan: bool = False,
    allow_links: bool = False,
) -> Any:
    """Read a JSON file that may come from an untrusted source.

    Args:
        path: The file.
        max_bytes: Maximum size of the file.
        allow_nan: Whether the numbers NaN and Infinity are allowed, which JSON does not have.
        allow_links: Whether the file may be a link to a file outside of its folder.

    Raises:
        UserError: If the file cannot be read or is not valid JSON.
    """
    text = read_text(path, max_bytes=max_bytes, allow_links=allow_links)
    try:
        content: Any = json.loads(text, parse_constant=None if allow_nan else _refuse_constant)
    except RecursionError as error:
        raise UserError(f"{path}: invalid JSON (nested too deeply)") from error
    except ValueError as error:
        raise UserError(f"{path}: invalid JSON ({error})") from error
    _check_plain(content, path)
    return content


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Only the last of two values of a key would have an effect.

    Raises:
        ValueError: If a key occurs twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:MAX_SHOWN]!r} occurs twice")
    return values


def shortened(value: Any) -> str:
    """Return the repr of a value for an error message."""
    # The repr of a large list would take long.
    if isinstance(value, list | dict | set | tuple) and len(value) > MAX_SHOWN:
        return f"{type(value).__name__} of {len(value):,} items"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _check_events(events: Iterator[yaml.Event]) -> None:
    # Of each mapping and list that is open: its keys, None for a list, and the number of its items.
    opened: list[tuple[set[str] | None, int]] = [(None, 0)]
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        if isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        keys, count = opened[-1]
        opened[-1] = keys, count + 1
        if keys is not None and count % 2 == 0 and isinstance(event, yaml.ScalarEvent):
            if event.value in keys:  # only the last value would have an effect
                raise yaml.YAMLError(f"the key {event.value} occurs twice")
            keys.add(event.value)
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((set() if isinstance(event, yaml.MappingStartEvent) else None, 0))
            if len(opened) > MAX_DEPTH + 1:
                raise yaml.YAMLError(f"nested too deeply (more than {MAX_DEPTH} levels)")


def _check_plain(content: Any, path: Path) -> None:
    """Check that parsed data has only values of plain types, and is not nested deeply.

    Raises:
        UserError: If it is not.
    """
    # No recursion, because the parser of JSON accepts a depth at which Python would fail.
    stack = [(content, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise UserError(f"{path}: nested too deeply (more than {MAX_DEPTH} levels)")
        if isinstance(value, dict | list):
            items = chain(value, value.values()) if isinstance(value, dict) else value
            # Most items are not containers, and a vocabulary has a hundred thousand of them.
            stack += [(item, depth + 1) for item in items if type(item) not in SIMPLE]
        elif not isinstance(value, str | int | float | bool | None):
            raise UserError(
                f"{path}: must contain only texts, numbers, true, false and null, got "
                f"{shortened(value)}"
            )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"numbers must be finite, got {name}")


def parsed_cell(text: str) -> list[Any] | tuple[Any, ...] | dict[str, Any] | None:
    """Return the list, tuple or object that a cell contains as a text, in JSON or Python.

    pandas writes a CSV file with the lists of Python and the arrays of numpy. None: it is neither.
    """
    if not text.lstrip().startswith(("{", "[", "(", "array(")):
        return None
    for read in (json.loads, ast.literal_eval, _read_arrays):
        try:
            value = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list | tuple | dict):
            return value
    return None


def _read_arrays(text: str) -> Any:
    return ast.literal_eval(ARRAY.sub(r"\1", text.strip()))
