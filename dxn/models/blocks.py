"""The transformer block and its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from dxn.core.dropout import Dropout, Keys, Rate
from dxn.core.schema import checked, options
from dxn.models import compiling
from dxn.models.attention import Attention, Group, ScoreKind

if TYPE_CHECKING:
    from dxn.models.cross_attention import CrossAttention
    from dxn.models.decoding.decoder import KVCache, Memory

NormKind = Literal["layer", "rms"]
NormPlace = Literal["pre", "post", "both", "out"]
MlpKind = Literal[
    "gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "swiglu", "geglu", "geglu_tanh"
]
BackbonePosition = Literal["none", "rotary", "alibi", "buckets"]
RopeScalingKind = Literal["none", "linear", "llama3", "yarn"]
GATED = ("swiglu", "geglu", "geglu_tanh")


@options
class BlockOptions:
    """Options of the attention and the MLP of all blocks.

    Args:
        mlp: Activation of the MLP: gelu, its approximations gelu_tanh and quick_gelu, relu, silu,
            or the gated swiglu, geglu and geglu_tanh.
        hidden_dim: Width of the hidden layer of the MLP. Default: mlp_ratio times the width of a
            token, and two thirds of it for a gated MLP, which keeps the number of parameters.
        num_kv_heads: Number of heads of the keys and values, each for several heads of the queries
            (grouped-query attention, arXiv:2305.13245). Default: num_heads.
        head_dim: Width of a head. Default: the width of a token divided by num_heads.
        bias: Add a bias to the linear layers and the norms.
        qkv_bias: Add a bias to the layers of queries, keys and values. Default: bias.
        qk_norm: Normalize the queries and keys: those of each head if it is true
            (arXiv:2302.05442, section 2), or those of all heads together (all).
        score: Attention score of a query and a key: scaled_dot, dot, cosine, additive or bilinear.
        score_scale: Factor of the dot product, for score=scaled_dot. Default: 1 / sqrt(head_dim).
        score_softcap: Limit c of the scores s, which become c tanh(s / c) (arXiv:2408.00118,
            section 2). Default: no limit.
        layer_scale: Initial value of learned factors for the features of each residual branch
            (LayerScale, arXiv:2103.17239). Default: no such factors.
        attn_dropout: Dropout probability of the attention weights.
        mlp_dropout: Dropout probability inside the MLP. Default: the `dropout` of the backbone.
    """

    mlp: MlpKind = "gelu"
    hidden_dim: Annotated[int, Ge(1)] | None = None
    num_kv_heads: Annotated[int, Ge(1)] | None = None
    head_dim: Annotated[int, Ge(1)] | None = None
    bias: bool = True
    qkv_bias: bool | None = None
    qk_norm: bool | Literal["all"] = False
    score: ScoreKind = "scaled_dot"
    score_scale: Annotated[float, Gt(0)] | None = None
    score_softcap: Annotated[float, Gt(0)] | None = None
    layer_scale: float | None = None
    attn_dropout: Rate = 0.0
    mlp_dropout: Rate | None = None


@options
class NormOptions:
    """Options of the norms of a backbone.

    Args:
        kind: Kind of the norm: layer (arXiv:1607.06450) or rms (arXiv:1910.07467).
        eps: Constant added to the variance.
        place: What is normalized: the input of each residual branch (pre), the sum of the input and
            the branch (post), the input and the output of each branch (both), or its output (out).
        input_norm: Normalize the input of the first block, unless place is post. Set it to false if
            the adapters already normalize their tokens.
        final_norm: Normalize the output of the last block, unless place is post.
        unit_offset: Multiply by one plus the weight, for kind=rms, as in Gemma.
    """

    kind: NormKind = "layer"
    eps: Annotated[float, Gt(0)] = 1e-5
    place: NormPlace = "pre"
    input_norm: bool = True
    final_norm: bool = True
    unit_offset: bool = False


@options
class RopeScaling:
    """Options of the rotary frequencies of a model that was extended to long sequences.

    Args:
        kind: How the frequencies are reduced: none, linear (all of them, arXiv:2306.15595), or
            llama3 and yarn (arXiv:2309.00071): only those with few rotations in original_len
            tokens.
        factor: Divisor of the frequencies.
        original_len: Maximum number of tokens before the extension, for llama3 and yarn.
        low: Number of rotations up to which frequencies are divided by the factor, for llama3 and
            yarn.
        high: Number of rotations from which frequencies do not change. Default: 4 for llama3, 32
            for yarn.
        attn_factor: Factor of the rotated queries and keys, for yarn. Default: 0.1 ln(factor) + 1.
    """

    kind: RopeScalingKind = "none"
    factor: Annotated[float, Ge(1)] = 1.0
    original_len: Annotated[int, Ge(1)] = 8192
    low: Annotated[float, Gt(0)] = 1.0
    high: Annotated[float, Gt(0)] | None = None
    attn_factor: Annotated[float, Gt(0)] | None = None

    @property
    def upper(self) -> float:
        """The option `high`, or its default."""
        default = {"llama3": 4.0, "yarn": 32.0}.get(self.kind, math.inf)
        return default if self.high is None else self.high


@options
class PositionOptions:
    """Options of the positions in the attention, and of attention windows.

    Args:
        kind: Kind of the positions: rotary (arXiv:2104.09864), alibi (arXiv:2108.12409), buckets (a
            learned bias per head and range of distances, which all blocks share,
            arXiv:1910.10683, section 2.1) or none (only the adapters add position embeddings).
        rope_theta: Base of the rotary frequencies. The longest wavelength is about
            2 pi * rope_theta tokens.
        rope_scaling: Change of the rotary frequencies for long sequences.
        rope_share: Share of the features of a head that are rotated: the first ones.
        rope_blocks: Whether each block uses rotary positions. The list is repeated over the blocks.
            Default: all blocks use them.
        windows: Maximum distance in tokens between a query and a key, in each block; null for full
            attention. The list is repeated over the blocks. Default: full attention in all blocks.
        window_rope_theta: Value of rope_theta in blocks with a window, whose frequencies are then
            not scaled. Default: blocks with a window have the frequencies of the others.
        num_buckets: Number of ranges of distances, with kind=buckets.
        max_distance: Distance from which all distances are in the same range, with kind=buckets.
        gaps: Count padding in front of a token in its position, as for patches of a series without
            any value. Default: only real tokens count.
    """

    kind: BackbonePosition = "none"
    rope_theta: Annotated[float, Gt(0)] = 10000.0
    rope_scaling: RopeScaling = RopeScaling()
    rope_share: Annotated[float, Gt(0), Le(1)] = 1.0
    rope_blocks: Sequence[bool] = ()
    windows: Sequence[Annotated[int, Ge(1)] | None] = ()
    window_rope_theta: Annotated[float, Gt(0)] | None = None
    num_buckets: Annotated[int, Ge(4)] = 32
    max_distance: Annotated[int, Ge(1)] = 128
    gaps: bool = False


def quick_gelu(x: Tensor) -> Tensor:
    """Return the sigmoid approximation of GELU (arXiv:1606.08415, section 2)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
}


def make_norm(
    kind: NormKind,
    dim: int,
    *,
    eps: float = 1e-5,
    bias: bool = True,
    unit_offset: bool = False,
) -> nn.Module:
    """Create a layer norm (arXiv:1607.06450) or an RMS norm (arXiv:1910.07467) of width D.

    An RMS norm has no bias, whatever `bias` is, and only an RMS norm has a unit_offset.
    """
    if kind == "layer":
        return nn.LayerNorm(dim, eps=eps, bias=bias)
    from dxn.models.layers import RMSNorm

    return RMSNorm(dim, eps=eps, unit_offset=unit_offset)


class Mlp(nn.Module):
    """A network of two linear layers, applied to each token separately.

    Args:
        dim: Width D of a token.
        mlp_ratio: Width of the hidden layer, as a multiple of dim. A gated MLP has two thirds of
            it.
        hidden_dim: Width of the hidden layer. Default: it follows from mlp_ratio.
        mlp: Activation: gelu (arXiv:1606.08415), its approximations gelu_tanh and quick_gelu, relu,
            silu, or the gated swiglu, geglu and geglu_tanh (arXiv:2002.05202).
        dropout: Dropout probability of the hidden layer.
        bias: Add a bias to the linear layers.
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        mlp_ratio: float = 4.0,
        hidden_dim: int | None = None,
        mlp: MlpKind = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        self.gated = mlp in GATED
        self.act = ACTIVATIONS[mlp]
        if hidden_dim is None:
            # A gated MLP has three matrices instead of two, so two thirds of the width keep the
            # number of parameters. 1e-6 corrects rounding errors: int(60 * 4.1 * (2 / 3)) is 163.
            hidden_dim = int(dim * mlp_ratio * (2 / 3 if self.gated else 1) + 1e-6)
        if hidden_dim < 1:
            raise ValueError(
                f"mlp_ratio: the hidden layer must have at least one feature, got {mlp_ratio} for "
                f"dim={dim}"
            )
        self.up = nn.Linear(dim, hidden_dim * (2 if self.gated else 1), bias=bias)
        self.down = nn.Linear(hidden_dim, dim, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, keys: Keys | None = None) -> Tensor:
        """Apply the network to x (..., D). `keys` are those of the dropout."""
        # One matrix product computes both the value and the gate.
        x = self.up(x)
        if self.gated:
            x, gate = x.chunk(2, -1)
            x = x * self.act(gate)
        else:
            x = self.act(x)
        return self.down(self.dropout(x, keys) if self.training else x)


class Block(nn.Module):
    """Residual branches: self-attention, optional cross-attention, and an MLP.

    Args:
        dim: Width D of a token.
        attn: Self-attention.
        mlp: Network that is applied to each token separately.
        cross: Cross-attention to a memory. Default: no cross-attention.
        norm: Creates a norm of a given width.
        norm_place: What is normalized, see `NormOptions`.
        layer_scale: Initial value of the learned factors of `attn` and `mlp`, see `LayerScale`.
            Default: no such factors.
        dropout: Dropout probability of the output of each branch.
        drop_path: Probability that a branch is dropped for a sample.
    """

    def __init__(
        self,
        dim: int,
        *,
        attn: Attention,
        mlp: nn.Module,
        cross: CrossAttention | None = None,
        norm: Callable[[int], nn.Module],
        norm_place: NormPlace = "pre",
        layer_scale: float | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        # The order of these attributes is the order of the weights in a checkpoint.
        self.pre_norm = norm_place != "post"
        has_first, has_out = norm_place != "out", norm_place in ("both", "out")
        self.attn_norm = norm(dim) if has_first else nn.Identity()
        self.attn = attn
        # What is applied to the output of each branch.
        self.attn_out: nn.Module = nn.Identity()
        self.cross = None
        if cross is not None:
            self.cross_norm = norm(dim) if has_first else nn.Identity()
            self.cross = cross
            self.cross_out = norm(dim) if has_out else nn.Identity()
            self.cross_out_dropout = Dropout(dropout, drop_path)
        self.mlp_norm = norm(dim) if has_first else nn.Identity()
        self.mlp = mlp
        self.mlp_out: nn.Module = nn.Identity()
        if layer_scale is not None:
            from dxn.models.layers import LayerScale

            self.attn_out = LayerScale(dim, layer_scale)
            self.mlp_out = LayerScale(dim, layer_scale)
        if has_out:
            self.attn_out = with_norm(norm(dim), self.attn_out)
            self.mlp_out = with_norm(norm(dim), self.mlp_out)
        self.attn_out_dropout = Dropout(dropout, drop_path)
        self.mlp_out_dropout = Dropout(dropout, drop_path)
        # Whether torch.compile is used, see dxn.models.compiling.
        self.compiled = False

    def forward(
        self,
        x: Tensor,
        groups: Sequence[Group],
        memory: Memory | None = None,
        cache: KVCache | None = None,
        keys: Keys | None = None,
    ) -> Tensor:
        """Apply all branches.

        Args:
            x: (T, D). Tokens of all samples.
            groups: Groups of samples that together have all tokens. With a cache, one group.
            memory: Sequence to which `cross` attends. Required if the block has a `cross`.
            cache: See `Attention.forward`.
            keys: Keys of the T tokens for dropout.

        Returns:
            A tensor of the shape of x.
        """
        # Pre-norm: arXiv:2002.04745, figure 1b. Post-norm: arXiv:1706.03762, section 3.1.
        branch = self.attn(self.attn_norm(x) if self.pre_norm else x, groups, cache)
        branch = self.attn_out(branch)
        if self.cross is not None:
            x = x + (self.attn_out_dropout(branch, keys) if self.training else branch)
            x = x if self.pre_norm else self.attn_norm(x)
            query = self.cross_norm(x) if self.pre_norm else x
            branch = self.cross_out(self.attend_to_memory(self.cross, query, groups, memory, cache))
        if self.compiled:
            return compiling.call(Block.finish, self, x, branch, keys)
        return self.finish(x, branch, keys)

    def finish(self, x: Tensor, branch: Tensor, keys: Keys | None = None) -> Tensor:
        """Apply what comes after the last attention. It processes each token separately.

        Args:
            x: (T, D). Tokens of all samples.
            branch: (T, D). Scaled output of the last attention.
            keys: Keys of the T tokens for dropout.
        """
        # Without the condition, a model that is used would need a tenth of the time of a short text
        # for the calls of dropouts.
        dropout = self.attn_out_dropout if self.cross is None else self.cross_out_dropout
        x = x + (dropout(branch, keys) if self.training else branch)
        if not self.pre_norm:
            x = self.attn_norm(x) if self.cross is None else self.cross_norm(x)
        branch = self.mlp_out(self.mlp(self.mlp_norm(x) if self.pre_norm else x, keys))
        x = x + (self.mlp_out_dropout(branch, keys) if self.training else branch)
        return x if self.pre_norm else self.mlp_norm(x)

    def attend_to_memory(
        self,
        cross: CrossAttention,
        x: Tensor,
        groups: Sequence[Group],
        memory: Memory | None,
        cache: KVCache | None,
    ) -> Tensor:
        """Apply the cross-attention to x (T, D)."""
        assert memory is not None  # Backbone.run checks it
        if cache is None:
            return cross(x, groups, cross.keys_and_values(memory.x), memory.attn_mask)
        # The memory does not change during generation, so its keys and values are computed once.
        if cache.memory is None:
            key, value = cross.keys_and_values(memory.x)
            # Contiguous, because otherwise every step would copy them.
            cache.memory = key.contiguous(), value.contiguous()
        return cross(x, groups, cache.memory, memory.attn_mask)


def with_norm(norm: nn.Module, out: nn.Module) -> nn.Module:
    """Return a norm, followed by the factors `out` if there are any."""
    return norm if isinstance(out, nn.Identity) else nn.Sequential(norm, out)


def set_compiled(model: nn.Module, on: bool) -> None:
    """Use torch.compile in all blocks of a model, or stop to use it."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compiled = on
