"""The transformer, which processes the tokens of all inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dxn.core.dropout import Keys, Rate
from dxn.core.parts import Recorded
from dxn.core.tokens import Tokens, can_read, is_full, matmul_dtype
from dxn.models.attention import Attention, Group, head_sizes
from dxn.models.blocks import Block, BlockOptions, Mlp, NormOptions, PositionOptions, make_norm
from dxn.models.positions import as_offsets, last_index, make_attn_mask, rope_factors, token_index

if TYPE_CHECKING:
    from dxn.models.decoding.decoder import KVCache, Memory
    from dxn.models.packing import Packing
    from dxn.models.plain_blocks import PlainBlocks

DEFAULT_RATIO = 4.0
PLAIN = ("scaled_dot", None, None)  # the score, its scale and its soft cap


class Backbone(Recorded, nn.Module):
    """A stack of transformer blocks that transforms Tokens.

    Args:
        dim: Width D of a token.
        depth: Number of blocks. With 0 blocks, only the final norm is applied.
        num_heads: Number of attention heads.
        mlp_ratio: Width of the hidden layer of each MLP, as a multiple of dim. A gated MLP has two
            thirds of it.
        dropout: Dropout probability of the output of each residual branch, and inside the MLP.
        drop_path: Probability that a residual branch of the last block is dropped for a sample
            (stochastic depth). It increases linearly from 0 in the first block.
        causal: Let each token attend only to itself and the tokens before it.
        cross: Add a cross-attention to each block, as in the decoder of a transformer.
        block: Options of the attention and the MLP of all blocks.
        norm: Options of the norms.
        position: Options of the positions in the attention, and of attention windows.
        activation_checkpointing: Recompute activations in the backward pass. This reduces memory
            but increases training time.
    """

    def __init__(
        self,
        dim: int = 128,
        *,
        depth: Annotated[int, Ge(0)] = 4,
        num_heads: Annotated[int, Ge(1)] = 4,
        mlp_ratio: Annotated[float, Gt(0)] = DEFAULT_RATIO,
        dropout: Rate = 0.0,
        drop_path: Rate = 0.0,
        causal: bool = False,
        cross: bool = False,
        block: BlockOptions = BlockOptions(),
        norm: NormOptions = NormOptions(),
        position: PositionOptions = PositionOptions(),
        activation_checkpointing: bool = False,
    ):
        super().__init__()
        if block.hidden_dim is not None and mlp_ratio != DEFAULT_RATIO:
            raise ValueError(
                f"mlp_ratio has no effect with block.hidden_dim, got {mlp_ratio} and "
                f"{block.hidden_dim}: leave one of them out"
            )
        self.dim = dim
        self.num_heads = num_heads
        # Whether the scores are scaled dot products, the only ones of some kernels.
        self.is_plain = (block.score, block.score_scale, block.score_softcap) == PLAIN
        self.attn_dropout = block.attn_dropout
        # Whether there is a dropout outside of the attention weights.
        self.drops = max(dropout, drop_path, block.mlp_dropout or 0.0) > 0
        self.causal = causal
        self.cross = cross
        self.activation_checkpointing = activation_checkpointing
        # Remove padding before the blocks, if there is enough of it, see dxn.models.packing.
        self.packed = not position.gaps
        # Set by `prepare`.
        self.plain: PlainBlocks | None = None
        # What is added to the scores of all blocks, as a function of the distance of two tokens.
        self.bias: nn.Module | None = None
        if position.kind == "alibi":
            from dxn.models.layers import Alibi

            self.bias = Alibi(num_heads)
        elif position.kind == "buckets":
            from dxn.models.layers import BucketBias

            self.bias = BucketBias(
                num_heads, position.num_buckets, position.max_distance, causal=causal
            )
        make = partial(
            make_norm, norm.kind, eps=norm.eps, bias=block.bias, unit_offset=norm.unit_offset
        )
        attention: dict[str, Any] = {
            "num_heads": num_heads,
            "num_kv_heads": block.num_kv_heads,
            "head_dim": block.head_dim,
            "dropout": block.attn_dropout,
            "bias": block.bias,
            "qkv_bias": block.qkv_bias,
            "score": block.score,
            "score_scale": block.score_scale,
            "score_softcap": block.score_softcap,
        }
        make_cross = None
        if cross:
            from dxn.models.cross_attention import CrossAttention

            make_cross = partial(CrossAttention, dim, **attention)
        mlp_dropout = dropout if block.mlp_dropout is None else block.mlp_dropout
        self.blocks = nn.ModuleList(
            Block(
                dim,
                attn=Attention(
                    dim,
                    norm=make if block.qk_norm else None,
                    norm_all=block.qk_norm == "all",
                    **attention,
                ),
                cross=None if make_cross is None else make_cross(),
                mlp=Mlp(
                    dim,
                    mlp_ratio=mlp_ratio,
                    hidden_dim=block.hidden_dim,
                    mlp=block.mlp,
                    dropout=mlp_dropout,
                    bias=block.bias,
                ),
                norm=make,
                norm_place=norm.place,
                layer_scale=block.layer_scale,
                dropout=dropout,
                drop_path=rate,
            )
            # Stochastic depth with linear decay (arXiv:1603.09382, section 3).
            for rate in torch.linspace(0, drop_path, depth).tolist()
        )
        _, self.head_dim = head_sizes(dim, num_heads, block.num_kv_heads, block.head_dim)
        self.position = position
        is_rotary = position.kind == "rotary"
        # Number of rotated features of a head.
        self.rotary_dim = int(self.head_dim * position.rope_share)
        if is_rotary and (self.rotary_dim % 2 or not self.rotary_dim):
            raise ValueError(
                f"rotary positions need an even number of rotated features of a head, got "
                f"{self.rotary_dim} of {self.head_dim}: set block.head_dim or position.rope_share"
            )
        scaling = position.rope_scaling
        if scaling.upper <= scaling.low:
            raise ValueError(
                f"position.rope_scaling.high must be above low, got {scaling.upper} and "
                f"{scaling.low}"
            )
        if scaling.kind == "yarn" and position.rope_theta <= 1:
            raise ValueError(f"position.rope_theta must be above 1, got {position.rope_theta}")
        windows = [*position.windows] or [None]
        rotates = [*position.rope_blocks] or [True]
        # Size of the window of each block, None for full attention, and whether it uses rotary
        # positions.
        self.limits = [
            (windows[layer % len(windows)], is_rotary and rotates[layer % len(rotates)])
            for layer in range(depth)
        ]
        # Whether the attention depends on the positions of the tokens.
        self.uses_positions = position.kind != "none" or any(window for window, _ in self.limits)
        # Removed here, because an option of Block would serve only the first block.
        pre_norm = norm.place != "post"
        if pre_norm and not norm.input_norm and depth:
            self.blocks[0].attn_norm = nn.Identity()
        # With post-norm, the last block already ends with a norm.
        self.norm = nn.Identity()
        if pre_norm and norm.final_norm:
            self.norm = make(dim)
        self._init_weights(num_branches=(3 if cross else 2) * max(depth, 1))

    def prepare(self) -> None:
        """Compute the blocks without calls of their modules, in a model that is only used.

        Call it after the last change of a layer.
        """
        from dxn.models.plain_blocks import plain_blocks  # a training does not need it

        if not self.training:
            self.plain = plain_blocks(self.blocks)

    def forward(self, tokens: Tokens) -> Tokens:
        """Apply all blocks and the final norm to Tokens (B, N, D)."""
        return tokens.with_x(self.norm(self.run(tokens.x, tokens.mask, num_real=tokens.num_real)))

    def run(
        self,
        x: Tensor,
        mask: Tensor,
        start: int = 0,
        stop: int | None = None,
        *,
        num_real: int | None = None,
        memory: Memory | None = None,
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Apply the blocks start:stop without the final norm.

        Args:
            x: (B, N, D). With caches, only the new tokens (B, n, D).
            mask: (B, N) bool. True at the real tokens of the whole sequence. With caches that have
                tokens, see `StepDecoder.forward`.
            start: Index of the first block.
            stop: Index after the last block. Default: the number of blocks.
            num_real: Number of real tokens of all samples, see `Tokens`.
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
        has_no_padding = is_full(mask, num_real)
        plain = None if self.training or self.plain is None else self.plain
        if plain is not None and not plain.can_run:
            plain = None
        needs_groups = self.uses_positions or memory is not None or caches is not None
        if plain is not None and has_no_padding and not needs_groups:
            return plain.run(x, start, stop, causal=self.causal)
        packing = None
        # Generation has no padding to remove, and few tokens.
        if self.packed and caches is None and not has_no_padding:
            packing = self._packing(x, mask, num_real, memory)
        drops = self.training and self.drops
        shape = x.shape[:2]
        if packing is None:
            x = x.flatten(0, 1)
            keys = Keys.of_mask(mask, torch.arange(len(x), device=x.device)) if drops else None
            positions = torch.arange(shape[1], device=x.device)[None]
            is_whole = has_no_padding and shape[1] == mask.shape[1]
            cells = None
            if caches and not caches[0].is_empty:
                positions = last_index(mask, shape[1])
                # A CPU writes the same columns of all rows faster.
                if can_read(mask) and bool((mask == mask[:1]).all()):
                    mask, positions = mask[:1], positions[:1]
                    cells = slice(None), slice(int(positions[0, 0]), int(positions[0, -1]) + 1)
                else:
                    cells = torch.arange(shape[0], device=x.device)[:, None], positions
            elif self.uses_positions and not is_whole and not self.position.gaps:
                positions = token_index(mask)
            every = slice(None)
            real = None if is_whole else mask
            groups = [Group(every, every, shape, positions, real, cells)]
        else:
            x = packing.pack(x)
            keys = Keys.of_mask(mask, packing.index) if drops else None
            if memory is not None:
                memory = packing.select(memory)
            groups = packing.groups()
        # See `_limited`.
        if memory is not None and memory.attn_mask is not None:
            memory = replace(memory, attn_mask=as_offsets(memory.attn_mask, x))
        # Once for all blocks with the same limits.
        by_limits = {
            limits: [self._limited(group, *limits, x) for group in groups]
            for limits in set(self.limits[start:stop])
        }
        # A slice of a ModuleList would register all modules of a new one.
        blocks = list(self.blocks) if plain is None or packing is not None else plain.blocks
        for layer, block in enumerate(blocks[start:stop], start):
            groups = by_limits[self.limits[layer]]
            cache = caches[layer] if caches is not None else None
            # Checkpointing needs no cache: caches are used only for generation, not for training.
            if self.activation_checkpointing and self.training:
                x = checkpoint(block, x, groups, memory, None, keys, use_reentrant=False)  # pyright: ignore
            else:
                x = block(x, groups, memory, cache, keys)
        return x.unflatten(0, shape) if packing is None else packing.unpack(x)

    def _packing(
        self, x: Tensor, mask: Tensor, num_real: int | None, memory: Memory | None
    ) -> Packing | None:
        """Return how the padding of x (B, N, D) is removed. None: it is not."""
        from dxn.models.packing import GroupPacking, SequencePacking, has_kernel

        # The kernel has no scores but the scaled dot product, no offsets and no dropout.
        drops = self.training and self.attn_dropout > 0
        is_plain = self.is_plain and self.bias is None
        if is_plain and not drops and has_kernel(x, self.head_dim):
            return SequencePacking.of(mask, num_real, memory)
        # Groups depend on the lengths.
        return GroupPacking.of(mask) if can_read(mask) else None

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Keep padding inside of the context: each block gets one group with all samples."""
        before, self.packed = self.packed, False
        try:
            yield
        finally:
            self.packed = before

    def _limited(self, group: Group, window: int | None, rotates: bool, x: Tensor) -> Group:
        """Return a group of x with the attention mask and rotary positions of some blocks."""
        rope = None
        if rotates:
            options = self.position
            theta, scaling = options.rope_theta, options.rope_scaling
            if window is not None and options.window_rope_theta is not None:
                theta, scaling = options.window_rope_theta, None
            factors = rope_factors(group.positions, self.rotary_dim, theta, scaling)
            # Converted here, they are not converted by each block.
            rope = factors[0].to(matmul_dtype(x)), factors[1].to(matmul_dtype(x))
        if group.sequences is not None:
            limited = replace(group.sequences, causal=self.causal, window=window)
            return replace(group, sequences=limited, rope=rope)
        # The padding of a packed group is at the end, where no earlier token can attend to it.
        is_whole = group.mask is None or (self.causal and group.index is not None)
        if is_whole and window is None and self.bias is None:
            # Without a mask, torch can choose its fastest kernel.
            return replace(group, causal=self.causal, rope=rope)
        num_tokens = group.shape[1]
        mask = group.mask
        if mask is None:
            mask = torch.ones(1, num_tokens, dtype=torch.bool, device=group.positions.device)
        attn_mask = make_attn_mask(
            mask,
            queries=group.positions,
            causal=self.causal,
            bias=self.bias,
            window=window,
            gaps=self.position.gaps,
        )
        # The kernels add a mask, so it is converted here, too.
        if attn_mask is not None:
            attn_mask = as_offsets(attn_mask, x)
        return replace(group, attn_mask=attn_mask, rope=rope)

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
