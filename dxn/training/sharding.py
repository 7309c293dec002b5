"""Training of a model whose weights, gradients and optimizer state are divided (FSDP2).

Each process stores a part of each weight. The blocks of the backbone are gathered one at a time for
their forward and backward pass. The model of the caller keeps all of its weights: it is validated
and saved, and gets the trained weights for that.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from dxn.core.errors import UserError
from dxn.core.processes import processes
from dxn.models.fusion import EarlyFusion
from dxn.models.model import MultimodalModel
from dxn.training.muon import Muon


def sharded(model: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a model whose parameters are divided over the processes.

    Raises:
        UserError: If a parameter has no dimension that can be divided.
    """
    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise UserError(
                f"trainer.shard: the parameter {name} is a single number, which cannot be divided; "
                "set trainer.shard=false"
            )
    mesh = init_device_mesh(device.type, (processes()[1],))
    result = copy.deepcopy(model)
    # All processes must gather a block at the same time. With another fusion, the backbone runs
    # once per input, and the samples of a process can lack an input.
    if isinstance(result, MultimodalModel) and isinstance(result.fusion, EarlyFusion):
        for block in result.blocks:
            fully_shard(block, mesh=mesh)
    fully_shard(result, mesh=mesh)
    return result


def move_optimizer(optimizer: torch.optim.Optimizer, old: nn.Module, new: nn.Module) -> None:
    """Let an optimizer without a state train the parameters of another model."""
    names = {id(parameter): name for name, parameter in old.named_parameters()}
    parameters = dict(new.named_parameters())
    if isinstance(optimizer, Muon):  # which computes with whole matrices
        optimizer.whole, optimizer.divided = whole, divided_like
    for group in optimizer.param_groups:
        group["params"] = [parameters[names[id(each)]] for each in group["params"]]


def whole(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return the whole tensor of one that may be divided. All processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divided_like(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Divide a tensor, which all processes have, as another one is divided."""
    if not isinstance(like, DTensor) or not tensor.ndim:
        return tensor
    on_device = tensor.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)
