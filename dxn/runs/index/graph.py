"""Approximate search with the library usearch, for indexes with millions of rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.errors import UserError

GRAPH = "vectors.usearch"


def build_graph(vectors: np.ndarray, path: Path) -> None:
    """Build and save an HNSW graph (arXiv:1603.09320).

    Args:
        vectors: (N, E) float32. Unit vectors.
        path: File to write.

    Raises:
        UserError: If usearch is not installed.
    """
    graph = _usearch().Index(ndim=vectors.shape[1], metric="cos", dtype="f32")
    graph.add(np.arange(len(vectors)), vectors)
    graph.save(str(path))


def search_graph(
    path: Path, queries: np.ndarray, count: int, *, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Search the nearest vectors in a saved graph. A few of them can be missed.

    Args:
        path: File of the graph. It is binary data of usearch, so it must come from a trusted
            source.
        queries: (Q, E) float32. Unit vectors.
        count: Number of results K per query, at most `size`.
        size: Number of vectors that the graph must have.

    Returns:
        Row (Q, K) and cosine (Q, K) of each result, the most similar one first.

    Raises:
        UserError: If usearch is not installed, or the file is missing or does not fit.
    """
    usearch = _usearch()
    if not path.is_file():
        raise UserError(
            f"approximate: {path} not found; write the index again with dxn index approximate=true"
        )
    try:
        graph: Any = usearch.Index.restore(str(path))
    except Exception as error:  # the library has no exception class of its own
        raise UserError(f"approximate: {path}: cannot be read: {error}; write it again") from error
    if graph is None or graph.ndim != queries.shape[1] or len(graph) != size:
        raise UserError(f"approximate: {path}: does not belong to this index; write it again")
    # More candidates than results: the recall of the graph increases with them.
    graph.expansion_search = max(graph.expansion_search, 4 * count)
    found = graph.search(queries, count)
    # Parts of a graph can be unreachable, and the rows of a damaged one can be out of range.
    # Only the results of several queries have counts.
    counts = found.counts if len(queries) > 1 else len(found.keys)
    if np.min(counts) < count or found.keys.max() >= size:
        raise UserError(
            f"approximate: {path}: has fewer than {count} valid results for a query; set a smaller "
            "k, or leave approximate out for an exact search"
        )
    shape = (len(queries), count)
    return found.keys.reshape(shape).astype(np.int64), 1 - found.distances.reshape(shape)


def _usearch() -> Any:
    try:
        return importlib.import_module("usearch.index")
    except ImportError as error:
        raise UserError(
            "approximate: needs the library usearch, which is not installed; install it with "
            'pip install "dxn[search]", or leave approximate out for an exact search'
        ) from error
