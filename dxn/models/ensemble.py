"""Several models whose outputs are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dxn.models.model import Batch, MultimodalModel, Network, as_float


class Ensemble(Network):
    """Models whose outputs are combined (deep ensembles, arXiv:1612.01474).

    Args:
        members: The models, with the same inputs and the same task.
        combine: Function that combines the output of each member, such as `Task.combine`.
    """

    def __init__(self, members: Sequence[Network], combine: Callable[[Sequence[Any]], Any]):
        super().__init__()
        # Any, because a ModuleList does not know the type of its modules.
        self.members: Any = nn.ModuleList(members)
        self.combine = combine

    @property
    def models(self) -> list[MultimodalModel]:
        """The models of all members."""
        return [model for member in self.members for model in member.models]

    def forward(self, batch: Batch) -> Any:
        """Return the combined outputs of the members for a batch."""
        # In float32, because members in bf16 would be averaged with three decimal places.
        outputs = [member(batch) for member in self.members]
        return self.combine([as_float(output) for output in outputs])

    def vectors(self, batch: Batch) -> Tensor:
        """Return the embeddings (B, E) of the members side by side.

        The members were trained independently, so a mean of their embeddings would have no meaning.
        """
        parts = [member.vectors(batch).float() for member in self.members]
        return torch.cat(parts, -1)


def split_tensors(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """Return the state dict of each member, from the state dict of an ensemble.

    Args:
        tensors: Tensors by name, such as "members.0.head.out.weight".
        count: Number of members.

    Raises:
        ValueError: If a tensor belongs to none of the members.
    """
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    prefixes = [f"members.{number}." for number in range(count)]
    for name, tensor in tensors.items():
        owners = [number for number, prefix in enumerate(prefixes) if name.startswith(prefix)]
        if not owners:
            raise ValueError(f"{name[:100]} belongs to none of the {count} members")
        parts[owners[0]][name.removeprefix(prefixes[owners[0]])] = tensor
    return parts
