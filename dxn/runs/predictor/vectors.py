"""Write the embeddings of samples: a NumPy array, or a table with one column per number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.core.files import atomic_file
from dxn.runs.predictor.output import write_records
from dxn.tasks.probabilities import significant

SUFFIXES = (".npy", ".csv", ".parquet")


def write_vectors(path: Path, ids: Sequence[Mapping[str, Any]], vectors: Tensor) -> list[Path]:
    """Write one embedding per row.

    Args:
        path: File to write. A .npy file contains a float32 array (rows, E). A .csv or .parquet file
            contains the columns of `ids` and the numbers v0, v1 and so on.
        ids: File, row number and other columns that identify each row.
        vectors: (rows, E). The embeddings.

    Returns:
        The files that were written. An array cannot contain the ids, so they are in a CSV file
        beside it.
    """
    if path.suffix.lower() == ".npy":
        with atomic_file(path) as partial:
            np.save(partial, vectors.numpy())
        beside = path.with_suffix(".ids.csv")
        write_records(beside, ids)
        return [path, beside]
    records: list[dict[str, Any]] = []
    for identity, vector in zip(ids, vectors.tolist(), strict=True):
        numbers = {f"v{i}": significant(value) for i, value in enumerate(vector)}
        records.append({**identity, **numbers})
    write_records(path, records)
    return [path]


def vector_lines(vector: Tensor, count: int = 6) -> list[str]:
    """Return the size and the first numbers of an embedding as lines to read."""
    shown = ", ".join(f"{value:.4f}" for value in vector[:count].tolist())
    more = ", ..." if len(vector) > count else ""
    return [f"embedding: {len(vector)} numbers", f"  {shown}{more}"]
