"""Convert numbers to standardized numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dxn.tokenize.cells.cell_values import NumberFormat, has_no_number


def read(value: Any, options: Mapping[str, Any]) -> float | None:
    """Return a number. None: the cell says that there is none, such as "N/A".

    Args:
        value: A number, or a text in the format of the training table, such as "1.234,50 €".
        options: Options of the input in preprocess.json.

    Raises:
        ValueError: If it is not a finite number in this format.
    """
    if has_no_number(value):
        return None
    number = NumberFormat(**options["format"]).parse(value)
    if number is None:
        raise ValueError("must be a number written as in the training table")
    return number


def prepare(raws: Sequence[float], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return value (B, 1, 1).

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    limit = options["max_value"]
    numbers = np.clip(raws, -options["max_number"], options["max_number"])
    x = (numbers - options["center"]) / options["scale"]
    return {"value": (limit * x / np.hypot(limit, x)).astype(np.float32)[:, None, None]}
