"""The blocks of a model that is only used, computed without calls of their modules.

For a few tokens, calling the 13 modules of a block takes as long as its matrix products. The blocks
here have the same operations on the same weights, so that their results are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.attention import attend
from dxn.models.blocks import Block, Mlp

# Weight and bias.
Linear = tuple[Tensor, Tensor | None]
# Shape, weight, bias and eps.
Norm = tuple[tuple[int, ...], Tensor, Tensor | None, float]


class PlainBlock(NamedTuple):
    """The weights of a block with layer norms, and an MLP that is not gated.

    Attributes:
        pre_norm: Whether the norms come before the branches, or after the sums.
        heads: Number of heads of the queries, keys and values.
        act: Activation of the MLP.
    """

    pre_norm: bool
    heads: tuple[int, int, int]
    attn_norm: Norm
    qkv: Linear
    proj: Linear
    mlp_norm: Norm
    up: Linear
    act: Callable[[Tensor], Tensor]
    down: Linear

    def __call__(self, x: Tensor, shape: torch.Size, causal: bool) -> Tensor:
        """Apply the block to x (B N, D), the tokens of samples without padding, see `Block`.

        Args:
            x: The tokens.
            shape: (B, N).
            causal: Each token attends only to itself and the tokens before it.
        """
        y = torch.layer_norm(x, *self.attn_norm) if self.pre_norm else x
        parts = F.linear(y, *self.qkv).view(*shape, sum(self.heads), -1).transpose(1, 2)
        q, k, v = parts.split_with_sizes(self.heads, 1)
        y = attend(q, k, v, causal=causal).transpose(1, 2).flatten(2).flatten(0, 1)
        x = x + F.linear(y, *self.proj)
        if not self.pre_norm:
            x = torch.layer_norm(x, *self.attn_norm)
        y = torch.layer_norm(x, *self.mlp_norm) if self.pre_norm else x
        x = x + F.linear(self.act(F.linear(y, *self.up)), *self.down)
        return x if self.pre_norm else torch.layer_norm(x, *self.mlp_norm)


class PlainBlocks:
    """All blocks of a backbone.

    Args:
        blocks: Their weights.
        causal: See `PlainBlock`.
        hooks: Hooks of their modules. With any hook, the modules have to be called.
    """

    def __init__(self, blocks: list[PlainBlock], causal: bool, hooks: list[dict[int, Any]]):
        self.blocks = blocks
        self.causal = causal
        self.hooks = hooks

    @property
    def can_run(self) -> bool:
        """Whether no hook has to be called, and no graph is recorded."""
        return not any(self.hooks) and not torch.compiler.is_compiling()

    def run(self, x: Tensor, start: int, stop: int | None) -> Tensor:
        """Apply the blocks start:stop to x (B, N, D) without padding."""
        shape = x.shape[:2]
        x = x.flatten(0, 1)
        for block in self.blocks[start:stop]:
            x = block(x, shape, self.causal)
        return x.unflatten(0, shape)


def plain_blocks(blocks: Iterable[nn.Module], *, causal: bool) -> PlainBlocks | None:
    """Return the blocks of a backbone that uses no positions; None if one has further parts."""
    plain: list[PlainBlock] = []
    hooks: list[dict[int, Any]] = []
    for block in blocks:
        weights = _plain_block(block)
        if weights is None:
            return None
        plain.append(weights)
        for module in block.modules():
            hooks += [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks]
    return PlainBlocks(plain, causal, hooks)


def _plain_block(block: Any) -> PlainBlock | None:
    if type(block) is not Block or type(block.mlp) is not Mlp:
        return None
    attn, mlp = block.attn, block.mlp
    rest = block.attn_out, block.mlp_out, attn.q_norm, attn.k_norm
    norms = block.attn_norm, block.mlp_norm
    layers = attn.qkv, attn.proj, mlp.up, mlp.down
    # Only these classes themselves: a subclass may compute something else.
    has_others = any(
        type(module) is not kind
        for kind, modules in ((nn.Identity, rest), (nn.LayerNorm, norms), (nn.Linear, layers))
        for module in modules
    )
    if has_others or block.cross is not None or attn.score is not None or mlp.gated:
        return None
    return PlainBlock(
        block.pre_norm,
        attn.heads,
        attn_norm=_norm(block.attn_norm),
        qkv=(attn.qkv.weight, attn.qkv.bias),
        proj=(attn.proj.weight, attn.proj.bias),
        mlp_norm=_norm(block.mlp_norm),
        up=(mlp.up.weight, mlp.up.bias),
        act=mlp.act,
        down=(mlp.down.weight, mlp.down.bias),
    )


def _norm(norm: Any) -> Norm:
    return norm.normalized_shape, norm.weight, norm.bias, norm.eps
