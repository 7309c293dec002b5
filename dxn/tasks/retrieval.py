"""Metrics of a search: the rank of the right rows among all rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

TOP = (1, 5, 10)
STRICT_TOP = (1, 10)
# Similarities that are computed at once: 64 MB.
CHUNK = 2**24


def directions(present: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield each ordered pair of inputs, and the indices of the rows that have both.

    Args:
        present: (N, I) bool. Whether a row has an input.
    """
    for a, b in permutations(range(present.shape[1]), 2):
        rows = (present[:, a] & present[:, b]).nonzero().flatten()
        if len(rows):
            yield a, b, rows


def search_metrics(
    queries: Tensor, candidates: Tensor, query_keys: Tensor, candidate_keys: Tensor
) -> dict[str, float]:
    """Return the metrics of a search in which row i is the right answer to query i.

    A candidate also counts as right if its row has an equal query or an equal candidate. The
    metrics that begin with "strict" count only the own row.

    Args:
        queries: (N, E). Unit vectors.
        candidates: (N, E). Unit vectors.
        query_keys: (N,). Equal queries have equal keys.
        candidate_keys: (N,). Equal candidates have equal keys.
    """
    ranks: list[Tensor] = []
    strict: list[Tensor] = []
    size = max(1, CHUNK // len(queries))
    for start in range(0, len(queries), size):
        rows = torch.arange(start, min(start + size, len(queries)))
        # Without NaN, which is neither larger nor smaller than any number.
        similarity = (queries[rows] @ candidates.T).nan_to_num(-torch.inf)
        right = query_keys[rows, None] == query_keys
        right |= candidate_keys[rows, None] == candidate_keys
        best = similarity.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        # A wrong candidate that is as similar counts as better: a model whose vectors are all
        # equal must not have rank 1.
        ranks.append(1 + ((similarity >= best) & ~right).sum(1))
        own = similarity[torch.arange(len(rows)), rows][:, None]
        strict.append((similarity >= own).sum(1))
    rank = torch.cat(ranks).double()
    results = {f"recall@{k}": float((rank <= k).double().mean()) for k in TOP}
    own_rank = torch.cat(strict).double()
    return {
        "mrr": float((1 / rank).mean()),
        **results,
        "median_rank": float(rank.median()),
        **{f"strict_recall@{k}": float((own_rank <= k).double().mean()) for k in STRICT_TOP},
    }


def chance_metrics(query_keys: Tensor, candidate_keys: Tensor) -> dict[str, float]:
    """Return the expected metrics of `search_metrics` for candidates in a random order."""
    count = len(query_keys)
    pairs = list(zip(query_keys.tolist(), candidate_keys.tolist(), strict=True))
    queries = Counter(query for query, _ in pairs)
    candidates = Counter(candidate for _, candidate in pairs)
    both = Counter(pairs)
    # How many queries have how many right candidates.
    numbers = Counter(queries[q] + candidates[c] - both[q, c] for q, c in pairs)
    results: dict[int, dict[str, float]] = {}
    for right, number in numbers.items():
        none = _none_in_first(count, right)
        steps = [none[m - 1] - none[m] for m in range(1, count + 1)]
        results[right] = {
            "mrr": sum(step / m for m, step in enumerate(steps, 1)),
            **{f"recall@{k}": 1 - none[min(k, count)] for k in TOP},
            # The expected rank of the first of `right` candidates.
            "median_rank": (count + 1) / (right + 1),
            **{f"strict_recall@{k}": min(k / count, 1.0) for k in STRICT_TOP},
        }
        for name in results[right]:
            results[right][name] *= number / count
    names = next(iter(results.values()))
    return {name: math.fsum(each[name] for each in results.values()) for name in names}


def average(results: Mapping[Any, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over several searches."""
    rows = list(results.values())
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _none_in_first(count: int, right: int) -> list[float]:
    """Return the probabilities that none of `right` of `count` candidates is among the first m.

    Item m is for the first m candidates, from 0 to `count`.
    """
    result = [1.0]
    for m in range(count):
        result.append(result[-1] * max(count - right - m, 0) / (count - m))
    return result
