"""How alike a query and a key are: the number that attention's softmax is taken of."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

ScoreKind = Literal["scaled_dot", "dot", "cosine", "additive", "bilinear"]


class ScaledDot(nn.Module):
    """q . k / sqrt(d) (arXiv:1706.03762, 3.2.1)."""

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """query (..., M, d) and key (..., N, d) to the two whose dot products are the scores."""
        return query * query.shape[-1] ** -0.5, key


class Dot(nn.Module):
    """q . k, of any length (arXiv:1508.04025, 3.1)."""

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """As ScaledDot's."""
        return query, key


class Cosine(nn.Module):
    """The cosine of the angle between q and k, times a learned factor (arXiv:2010.04245, 3), 10 at the start.

    A cosine is at most 1, and a softmax of such small numbers would read every key nearly alike.
    """

    def __init__(self, factor: float = 10.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """As ScaledDot's."""
        return F.normalize(query, dim=-1) * self.factor.to(query.dtype), F.normalize(key, dim=-1)


class Bilinear(nn.Module):
    """q^T W k with a learned W (arXiv:1508.04025, 3.1, "general"), at the start the scaled dot product."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(dim) * dim**-0.5)

    def sides(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """As ScaledDot's."""
        return query @ self.weight.to(query.dtype), key


class Additive(nn.Module):
    """v . tanh(W q + U k) with learned v, W, U (arXiv:1409.0473, A.1.2): a small network in place of a product.

    Holds (..., M, N, d) numbers at once, where the others hold (..., M, N).
    """

    def __init__(self, dim: int):
        super().__init__()
        self.of_query, self.of_key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)
        self.weight = nn.Parameter(torch.randn(dim) * dim**-0.5)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """query (..., M, d) and key (..., N, d) to (..., M, N)."""
        hidden = self.of_query(query).unsqueeze(-2) + self.of_key(key).unsqueeze(-3)
        return einsum(hidden.tanh(), self.weight.to(hidden.dtype), "... m n d, d -> ... m n")


Score = ScaledDot | Dot | Cosine | Bilinear | Additive


def make_score(kind: ScoreKind, dim: int) -> Score:
    """The score of that name for queries and keys of size dim."""
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
