"""What the adapters of table cells have in common: their state, Tokens and masking.

The cells of a column have an adapter of their own, so its weights also tell which column it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dxn.core.tokens import Span, Tokens

# As in BERT and in models of tables, where a row with half of its cells is still informative
# (arXiv:2207.03208 compares ratios).
MASK_RATIO = 0.3


def cell_tokens(x: Tensor, mask: Tensor, modality: str) -> Tokens:
    """Return Tokens of x (B, N, D), mask (B, N), with the index of each value as its position."""
    start = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    coords = torch.stack([start, start + 1], -1).expand(x.shape[0], -1, -1)
    coords = coords.where(mask[..., None], torch.nan)
    return Tokens(x, mask, (Span(modality, modality, 0, x.shape[1], coords),))


def is_finite_number(value: Any) -> bool:
    """Whether a value of a state file is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
