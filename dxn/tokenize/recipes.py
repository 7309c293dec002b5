"""What a program without dxn needs to prepare an input: the options of `export/programs/`.

A preprocessor offers it by its optional method `recipe()`. The key "prepare" names the module.
"""

from __future__ import annotations

from typing import Any

from dxn.tokenize.base import Adapter, Preprocessor

# JSON-serializable options.
Recipe = dict[str, Any]


def recipe(prepare: Preprocessor) -> Recipe:
    """Return the recipe of a preprocessor. Empty: its inputs can only be prepared with dxn."""
    make = getattr(prepare, "recipe", None)
    return {} if make is None else make()


def counted_recipe(adapter: Adapter) -> Recipe:
    """Return the recipe of the counted features of an adapter, see `dxn.core.tokens.Summary`.

    The key "counted" names the module.
    """
    make = getattr(adapter, "counted_recipe", None)
    return {} if make is None else make()
