"""The commands of the command line: a dataclass each, whose fields are its options.

The functions that do the work are imported when a command is executed, because they import torch.
"""

from __future__ import annotations

import importlib

from dxn.config.command import Command

# In the order of `dxn --help`.
VERBS = (
    "train",
    "tune",
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


# Commands that share the module of another one.
MODULES = {
    "show": "train",
    "check": "train",
    "generate": "predict",
    "search": "index",
    "neighbors": "attend",
    "compare": "report",
    "push": "export",
    "doctor": "verify",
}


def command(verb: str) -> type[Command]:
    """Return the class of a command by its name."""
    module = importlib.import_module(f"dxn.commands.{MODULES.get(verb, verb)}")
    return vars(module)[verb.capitalize()]


def all_commands() -> dict[str, type[Command]]:
    """Return the classes of all commands, in the order of `dxn --help`."""
    return {verb: command(verb) for verb in VERBS}
