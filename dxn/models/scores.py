"""Scores of a query and a key, besides the scaled dot product."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive", "bilinear"]


class Score(nn.Module):
    """The function of a query and a key whose softmax gives the attention weights.

    - scaled_dot: q . k / sqrt(d) (arXiv:1706.03762, section 3.2.1)
    - dot: q . k (arXiv:1508.04025, section 3.1)
    - cosine: the cosine of q and k times a learned factor (arXiv:2010.04245, section 3), without
      which the softmax of numbers up to 1 would be almost uniform
    - bilinear: q^T W k with a learned W (arXiv:1508.04025, section 3.1, "general")
    - additive: v . tanh(W q + U k) with learned v, W and U (arXiv:1409.0473, appendix A.1.2). It is
      no dot product, so no fused kernel computes it, and it needs memory for (..., M, N, d).

    Args:
        kind: Kind of the score.
        dim: Width d of queries and keys.
        scale: Factor instead of 1 / sqrt(d) of a scaled_dot.
        softcap: Limit c of the scores s, which become c tanh(s / c). Default: no limit.

    Raises:
        ValueError: If kind is not a ScoreKind, or has no scale.
    """

    def __init__(
        self,
        kind: ScoreKind,
        dim: int,
        *,
        scale: float | None = None,
        softcap: float | None = None,
    ):
        super().__init__()
        if kind not in get_args(ScoreKind):
            raise ValueError(f"score must be one of {', '.join(get_args(ScoreKind))}, got {kind!r}")
        if scale is not None and kind != "scaled_dot":
            raise ValueError(f"score_scale needs score=scaled_dot, got {kind}: remove one of them")
        self.kind: ScoreKind = kind
        self.scale = dim**-0.5 if scale is None else scale
        self.softcap = softcap
        # Whether a fused kernel can compute it.
        self.is_fused = kind != "additive" and softcap is None
        if kind == "cosine":
            # Not (), because a single number cannot be divided over processes (trainer.shard).
            self.factor = nn.Parameter(torch.tensor([10.0]))
        elif kind == "bilinear":
            # The initial score equals the scaled dot product.
            self.weight = nn.Parameter(torch.eye(dim) * dim**-0.5)
        elif kind == "additive":
            self.of_query = nn.Linear(dim, dim, bias=False)
            self.of_key = nn.Linear(dim, dim)
            self.weight = nn.Parameter(torch.randn(dim) * dim**-0.5)

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Transform query (..., M, d) and key (..., N, d) so that their dot products are scores.

        In this form, a fused kernel can compute any score but the additive one.
        """
        if self.kind == "scaled_dot":
            return query * self.scale, key
        if self.kind == "bilinear":
            return query @ self.weight.to(query.dtype), key
        if self.kind == "cosine":
            query = F.normalize(query, dim=-1) * self.factor.to(query.dtype)
            return query, F.normalize(key, dim=-1)
        return query, key

    def additive(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the additive scores (..., M, N) of query (..., M, d) and key (..., N, d)."""
        # All pairs of queries and keys: (..., M, 1, d) + (..., 1, N, d).
        hidden = self.of_query(query).unsqueeze(-2) + self.of_key(key).unsqueeze(-3)
        return einsum(hidden.tanh(), self.weight.to(hidden.dtype), "... m n d, d -> ... m n")
