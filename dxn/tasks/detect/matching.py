"""Match the outputs of a model with the parts of a target, each with at most one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LIMIT = 1e6  # of a cost


class Matches(NamedTuple):
    """Which outputs belong to which objects.

    Args:
        rows: (P,). Sample of each pair.
        outputs: (P,). Index of the output in the sample.
        objects: (P,). Index of the object in the sample.
    """

    rows: Tensor
    outputs: Tensor
    objects: Tensor


@torch.no_grad()
def assign(cost: Tensor, real: Tensor) -> Matches:
    """Match each object with one output at the lowest total cost of each sample.

    Args:
        cost: (B, M, n). Cost of each output for each object.
        real: (B, n) bool. False where there is no object.
    """
    from scipy.optimize import linear_sum_assignment  # it takes time to import

    # One copy for all samples. A diverged model has NaN, which the solver refuses.
    costs = cost.nan_to_num(LIMIT, LIMIT, -LIMIT).cpu().numpy()
    is_real = real.cpu().numpy()
    parts: list[np.ndarray] = []
    for row in np.flatnonzero(is_real.any(1)).tolist():
        objects = np.flatnonzero(is_real[row])
        outputs, chosen = linear_sum_assignment(costs[row][:, objects])
        parts.append(np.stack([np.full_like(outputs, row), outputs, objects[chosen]]))
    pairs = np.concatenate(parts, 1) if parts else np.zeros((3, 0), np.int64)
    return Matches(*torch.from_numpy(pairs).to(cost.device))
