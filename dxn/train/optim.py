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
) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101) with decay on matrices only: not on biases, norms, embeddings or positions.

    Args:
        lr: highest learning rate.
        weight_decay: of the weights of linears and convolutions.
        betas: of the running means of gradient and square.
        eps: added to the denominator.
    """
    decayed = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
    ]
    first, second = betas
    return torch.optim.AdamW(groups, lr=lr, betas=(first, second), eps=eps, fused=True)


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
