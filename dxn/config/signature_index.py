"""The signatures of dxn's own parts, stored in conf/signatures.json.

Importing the parts themselves also imports torch, which takes seconds. With the stored signatures,
a mistyped option is answered at once. `make docs` writes the file.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dxn.config.hints import option_group
from dxn.config.signatures import Parameter, Signature, class_path, signature_from

ROOT = Path(__file__).parents[1]
PATH = ROOT / "conf" / "signatures.json"


def find(target: str) -> Signature | None:
    """Return the stored signature of a part by its dotted name, as in `_target_`.

    None if it is not stored, or if the source code has changed since the file was written. Then the
    part has to be imported.
    """
    index = _index()
    path = index["names"].get(target, target)
    stored = index["signatures"].get(path)
    return None if stored is None else _signature(path)


def find_stored(target: str) -> Signature | None:
    """Return the stored signature of a part, even if the source code has changed since then.

    Completion uses it: to import the part would take seconds.
    """
    path = _stored()["names"].get(target, target)
    return _signature(path) if path in _stored()["signatures"] else None


def content(targets: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Return the content of the file.

    Args:
        targets: Parts by dotted name. The groups of options of their parameters are added.
    """
    paths = {name: class_path(target) for name, target in sorted(targets.items())}
    remaining = list(targets.values())
    signatures: dict[str, Any] = {}
    sources: set[Path] = set()
    while remaining:
        target = remaining.pop()
        signature = signature_from(target)
        if signature.path in signatures:
            continue
        signatures[signature.path] = _plain(signature)
        sources |= set(_sources(target))
        groups = [option_group(parameter.hint) for parameter in signature.parameters.values()]
        remaining += [_import(group) for group in groups if group is not None]
    names = {name: path for name, path in paths.items() if name != path}
    digests = {path.relative_to(ROOT).as_posix(): _digest(path) for path in sorted(sources)}
    return {"sources": digests, "names": names, "signatures": dict(sorted(signatures.items()))}


def write(targets: Mapping[str, Callable[..., Any]]) -> None:
    """Write the file."""
    text = json.dumps(content(targets), indent=1, ensure_ascii=False)
    PATH.write_text(f"{text}\n", encoding="utf-8")
    _index.cache_clear()
    _stored.cache_clear()
    _signature.cache_clear()


@functools.cache
def _index() -> Mapping[str, Any]:
    """Read the file. Empty if a source file has changed since then."""
    index = _stored()
    # In an installed package nothing changes, but reading about 40 short files takes only 2 ms.
    digests = index.get("sources", {}).items()
    is_current = all(_digest(ROOT / name) in (digest, None) for name, digest in digests)
    return index if is_current else {"names": {}, "signatures": {}}


@functools.cache
def _stored() -> Mapping[str, Any]:
    """Read the file."""
    if not PATH.is_file():
        return {"sources": {}, "names": {}, "signatures": {}}
    return json.loads(PATH.read_text(encoding="utf-8"))


@functools.cache
def _signature(path: str) -> Signature:
    stored = _stored()["signatures"][path]
    parameters = {name: Parameter(**p) for name, p in stored["parameters"].items()}
    others = Parameter(**stored["others"]) if "others" in stored else None
    rest = {key: value for key, value in stored.items() if key not in ("parameters", "others")}
    return Signature(path, parameters=parameters, others=others, **rest)


def _plain(signature: Signature) -> dict[str, Any]:
    """Return a signature as plain data, without what equals the defaults of the dataclasses."""
    stored = _changed(signature)
    del stored["path"]
    stored["parameters"] = {name: _changed(p) for name, p in signature.parameters.items()}
    if signature.others is not None:
        stored["others"] = _changed(signature.others)
    return stored


def _changed(record: Any) -> dict[str, Any]:
    values = {f.name: (getattr(record, f.name), f.default) for f in dataclasses.fields(record)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _digest(path: Path) -> str | None:
    """Return a checksum of a source file. None without the file: some installations omit it."""
    if not path.is_file():
        return None
    # A checkout on Windows may have other line ends.
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()[:16]


def _import(path: str) -> Callable[..., Any]:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _sources(target: Callable[..., Any]) -> Iterator[Path]:
    """Yield the files of dxn that determine the signature of a class or function."""
    classes = inspect.getmro(target) if inspect.isclass(target) else (target,)
    for each in classes:
        if not each.__module__.startswith("dxn."):
            continue
        path = _file(each.__module__)
        yield path
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = set(_names_in_signature(tree, each.__name__))
        # Aliases of types, constants and groups of options come from other modules.
        for node in tree.body:
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("dxn."):
                continue
            if names & {alias.asname or alias.name for alias in node.names}:
                yield _file(str(node.module))


def _names_in_signature(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield the names in the annotations and defaults of a class or function of a module."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name != name:
            continue
        body = node.body if isinstance(node, ast.ClassDef) else [node]
        functions = [n for n in body if isinstance(n, ast.FunctionDef)]
        if isinstance(node, ast.ClassDef):
            functions = [function for function in functions if function.name == "__init__"]
        fields = [n for n in body if isinstance(n, ast.AnnAssign)]
        for part in (*(function.args for function in functions), *fields):
            yield from (child.id for child in ast.walk(part) if isinstance(child, ast.Name))


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
