"""The optimizers and the learning rate schedules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from dxn.core.errors import UserError
from dxn.models.fusion import shared_name
from dxn.models.model import MultimodalModel

if TYPE_CHECKING:
    from dxn.training.muon import Muon

# torch keeps these methods of an optimizer out of torch.compile. For this, their first call imports
# torch._dynamo, which takes longer than all imports of dxn. Nothing compiles an optimizer of dxn,
# so they are called as they are.
for _method in (
    *(Optimizer.add_param_group, Optimizer.zero_grad),
    *(Optimizer.state_dict, Optimizer.load_state_dict),
):
    _function = inspect.unwrap(_method)
    setattr(_function, "__dynamo_disable", _function)

# Parameters that the model uses before the first block: they have the learning rate of layer 0.
EMBEDDING_PREFIXES = (
    "adapters.",
    "fusion.input_embedding",
    "fusion.pool.tokens",
    "fusion.shared",
)


class AdamW(torch.optim.AdamW):
    """AdamW without the preparation of its step for torch.compile, see above."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def adamw(
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    betas: Sequence[float] = (0.9, 0.98),
    eps: float = 1e-8,
    layer_decay: float = 1.0,
) -> Callable[[nn.Module], AdamW]:
    """AdamW (arXiv:1711.05101) with weight decay on matrices only.

    Biases, norms, embeddings and positional embeddings are not decayed.

    Args:
        lr: Highest learning rate.
        weight_decay: Weight decay of linear, convolutional and recurrent layers.
        betas: Decay rates of the moving averages of the gradient and of its square.
        eps: Constant added to the denominator.
        layer_decay: Ratio of the learning rates of each block and the block after it. The head has
            the full learning rate, the adapters have the smallest one.

    Returns:
        A function that creates the optimizer of a model.

    Raises:
        ValueError: If an option is out of range.
    """
    _check(lr=lr, weight_decay=weight_decay, layer_decay=layer_decay, betas=betas, eps=eps)

    def make(model: nn.Module) -> AdamW:
        groups = _groups(model, lr, weight_decay, layer_decay)
        return AdamW(groups, lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True)

    return make


def muon(
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    momentum: float = 0.95,
    scale: float = 2.0,
    betas: Sequence[float] = (0.9, 0.98),
    eps: float = 1e-8,
    layer_decay: float = 1.0,
) -> Callable[[nn.Module], Muon]:
    """Muon for linear and convolutional layers (see `dxn.training.muon.Muon`), AdamW for the rest.

    The head, embeddings, biases, norms, recurrent layers and layers with fewer than eight inputs
    or outputs are updated by AdamW.

    Args:
        lr: Highest learning rate.
        weight_decay: Weight decay of linear, convolutional and recurrent layers.
        momentum: Decay rate of the average of the gradients of a matrix.
        scale: Multiplier of the learning rate of Muon's layers. With 1, their updates have the root
            mean square of AdamW's.
        betas: Decay rates of the moving averages of AdamW.
        eps: Constant added to the denominator of AdamW.
        layer_decay: Ratio of the learning rates of each block and the block after it. The head has
            the full learning rate, the adapters have the smallest one.

    Returns:
        A function that creates the optimizer of a model.

    Raises:
        ValueError: If an option is out of range.
    """
    _check(lr=lr, weight_decay=weight_decay, layer_decay=layer_decay, betas=betas, eps=eps)
    _check(momentum=momentum, scale=scale)

    from dxn.training.muon import Muon, matrices_of

    def make(model: nn.Module) -> Muon:
        matrices = matrices_of(model)
        groups = []
        for group in _groups(model, lr, weight_decay, layer_decay):
            for number in sorted({0, *matrices.values()}):
                chosen = [p for p in group["params"] if matrices.get(id(p), 0) == number]
                if chosen:
                    groups.append({**group, "params": chosen, "num_matrices": number})
        return Muon(
            groups,
            lr=lr,
            betas=(betas[0], betas[1]),
            eps=eps,
            momentum=momentum,
            scale=scale,
        )

    return make


def sgd(
    *,
    lr: float = 0.05,
    weight_decay: float = 1e-4,
    momentum: float = 0.9,
    nesterov: bool = True,
    layer_decay: float = 1.0,
) -> Callable[[nn.Module], torch.optim.SGD]:
    """Stochastic gradient descent with momentum, and weight decay on matrices only.

    Args:
        lr: Highest learning rate.
        weight_decay: Weight decay of linear, convolutional and recurrent layers.
        momentum: Decay rate of the sum of the gradients.
        nesterov: Whether to use Nesterov momentum.
        layer_decay: Ratio of the learning rates of each block and the block after it. The head has
            the full learning rate, the adapters have the smallest one.

    Returns:
        A function that creates the optimizer of a model.

    Raises:
        ValueError: If an option is out of range.
    """
    _check(lr=lr, weight_decay=weight_decay, layer_decay=layer_decay, momentum=momentum)
    if nesterov and not momentum:
        raise ValueError("nesterov needs a momentum above 0, got momentum=0")

    def make(model: nn.Module) -> torch.optim.SGD:
        groups = _groups(model, lr, weight_decay, layer_decay)
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)

    return make


def _groups(
    model: nn.Module, lr: float, weight_decay: float, layer_decay: float
) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer, with the highest learning rate first.

    Raises:
        UserError: If no parameter is trainable.
    """
    decayed: set[int] = set()
    for module in model.modules():
        # The type of the layer decides. The number of dimensions cannot: embeddings and positional
        # embeddings are matrices too.
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase):
            for name, parameter in module.named_parameters(recurse=False):
                if name.startswith("weight"):
                    decayed.add(id(parameter))
    depth = len(model.blocks) if isinstance(model, MultimodalModel) else 0
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for full_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # The layer determines the learning rate. 0: adapters and embeddings. 1 to depth: the
        # blocks. depth + 1: everything after the blocks.
        name, layer = shared_name(full_name), depth + 1
        if name.startswith("backbone.blocks."):
            layer = int(name.split(".")[2]) + 1
        elif name.startswith(EMBEDDING_PREFIXES):
            layer = 0
        rate = lr * layer_decay ** (depth + 1 - layer)
        # One group for all parameters with the same rate and decay: each group is one call of the
        # fused kernel.
        decay = weight_decay if id(parameter) in decayed else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    if not groups:
        raise UserError(
            "optimizer: no parameter is trainable, because all weights are frozen; set "
            "finetune.freeze=null or finetune.lora_rank"
        )
    # The trainer logs the learning rate of the first group, so the highest rate comes first.
    return [
        {"params": groups[rate, decay], "lr": rate, "weight_decay": decay}
        for rate, decay in sorted(groups, reverse=True)
    ]


def cosine(*, warmup: float = 0.1, final: float = 0.0) -> Callable[[float], float]:
    """Linear warm-up followed by cosine decay (arXiv:1608.03983).

    Args:
        warmup: Fraction of the training during which the learning rate rises linearly from 0.
        final: Multiplier of the learning rate at the end.

    Returns:
        A function that maps the progress of the training, 0 to 1, to the multiplier of the learning
        rate.

    Raises:
        ValueError: If an option is out of range.
    """
    _check(warmup=warmup)
    if not 0 <= final <= 1:
        raise ValueError(f"final must be in [0, 1], got {final}")

    def factor(progress: float) -> float:
        if progress < warmup:
            return progress / warmup
        angle = math.pi * (progress - warmup) / (1 - warmup)
        return final + (1 - final) * 0.5 * (1 + math.cos(angle))

    return factor


def constant(*, warmup: float = 0.0) -> Callable[[float], float]:
    """Linear warm-up followed by a constant learning rate.

    Args:
        warmup: Fraction of the training during which the learning rate rises linearly from 0.

    Returns:
        A function that maps the progress of the training, 0 to 1, to the multiplier of the learning
        rate.

    Raises:
        ValueError: If warmup is out of range.
    """
    _check(warmup=warmup)
    return lambda progress: min(progress / warmup, 1.0) if warmup else 1.0


def _check(
    *,
    betas: Sequence[float] = (0.0, 0.0),
    layer_decay: float = 1.0,
    momentum: float = 0.0,
    warmup: float = 0.0,
    **others: float,
) -> None:
    """Raise a ValueError if an option is out of range. `others` must be at least 0."""
    # NaN is in no range.
    for name, value in others.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas must be two numbers from 0 to below 1, got {list(betas)}")
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must be above 0 and at most 1, got {layer_decay}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and less than 1, got {momentum}")
    if not 0 <= warmup < 1:
        raise ValueError(
            f"warmup must be at least 0 and less than 1 (a fraction of the training), got {warmup}"
        )
