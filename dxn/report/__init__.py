"""The report of a run: a self-contained HTML page.

The modules need matplotlib and jinja2. They are imported here on first use, as in `dxn.viz`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxn.report import run, tables

__all__ = ["run", "tables"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"dxn.report.{name}")
    raise AttributeError(f"module 'dxn.report' has no attribute {name!r}")
