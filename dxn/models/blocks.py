"""The residual block and its parts."""

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.attention import Attention, Cache, CrossAttention, Memory
from dxn.models.dropout import Dropout
from dxn.models.scores import ScoreKind

NormKind = Literal["layer", "rms"]
MlpKind = Literal["gelu", "gelu_tanh", "quick_gelu", "swiglu", "geglu"]
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "swiglu": F.silu,
    "geglu": F.gelu,
}


def make_norm(kind: NormKind, dim: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """Layer norm (arXiv:1607.06450) or RMS norm (arXiv:1910.07467, never a bias) over D."""
    if kind not in ("layer", "rms"):
        raise ValueError(f"norm must be layer or rms, got {kind!r}")
    return nn.LayerNorm(dim, eps=eps, bias=bias) if kind == "layer" else RMSNorm(dim, eps=eps)


class RMSNorm(nn.RMSNorm):
    """torch's own, which takes x and weight of one type only: under autocast x may be bf16."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., D)."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Mlp(nn.Module):
    """Each token on its own: D to mlp_ratio D and back, through a GELU (exact, by tanh, or by a sigmoid:
    arXiv:1606.08415, 2) or gated (SwiGLU and GeGLU, arXiv:2002.05202)."""

    def __init__(
        self,
        dim: int,
        *,
        mlp_ratio: float = 4.0,
        mlp: MlpKind = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        if mlp not in ACTIVATIONS:
            raise ValueError(f"mlp must be one of {', '.join(ACTIVATIONS)}, got {mlp!r}")
        self.gated, self.act = mlp in ("swiglu", "geglu"), ACTIVATIONS[mlp]
        # A gate is a third matrix: two thirds of the width keep the number of weights.
        hidden = int(dim * mlp_ratio * (2 / 3 if self.gated else 1) + 1e-6)
        self.up = nn.Linear(dim, hidden * (2 if self.gated else 1), bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., D)."""
        x = self.up(x)
        if self.gated:
            x, gate = x.chunk(2, -1)
            x = x * self.act(gate)
        else:
            x = self.act(x)
        return self.down(self.dropout(x))


class DropPath(nn.Module):
    """In training, leaves a whole branch out for some samples and scales the rest (arXiv:1603.09382)."""

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path must be at least 0 and under 1, got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) to the same shape."""
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.rate
        return x * (keep.to(x.dtype) / (1 - self.rate))


class LayerScale(nn.Module):
    """A learned factor for each feature of a branch (arXiv:2103.17239, 2)."""

    def __init__(self, dim: int, initial: float):
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., D)."""
        return x * self.factor


class Block(nn.Module):
    """Attention and mlp, each with its residual and its norm: before it (pre) or after the sum (post).

    With cross, between the two a third branch, which reads a memory.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mlp_ratio: float = 4.0,
        mlp: MlpKind = "gelu",
        norm: NormKind = "layer",
        norm_eps: float = 1e-5,
        norm_first: bool = True,
        bias: bool = True,
        qk_norm: bool = False,
        score: ScoreKind = "scaled_dot",
        layer_scale: float | None = None,
        cross: bool = False,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
        mlp_dropout: float | None = None,
        drop_path: float = 0.0,
    ):
        super().__init__()
        make = partial(make_norm, norm, eps=norm_eps, bias=bias)
        self.norm_first = norm_first
        self.attn_norm = make(dim)
        self.attn = Attention(
            dim,
            num_heads=num_heads,
            dropout=attn_dropout,
            bias=bias,
            norm=make if qk_norm else None,
            score=score,
        )
        self.attn_scale = LayerScale(dim, layer_scale) if layer_scale is not None else nn.Identity()
        self.cross = None
        if cross:
            self.cross_norm = make(dim)
            self.cross = CrossAttention(dim, num_heads=num_heads, dropout=attn_dropout, bias=bias, score=score)
        self.mlp_norm = make(dim)
        inner = dropout if mlp_dropout is None else mlp_dropout
        self.mlp = Mlp(dim, mlp_ratio=mlp_ratio, mlp=mlp, dropout=inner, bias=bias)
        self.mlp_scale = LayerScale(dim, layer_scale) if layer_scale is not None else nn.Identity()
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        rotation: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """x (B, N, D) to (B, N, D); bias, rotation and cache as in Attention, memory where the block has cross."""
        if self.norm_first:
            x = x + self._leave(self.attn_scale(self.attn(self.attn_norm(x), bias, rotation, cache)))
            if self.cross is not None:
                x = x + self._leave(self._read(self.cross_norm(x), memory, cache))
            return x + self._leave(self.mlp_scale(self.mlp(self.mlp_norm(x))))
        x = self.attn_norm(x + self._leave(self.attn_scale(self.attn(x, bias, rotation, cache))))
        if self.cross is not None:
            x = self.cross_norm(x + self._leave(self._read(x, memory, cache)))
        return self.mlp_norm(x + self._leave(self.mlp_scale(self.mlp(x))))

    def _read(self, x: Tensor, memory: Memory | None, cache: Cache | None) -> Tensor:
        assert self.cross is not None and memory is not None
        if cache is None:
            return self.cross(x, self.cross.remember(memory.x), memory.bias)
        if cache.memory is None:
            cache.memory = self.cross.remember(memory.x)
        return self.cross(x, cache.memory, memory.bias)

    def _leave(self, branch: Tensor) -> Tensor:
        return self.drop_path(self.dropout(branch))
