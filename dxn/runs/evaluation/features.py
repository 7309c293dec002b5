"""Metrics of created values from features of them, the vectors of a model that judges them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FRECHET, NEAREST = "frechet_distance", "nearest_distance"
CHUNK = 1024  # rows of a matrix of distances, because there can be many training values


def feature_metrics(vectors: Tensor, training: Tensor | None) -> dict[str, float]:
    """Return the diversity of values, and how they differ from the training values, if known.

    Args:
        vectors: (n, E) float64. Features of the values.
        training: (m, E) float64. Features of the training values.
    """
    figures: dict[str, float] = {}
    if training is not None:
        if min(len(vectors), len(training)) > 1:  # a single value has no covariance
            figures[FRECHET] = frechet_distance(vectors, training)
        figures[NEAREST] = nearest_distance(vectors, training)
    if len(vectors) > 1:
        figures["diversity"] = diversity(vectors)
    return figures


def distance_remarks(vectors: Tensor, training: Tensor | None) -> list[str]:
    """Return sentences about the distances from the training values, see `feature_metrics`."""
    if training is None:
        return ["there are no distances: the data has no training values besides these rows"]
    size = vectors.shape[1]
    fewest = min(len(vectors), len(training))
    if fewest > size or fewest < 2:
        return []
    # The covariance is singular, and the distance also depends on the number of rows.
    return [f"{FRECHET} is too large: it needs more rows than features ({size}), got {fewest}"]


def share_equal(texts: Sequence[str], others: Sequence[Any], tokenizer: Any) -> float:
    """Return the share of texts that have the same words as others, pair by pair.

    Args:
        texts: Texts that a model wrote.
        others: True texts.
        tokenizer: Tokenizer of the texts, which can convert them to lower case.
    """
    pairs = zip(texts, others, strict=True)
    return sum(text.split() == words_of(other, tokenizer) for text, other in pairs) / len(texts)


def words_of(text: Any, tokenizer: Any) -> list[str]:
    """Return the words of a text in the form that its tokenizer writes, such as lower case."""
    normalizer = tokenizer.vocabulary.normalizer
    return (str(text) if normalizer is None else normalizer.normalize_str(str(text))).split()


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Return the Fréchet distance of two Gaussians that are fitted to features (arXiv:1706.08500).

    It is |mean(a) - mean(b)|² + tr(A + B - 2 (A B)^½), where A and B are the covariances.

    Args:
        a: (n, E), n > 1.
        b: (m, E), m > 1.
    """
    shift = (a.mean(0) - b.mean(0)).square().sum()
    cov_a, cov_b = torch.atleast_2d(a.T.cov()), torch.atleast_2d(b.T.cov())
    # (A B)^½ has the trace of (A^½ B A^½)^½. This matrix is symmetric, so its eigenvalues are real
    # and not negative, also of singular covariances. Only rounding errors are below 0.
    values, basis = torch.linalg.eigh(cov_a)
    root = basis * values.clamp(min=0).sqrt() @ basis.T
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    return max(float(shift + cov_a.trace() + cov_b.trace() - 2 * cross), 0.0)


def diversity(vectors: Tensor) -> float:
    """Return the mean cosine distance of all pairs of features (n, E), n > 1."""
    units = F.normalize(vectors, dim=1)
    # The squared length of the sum is the sum of all cosines, also of each feature with itself.
    cosines = units.sum(0).square().sum() - units.square().sum()
    return 1 - float(cosines) / (len(units) * (len(units) - 1))


def nearest_distance(vectors: Tensor, others: Tensor) -> float:
    """Return the median distance of features (n, E) to the nearest of other features (m, E)."""
    nearest = [torch.cdist(part, others).amin(1) for part in vectors.split(CHUNK)]
    # Not Tensor.median, which is the lower one of two middle values.
    return float(torch.cat(nearest).quantile(0.5))
