"""Pictures of a run, of the tokens of a sample, and of what a model attends to.

The modules that draw need matplotlib, whose import takes most of a second. They are imported here
on first use, so that commands that draw nothing do not wait for it:

    from dxn import viz

    viz.curves.draw_curves(rows, path)
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxn.viz import alignment, attention_pictures, curves, page, pictures, plots

__all__ = ["alignment", "attention_pictures", "curves", "page", "pictures", "plots"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"dxn.viz.{name}")
    raise AttributeError(f"module 'dxn.viz' has no attribute {name!r}")
