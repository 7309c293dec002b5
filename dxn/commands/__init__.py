"""The commands of the command line: one module each, with a dataclass of its options.

The functions that do the work are imported when a command is executed, because they import torch.
"""

from __future__ import annotations

import importlib

from dxn.config.command import Command

# In the order of `dxn --help`.
VERBS = (
    "train",
    "evaluate",
    "predict",
    "generate",
    "embed",
    "index",
    "search",
    "attend",
    "neighbors",
    "tokenize",
    "check",
    "report",
    "compare",
    "serve",
    "export",
    "push",
    "verify",
    "doctor",
    "show",
)


def command(verb: str) -> type[Command]:
    """Return the class of a command by its name."""
    return getattr(importlib.import_module(f"dxn.commands.{verb}"), verb.capitalize())


def all_commands() -> dict[str, type[Command]]:
    """Return the classes of all commands, in the order of `dxn --help`."""
    return {verb: command(verb) for verb in VERBS}
