"""Convert numbers to standardized numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(values: Sequence[float], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return value (B, 1, 1).

    Args:
        values: B numbers.
        options: Options of the input in preprocess.json.
    """
    limit = options["max_value"]
    x = (np.array([float(value) for value in values]) - options["center"]) / options["scale"]
    return {"value": (limit * x / np.hypot(limit, x)).astype(np.float32)[:, None, None]}
