"""A simple method with which a model that writes is compared: the text of a similar row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from dxn.core.randomness import spaced_rows
from dxn.tasks.task import Raws

# Training rows that are compared: reading and comparing them takes about 20 seconds.
MAX_TEXTS, MAX_ARRAYS = 50_000, 5_000
SIDE = 8  # places along each axis at which the values of an array are compared
CHUNK = 256  # rows that are compared at once


def nearest_rows(train: Raws, raws: Raws, share: float) -> np.ndarray | None:
    """Return the most similar training row (n,) of each row.

    The similarity is the sum over the inputs of the cosine of the TF-IDF of the words of texts, and
    of the means of the parts of arrays (C, H, W), without their mean. Other inputs do not count.

    Args:
        train: Raw values of the training split, by input name; None where missing.
        raws: Raw values of n rows.
        share: Share of the usual number of training rows, 0 to 1.

    Returns:
        None if no input can be compared.
    """
    count = len(next(iter(train.values()), ()))
    kinds = {name: next((x for x in train[name] if x is not None), None) for name in train}
    has_arrays = any(isinstance(value, Tensor) for value in kinds.values())
    limit = int(share * (MAX_ARRAYS if has_arrays else MAX_TEXTS))
    if not min(limit, count):
        return None
    chosen = spaced_rows(count, min(limit, count))
    pairs = []
    for name, example in kinds.items():
        if isinstance(example, str):
            pairs.append(_of_texts([train[name][row] for row in chosen], raws[name]))
        elif isinstance(example, Tensor) and example.ndim == 3:
            known = [_grid(train[name][row], len(example)) for row in chosen]
            asked = [_grid(raw, len(example)) for raw in raws[name]]
            pairs.append((np.stack(known), np.stack(asked)))
    if not pairs:
        return None
    size = len(next(iter(raws.values())))
    nearest: list[np.ndarray] = []
    for first in range(0, size, CHUNK):
        parts = (asked[first : first + CHUNK] @ known.T for known, asked in pairs)
        similar = sum(x if isinstance(x, np.ndarray) else x.toarray() for x in parts)
        nearest.append(np.asarray(similar).argmax(1))
    return np.array(chosen)[np.concatenate(nearest)]


def nearest_texts(
    train: Raws, targets: Sequence[Any], raws: Raws, share: float
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the texts of the most similar training rows. The arguments are those of tasks."""
    rows = nearest_rows(train, raws, share)
    if rows is not None:
        yield "text of the most similar row", [str(targets[row]) for row in rows.tolist()]


def _of_texts(known: Sequence[Any], asked: Sequence[Any]) -> tuple[Any, Any]:
    """Return the TF-IDF of the words of texts, as sparse matrices with unit rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # it takes time to import

    # Each character that is no space, so that no text has an empty vocabulary.
    vectorizer = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]")
    texts = [text if isinstance(text, str) else "" for text in known]
    x = vectorizer.fit_transform(texts if any(map(str.strip, texts)) else ["."] * len(texts))
    return x, vectorizer.transform([text if isinstance(text, str) else "" for text in asked])


def _grid(raw: Any, channels: int) -> np.ndarray:
    """Return the means of parts of an array (C, H, W) as a unit vector, 0 for a missing one."""
    if raw is None:
        return np.zeros(channels * SIDE**2, np.float32)
    x = F.adaptive_avg_pool2d(raw.float(), SIDE).flatten()
    return F.normalize(x - x.mean(), dim=0).numpy()
