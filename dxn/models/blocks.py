"""The residual block and its parts."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.models.attention import Attention

NormKind = Literal["layer", "rms"]
MlpKind = Literal["gelu", "swiglu"]


def make_norm(kind: NormKind, dim: int) -> nn.Module:
    """Layer norm (arXiv:1607.06450) or RMS norm (arXiv:1910.07467) over D."""
    if kind not in ("layer", "rms"):
        raise ValueError(f"norm must be layer or rms, got {kind!r}")
    return nn.LayerNorm(dim) if kind == "layer" else nn.RMSNorm(dim, eps=1e-6)


class Mlp(nn.Module):
    """Each token on its own: D to mlp_ratio D and back, through GELU or gated (SwiGLU, arXiv:2002.05202)."""

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
        if mlp not in ("gelu", "swiglu"):
            raise ValueError(f"mlp must be gelu or swiglu, got {mlp!r}")
        # A gate is a third matrix: two thirds of the width keep the number of weights.
        hidden = int(dim * mlp_ratio * (2 / 3 if mlp == "swiglu" else 1))
        self.gated = mlp == "swiglu"
        self.up = nn.Linear(dim, hidden * (2 if self.gated else 1), bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (..., D) to (..., D)."""
        x = self.up(x)
        if self.gated:
            x, gate = x.chunk(2, -1)
            x = x * F.silu(gate)
        else:
            x = F.gelu(x)
        return self.down(self.dropout(x))


class Dropout(nn.Module):
    """In training, clears each number with probability `rate` and scales the rest (arXiv:1207.0580).

    A random byte decides each number, eight to a draw, which is several times as fast on a CPU as torch's own
    dropout; the rate is rounded to a 256th, and what is left is scaled by the rounded rate.
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be at least 0 and under 1, got {rate}")
        self.rate, self.cleared = rate, min(round(rate * 256), 255)

    def forward(self, x: Tensor) -> Tensor:
        """x (...) to the same shape."""
        if not self.training or not self.cleared:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= self.cleared
        return x * (keep.to(x.dtype) * (256 / (256 - self.cleared)))


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


class Block(nn.Module):
    """Attention and mlp, each with its residual and its norm: before it (pre) or after the sum (post)."""

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        mlp_ratio: float = 4.0,
        mlp: MlpKind = "gelu",
        norm: NormKind = "layer",
        norm_first: bool = True,
        bias: bool = True,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        self.norm_first = norm_first
        self.attn_norm = make_norm(norm, dim)
        self.attn = Attention(dim, num_heads=num_heads, dropout=attn_dropout, bias=bias)
        self.mlp_norm = make_norm(norm, dim)
        self.mlp = Mlp(dim, mlp_ratio=mlp_ratio, mlp=mlp, dropout=dropout, bias=bias)
        self.dropout = Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, bias: Tensor | None = None, rotation: Tensor | None = None) -> Tensor:
        """x (B, N, D) to (B, N, D); bias and rotation as in Attention."""
        if self.norm_first:
            x = x + self._leave(self.attn(self.attn_norm(x), bias, rotation))
            return x + self._leave(self.mlp(self.mlp_norm(x)))
        x = self.attn_norm(x + self._leave(self.attn(x, bias, rotation)))
        return self.mlp_norm(x + self._leave(self.mlp(x)))

    def _leave(self, branch: Tensor) -> Tensor:
        return self.drop_path(self.dropout(branch))
