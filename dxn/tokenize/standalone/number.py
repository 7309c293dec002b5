"""Convert numbers to standardized numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dxn.tokenize.number_format import NumberFormat


def prepare(values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return value (B, 1, 1).

    Args:
        values: B numbers, or texts in the format of the training table, such as "1.234,50 €".
        options: Options of the input in preprocess.json.
    """
    limit = options["max_value"]
    form = NumberFormat(**options["format"])
    numbers = [_number(value, form) for value in values]
    numbers = np.clip(numbers, -options["max_number"], options["max_number"])
    x = (numbers - options["center"]) / options["scale"]
    return {"value": (limit * x / np.hypot(limit, x)).astype(np.float32)[:, None, None]}


def _number(value: Any, form: NumberFormat) -> float:
    number = form.parse(value)
    if number is None:
        raise ValueError(
            "it must be a number written as in the training table; leave the input out if there is "
            "none"
        )
    return number
