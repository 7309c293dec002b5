"""Layers that only some models have: RMS norms, factors of branches, and biases of scores."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm that also accepts x and weight of different dtypes.

    Args:
        dim: Width D.
        eps: Constant added to the variance.
        unit_offset: Multiply by one plus the weight. It is computed in float32, because bf16 rounds
            a sum of one and a small weight to three decimal places.
    """

    def __init__(self, dim: int, *, eps: float, unit_offset: bool = False):
        super().__init__(dim, eps=eps)
        self.unit_offset = unit_offset
        if unit_offset:
            nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (..., D) over D."""
        if self.unit_offset:
            dtype = torch.promote_types(x.dtype, torch.float32)
            weight = 1 + self.weight.to(dtype)
            return F.rms_norm(x.to(dtype), self.normalized_shape, weight, self.eps).to(x.dtype)
        # Under autocast, x can be bf16 while the weight is float32.
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class LayerScale(nn.Module):
    """Multiplies each feature of a residual branch by a learned factor (arXiv:2103.17239)."""

    def __init__(self, dim: int, initial: float):
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        """Scale x (..., D)."""
        return x * self.factor


def alibi_slopes(num_heads: int) -> Tensor:
    """Return the ALiBi slopes (H,): 2^(-8/H), 2^(-16/H), ... (arXiv:2108.12409, section 3)."""
    return 2 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)


class Alibi(nn.Module):
    """Adds a penalty to the scores that grows with the distance (arXiv:2108.12409)."""

    slopes: Tensor

    def __init__(self, num_heads: int):
        super().__init__()
        # Not persistent, because the slopes can be computed from num_heads.
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def forward(self, relative: Tensor) -> Tensor:
        """Return the numbers (B, H, M, N) for relative positions (B, M, N)."""
        return -rearrange(self.slopes, "h -> 1 h 1 1") * relative.abs()[:, None]


class BucketBias(nn.Module):
    """Adds a learned number to the scores, per head and range of relative positions.

    The source is T5 (arXiv:1910.10683, section 2.1). Half of the ranges have one distance each, and
    the others grow logarithmically. Without `causal`, half of all ranges are for later tokens.

    Args:
        num_heads: Number of heads H.
        num_buckets: Number of ranges.
        max_distance: Distance from which all distances are in the last range.
        causal: Whether there are no later tokens.
    """

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int, *, causal: bool):
        super().__init__()
        self.causal = causal
        self.size = num_buckets if causal else num_buckets // 2  # ranges of each direction
        self.max_distance = max_distance
        if max_distance <= self.size // 2:
            raise ValueError(
                f"max_distance must be larger than the {self.size // 2} distances with a range of "
                f"their own, got {max_distance}"
            )
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads).normal_(std=0.02))

    def forward(self, relative: Tensor) -> Tensor:
        """Return the numbers (B, H, M, N) for relative positions (B, M, N)."""
        distance = (-relative).clamp(min=0) if self.causal else relative.abs()
        exact = self.size // 2
        ratio = math.log(self.max_distance / exact)
        far = (distance.clamp(min=1) / exact).log() / ratio * (self.size - exact)
        bucket = torch.where(distance < exact, distance, exact + far.long())
        bucket = bucket.clamp(max=self.size - 1)
        if not self.causal:
            bucket = bucket + (relative > 0) * self.size
        return rearrange(self.weight[bucket], "b m n h -> b h m n")
