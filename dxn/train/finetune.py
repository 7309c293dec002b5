"""Training only a part of a model: frozen weights, and low-rank changes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dxn.errors import UserError
from dxn.models import Model


class Finetune:
    """What is trained of a model.

    Args:
        freeze: all, every weight that was loaded, or without loaded ones all but the head; or a number: the adapters
            and so many blocks. Nothing unless given.
        lora_rank: rank of a change learned for each of lora_targets, which themselves stay as they are
            (arXiv:2106.09685); 0 for none.
        lora_alpha: the change is scaled by this over lora_rank, twice the rank unless given.
        lora_targets: ends of the names of linears, such as attn.qkv, attn.proj, mlp.up, mlp.down.
    """

    def __init__(
        self,
        *,
        freeze: int | Literal["all"] | None = None,
        lora_rank: int = 0,
        lora_alpha: float | None = None,
        lora_targets: Sequence[str] = ("attn.qkv",),
    ):
        if isinstance(freeze, int) and freeze < 0:
            raise ValueError(f"freeze must be all or at least 0, got {freeze}")
        if lora_rank < 0:
            raise ValueError(f"lora_rank must be at least 0, got {lora_rank}")
        if lora_rank and not lora_targets:
            raise ValueError("lora_targets must name at least one linear where lora_rank is given")
        self.freeze, self.rank = freeze, lora_rank
        self.scale = (2 * lora_rank if lora_alpha is None else lora_alpha) / max(lora_rank, 1)
        self.targets = tuple(lora_targets)

    def __call__(self, model: Model, loaded: set[str]) -> None:
        """Freeze and add changes in place. loaded: names of the weights that came from elsewhere."""
        if isinstance(self.freeze, int) and self.freeze > len(model.backbone.blocks):
            raise UserError(f"finetune.freeze: the backbone has {len(model.backbone.blocks)} blocks, got {self.freeze}")
        for name, parameter in model.named_parameters():
            if self._is_frozen(name, loaded):
                parameter.requires_grad_(False)
        if self.rank:
            self._add_changes(model)

    def _is_frozen(self, name: str, loaded: set[str]) -> bool:
        if self.freeze is None or name.startswith("head.") or (loaded and name not in loaded):
            return False
        if self.freeze == "all" or name.startswith("adapters."):
            return True
        return name.startswith(tuple(f"backbone.blocks.{i}." for i in range(int(self.freeze))))

    def _add_changes(self, model: Model) -> None:
        found = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.endswith(self.targets)]
        if missing := [t for t in self.targets if not any(n.endswith(t) for n, _ in found)]:
            linears = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
            raise UserError(
                f"finetune.lora_targets: no linear ends in {missing[0]}; there are {', '.join(linears[:6])}"
            )
        for _, linear in found:
            linear.weight.requires_grad_(False)
            change = LowRank(linear.out_features, linear.in_features, self.rank, self.scale)
            parametrize.register_parametrization(linear, "weight", change.to(linear.weight))


class LowRank(nn.Module):
    """A matrix and a learned change of low rank, scale * up @ down, that starts at zero (arXiv:2106.09685, 4.1)."""

    def __init__(self, rows: int, columns: int, rank: int, scale: float):
        super().__init__()
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.down = nn.Parameter(torch.randn(rank, columns) * columns**-0.5)
        self.scale = scale

    def forward(self, weight: Tensor) -> Tensor:
        """(rows, columns) to the same shape."""
        return weight + self.scale * (self.up @ self.down)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state dict as it would be without LowRank: every change added to its matrix."""
    state = model.state_dict()
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            prefix = f"{name}.parametrizations.weight."
            state = {key: t for key, t in state.items() if not key.startswith(prefix)}
            state[f"{name}.weight"] = module.weight.detach()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    return state
