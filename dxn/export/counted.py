"""TF-IDF scores of counted features, without operations whose result sizes depend on values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dxn.stacking.mixture import TfIdf


def counted_scores(module: TfIdf, features: Tensor, present: Tensor | None) -> Tensor:
    """Return the scores (B, K) of counted features, see `TfIdf`.

    Args:
        module: The known features and their weights.
        features: (B, n, 2). Code of each feature of a sample, negative at padding, and how often it
            occurs.
        present: (B,) bool. True where a sample has the input. None: all samples have it.
    """
    codes, counts = features.unbind(-1)
    columns = _search(module.codes, codes)
    is_known = module.codes[columns] == codes
    if present is not None:
        is_known = is_known & present[:, None]
    values = (1 + counts.clamp(min=1).float().log()) * module.idf[columns] * is_known
    squares = values.square().sum(1, keepdim=True)
    # A sample without known features has the scores 0.
    scale = torch.where(squares > 0, squares, 1.0).rsqrt()
    return ((values * scale)[:, None] @ module.weight[columns])[:, 0]


def _search(codes: Tensor, wanted: Tensor) -> Tensor:
    """Return the index of the largest code that is at most the wanted one, by binary search.

    torch.searchsorted has no counterpart in ONNX.
    """
    count = len(codes)
    index = torch.zeros_like(wanted)
    for bit in reversed(range(math.ceil(math.log2(max(count, 2))))):
        step = index + 2**bit
        clamped = step.clamp(max=count - 1)
        is_after = (step < count) & (codes[clamped] <= wanted)
        index = torch.where(is_after, step, index)
    return index
