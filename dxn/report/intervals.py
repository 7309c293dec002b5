"""Bootstrap intervals of metrics, and the paired test of two models on the same rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.results import Interval
from dxn.tasks import Task

RESAMPLES = 400
CONFIDENCE = 0.95
# Rows that are drawn per resample. With more rows than this, the spread of the resamples is
# scaled, because it shrinks with the square root of the number of rows.
MAX_DRAWN = 2000
MAX_ROWS = 10_000  # rows that intervals are computed from, which limits time and memory
MIN_ROWS = 10  # below this number, an interval would say more about the method than about the model
FLIPS = 10_000  # permutations of the paired test
SHARES = ("accuracy", "accuracy_top5", "exact_match")  # of right rows
CHUNK = 500  # permutations at a time, which limits the memory


def metric_intervals(
    task: Task,
    predictions: Sequence[Any],
    truths: Sequence[Any],
    figures: Mapping[str, float],
) -> dict[str, Interval]:
    """Return the bootstrap interval of each metric (Efron and Tibshirani 1993, chapter 13).

    Args:
        task: Task of the model, with its metric.
        predictions: Predictions of n rows, in the format of `Task.predict`.
        truths: Parsed targets of the same rows.
        figures: Metrics of all rows. Only these get an interval.

    Returns:
        Intervals by metric. Metrics whose resamples are not finite or all equal are left out,
        except for shares of right rows.
    """
    rows = sample_rows(len(truths), MAX_ROWS)
    if len(rows) < MIN_ROWS:
        return {}
    draws = draw_rows(len(rows))
    values = task.metric.weighted(
        [predictions[i] for i in rows],
        [truths[i] for i in rows],
        draw_counts(draws, len(rows)),
    )
    # The share of the spread that is left when all rows count, and not only those of a resample.
    scale = math.sqrt(draws.shape[1] / len(truths))
    intervals: dict[str, Interval] = {}
    for name, column in values.items():
        finite = column.double().numpy()
        finite = finite[np.isfinite(finite)]
        if name in figures and math.isfinite(figures[name]) and len(finite) > RESAMPLES / 2:
            low, high = interval_of(finite, figures[name], scale)
            if low < high:
                intervals[name] = low, high
            elif name in SHARES and figures[name] in (0, 1):
                intervals[name] = _exact_interval(figures[name], len(truths))
    return intervals


def _exact_interval(share: float, num_rows: int) -> Interval:
    """Return the interval of a share of 0 or 1 by Clopper and Pearson (Biometrika 26, 1934)."""
    edge = ((1 - CONFIDENCE) / 2) ** (1 / num_rows)
    return (edge, 1.0) if share == 1 else (0.0, 1 - edge)


def sample_rows(num_rows: int, count: int) -> list[int]:
    """Return all rows in their order, or a random part of them, because a file can be sorted."""
    if num_rows <= count:
        return list(range(num_rows))
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(num_rows, generator=generator)[:count].sort().values.tolist()


def draw_rows(rows: int, seed: int = 0) -> Tensor:
    """Return the rows (R, m) of each resample. Equal numbers of rows get equal resamples."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(rows, (RESAMPLES, min(rows, MAX_DRAWN)), generator=generator)


def draw_counts(draws: Tensor, size: int) -> Tensor:
    """Return how often each row occurs in each resample.

    The product with statistics (size, S) of single rows are the statistics of each resample.

    Args:
        draws: (R, m). Indices of the rows of each resample.
        size: Number of rows.

    Returns:
        (R, size), float64, because sums of squared targets need its digits.
    """
    counts = torch.zeros(len(draws), size, dtype=torch.float64)
    return counts.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64))


def paired(
    first: Sequence[float], second: Sequence[float]
) -> tuple[int, float, Interval, float] | None:
    """Compare the scores of two models on the same rows.

    Args:
        first: Score of each row by the first model.
        second: Score of the same rows by the second model.

    Returns:
        The number of common rows; the mean score of the second model minus that of the first one;
        its 95% interval, by bootstrap over the rows; and p, the probability of a difference at
        least as large if both models were equally good, by a permutation test with random signs.
        None: there are too few rows.
    """
    differences = np.array(second, dtype=float) - np.array(first, dtype=float)
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    if n < MIN_ROWS:
        return None
    mean = float(differences.mean())
    draws = draw_rows(n)
    means = differences[draws.numpy()].mean(1)
    interval = interval_of(means, mean, math.sqrt(draws.shape[1] / n))
    return n, mean, interval, _sign_test(differences)


def interval_of(values: np.ndarray, center: float, scale: float = 1.0) -> Interval:
    """Return the interval that contains 95% of resampled values.

    Args:
        values: The values of the resamples.
        center: The value of all rows.
        scale: Factor of the spread, below 1 if a resample has fewer rows than there are.
    """
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    if scale >= 1:
        return float(low), float(high)
    middle = float(np.mean(values))
    return center + (float(low) - middle) * scale, center + (float(high) - middle) * scale


def _sign_test(differences: np.ndarray) -> float:
    """Return the p-value of a two-sided test that flips the signs of differences at random."""
    # Rows without a difference have no sign.
    values = differences[differences != 0]
    if not len(values):
        return 1.0
    rng = np.random.default_rng(0)
    observed = abs(float(values.sum()))
    extreme = 0
    for _ in range(FLIPS // CHUNK):
        signs = rng.integers(0, 2, (CHUNK, len(values)), dtype=np.int8) * 2 - 1
        # A tolerance, because equal sums in another order differ by rounding.
        extreme += int((np.abs(signs @ values) >= observed * (1 - 1e-9)).sum())
    # The observed signs are one of the permutations, so p is never 0.
    return (extreme + 1) / (FLIPS + 1)
