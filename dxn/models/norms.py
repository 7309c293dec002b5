"""Layers of a block that only some models have: RMS norms and factors of residual branches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
