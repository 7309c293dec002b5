"""Drawings: the tokens of a sample, charts of a run, and what a model attends to.

The modules that draw need matplotlib, whose import takes most of a second. They are imported here
on first use, so that commands that draw nothing do not wait for it:

    from dxn import viz

    viz.tokens.token_picture(viz.sample.SampleView.of(tokens, adapters, raws), path)
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dxn.viz import charts, curves, drawers, page, sample, tokens

__all__ = ["charts", "curves", "drawers", "page", "sample", "tokens"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"dxn.viz.{name}")
    raise AttributeError(f"module 'dxn.viz' has no attribute {name!r}")
