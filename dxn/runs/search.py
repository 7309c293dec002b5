"""Search an index: the rows whose embeddings are most similar to that of a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.runs.index import Index, row_record, unit_vectors, weights_digest
from dxn.runs.predictor.predictor import Predictor

CHUNK = 2**24  # similarities that are computed at once: 64 MB
# Columns of the results. A column of the index with such a name gets the prefix "table_".
OWN_COLUMNS = ("rank", "score")


@dataclass(frozen=True)
class Result:
    """A row of the index that is similar to a query.

    Args:
        query: Index of the query.
        rank: 1 for the most similar row.
        score: Cosine similarity of the embeddings, from -1 to 1.
        row: Index of the row in the index.
    """

    query: int
    rank: int
    score: float
    row: int


@dataclass(frozen=True)
class SearchResults:
    """The results of all queries.

    Args:
        index: The index that was searched.
        queries: File, row number and inputs of each query; empty for a single query.
        results: The results, sorted by query and rank.
    """

    index: Index
    queries: list[dict[str, Any]]
    results: list[Result]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield one row per result: the query, the rank, the score and the found row."""
        for result in self.results:
            query = self.queries[result.query] if self.queries else {}
            query_columns = {f"query_{name}": value for name, value in query.items()}
            row = {
                f"table_{name}" if name in OWN_COLUMNS else name: value
                for name, value in self.index.rows[result.row].items()
            }
            yield {**query_columns, "rank": result.rank, "score": round(result.score, 6), **row}


def model_of(index: Index, run: str | None) -> tuple[str | None, Mapping[str, Any] | None]:
    """Return the options run and weights of the model of an index.

    Args:
        index: The index.
        run: Its folder, if the command names it.

    Raises:
        UserError: If the folder of the model does not exist any more, or has other weights.
    """
    weights = None
    if run is None:
        run, weights = index.model["run"], index.model["weights"]
        if run is not None and not Path(run).is_dir():
            raise UserError(
                f"index: the model of this index is not at {run} any more; set run=RUN to its new "
                "folder"
            )
    if weights_digest(run) != index.digest:
        raise UserError(
            f"index: {index.folder} was written with other weights than those of {run}; "
            "write it again with dxn index, or set run to the model that wrote it"
        )
    return run, weights


def search(
    index: Index,
    predictor: Predictor,
    samples: Samples,
    *,
    is_single: bool,
    k: int,
    batch_size: int,
) -> SearchResults:
    """Embed queries, and find the most similar rows of each.

    Args:
        index: The index.
        predictor: The model of the index.
        samples: The queries.
        is_single: Whether there is only one, so that the results need not tell which it is.
        k: Number of results per query.
        batch_size: Number of samples per batch.

    Raises:
        UserError: If the queries do not fit the index.
    """
    rows, vectors = predictor.vectors(samples, batch_size=batch_size)
    queries = unit_vectors(vectors)
    if queries.shape[1] != index.vectors.shape[1]:
        raise UserError(
            f"index: its vectors have {index.vectors.shape[1]} numbers, but those of the model "
            f"have {queries.shape[1]}; write the index again with dxn index"
        )
    neighbors, scores = nearest(index.vectors, queries, min(k, len(index.rows)))
    results = [
        Result(query, rank, float(score), int(row))
        for query, pairs in enumerate(zip(neighbors, scores, strict=True))
        for rank, (row, score) in enumerate(zip(*pairs, strict=True), 1)
    ]
    query_rows = [] if is_single else [row_record(samples.opened, row) for row in rows]
    return SearchResults(index, query_rows, results)


def nearest(vectors: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest of all vectors, by comparing each with each.

    Args:
        vectors: (N, E) float32. Unit vectors, possibly in a file.
        queries: (Q, E) float32. Unit vectors.
        count: Number of results K per query, at most N.

    Returns:
        Row (Q, K) and cosine (Q, K) of each result, the most similar one first. Rows with equal
        similarity are in the order of the index.
    """
    rows = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    size = max(count, CHUNK // len(queries))
    # The best rows so far are compared with those of the next chunk, so that an index that is
    # larger than the memory can be searched too.
    for start in range(0, len(vectors), size):
        chunk = queries @ np.asarray(vectors[start : start + size]).T
        numbers = np.broadcast_to(np.arange(start, start + chunk.shape[1]), chunk.shape)
        scores = np.concatenate([scores, chunk], 1)
        rows = np.concatenate([rows, numbers], 1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores = np.take_along_axis(scores, best, 1)
        rows = np.take_along_axis(rows, best, 1)
    return rows, scores
