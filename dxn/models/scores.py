"""Attention scores: functions of a query and a key whose softmax gives the attention weights.

Each class has learned weights or is a module without weights, so that all have the same interface.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive", "bilinear"]


class ScaledDot(nn.Module):
    """Scaled dot product q . k / sqrt(d) (arXiv:1706.03762, section 3.2.1)."""

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Transform query (..., M, d) and key (..., N, d) so that their dot products are scores.

        In this form, a fused attention kernel can compute any of these scores.
        """
        return query * query.shape[-1] ** -0.5, key


class Dot(nn.Module):
    """Dot product q . k (arXiv:1508.04025, section 3.1)."""

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `ScaledDot.sides`."""
        return query, key


class Cosine(nn.Module):
    """Cosine similarity of q and k, multiplied by a learned factor (arXiv:2010.04245, section 3).

    Without a factor, the scores would be at most 1, and their softmax would be almost uniform.

    Args:
        factor: Initial value of the factor.
    """

    def __init__(self, factor: float = 10.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `ScaledDot.sides`."""
        return F.normalize(query, dim=-1) * self.factor.to(query.dtype), F.normalize(key, dim=-1)


class Bilinear(nn.Module):
    """Bilinear form q^T W k with a learned W (arXiv:1508.04025, section 3.1, "general")."""

    def __init__(self, dim: int):
        super().__init__()
        # The initial score equals the scaled dot product.
        self.weight = nn.Parameter(torch.eye(dim) * dim**-0.5)

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """See `ScaledDot.sides`."""
        return query @ self.weight.to(query.dtype), key


class Additive(nn.Module):
    """v . tanh(W q + U k) with learned v, W and U (arXiv:1409.0473, appendix A.1.2).

    It is not a dot product, so no fused kernel can compute it. It needs memory for a tensor
    (..., M, N, d), while the other scores need (..., M, N).
    """

    def __init__(self, dim: int):
        super().__init__()
        self.of_query = nn.Linear(dim, dim, bias=False)
        self.of_key = nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(dim) * dim**-0.5)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the scores (..., M, N) of query (..., M, d) and key (..., N, d)."""
        # All pairs of queries and keys: (..., M, 1, d) + (..., 1, N, d).
        hidden = self.of_query(query).unsqueeze(-2) + self.of_key(key).unsqueeze(-3)
        return einsum(hidden.tanh(), self.weight.to(hidden.dtype), "... m n d, d -> ... m n")


Score = ScaledDot | Dot | Cosine | Bilinear | Additive


def make_score(kind: ScoreKind, dim: int) -> Score:
    """Create the score `kind` for queries and keys of width `dim`.

    Raises:
        ValueError: If kind is not a ScoreKind.
    """
    makers = {
        "scaled_dot": ScaledDot,
        "dot": Dot,
        "cosine": Cosine,
        "additive": lambda: Additive(dim),
        "bilinear": lambda: Bilinear(dim),
    }
    if kind not in makers:
        raise ValueError(f"score must be one of {', '.join(makers)}, got {kind!r}")
    return makers[kind]()
