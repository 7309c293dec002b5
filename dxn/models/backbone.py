"""The transformer, which processes the tokens of all inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dxn.models.attention import Attention, CrossAttention, KVCache, Memory
from dxn.models.blocks import Block, Mlp, make_norm
from dxn.models.options import BlockOptions, NormOptions, PositionOptions
from dxn.models.positions import alibi_slopes, make_attn_mask, rope_angles
from dxn.tokens import Tokens


class Backbone(nn.Module):
    """A stack of transformer blocks that transforms Tokens.

    Args:
        dim: Width D of a token.
        depth: Number of blocks. With 0 blocks, only the final norm is applied.
        num_heads: Number of attention heads.
        mlp_ratio: Width of the hidden layer of each MLP, as a multiple of dim.
        dropout: Dropout probability of the output of each residual branch, and inside the MLP.
        drop_path: Probability that a residual branch of the last block is dropped for a sample
            (stochastic depth). It increases linearly from 0 in the first block.
        causal: Let each token attend only to itself and the tokens before it.
        cross: Add a cross-attention to each block, as in the decoder of a transformer.
        block: Options of the attention and the MLP of all blocks.
        norm: Options of the norms.
        position: Options of rotary and ALiBi positions and of attention windows.
        activation_checkpointing: Recompute activations in the backward pass. This reduces memory
            but increases training time.
    """

    slopes: Tensor | None

    def __init__(
        self,
        dim: int = 128,
        *,
        depth: int = 4,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        causal: bool = False,
        cross: bool = False,
        block: BlockOptions = BlockOptions(),
        norm: NormOptions = NormOptions(),
        position: PositionOptions = PositionOptions(),
        activation_checkpointing: bool = False,
    ):
        super().__init__()
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}")
        self.dim = dim
        self.causal = causal
        self.cross = cross
        self.activation_checkpointing = activation_checkpointing
        slopes = alibi_slopes(num_heads) if position.kind == "alibi" else None
        # Not persistent, because the slopes can be computed from num_heads.
        self.register_buffer("slopes", slopes, persistent=False)
        make_block = partial(
            _make_block,
            dim,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            dropout=dropout,
            cross=cross,
            block=block,
            norm=norm,
        )
        # Stochastic depth with linear decay (arXiv:1603.09382, section 3).
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.blocks = nn.ModuleList(make_block(drop_path=rate) for rate in rates)
        self.head_dim = dim // num_heads if position.kind == "rotary" else None
        if self.head_dim is not None and self.head_dim % 2:
            raise ValueError(
                f"rotary positions need an even dim / num_heads, got {dim} / {num_heads}"
            )
        self.windows = [position.window_of(layer) for layer in range(depth)]
        self.rope_theta = position.rope_theta
        self.window_rope_theta = position.window_rope_theta or position.rope_theta
        # Removed here, because an option of Block would serve only the first block.
        if norm.pre_norm and not norm.input_norm and depth:
            self.blocks[0].attn_norm = nn.Identity()
        # With post-norm, the last block already ends with a norm.
        self.norm = nn.Identity()
        if norm.pre_norm and norm.final_norm:
            self.norm = make_norm(norm.kind, dim, eps=norm.eps, bias=block.bias)
        self._init_weights(num_branches=(3 if cross else 2) * max(depth, 1))

    def forward(self, tokens: Tokens) -> Tokens:
        """Apply all blocks and the final norm to Tokens (B, N, D)."""
        return tokens.with_x(self.norm(self.run(tokens.x, tokens.mask)))

    def run(
        self,
        x: Tensor,
        mask: Tensor,
        start: int = 0,
        stop: int | None = None,
        *,
        memory: Memory | None = None,
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Apply the blocks start:stop without the final norm.

        Args:
            x: (B, N, D). With caches, only the new tokens (B, n, D).
            mask: (B, N) bool. True at the real tokens of the whole sequence.
            start: Index of the first block.
            stop: Index after the last block. Default: the number of blocks.
            memory: Sequence to which the cross-attention of the blocks attends.
            caches: One `KVCache` per block of the backbone.

        Returns:
            A tensor of the shape of x.

        Raises:
            ValueError: If cross is true but memory is None, or the reverse.
        """
        if self.cross != (memory is not None):
            received = "no memory" if memory is None else "a memory"
            raise ValueError(
                "a backbone needs a memory if cross=true, and must not get one if cross=false: "
                f"got cross={self.cross} and {received}"
            )
        num_new = x.shape[1]
        # Once per window size instead of once per block, because most blocks share a window size.
        by_window = {
            window: self._mask_and_rope(mask, window, num_new)
            for window in set(self.windows[start:stop])
        }
        for layer, block in enumerate(self.blocks[start:stop], start):
            attn_mask, rope = by_window[self.windows[layer]]
            cache = caches[layer] if caches is not None else None
            # Checkpointing needs no cache: caches are used only for generation, not for training.
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, attn_mask, rope, memory, use_reentrant=False)  # pyright: ignore
            else:
                x = block(x, attn_mask, rope, memory, cache)
        return x

    def _mask_and_rope(
        self, mask: Tensor, window: int | None, num_new: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the attention mask and rotary angles of the new tokens for one window size."""
        attn_mask = make_attn_mask(mask, causal=self.causal, slopes=self.slopes, window=window)
        # A mask of one row (B, 1, 1, N) is the same for all queries, so it is not sliced.
        if attn_mask is not None and attn_mask.shape[2] > num_new:
            attn_mask = attn_mask[:, :, -num_new:]
        if self.head_dim is None:
            return attn_mask, None
        theta = self.rope_theta if window is None else self.window_rope_theta
        return attn_mask, rope_angles(mask, self.head_dim, theta)[:, :, -num_new:]

    def _init_weights(self, num_branches: int) -> None:
        """Initialize the linear layers with a normal distribution.

        The standard deviation is 1 / sqrt(in_features), so that the scale of the activations does
        not depend on the width. For the last layer of each residual branch, it is divided by
        sqrt(num_branches), so that the sum of all branches does not grow with depth (GPT-2, section
        2.3).
        """
        for name, module in self.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            std = module.in_features**-0.5
            if name.endswith(("attn.proj", "cross.proj", "mlp.down")):
                std /= num_branches**0.5
            # The default limits are -2 and 2. They are so many standard deviations that the
            # distribution is practically not truncated.
            nn.init.trunc_normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _make_block(
    dim: int,
    *,
    num_heads: int,
    mlp_ratio: float,
    dropout: float,
    drop_path: float,
    cross: bool,
    block: BlockOptions,
    norm: NormOptions,
) -> Block:
    """Build one block."""
    # The order of the parts determines the order of the random draws, and so the initial weights.
    make = partial(make_norm, norm.kind, eps=norm.eps, bias=block.bias)
    attn = Attention(
        dim,
        num_heads=num_heads,
        dropout=block.attn_dropout,
        bias=block.bias,
        norm=make if block.qk_norm else None,
        score=block.score,
    )
    cross_attn = None
    if cross:
        cross_attn = CrossAttention(
            dim,
            num_heads=num_heads,
            dropout=block.attn_dropout,
            bias=block.bias,
            score=block.score,
        )
    mlp = Mlp(
        dim,
        mlp_ratio=mlp_ratio,
        mlp=block.mlp,
        dropout=dropout if block.mlp_dropout is None else block.mlp_dropout,
        bias=block.bias,
    )
    return Block(
        dim,
        attn=attn,
        mlp=mlp,
        cross=cross_attn,
        norm=make,
        pre_norm=norm.pre_norm,
        layer_scale=block.layer_scale,
        dropout=dropout,
        drop_path=drop_path,
    )
