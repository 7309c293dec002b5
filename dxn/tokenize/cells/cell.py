"""What the adapters of table cells have in common: their state, Tokens and masking.

The cells of a column have an adapter of their own, so its weights also tell which column it is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.core.tokens import Span, Tokens
from dxn.tokenize.base import MASKED, Masking

# As in BERT and in models of tables, where a row with half of its cells is still informative
# (arXiv:2207.03208 compares ratios).
MASK_RATIO = 0.3


@dataclass(frozen=True)
class CellMasking(Masking):
    """Hides the value of a cell, and predicts it.

    Args:
        ratio: Probability that a cell is hidden.
        num_outputs: Number of values to predict.
    """

    ratio: float
    num_outputs: int

    def __call__(self, sample: Mapping[str, Tensor], rand: random.Random) -> dict[str, Tensor]:
        """Return the sample with hidden (1,), masked (1,), masked_target and masked_valid (m, K).

        m is 1 if the cell is hidden, otherwise 0.
        """
        value = sample["value"]  # (1, K)
        masked = torch.tensor([rand.random() < self.ratio])
        valid = sample.get("valid", torch.ones_like(value, dtype=torch.bool))
        return {
            **sample,
            "value": value.masked_fill(masked[:, None], 0.0),
            MASKED: masked,
            "masked_target": value[masked],
            "masked_valid": valid[masked],
        }


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
