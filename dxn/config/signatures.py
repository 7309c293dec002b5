"""The signatures of dxn's own parts, stored in conf/signatures.json, which git ignores.

Importing the parts themselves also imports torch, which takes seconds. With the stored signatures,
a mistyped option is answered at once. Without the file, or if it is not current, everything works,
but a command starts slower.

python -m dxn.config.signatures
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import hashlib
import importlib
import json
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import annotated_types

from dxn.config.schema import Node, Parameter, Signature, class_path, option_group, signature_from
from dxn.core.files import write_text

ROOT = Path(__file__).parents[1]
PATH = ROOT / "conf" / "signatures.json"
# Packages whose code determines a signature. It is slower to find out which files of them do.
SOURCES = ("core", "config", "tokenize", "models", "tasks", "data", "datasets", "training")
# The names in the types of the file, as Python prints them.
NAMES = {
    **vars(annotated_types),
    "typing": typing,
    "collections": collections,
    "NoneType": type(None),
    "Node": Node,
}


def find(target: str, *, outdated: bool = False) -> Signature | None:
    """Return the stored signature of a part by its dotted name, as in `_target_`.

    Args:
        target: Name of the part.
        outdated: Whether the source code may have changed since the file was written.

    Returns:
        The signature. None if it is not stored, or outdated: then the part has to be imported.
    """
    stored = _read()
    if not outdated and not _is_current():
        return None
    path = stored["names"].get(target, target)
    try:
        return _signature(path) if path in stored["signatures"] else None
    except (TypeError, NameError):  # another version of dxn has written the file
        return None


def write(targets: Mapping[str, Callable[..., Any]]) -> None:
    """Write the file.

    Args:
        targets: Parts by dotted name. The groups of options of their parameters are added.
    """
    remaining = [signature_from(target) for target in targets.values()]
    signatures: dict[str, Any] = {}
    while remaining:
        signature = remaining.pop()
        if signature.path in signatures:
            continue
        signatures[signature.path] = _plain(signature)
        groups = [option_group(each.type) for each in signature.parameters.values()]
        remaining += [signature_from(_import(path)) for path in groups if path is not None]
    names = {name: class_path(target) for name, target in sorted(targets.items())}
    content = {"sources": _digest(), "names": names, "signatures": dict(sorted(signatures.items()))}
    write_text(PATH, json.dumps(content, indent=1, ensure_ascii=False))
    forget()


def forget() -> None:
    """Read the file again when it is needed next."""
    for cached in (_read, _is_current, _signature):
        cached.cache_clear()


@functools.cache
def _read() -> Mapping[str, Any]:
    try:
        return json.loads(PATH.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing, or half written
        return {"sources": "", "names": {}, "signatures": {}}


@functools.cache
def _is_current() -> bool:
    return _read()["sources"] == _digest()


def _digest() -> str:
    """Return a checksum of the source code: reading 230 short files takes 10 ms."""
    total = hashlib.sha256()
    for path in (p for name in SOURCES for p in sorted((ROOT / name).rglob("*.py"))):
        total.update(path.read_bytes())
    return total.hexdigest()


@functools.cache
def _signature(path: str) -> Signature:
    stored = dict(_read()["signatures"][path])
    stored["parameters"] = {name: _parameter(p) for name, p in stored["parameters"].items()}
    if "others" in stored:
        stored["others"] = _parameter(stored["others"])
    return Signature(path, **stored)


def _parameter(stored: Mapping[str, Any]) -> Parameter:
    return Parameter(**{**stored, "type": _type(stored.get("type", "typing.Any"))})


@functools.cache
def _type(text: str) -> Any:
    # The file belongs to the package, like its modules.
    return eval(text, NAMES)


def _plain(signature: Signature) -> dict[str, Any]:
    """Return a signature as plain data, without what equals the defaults of the dataclasses."""
    stored = _changed(signature)
    del stored["path"]
    stored["parameters"] = {name: _changed(p) for name, p in signature.parameters.items()}
    if signature.others is not None:
        stored["others"] = _changed(signature.others)
    return stored


def _changed(record: Signature | Parameter) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    defaults = {each.name: each.default for each in dataclasses.fields(record)}
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    if "type" in changed:
        kind = changed["type"]
        changed["type"] = kind.__name__ if isinstance(kind, type) else repr(kind)
    return changed


def _import(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def update() -> None:
    """Write the file with the parts that dxn's own YAML files name, unless it is current."""
    from dxn.config.targets import functions_of_dxn, resolve

    if not _is_current():
        write({name: resolve(name, key=name) for name in functions_of_dxn()})


if __name__ == "__main__":
    update()
