"""Layers of a block that only some models have: RMS norms and factors of residual branches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm that also accepts x and weight of different dtypes."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (..., D) over D."""
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
