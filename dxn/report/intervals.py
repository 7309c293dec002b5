"""Bootstrap intervals of metrics, and the paired test of two models on the same rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dxn.core.results import Interval
from dxn.tasks import Task
from dxn.tasks.metric import MIN_BLOCKS, Blocks

RESAMPLES = 400
CONFIDENCE = 0.95
# Rows that are drawn per resample. With more rows than this, the spread of the resamples is
# scaled, because it shrinks with the square root of the number of rows.
MAX_DRAWN = 2000
MAX_ROWS = 10_000  # rows that intervals are computed from, which limits time and memory
MIN_ROWS = 10  # below this number, an interval would say more about the method than about the model
FLIPS = 10_000  # permutations of the paired test
# Shares of right rows, and what is 1 if all rows are right.
SHARES = ("accuracy", "accuracy_top5", "exact_match", "f1_micro")
MACRO = "f1_macro"  # a mean over classes
Z = 1.96  # quantile of the normal distribution for a 95% interval
CHUNK = 500  # permutations at a time, which limits the memory


def metric_intervals(
    task: Task,
    predictions: Sequence[Any],
    truths: Sequence[Any],
    figures: Mapping[str, float],
    blocks: Blocks | None = None,
) -> dict[str, Interval]:
    """Return the bootstrap interval of each metric (Efron and Tibshirani 1993, chapter 13).

    Args:
        task: Task of the model, with its metric.
        predictions: Predictions of n rows, in the format of `Task.predict`.
        truths: Parsed targets of the same rows.
        figures: Metrics of all rows. Only these get an interval.
        blocks: Which rows depend on each other. Whole blocks are resampled. None: each row.

    Returns:
        Intervals by metric. Metrics whose resamples are not finite or all equal are left out,
        except for shares of right rows and the macro F1 if all or no rows are right.
    """
    if len(truths) < MIN_ROWS:
        return {}
    rows, counts, scale, num_blocks = resample(len(truths), blocks)
    if blocks is not None and num_blocks < MIN_BLOCKS:
        return {}
    values = task.metric.weighted([predictions[i] for i in rows], [truths[i] for i in rows], counts)
    intervals: dict[str, Interval] = {}
    for name, column in values.items():
        finite = column.double().numpy()
        finite = finite[np.isfinite(finite)]
        if name in figures and math.isfinite(figures[name]) and len(finite) > RESAMPLES / 2:
            low, high = interval_of(finite, figures[name], scale)
            if low < high:
                intervals[name] = low, high
            elif name in SHARES and figures[name] in (0, 1):
                intervals[name] = _exact_interval(figures[name], num_blocks)
            elif name == MACRO and figures[name] in (0, 1):
                share = num_blocks / len(truths)
                independent = share * _balanced_rows(task.target, truths)
                intervals[name] = _exact_interval(figures[name], independent)
    return intervals


def _balanced_rows(target: Any, truths: Sequence[Any]) -> float:
    """Return the number of rows of classes of equal size whose mean is as certain.

    The variance of a mean over K classes of n_k rows is proportional to sum(1 / n_k) / K².
    """
    rows = Counter(chain.from_iterable(map(target.names, truths)))
    if not rows:  # no row has a label
        return len(truths)
    balanced = len(rows) ** 2 / sum(1 / number for number in rows.values())
    return min(balanced, len(truths))  # a row can have several labels


def _exact_interval(share: float, num_rows: float) -> Interval:
    """Return the interval of a share of 0 or 1 by Clopper and Pearson (Biometrika 26, 1934)."""
    edge = ((1 - CONFIDENCE) / 2) ** (1 / num_rows)
    return (edge, 1.0) if share == 1 else (0.0, 1 - edge)


def sample_rows(num_rows: int, count: int) -> list[int]:
    """Return all rows in their order, or a random part of them, because a file can be sorted."""
    if num_rows <= count:
        return list(range(num_rows))
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(num_rows, generator=generator)[:count].sort().values.tolist()


class Resamples(NamedTuple):
    """Resamples of some rows.

    Attributes:
        rows: Indices of n rows.
        counts: (R, n), float64. How often each of these rows occurs in each resample.
        scale: Factor of the spread of the resamples.
        num_blocks: Number of blocks of all rows; the number of rows if each is independent.
    """

    rows: list[int]
    counts: Tensor
    scale: float
    num_blocks: int


def resample(num_rows: int, blocks: Blocks | None = None) -> Resamples:
    """Draw rows, or whole blocks of rows, with replacement."""
    rows = sample_rows(num_rows, MAX_ROWS)
    if blocks is None:
        draws = draw_rows(len(rows))
        # The share of the spread that is left when all rows count, and not only those of a
        # resample.
        scale = math.sqrt(draws.shape[1] / num_rows)
        return Resamples(rows, draw_counts(draws, len(rows)), scale, num_rows)
    ids = np.asarray(blocks.ids)
    present, index = np.unique(ids[rows], return_inverse=True)
    total = len(np.unique(ids))
    draws, scale = _draw_blocks(len(present), total, blocks.spread)
    counts = draw_counts(draws, len(present))[:, torch.from_numpy(index)]
    return Resamples(rows, counts, scale, total)


def _draw_blocks(present: int, total: int, spread: float) -> tuple[Tensor, float]:
    """Return the blocks (R, m) of each resample, and the factor of the spread of the resamples.

    Args:
        present: Number of blocks that can be drawn.
        total: Number of all blocks.
        spread: Factor of the standard error, see `Blocks`.
    """
    if total > 1:
        # Resamples of few blocks vary too little: their variance is (n - 1) / n of the unbiased
        # one, whose own error makes the normal distribution Student's.
        spread *= student(total) / Z * math.sqrt(total / (total - 1))
    # Resamples with fewer blocks vary more, and a share stays between 0 and 1.
    draws = draw_rows(present, max(1, int(present / spread**2)))
    return draws, spread * math.sqrt(draws.shape[1] / total)


def student(size: int) -> float:
    """Return the quantile of Student's distribution for a 95% interval of the mean of n values."""
    from scipy.stats import t  # importing it takes time

    return float(t.ppf((1 + CONFIDENCE) / 2, size - 1))


def draw_rows(rows: int, size: int | None = None) -> Tensor:
    """Return the rows (R, m) of each resample. Equal numbers of rows get equal resamples.

    Args:
        rows: Number of rows.
        size: Number m of rows per resample, at most MAX_DRAWN. Default: all rows.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (RESAMPLES, min(rows if size is None else size, MAX_DRAWN))
    return torch.randint(rows, shape, generator=generator)


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
    first: Sequence[float], second: Sequence[float], blocks: Blocks | None = None
) -> tuple[int, float, Interval, float] | None:
    """Compare the scores of two models on the same rows.

    Args:
        first: Score of each row by the first model.
        second: Score of the same rows by the second model.
        blocks: Which rows depend on each other. Whole blocks are resampled, and their signs are
            flipped together. None: the rows are independent.

    Returns:
        The number of common rows; the mean score of the second model minus that of the first one;
        its 95% interval, by bootstrap over the rows; and p, the probability of a difference at
        least as large if both models were equally good, by a permutation test with random signs.
        None: there are too few rows or blocks.
    """
    differences = np.array(second, dtype=float) - np.array(first, dtype=float)
    is_finite = np.isfinite(differences)
    differences = differences[is_finite]
    n = len(differences)
    if n < MIN_ROWS:
        return None
    mean = float(differences.mean())
    if blocks is None:
        draws = draw_rows(n)
        means = differences[draws.numpy()].mean(1)
        interval = interval_of(means, mean, math.sqrt(draws.shape[1] / n))
        return n, mean, interval, _sign_test(differences)
    _, index = np.unique(np.asarray(blocks.ids)[is_finite], return_inverse=True)
    sums, sizes = np.bincount(index, differences), np.bincount(index)
    if len(sums) < MIN_BLOCKS:
        return None
    draws, scale = _draw_blocks(len(sums), len(sums), blocks.spread)
    means = sums[draws.numpy()].sum(1) / sizes[draws.numpy()].sum(1)
    return n, mean, interval_of(means, mean, scale), _sign_test(sums, blocks.spread)


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


def _sign_test(differences: np.ndarray, spread: float = 1.0) -> float:
    """Return the p-value of a two-sided test that flips the signs of differences at random.

    Args:
        differences: Differences of rows, or their sums in blocks.
        spread: Factor of the sums of random signs, see `Blocks`.
    """
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
        extreme += int((np.abs(signs @ values) * spread >= observed * (1 - 1e-9)).sum())
    # The observed signs are one of the permutations, so p is never 0.
    return (extreme + 1) / (FLIPS + 1)
