"""The part of a baseline that learns from counted features: TF-IDF and linear models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.stacking.modules import FittedPart, ScoreTargets, TfIdf

# Parts of the training split. Each is scored by a model that was trained on the others.
NUM_FOLDS = 5
# Entries of the matrix of all rows, times the number of outputs: about 20 seconds of training on
# one core. With more, the model is trained on some of the rows.
MAX_WORK = 4e8
# With more, only one fold is scored.
MAX_FOLDED_WORK = 2e7
# Features of a block. The ones that occur in the most rows are kept.
MAX_FEATURES = 100_000
# From this number of rows on, a feature of a single row is left out: it tells little, and most
# features are of this kind.
MIN_ROWS = 1000
MAX_SORTED = 4_000_000  # occurrences that are sorted at a time
UNKNOWN = -1  # no feature has this code


def fit_counted(blocks: Sequence[Tensor], targets: ScoreTargets) -> FittedPart:
    """Train one linear model per output: an SVM for classes, ridge regression for numbers.

    Args:
        blocks: Blocks of features (2, m), int32: the row and the code of each occurrence.
        targets: What is learned, (n, K).
    """
    from scipy import sparse  # it takes time to import

    size, num_outputs = targets.values.shape
    modules = [_fit_tfidf(block, size, num_outputs) for block in blocks]
    matrices = []
    for block, module in zip(blocks, modules, strict=True):
        matrix: Any = sparse.csr_matrix((size, len(module.codes)))
        for part in _parts(block, size):
            rows, columns, values = module.entries(part, size)
            matrix += sparse.csr_matrix((values.astype(np.float64), (rows, columns)), matrix.shape)
        matrices.append(matrix)
    x: Any = sparse.hstack(matrices, format="csr")  # Any: its stubs lack the index
    y = targets.values.double().numpy()
    work = x.nnz * num_outputs
    folds = split_folds(y)
    # The folds are random, so the first rows in their order are a random part of all rows.
    used = np.argsort(folds, kind="stable")[: max(int(size * MAX_WORK / max(work, 1)), 1)]
    scores = np.full(y.shape, np.nan)
    for fold in range(NUM_FOLDS if work <= MAX_FOLDED_WORK else 1):
        held_out = folds == fold
        rest = used[~held_out[used]]
        if held_out.any() and len(rest):
            weight, bias = _fit_linear(x[rest], y[rest], targets.are_classes)
            scores[held_out] = x[held_out] @ weight + bias
    weight, bias = _fit_linear(x[used], y[used], targets.are_classes)
    stop = 0
    for module in modules:
        start, stop = stop, stop + len(module.codes)
        module.weight.copy_(torch.from_numpy(weight[start:stop]))
    name = "linear SVM" if targets.are_classes else "ridge regression"
    return FittedPart(
        name, modules, torch.from_numpy(bias).float(), torch.from_numpy(scores).float()
    )


def split_folds(y: np.ndarray) -> np.ndarray:
    """Return the fold of each row (n,), with about the same targets (n, K) in each fold."""
    order = np.random.default_rng(0).permutation(len(y))
    # Rows of a class follow each other, so they are distributed over all folds.
    order = order[np.argsort(y[order].argmax(1), kind="stable")]
    folds = np.empty(len(y), dtype=np.int64)
    folds[order] = np.arange(len(y)) % NUM_FOLDS
    return folds


def _fit_tfidf(block: Tensor, size: int, num_outputs: int) -> TfIdf:
    """Choose the features of a block, and compute their inverse document frequencies."""
    documents: list[tuple[Tensor, Tensor]] = []  # codes, and the number of rows with each
    for rows, codes in _parts(block, size):
        # Each feature counts once per row. One number per pair is much faster to sort than pairs.
        distinct = (codes * size + rows).unique() // size
        documents.append(distinct.unique_consecutive(return_counts=True))
    codes, index = torch.cat([codes for codes, _ in documents]).unique(return_inverse=True)
    counts = torch.zeros_like(codes).index_add_(0, index, torch.cat([n for _, n in documents]))
    if size >= MIN_ROWS:
        codes, counts = codes[counts > 1], counts[counts > 1]
    if len(codes) > MAX_FEATURES:
        most = counts.argsort(descending=True, stable=True)[:MAX_FEATURES].sort().values
        codes, counts = codes[most], counts[most]
    if not len(codes):
        codes, counts = torch.tensor([UNKNOWN]), torch.tensor([1])
    module = TfIdf(len(codes), num_outputs)
    module.codes.copy_(codes)
    # The smoothed formula of scikit-learn.
    module.idf.copy_(((1 + size) / (1 + counts)).log() + 1)
    return module


def _parts(block: Tensor, size: int) -> Iterator[Tensor]:
    """Yield the occurrences (2, m) int64 of successive rows, because sorting all needs memory."""
    number = -(-block.shape[1] // MAX_SORTED) or 1
    step = -(-size // number)
    for start in range(0, size, step):
        is_inside = (block[0] >= start) & (block[0] < start + step)
        yield block[:, is_inside].long()


def _fit_linear(x: Any, y: np.ndarray, are_classes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Train one model per column of y (n, K). Return the weights (F, K) and the biases (K,)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    x, y, counts = _merged(x, y)
    weight = np.zeros((x.shape[1], y.shape[1]))
    bias = np.zeros(y.shape[1])
    for k in range(y.shape[1]):
        column = y[:, k]
        if (column == column[0]).all():  # a class without rows in this part of the split
            bias[k] = column[0]
            continue
        if k == 1 and y.shape[1] == 2 and (column == -y[:, 0]).all():
            weight[:, 1], bias[1] = -weight[:, 0], -bias[0]
            continue
        model: Any = (
            LinearSVC(dual="auto", random_state=0) if are_classes else Ridge(solver="sparse_cg")
        )
        with warnings.catch_warnings():
            # A model that is nearly converged is good enough.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x, column, sample_weight=counts)
        weight[:, k] = model.coef_.ravel()
        bias[k] = np.ravel(model.intercept_)[0]
    return weight, bias


def _merged(x: Any, y: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
    """Merge equal rows with equal targets, and return how many rows each one stands for.

    A linear SVM takes minutes if the same few texts are repeated with different targets, as the
    questions about many pictures are.
    """
    x.sort_indices()
    first: dict[tuple[bytes, bytes, bytes], int] = {}
    groups = np.empty(len(y), dtype=np.int64)
    for row, (start, stop) in enumerate(zip(x.indptr, x.indptr[1:], strict=False)):
        key = x.indices[start:stop].tobytes(), x.data[start:stop].tobytes(), y[row].tobytes()
        groups[row] = first.setdefault(key, row)
    rows, counts = np.unique(groups, return_counts=True)
    return x[rows], y[rows], counts.astype(np.float64)
