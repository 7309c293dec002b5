"""Convert categories to ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dxn.tokenize.cells.joined import cell_values, one_value


def read(value: Any, options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the values of a cell, see `cell_values`."""
    values = cell_values(value, options["separator"], options["codes"])
    return one_value(values) if options["separator"] is None else values


def prepare(raws: Sequence[Sequence[str]], options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ids (B, N) and mask (B, N), True at the values of a sample.

    Args:
        raws: Results of `read`.
        options: Options of the input in preprocess.json.
    """
    ids = {value: i for i, value in enumerate(options["values"], options["first_id"])}
    folded: dict[str, int] = {}
    unknown: int = options["unknown_id"]
    for value, i in ids.items():
        key = value.casefold()
        folded[key] = unknown if key in folded else i
    rows = [[ids.get(v, folded.get(v.casefold(), unknown)) for v in raw] for raw in raws]
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate([np.array(row, np.int64) for row in rows])
    return {"ids": padded, "mask": mask}
