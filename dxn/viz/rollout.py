"""Recorded attention weights of a model, and their rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dxn.models.backbone import Backbone

# Poolings that use the first real token: the class token, or the first token of the input.
FIRST_TOKEN_POOLS = ("cls", "leading", "leading_cat", "first")


@contextmanager
def recorded(backbone: Backbone) -> Iterator[list[Tensor]]:
    """Record the attention weights of every block that runs inside the context.

    Yields:
        A list to which each block appends one tensor (B, H, N, N). Rows are queries, columns keys.
    """
    maps: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        # The fused attention kernels do not return the weights, so they are computed a second time
        # from the inputs of the module, by its method `weights`.
        x, groups, *_ = args
        weights: Any = module.weights
        maps.append(weights(x, groups[0]))

    hooks = []
    for block in backbone.blocks:
        attn: Any = block.attn
        hooks.append(attn.register_forward_pre_hook(record))
    try:
        # One group with all samples, so that the maps have the columns of the batch.
        with backbone.unpacked():
            yield maps
    finally:
        for hook in hooks:
            hook.remove()


def rollout(maps: Sequence[Tensor]) -> Tensor:
    """Compute the attention rollout (arXiv:2005.00928, section 4.1).

    Args:
        maps: One tensor (B, H, N, N) per block. Rows are queries, columns keys.

    Returns:
        (B, N, N). Share of each input token (column) in each output token (row). Rows sum to 1.
    """
    n = maps[0].shape[-1]
    identity = torch.eye(n, dtype=maps[0].dtype, device=maps[0].device)
    total = identity
    # The identity models the residual connection: half of the output of a block is its input, and
    # half is the attention, averaged over the heads.
    for weights in maps:
        total = (weights.mean(1) + identity) / 2 @ total
    return total


def token_shares(maps: Sequence[Tensor], mask: Tensor, pool: str | Sequence[str]) -> Tensor:
    """Compute the share of each token in the pooled vector, by rollout.

    Args:
        maps: One tensor (B, H, N, N) per block.
        mask: (B, N) bool. True at real tokens.
        pool: Kind of pooling, or kinds. For a pooling of the first or the last token, the shares
            are the row of this token in the rollout. For all others, they are the mean row of the
            real tokens.

    Returns:
        (B, N). Each row sums to 1. Padding has 0.
    """
    # The rows are normalized again below, because this removes the share of the padding.
    total = rollout(maps) * mask[:, None]
    if pool in FIRST_TOKEN_POOLS:
        # argmax returns the first of equal values: the first real token.
        row = mask.int().argmax(1)
    elif pool == "last":
        row = mask.shape[1] - 1 - mask.flip(1).int().argmax(1)
    else:
        weights = mask[..., None] / mask.sum(1)[:, None, None]
        shares = (total * weights).sum(1)
        return shares / shares.sum(1, keepdim=True)
    shares = total[torch.arange(len(mask), device=mask.device), row]
    return shares / shares.sum(1, keepdim=True)
