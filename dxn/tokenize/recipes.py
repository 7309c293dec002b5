"""What a program without dxn needs to prepare an input: the options of `export/programs/`.

A preprocessor offers it by its optional method `recipe()`. The key "prepare" names the module.
"""

from __future__ import annotations

from typing import Any

from dxn.tokenize.base import Preprocessor

# JSON-serializable options.
Recipe = dict[str, Any]


def recipe(prepare: Preprocessor) -> Recipe:
    """Return the recipe of a preprocessor. Empty: its inputs can only be prepared with dxn."""
    make = getattr(prepare, "recipe", None)
    return {} if make is None else make()
