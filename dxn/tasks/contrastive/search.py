"""Search with one input of a row for another one: keys of equal inputs, and the metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.tasks.metric import Metric, Table
from dxn.tasks.target import Target

KEY_BITS = 63  # a key is a positive int64
MISSING = 0  # key of an input that a sample does not have
TOP = (1, 5, 10)
STRICT_TOP = (1, 10)
# Similarities that are computed at once: 64 MB.
CHUNK = 2**24
MOST_ROWS = 0.9  # share of the rows; without a tenth of them, the metrics are hardly higher
FEW_ROWS = 100  # of which a random order finds a tenth among the first 10

# Return the similarities (n, N) of the queries with these n indices, int64, and all N candidates.
Similarity = Callable[[Tensor], Tensor]
# Return the similarities of a search with input a for input b, of rows (N,) that have both.
Search = Callable[[int, int, Tensor], Similarity]


class Embedded(NamedTuple):
    """The inputs of B samples as unit vectors of the shared space.

    Attributes:
        x: (B, I, E) float32. Zeros where a sample lacks an input.
        keys: (B, I) int64. Equal inputs have equal keys; MISSING where a sample lacks an input.
    """

    x: Tensor
    keys: Tensor


class InputKeys(Target):
    """A key of each input of a row, which is equal for rows with an equal input.

    Attributes:
        inputs: Names of the inputs. `bind` sets them.
    """

    source = "hashes"

    def __init__(self):
        self.inputs: tuple[str, ...] = ()

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Set the inputs.

        Raises:
            UserError: If there are fewer than two.
        """
        if len(adapters) < 2:
            names = ", ".join(adapters) or "none"
            raise UserError(
                f"head=contrastive: needs at least two inputs, got {names}; add one, for example "
                "with data.NAME=COLUMN or adapters=[...]"
            )
        self.inputs = tuple(adapters)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the inputs that are aligned."""
        return f"equal embeddings of {' and '.join(self.inputs)}"

    def encode(
        self, value: Mapping[str, bytes], sample: dict[str, Any], rand: Random | None = None
    ) -> Tensor:
        """Return the keys of the inputs (I,): a hash of each, or MISSING."""
        keys = [key_of(value[name]) if name in sample else MISSING for name in self.inputs]
        return torch.tensor(keys)


class SearchMetric(Metric):
    """The recall, the mean reciprocal rank and the median rank of a search.

    Each sample searches with one of its inputs for another one among all samples. The results are
    the means over all pairs of inputs, in both directions.
    """

    target: InputKeys
    monitored = "mrr"
    lower_is_better = ("median_rank",)
    of_fewer = "a search in fewer rows is easier"

    def metrics(
        self, predictions: Sequence[Embedded], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the means over all directions.

        Raises:
            UserError: If no sample has two inputs.
        """
        return average(self._directions(predictions))

    def further_rows(self, predictions: Sequence[Embedded]) -> Table:
        """Return the metrics of each direction, such as "text to image", and of a random order."""
        keys = keys_of(predictions)
        pairs = directions(keys != MISSING)
        results = [chance_metrics(keys[rows, a], keys[rows, b]) for a, b, rows in pairs]
        chance = {"random order": average(dict(enumerate(results)))}
        return {**self._directions(predictions), **chance}

    def notes(self, predictions: Sequence[Embedded]) -> list[str]:
        """Return notes about the inputs that fewest rows have, if these are few."""
        pairs = directions(keys_of(predictions) != MISSING)
        a, b, rows = min(pairs, key=lambda pair: len(pair[2]))
        names = f"{self.target.inputs[a]} and {self.target.inputs[b]}"
        lines: list[str] = []
        if len(rows) < MOST_ROWS * len(predictions):
            lines.append(
                f"only the {len(rows):,} of {len(predictions):,} rows with {names} are searched by "
                f"them, and {self.of_fewer}"
            )
        if len(rows) < FEW_ROWS:
            share = min(TOP[-1] / len(rows), 1)
            lines.append(
                f"the search by {names} has only {count(len(rows), 'row')}, of which a random "
                f"order finds {share:.0%} among the first {TOP[-1]}"
            )
        return lines

    def searched(
        self, keys: Tensor, search: Search, num_queries: int | None = None
    ) -> dict[str, dict[str, float]]:
        """Return the metrics of each direction.

        Args:
            keys: (N, I). Keys of the inputs of N rows.
            search: The similarities.
            num_queries: Number of queries, which are spread over the rows. None: all rows.
        """
        inputs = self.target.inputs
        results: dict[str, dict[str, float]] = {}
        for a, b, rows in directions(keys != MISSING):
            queries = torch.tensor(spaced_rows(len(rows), num_queries or len(rows)))
            results[f"{inputs[a]} to {inputs[b]}"] = search_metrics(
                search(a, b, rows), keys[rows, a], keys[rows, b], queries
            )
        return results

    def _directions(self, predictions: Sequence[Embedded]) -> Table:
        """Return the metrics of each direction."""
        x = torch.stack([prediction.x for prediction in predictions])

        def search(a: int, b: int, rows: Tensor) -> Similarity:
            queries, candidates = x[rows, a], x[rows, b]
            return lambda i: queries[i] @ candidates.T

        results = self.searched(keys_of(predictions), search)
        if not results:
            raise UserError(
                "head=contrastive: no row of the evaluated split has two of the inputs "
                f"{', '.join(self.target.inputs)}; use more rows or other splits"
            )
        return results


def keys_of(predictions: Sequence[Embedded]) -> Tensor:
    """Return the keys (N, I) of the inputs of N predictions."""
    return torch.stack([prediction.keys for prediction in predictions])


def key_of(digest: bytes) -> int:
    """Return the key of an input from the hash of its raw value."""
    return (int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)) or 1


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
    similarity: Similarity, query_keys: Tensor, candidate_keys: Tensor, queries: Tensor
) -> dict[str, float]:
    """Return the metrics of a search in which candidate i is the right answer to query i.

    A candidate also counts as right if its row has an equal query or an equal candidate. The
    metrics that begin with "strict" count only the own row. Equal candidates are in a random order,
    whose mean these metrics are, because nothing can tell them apart.

    Args:
        similarity: Similarities of queries and candidates.
        query_keys: (N,). Equal queries have equal keys.
        candidate_keys: (N,). Equal candidates have equal keys.
        queries: (Q,) int64. Indices of the queries.
    """
    ranks: list[Tensor] = []
    strict: list[Tensor] = []
    for rows in queries.split(max(1, CHUNK // len(query_keys))):
        # Without NaN, which is neither larger nor smaller than any number.
        similarities = similarity(rows).nan_to_num(-torch.inf)
        equal = candidate_keys[rows, None] == candidate_keys
        right = (query_keys[rows, None] == query_keys) | equal
        best = similarities.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        # A wrong candidate that is as similar counts as better: a model whose vectors are all
        # equal must not have rank 1.
        ranks.append(1 + ((similarities >= best) & ~right).sum(1))
        own = similarities[torch.arange(len(rows)), rows][:, None]
        before = ((similarities >= own) & ~equal).sum(1)
        # How many of the first k places the equal candidates have, divided among them.
        strict.append(torch.stack([(k - before) / equal.sum(1) for k in STRICT_TOP]).clamp(0, 1))
    rank = torch.cat(ranks).double()
    shares = torch.cat(strict, 1).double().mean(1).tolist()
    return {
        "mrr": float((1 / rank).mean()),
        **{f"recall@{k}": float((rank <= k).double().mean()) for k in TOP},
        # Not Tensor.median, which returns the lower one of the two in the middle.
        "median_rank": float(np.median(rank.numpy())),
        **{f"strict_recall@{k}": share for k, share in zip(STRICT_TOP, shares, strict=True)},
    }


def chance_metrics(query_keys: Tensor, candidate_keys: Tensor) -> dict[str, float]:
    """Return the expected metrics of `search_metrics` for candidates in a random order."""
    size = len(query_keys)
    pairs = list(zip(query_keys.tolist(), candidate_keys.tolist(), strict=True))
    queries = Counter(query for query, _ in pairs)
    candidates = Counter(candidate for _, candidate in pairs)
    both = Counter(pairs)
    # How many queries have how many right candidates.
    numbers = Counter(queries[q] + candidates[c] - both[q, c] for q, c in pairs)
    results: dict[int, dict[str, float]] = {}
    for right, number in numbers.items():
        none = _none_in_first(size, right)
        steps = [none[m - 1] - none[m] for m in range(1, size + 1)]
        results[right] = {
            "mrr": sum(step / m for m, step in enumerate(steps, 1)),
            **{f"recall@{k}": 1 - none[min(k, size)] for k in TOP},
            # The expected rank of the first of `right` candidates.
            "median_rank": (size + 1) / (right + 1),
            **{f"strict_recall@{k}": min(k / size, 1.0) for k in STRICT_TOP},
        }
        for name in results[right]:
            results[right][name] *= number / size
    names = next(iter(results.values()))
    return {name: math.fsum(figures[name] for figures in results.values()) for name in names}


def average(results: Mapping[Any, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over several searches."""
    rows = list(results.values())
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _none_in_first(size: int, right: int) -> list[float]:
    """Return the probabilities that none of `right` of `size` candidates is among the first m.

    Item m is for the first m candidates, from 0 to `size`.
    """
    result = [1.0]
    for m in range(size):
        result.append(result[-1] * max(size - right - m, 0) / (size - m))
    return result
