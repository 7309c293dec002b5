"""One backbone per input instead of a shared one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from dxn.core.tokens import Tokens


class SeparateBackbones(nn.Module):
    """One backbone per input, for a model that encodes each input separately.

    Args:
        backbones: Backbone of each input, in the order of the inputs.
        inputs: Names of the inputs.
    """

    def __init__(self, backbones: Sequence[nn.Module], *, inputs: Sequence[str]):
        super().__init__()
        # Not a ModuleDict by name: the name of an input can contain a dot, but a key cannot.
        self.towers = nn.ModuleList(backbones)
        self.inputs = tuple(inputs)

    @property
    def blocks(self) -> Any:
        """The blocks of the first backbone. All backbones have the same depth."""
        return self.towers[0].blocks

    def of(self, name: str) -> Any:
        """Return the backbone of the input `name`."""
        return self.towers[self.inputs.index(name)]


def shared_name(name: str) -> str:
    """Return the name that a tensor of one of several backbones has in a shared backbone."""
    # backbone.towers.1.blocks.0.attn.qkv.weight: the third part is the index of the input.
    return re.sub(r"^backbone\.towers\.\d+\.", "backbone.", name)


def backbone_of(backbone: Any, parts: Sequence[Tokens]) -> Any:
    """Return the backbone that encodes these Tokens.

    Args:
        backbone: The backbone of all inputs, or `SeparateBackbones`.
        parts: Tokens of one or several inputs.

    Raises:
        ValueError: If the inputs have separate backbones, and `parts` are several inputs.
    """
    if not isinstance(backbone, SeparateBackbones):
        return backbone
    # The last span, because the first one can belong to a class token.
    names = [part.spans[-1].name for part in parts]
    if len(names) != 1:
        raise ValueError(
            f"inputs with separate backbones cannot be encoded together, got {', '.join(names)}; "
            "set share_backbone=true or fusion=late"
        )
    return backbone.of(names[0])
