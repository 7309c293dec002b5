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

from dxn.config.schema import Node, Parameter, Signature, class_path, signature_from
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
    stored = read()
    return stored.signatures.get(target) if outdated or stored.is_current else None


def update() -> None:
    """Write the file with the parts that dxn's own YAML files name, unless it is current."""
    from dxn.config.targets import functions_of_dxn, resolve

    if not read().is_current:
        write({name: resolve(name, key=name) for name in functions_of_dxn()})


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
        plain = _changed(signature)
        plain["parameters"] = {n: _changed(each) for n, each in signature.parameters.items()}
        if signature.others is not None:
            plain["others"] = _changed(signature.others)
        signatures[signature.path] = plain
        for path in filter(None, (each.group for each in signature.parameters.values())):
            module, _, name = path.rpartition(".")
            remaining.append(signature_from(getattr(importlib.import_module(module), name)))
    names = {name: class_path(target) for name, target in sorted(targets.items())}
    content = {"sources": _digest(), "names": names, "signatures": dict(sorted(signatures.items()))}
    write_text(PATH, json.dumps(content, indent=1, ensure_ascii=False))
    read.cache_clear()


@dataclasses.dataclass(frozen=True)
class Stored:
    """The content of the file.

    Args:
        signatures: Signatures by the dotted names that a configuration may use.
        is_current: Whether the source code is that from which the file was written.
    """

    signatures: Mapping[str, Signature]
    is_current: bool


@functools.cache
def read() -> Stored:
    """Read the file. Empty if it is missing or damaged, or written by another version of dxn."""
    types: dict[str, Any] = {}
    try:
        content = json.loads(PATH.read_text(encoding="utf-8"))
        signatures: dict[str, Signature] = {}
        for path, plain in content["signatures"].items():
            for each in (*plain["parameters"].values(), *filter(None, [plain.get("others")])):
                text = each.get("type", "typing.Any")
                if text not in types:
                    # The file belongs to the package, like its modules.
                    types[text] = eval(text, NAMES)
                each["type"] = types[text]
            plain["parameters"] = {n: Parameter(**each) for n, each in plain["parameters"].items()}
            others = Parameter(**plain["others"]) if "others" in plain else None
            signatures[path] = Signature(**{**plain, "others": others})
        signatures |= {name: signatures[path] for name, path in content["names"].items()}
        return Stored(signatures, content["sources"] == _digest())
    except (OSError, ValueError, LookupError, TypeError, NameError, SyntaxError):
        return Stored({}, is_current=False)


def _digest() -> str:
    """Return a checksum of the source code: reading 230 short files takes 10 ms."""
    total = hashlib.sha256()
    for path in (p for name in SOURCES for p in sorted((ROOT / name).rglob("*.py"))):
        total.update(path.read_bytes())
    return total.hexdigest()


def _changed(record: Signature | Parameter) -> dict[str, Any]:
    """Return the values of a record that differ from its defaults, with types as text."""
    values = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    defaults = {each.name: each.default for each in dataclasses.fields(record)}
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    if "type" in changed:
        kind = changed["type"]
        changed["type"] = kind.__name__ if isinstance(kind, type) else repr(kind)
    return changed


if __name__ == "__main__":
    update()
