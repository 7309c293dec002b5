"""One transformer for every modality."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dxn.models.attention import BackbonePosition, Cache, Memory, alibi_slopes, attention_bias, rotation_angles
from dxn.models.blocks import Block, MlpKind, NormKind, make_norm
from dxn.models.scores import ScoreKind
from dxn.tokens import Tokens


class Backbone(nn.Module):
    """A stack of blocks, Tokens to Tokens.

    Args:
        dim: width D of a token.
        depth: number of blocks; with none a decoder reads the adapters' tokens themselves.
        num_heads: heads of each attention.
        mlp_ratio: width of the mlp's middle, in units of dim.
        mlp: gelu, gelu_tanh or quick_gelu (two approximations of it), or gated: swiglu, geglu.
        norm: layer or rms.
        norm_eps: added to the variance in every norm.
        norm_first: norm before each branch (pre-norm), or after each sum (post-norm).
        first_norm: of pre-norm, the very first; leave it out where the adapters' tokens are normed already.
        final_norm: of pre-norm, the one after the last block.
        bias: give the linears and norms a bias.
        qk_norm: norm each head's queries and keys.
        score: how alike a query and a key are: scaled_dot, dot, cosine, additive (a small network) or bilinear.
        layer_scale: what a learned factor of each feature of each branch starts from; none unless given.
        position: none (the adapters add positions), rotary or alibi.
        rotary_base: wavelengths of the rotary positions rise to this times 2 pi tokens.
        window: a token reads those up to so many tokens away; all unless given.
        global_every: with a window, the first block and every so-manieth after it read all; none unless given.
        window_base: rotary_base of the blocks with a window, the same unless given.
        causal: a token reads only those before it.
        cross: between its attention and its mlp each block reads a memory, another sequence: a decoder.
        dropout: of each branch and the mlp's middle, in training.
        attn_dropout: of the attention weights, in training.
        mlp_dropout: of the mlp's middle, as dropout unless given.
        drop_path: probability that the last block's branches are left out; it grows linearly from 0.
        checkpointing: forget the blocks' inner results and compute them again backwards: slower, smaller.
    """

    def __init__(
        self,
        dim: int = 128,
        *,
        depth: int = 4,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        mlp: MlpKind = "gelu",
        norm: NormKind = "layer",
        norm_eps: float = 1e-5,
        norm_first: bool = True,
        first_norm: bool = True,
        final_norm: bool = True,
        bias: bool = True,
        qk_norm: bool = False,
        score: ScoreKind = "scaled_dot",
        layer_scale: float | None = None,
        position: BackbonePosition = "none",
        rotary_base: float = 10000.0,
        window: int | None = None,
        global_every: int | None = None,
        window_base: float | None = None,
        causal: bool = False,
        cross: bool = False,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
        mlp_dropout: float | None = None,
        drop_path: float = 0.0,
        checkpointing: bool = False,
    ):
        super().__init__()
        self.dim, self.causal, self.cross, self.checkpointing = dim, causal, cross, checkpointing
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}")
        if (window is not None and window < 1) or (global_every is not None and global_every < 1):
            raise ValueError(f"window and global_every must be at least 1, got {window} and {global_every}")
        if position not in ("none", "rotary", "alibi"):
            raise ValueError(f"position must be none, rotary or alibi, got {position!r}")
        slopes = alibi_slopes(num_heads) if position == "alibi" else None
        self.slopes: Tensor | None
        self.register_buffer("slopes", slopes, persistent=False)
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.blocks = nn.ModuleList(
            Block(
                dim,
                num_heads=num_heads,
                mlp_ratio=mlp_ratio,
                mlp=mlp,
                norm=norm,
                norm_eps=norm_eps,
                norm_first=norm_first,
                bias=bias,
                qk_norm=qk_norm,
                score=score,
                layer_scale=layer_scale,
                cross=cross,
                dropout=dropout,
                attn_dropout=attn_dropout,
                mlp_dropout=mlp_dropout,
                drop_path=rate,
            )
            for rate in rates
        )
        if position == "rotary" and (dim // num_heads) % 2:
            raise ValueError(f"rotary positions need an even dim / num_heads, got {dim} / {num_heads}")
        self.head_dim = dim // num_heads if position == "rotary" else None
        self.windows = [None if global_every and i % global_every == 0 else window for i in range(depth)]
        self.rotary_base, self.window_base = rotary_base, window_base or rotary_base
        if norm_first and not first_norm and depth:
            self.blocks[0].attn_norm = nn.Identity()
        last = norm_first and final_norm
        self.norm = make_norm(norm, dim, eps=norm_eps, bias=bias) if last else nn.Identity()
        self._init_weights((3 if cross else 2) * max(depth, 1))

    def forward(self, tokens: Tokens) -> Tokens:
        """Tokens (B, N, D) to Tokens of the same columns."""
        return tokens.with_x(self.norm(self.run(tokens.x, tokens.mask)))

    def run(
        self,
        x: Tensor,
        mask: Tensor,
        start: int = 0,
        stop: int | None = None,
        *,
        memory: Memory | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """The blocks start:stop alone, without the last norm: x (B, N, D) and mask (B, N) to (B, N, D).

        memory: what blocks with cross read. With caches, one a block, x holds only the newest tokens (B, n, D) of
        the sequence that mask (B, N) is of.
        """
        if self.cross != (memory is not None):
            raise ValueError("a memory is what blocks with cross read: give both or none")
        new = x.shape[1]
        seen = {w: self._sight(mask, w, new) for w in set(self.windows[start:stop])}
        for i, block in enumerate(self.blocks[start:stop]):
            sight = seen[self.windows[start + i]]
            if self.checkpointing and self.training:
                x = checkpoint(block, x, *sight, memory, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
            else:
                x = block(x, *sight, memory, caches[start + i] if caches is not None else None)
        return x

    def _sight(self, mask: Tensor, window: int | None, new: int) -> tuple[Tensor | None, Tensor | None]:
        """The bias and the rotation of the blocks with this window, for the newest tokens of a sequence."""
        bias = attention_bias(mask, causal=self.causal, slopes=self.slopes, window=window)
        if bias is not None and bias.shape[2] > new:
            bias = bias[:, :, -new:]
        if self.head_dim is None:
            return bias, None
        base = self.rotary_base if window is None else self.window_base
        return bias, rotation_angles(mask, self.head_dim, base)[:, :, -new:]

    def _init_weights(self, branches: int) -> None:
        """Normal of deviation 1 / sqrt(inputs), so that width changes no scale, and less, by the number of
        branches, for what adds to the residual stream (GPT-2, 2.3)."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                last = name.endswith(("attn.proj", "cross.proj", "mlp.down"))
                std = module.in_features**-0.5
                nn.init.trunc_normal_(module.weight, std=std / branches**0.5 if last else std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
