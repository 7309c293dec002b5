"""The blocks of a model that is only used, computed without calls of their modules.

For a few tokens, calling the 13 modules of a block takes as long as its matrix products. The blocks
here have the same operations in the same order, so that their results are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.attention import Attention, Group, attend
from dxn.models.blocks import Block, Mlp
from dxn.models.positions import apply_rope

if TYPE_CHECKING:
    from dxn.core.dropout import Keys
    from dxn.models.decoding.decoder import KVCache, Memory

Layer = Callable[[Tensor], Tensor]


class PlainBlock(NamedTuple):
    """What the layers of a block compute.

    Attributes:
        pre_norm: Whether the norms come before the branches, or after the sums.
        heads: Number of heads of the queries, keys and values.
        cross: Cross-attention to a memory, see `Block`. None: there is none.
        gated: Whether the MLP is gated.
        act: Activation of the MLP.
    """

    pre_norm: bool
    heads: tuple[int, int, int]
    attn_norm: Layer
    qkv: Layer
    proj: Layer
    cross_norm: Layer
    cross: Callable[..., Tensor] | None
    mlp_norm: Layer
    gated: bool
    up: Layer
    act: Layer
    down: Layer

    def __call__(
        self,
        x: Tensor,
        groups: Sequence[Group],
        memory: Memory | None = None,
        cache: KVCache | None = None,
        keys: Keys | None = None,
    ) -> Tensor:
        """Apply the block to x (B N, D), the tokens of one group with padding. See `Block`."""
        (group,) = groups
        y = self.attn_norm(x) if self.pre_norm else x
        parts = self.qkv(y).view(*group.shape, sum(self.heads), -1).transpose(1, 2)
        if group.rope is not None:
            # Queries and keys together, because starting an operation takes most of the time.
            num_values = self.heads[2]
            rotated = apply_rope(parts[:, :-num_values], group.rope)
            q, k = rotated.split_with_sizes(self.heads[:2], 1)
            v = parts[:, -num_values:]
        else:
            q, k, v = parts.split_with_sizes(self.heads, 1)
        if cache is not None:
            k, v = cache.extend(k, v, group)
        y = attend(q, k, v, group.attn_mask, causal=group.causal).transpose(1, 2)
        x = x + self.proj(y.reshape(len(x), -1))
        if not self.pre_norm:
            x = self.attn_norm(x)
        if self.cross is not None:
            y = self.cross_norm(x) if self.pre_norm else x
            x = x + self.cross(y, groups, memory, cache)
            if not self.pre_norm:
                x = self.cross_norm(x)
        y = self.up(self.mlp_norm(x) if self.pre_norm else x)
        if self.gated:
            y, gate = y.chunk(2, -1)
            y = y * self.act(gate)
        else:
            y = self.act(y)
        x = x + self.down(y)
        return x if self.pre_norm else self.mlp_norm(x)


class PlainBlocks:
    """All blocks of a backbone.

    Args:
        blocks: The blocks.
        hooks: Hooks of their modules. With any hook, the modules have to be called.
    """

    def __init__(self, blocks: list[PlainBlock], hooks: list[dict[int, Any]]):
        self.blocks = blocks
        self.hooks = hooks

    @property
    def can_run(self) -> bool:
        """Whether no hook has to be called, and no graph is recorded."""
        return not any(self.hooks) and not torch.compiler.is_compiling()

    def run(self, x: Tensor, start: int, stop: int | None, *, causal: bool) -> Tensor:
        """Apply the blocks start:stop to x (B, N, D) without padding and without positions.

        Args:
            x: The tokens.
            start: Index of the first block.
            stop: Index after the last block. None: the number of blocks.
            causal: Each token attends only to itself and the tokens before it.
        """
        shape = x.shape[:2]
        every = slice(None)
        groups = [Group(every, every, shape, torch.arange(shape[1])[None], causal=causal)]
        x = x.flatten(0, 1)
        for block in self.blocks[start:stop]:
            x = block(x, groups)
        return x.unflatten(0, shape)


def plain_blocks(blocks: Iterable[nn.Module]) -> PlainBlocks | None:
    """Return the blocks of a backbone; None if one has further parts."""
    plain: list[PlainBlock] = []
    hooks: list[dict[int, Any]] = []
    for block in blocks:
        made = _plain_block(block)
        if made is None:
            return None
        plain.append(made)
        for module in block.modules():
            hooks += [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks]
    return PlainBlocks(plain, hooks)


def _plain_block(block: Any) -> PlainBlock | None:
    # Only these classes themselves: a subclass may compute something else.
    parts = (block, Block), (block.attn, Attention), (block.mlp, Mlp)
    if any(type(module) is not kind for module, kind in parts):
        return None
    attn, mlp = block.attn, block.mlp
    rest = [block.attn_out, block.mlp_out, attn.q_norm, attn.k_norm]
    has_cross = block.cross is not None
    if has_cross:
        rest.append(block.cross_out)
    if attn.score is not None or any(type(module) is not nn.Identity for module in rest):
        return None
    return PlainBlock(
        block.pre_norm,
        attn.heads,
        attn_norm=_function(block.attn_norm),
        qkv=_function(attn.qkv),
        proj=_function(attn.proj),
        cross_norm=_function(block.cross_norm if has_cross else nn.Identity()),
        cross=partial(block.attend_to_memory, block.cross) if has_cross else None,
        mlp_norm=_function(block.mlp_norm),
        gated=mlp.gated,
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
