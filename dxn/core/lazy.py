"""Names whose modules are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


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
        return imported(f"{package}.{modules[name]}.{name}")

    def names() -> list[str]:
        return sorted([*vars(importlib.import_module(package)), *modules])

    return get, names
