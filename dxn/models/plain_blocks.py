"""The blocks of a model that is only used, computed without calls of their modules.

For a few tokens, calling the 13 modules of a block takes as long as its matrix products. The blocks
here have the same operations in the same order, so that their results are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.attention import Attention, attend
from dxn.models.blocks import Block, Mlp

Layer = Callable[[Tensor], Tensor]


class PlainBlock(NamedTuple):
    """What the layers of a block with two branches compute.

    Attributes:
        pre_norm: Whether the norms come before the branches, or after the sums.
        heads: Number of heads of the queries, keys and values.
        act: Activation of the MLP, which is not gated.
    """

    pre_norm: bool
    heads: tuple[int, int, int]
    attn_norm: Layer
    qkv: Layer
    proj: Layer
    mlp_norm: Layer
    up: Layer
    act: Layer
    down: Layer

    def __call__(self, x: Tensor, shape: torch.Size, causal: bool) -> Tensor:
        """Apply the block to x (B N, D), the tokens of samples without padding, see `Block`.

        Args:
            x: The tokens.
            shape: (B, N).
            causal: Each token attends only to itself and the tokens before it.
        """
        y = self.attn_norm(x) if self.pre_norm else x
        parts = self.qkv(y).view(*shape, sum(self.heads), -1).transpose(1, 2)
        q, k, v = parts.split_with_sizes(self.heads, 1)
        y = attend(q, k, v, causal=causal).transpose(1, 2).reshape(len(x), -1)
        x = x + self.proj(y)
        if not self.pre_norm:
            x = self.attn_norm(x)
        y = self.mlp_norm(x) if self.pre_norm else x
        x = x + self.down(self.act(self.up(y)))
        return x if self.pre_norm else self.mlp_norm(x)


class PlainBlocks:
    """All blocks of a backbone.

    Args:
        blocks: The blocks.
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
        made = _plain_block(block)
        if made is None:
            return None
        plain.append(made)
        for module in block.modules():
            hooks += [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks]
    return PlainBlocks(plain, causal, hooks)


def _plain_block(block: Any) -> PlainBlock | None:
    # Only these classes themselves: a subclass may compute something else.
    parts = (block, Block), (block.attn, Attention), (block.mlp, Mlp)
    if any(type(module) is not kind for module, kind in parts):
        return None
    attn, mlp = block.attn, block.mlp
    rest = block.attn_out, block.mlp_out, attn.q_norm, attn.k_norm
    has_rest = any(type(module) is not nn.Identity for module in rest)
    if has_rest or block.cross is not None or attn.score is not None or mlp.gated:
        return None
    return PlainBlock(
        block.pre_norm,
        attn.heads,
        attn_norm=_function(block.attn_norm),
        qkv=_function(attn.qkv),
        proj=_function(attn.proj),
        mlp_norm=_function(block.mlp_norm),
        up=_function(mlp.up),
        act=mlp.act,
        down=_function(mlp.down),
    )


def _function(layer: nn.Module) -> Layer:
    """Return what a layer computes, without looking up its weights each time."""
    if type(layer) is nn.Linear:
        weight, bias = layer.weight, layer.bias
        return lambda x: F.linear(x, weight, bias)
    if type(layer) is nn.LayerNorm:
        shape, scale, shift, eps = layer.normalized_shape, layer.weight, layer.bias, layer.eps
        return lambda x: torch.layer_norm(x, shape, scale, shift, eps)
    return layer.forward
