"""TF-IDF scores of counted features, without operations whose result sizes depend on values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dxn.models.baseline import TfIdf


def counted_scores(module: TfIdf, codes: Tensor, present: Tensor | None) -> Tensor:
    """Return the scores (B, K) of counted features, see `TfIdf`.

    Args:
        module: The known features and their weights.
        codes: (B, n). Code of each occurrence, negative at padding.
        present: (B,) bool. True where a sample has the input. None: all samples have it.
    """
    columns = _search(module.codes, codes)
    is_known = module.codes[columns] == codes
    if present is not None:
        is_known = is_known & present[:, None]
    # The number of occurrences of each feature, at each of its occurrences.
    is_same = (columns[:, :, None] == columns[:, None, :]) & is_known[:, None, :]
    counts = is_same.sum(-1).clamp(min=1).float()
    values = (1 + counts.log()) * module.idf[columns] * is_known
    # Each occurrence has an equal share of the value of its feature.
    squares = (values.square() / counts).sum(1, keepdim=True)
    # A sample without known features has the scores 0.
    scale = torch.where(squares > 0, squares, 1.0).rsqrt()
    weights = values / counts * scale
    return (weights[:, None] @ module.weight[columns])[:, 0]


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
