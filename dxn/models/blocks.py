"""The transformer block and its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from dxn.core.dropout import Dropout, DropPath, Keys, Rate
from dxn.core.schema import options
from dxn.models import compiling
from dxn.models.attention import Attention, Group, ScoreKind

if TYPE_CHECKING:
    from dxn.models.decoding.cross_attention import CrossAttention
    from dxn.models.decoding.decoder import KVCache, Memory

NormKind = Literal["layer", "rms"]
MlpKind = Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu", "geglu", "geglu_tanh"]
BackbonePosition = Literal["none", "rotary", "alibi"]
GATED = ("swiglu", "geglu", "geglu_tanh")


@options
class BlockOptions:
    """Options of the attention and the MLP of all blocks.

    Args:
        mlp: Activation of the MLP: gelu, its approximations gelu_tanh and quick_gelu, or the gated
            swiglu, geglu and geglu_tanh.
        hidden_dim: Width of the hidden layer of the MLP. Default: mlp_ratio times the width of a
            token, and two thirds of it for a gated MLP, which keeps the number of parameters.
        num_kv_heads: Number of heads of the keys and values, each for several heads of the queries
            (grouped-query attention, arXiv:2305.13245). Default: num_heads.
        head_dim: Width of a head. Default: the width of a token divided by num_heads.
        bias: Add a bias to the linear layers and the norms.
        qkv_bias: Add a bias to the layers of queries, keys and values. Default: bias.
        qk_norm: Normalize the queries and keys of each head (arXiv:2302.05442, section 2).
        score: Attention score of a query and a key: scaled_dot, dot, cosine, additive or bilinear.
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
    qk_norm: bool = False
    score: ScoreKind = "scaled_dot"
    layer_scale: float | None = None
    attn_dropout: Rate = 0.0
    mlp_dropout: Rate | None = None


@options
class NormOptions:
    """Options of the norms of a backbone.

    Args:
        kind: Kind of the norm: layer (arXiv:1607.06450) or rms (arXiv:1910.07467).
        eps: Constant added to the variance.
        pre_norm: Normalize the input of each residual branch (pre-norm). False: normalize the sum
            of the input and the branch (post-norm).
        input_norm: Normalize the input of the first block, with pre_norm=true. Set it to false if
            the adapters already normalize their tokens.
        final_norm: Normalize the output of the last block, with pre_norm=true.
    """

    kind: NormKind = "layer"
    eps: Annotated[float, Gt(0)] = 1e-5
    pre_norm: bool = True
    input_norm: bool = True
    final_norm: bool = True


@options
class PositionOptions:
    """Options of the positions in the attention, and of attention windows.

    Args:
        kind: Kind of the positions: rotary (arXiv:2104.09864), alibi (arXiv:2108.12409) or none
            (only the adapters add position embeddings).
        rope_theta: Base of the rotary frequencies. The longest wavelength is about
            2 pi * rope_theta tokens.
        window: Maximum distance in tokens between a query and a key. Default: no limit.
        global_every: Use full attention in every n-th block, starting with the first one, and the
            window in all others. Default: use the window in all blocks.
        window_rope_theta: Value of rope_theta in blocks with a window. Default: rope_theta.
    """

    kind: BackbonePosition = "none"
    rope_theta: Annotated[float, Gt(0)] = 10000.0
    window: Annotated[int, Ge(1)] | None = None
    global_every: Annotated[int, Ge(1)] | None = None
    window_rope_theta: Annotated[float, Gt(0)] | None = None


def quick_gelu(x: Tensor) -> Tensor:
    """Return the sigmoid approximation of GELU (arXiv:1606.08415, section 2)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
}


def make_norm(kind: NormKind, dim: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """Create a layer norm (arXiv:1607.06450) or an RMS norm (arXiv:1910.07467) of width D.

    An RMS norm has no bias, whatever `bias` is.
    """
    if kind == "layer":
        return nn.LayerNorm(dim, eps=eps, bias=bias)
    from dxn.models.norms import RMSNorm

    return RMSNorm(dim, eps=eps)


class Mlp(nn.Module):
    """A network of two linear layers, applied to each token separately.

    Args:
        dim: Width D of a token.
        mlp_ratio: Width of the hidden layer, as a multiple of dim. A gated MLP has two thirds of
            it.
        hidden_dim: Width of the hidden layer. Default: it follows from mlp_ratio.
        mlp: Activation: gelu (arXiv:1606.08415), its approximations gelu_tanh and quick_gelu, or
            the gated swiglu, geglu and geglu_tanh (arXiv:2002.05202).
        dropout: Dropout probability of the hidden layer.
        bias: Add a bias to the linear layers.
    """

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
        if mlp not in ACTIVATIONS:
            raise ValueError(f"mlp must be one of {', '.join(ACTIVATIONS)}, got {mlp!r}")
        self.gated = mlp in GATED
        self.act = ACTIVATIONS[mlp]
        if hidden_dim is None:
            # A gated MLP has three matrices instead of two, so two thirds of the width keep the
            # number of parameters. 1e-6 corrects rounding errors: int(60 * 4.1 * (2 / 3)) is 163.
            hidden_dim = int(dim * mlp_ratio * (2 / 3 if self.gated else 1) + 1e-6)
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
        pre_norm: Normalize the input of each branch. False: normalize the sum of the input and the
            branch (post-norm).
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
        pre_norm: bool = True,
        layer_scale: float | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        # The order of these attributes is the order of the weights in a checkpoint.
        self.pre_norm = pre_norm
        self.attn_norm = norm(dim)
        self.attn = attn
        self.attn_scale: nn.Module = nn.Identity()
        self.cross = None
        if cross is not None:
            self.cross_norm = norm(dim)
            self.cross = cross
        self.mlp_norm = norm(dim)
        self.mlp = mlp
        self.mlp_scale: nn.Module = nn.Identity()
        if layer_scale is not None:
            from dxn.models.norms import LayerScale

            self.attn_scale = LayerScale(dim, layer_scale)
            self.mlp_scale = LayerScale(dim, layer_scale)
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)
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
        branch = self.attn_scale(branch)
        if self.cross is not None:
            x = x + self._drop(branch, keys, 0)
            x = x if self.pre_norm else self.attn_norm(x)
            query = self.cross_norm(x) if self.pre_norm else x
            branch = self._cross(self.cross, query, groups, memory, cache)
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
        x = x + self._drop(branch, keys, 0 if self.cross is None else 1)
        if not self.pre_norm:
            x = self.attn_norm(x) if self.cross is None else self.cross_norm(x)
        branch = self.mlp(self.mlp_norm(x) if self.pre_norm else x, keys)
        x = x + self._drop(self.mlp_scale(branch), keys, 2)
        return x if self.pre_norm else self.mlp_norm(x)

    def _cross(
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

    def _drop(self, x: Tensor, keys: Keys | None, branch: int) -> Tensor:
        if not self.training:  # these calls would take a tenth of the time of a short text
            return x
        return self.drop_path(self.dropout(x, keys, branch=branch), keys, branch=branch)


def set_compiled(model: nn.Module, on: bool) -> None:
    """Use torch.compile in all blocks of a model, or stop to use it."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compiled = on
