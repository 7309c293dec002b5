"""What the adapters of table cells have in common: their state, Tokens and masking.

The cells of a column have an adapter of their own, so its weights also tell which column it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dxn.core.tokens import Span, Tokens

# As in BERT and in models of tables, where a row with half of its cells is still informative
# (arXiv:2207.03208 compares ratios).
MASK_RATIO = 0.3


def cell_tokens(x: Tensor, mask: Tensor, modality: str, num_real: int | None = None) -> Tokens:
    """Return Tokens with the index of each value as its position.

    Args:
        x: (B, N, D).
        mask: (B, N) bool.
        modality: Name of the modality.
        num_real: Number of real tokens, see `Tokens`.
    """
    span = Span(modality, modality, 0, x.shape[1], partial(_indices, mask))
    return Tokens(x, mask, (span,), num_real)


def _indices(mask: Tensor) -> Tensor:
    """Return start and stop (B, N, 2) of each value, NaN at padding."""
    start = torch.arange(mask.shape[1], device=mask.device, dtype=torch.float32)
    coords = torch.stack([start, start + 1], -1).expand(mask.shape[0], -1, -1)
    return coords.where(mask[..., None], torch.nan)


def center_and_scale(state: Mapping[str, Any]) -> tuple[float, float]:
    """Return the statistics of a column from the state of its adapter.

    Raises:
        ValueError: If they are not finite numbers, or the scale is not positive.
    """
    numbers = [state["center"], state["scale"]]
    try:
        are_numbers = all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
    except OverflowError:  # an integer of hundreds of digits
        are_numbers = False
    if not are_numbers or numbers[1] <= 0:
        raise ValueError("center and scale must be numbers, scale positive")
    return float(numbers[0]), float(numbers[1])
