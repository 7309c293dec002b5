"""Dropout that costs little on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """In training, clears each number with probability `rate` and scales the rest (arXiv:1207.0580)."""

    def __init__(self, rate: float):
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout must be at least 0 and under 1, got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """x (...) to the same shape."""
        return drop(x, self.rate) if self.training else x


def drop(x: Tensor, rate: float) -> Tensor:
    """x (...) with each number cleared with probability rate, at least 0 and under 1, and the rest scaled.

    On a CPU a random byte decides each number, eight to a draw, which is several times as fast as torch's own; there
    the rate is rounded to a 256th, and what is left is scaled by the rounded rate.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate) if rate else x
    cleared = min(round(rate * 256), 255)
    if not cleared:
        return x
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.uint8)[: x.numel()].view(x.shape) >= cleared
    return x * (keep.to(x.dtype) * (256 / (256 - cleared)))
