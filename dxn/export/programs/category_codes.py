"""Return the values of a category that a baseline counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def counted(
    values: Sequence[str], arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]
) -> list[np.ndarray]:
    """Return the ids (B, N), with -1 at padding.

    Args:
        values: B values, which are not needed.
        arrays: ids (B, N) and mask (B, N) of the values.
        options: Options of the input in preprocess.json.
    """
    return [np.where(arrays["mask"], arrays["ids"], -1)]
