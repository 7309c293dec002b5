"""Dotted names of parts: imports on first use, and nodes from which an equal part is built."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable, KeysView, Mapping
from pathlib import Path
from typing import Any, Self

from dxn.core.errors import UserError


def imported(path: str) -> Any:
    """Import the object that a dotted name such as "dxn.tasks.embed.Embed" names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: Name of the package.
        modules: Module of the package that defines each name, such as "text.adapter".
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    def names() -> list[str]:
        return sorted([*vars(importlib.import_module(package)), *modules])

    return get, names


def class_path(cls: Callable[..., Any]) -> str:
    """Return the dotted name of a class or function, for `_target_`."""
    return f"{cls.__module__}.{cls.__qualname__}"


class Recorded:
    """Remembers the arguments of its constructor, so that a model made of it can be saved.

    Arguments whose types list their values, or limit them, are checked.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        from dxn.core.schema import check_arguments  # pydantic takes time to import

        named = {name: _kept(value) for name, value in kwargs.items()}
        arguments = tuple(map(_kept, args)), named
        check_arguments(cls, _named(cls, *arguments))
        part = super().__new__(cls)
        # Not an attribute of a module, which would register modules among the arguments again.
        part.__dict__["_arguments"] = arguments
        return part


def node_of_part(part: Any, key: str) -> dict[str, Any]:
    """Return the configuration node from which an equal part can be built.

    Args:
        part: An instance of a `Recorded` class or of a dataclass, or a functools.partial of such a
            class.
        key: Name of the part, for messages.

    Raises:
        UserError: If an argument is neither plain data nor a part.
    """
    if isinstance(part, functools.partial):
        node = {"_target_": class_path(part.func), "_partial_": True}
        arguments = _named(part.func, part.args, part.keywords)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        node = {"_target_": class_path(type(part))}
        arguments = {f.name: getattr(part, f.name) for f in dataclasses.fields(part) if f.init}
    elif isinstance(part, Recorded):
        node = {"_target_": class_path(type(part))}
        arguments = arguments_of(part)
    else:
        raise UserError(
            f"{key}: {type(part).__name__} cannot be saved; use plain data, or parts of dxn or of "
            "classes that derive from them"
        )
    return node | {name: _plain(value, f"{key}.{name}") for name, value in arguments.items()}


def arguments_of(part: Recorded) -> dict[str, Any]:
    """Return the arguments from which a part was built, by the names of the parameters."""
    return _named(type(part), *part.__dict__["_arguments"])


def _kept(value: Any) -> Any:
    """Return an argument that the caller cannot change any more if it is a list or mapping.

    A number of NumPy becomes one of Python.
    """
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, KeysView):
        return list(value)
    return copy.copy(value) if isinstance(value, list | dict) else value


def _plain(value: Any, key: str) -> Any:
    value = _kept(value)
    if value is None or isinstance(value, bool):
        return value
    # YAML represents these types, and none that derive from them.
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{key}.{i}") for i, item in enumerate(value)]
    return node_of_part(value, key)


def _named(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of the parameters."""
    signature = inspect.signature(function)
    named = dict(signature.bind_partial(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return named
