"""Parts that a module uses, and another one owns."""

from __future__ import annotations

from typing import Any

from torch import nn


def set_unregistered(user: nn.Module, name: str, part: Any) -> None:
    """Set an attribute of a module without making its value a submodule.

    A normal assignment would register a part that another module owns: its weights would also be
    parameters of `user`, and would be saved twice.
    """
    user.__dict__[name] = part
