"""The optimizer and the course of its learning rate."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn


def adamw(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    betas: Sequence[float] = (0.9, 0.98),
    eps: float = 1e-8,
    layer_decay: float = 1.0,
) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101) with decay on matrices only: not on biases, norms, embeddings or positions.

    Args:
        lr: highest learning rate.
        weight_decay: of the weights of linears, convolutions and recurrent layers.
        betas: of the running means of gradient and square.
        eps: added to the denominator.
        layer_decay: factor on lr from each block to the one before it; the head has lr itself, the adapters least.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay must be over 0 and at most 1, got {layer_decay}")
    decayed = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.RNNBase)
        for name, parameter in module.named_parameters(recurse=False)
        if name.startswith("weight")
    }
    depth = len(getattr(getattr(model, "backbone", None), "blocks", ()))
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = lr * layer_decay ** (depth + 1 - _layer(name, depth))
            groups.setdefault((rate, weight_decay if id(parameter) in decayed else 0.0), []).append(parameter)
    if not groups:
        raise ValueError("nothing is left to train: every weight is frozen")
    ordered = [
        {"params": found, "lr": rate, "weight_decay": decay}
        for (rate, decay), found in sorted(groups.items(), key=lambda group: group[0], reverse=True)
    ]
    first, second = betas
    return torch.optim.AdamW(ordered, lr=lr, betas=(first, second), eps=eps, fused=True)


def _layer(name: str, depth: int) -> int:
    """0: adapters and what leads the tokens; 1 to depth: the blocks; depth + 1: all that comes after them."""
    if name.startswith("backbone.blocks."):
        return int(name.split(".")[2]) + 1
    return 0 if name.startswith(("adapters.", "fusion.embedding", "fusion.pool.tokens", "fusion.shared")) else depth + 1


def cosine(*, warmup: float = 0.1, final: float = 0.0) -> Callable[[float], float]:
    """The factor on lr at a share 0 to 1 of the run: linear up, then half a cosine down (arXiv:1608.03983).

    Args:
        warmup: share of the run in which the rate rises from 0.
        final: factor at the end.
    """
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is a share of the run, at least 0 and under 1, got {warmup}")

    def factor(share: float) -> float:
        if share < warmup:
            return share / warmup
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * (share - warmup) / (1 - warmup)))

    return factor


def constant(*, warmup: float = 0.0) -> Callable[[float], float]:
    """The factor on lr at a share 0 to 1 of the run: linear up, then 1.

    Args:
        warmup: share of the run in which the rate rises from 0.
    """
    return lambda share: min(share / warmup, 1.0) if warmup else 1.0
