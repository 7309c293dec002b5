"""Convert categories to ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def prepare(values: Sequence[Any], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ids (B, N) and mask (B, N), True at the values of a sample.

    Args:
        values: A text or a list of texts for each of B samples.
        options: Options of the input in preprocess.json.
    """
    ids = {value: i for i, value in enumerate(options["values"], options["first_id"])}
    folded: dict[str, int] = {}
    unknown: int = options["unknown_id"]
    for value, i in ids.items():
        folded.setdefault(value.casefold(), i)
    rows: list[list[int]] = []
    for value in values:
        if isinstance(value, str) and options["separator"] is not None:
            value = value.split(options["separator"])
        names = [str(item).strip() for item in (value if isinstance(value, list) else [value])]
        codes = [(n, folded.get(n.casefold(), unknown)) for n in dict.fromkeys(names)]
        rows.append([ids.get(name, other) for name, other in codes])
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate([np.array(row, np.int64) for row in rows])
    return {"ids": padded, "mask": mask}
