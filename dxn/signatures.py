"""Read signatures: the parameters of a class or function, their types and their defaults."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any


def parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function, without *args and **kwargs."""
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {p.name: p for p in _signature(target) if p.kind not in variable}


# Cached, because evaluating postponed annotations is slow compared with the checks that need them.
@functools.cache
def hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of a target's parameters. The key of a **kwargs parameter is "**"."""
    # The generated __init__ of a dataclass has no access to the names that its module imports.
    is_plain_class = inspect.isclass(target) and not dataclasses.is_dataclass(target)
    try:
        by_name = typing.get_type_hints(target.__init__ if is_plain_class else target)
    except (NameError, TypeError):
        return {}  # a module can import names for type checkers only
    variable = [p.name for p in _signature(target) if p.kind is p.VAR_KEYWORD]
    return {"**" if name in variable else name: hint for name, hint in by_name.items()}


def takes_any_name(target: Callable[..., Any]) -> bool:
    """Whether a target has a **kwargs parameter."""
    return any(p.kind is p.VAR_KEYWORD for p in _signature(target))


def plain_default(default: Any) -> Any:
    """Return a default value as plain data; `Parameter.empty` if YAML cannot represent it."""
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        fields = [f.name for f in dataclasses.fields(default) if f.init]
        values = {name: plain_default(getattr(default, name)) for name in fields}
        return {"_target_": class_path(type(default)), **values}
    if isinstance(default, list | tuple):
        return [plain_default(item) for item in default]
    if isinstance(default, Mapping):
        return {name: plain_default(value) for name, value in default.items()}
    is_scalar = default is None or isinstance(default, bool | int | float | str)
    return default if is_scalar else inspect.Parameter.empty


def class_path(cls: type) -> str:
    """Return the dotted name of a class, for `_target_`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _signature(target: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(target).parameters.values())
