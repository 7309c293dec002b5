"""The part of a baseline that learns from numbers: linear or kernel ridge regression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dxn.stacking.modules import DenseScores, FittedPart, ScoreTargets

# Landmarks of a kernel. A baseline with 2,000 landmarks of 1,000 numbers takes 8 MB.
MAX_LANDMARKS = 2000
# Size of the kernel matrix of all rows and landmarks: 240 MB in float64, and a few copies exist at
# once. Above 15,000 rows there are fewer landmarks, but not fewer than COMPARED_LANDMARKS.
MAX_VALUES = 30_000_000
# Rows and landmarks with which the candidates (linear or kernel, gamma, scaling) are compared. With
# more, it takes longer, and the choice is rarely another one. The best one is fitted to all rows.
MAX_COMPARED = 5000
COMPARED_LANDMARKS = 1000
# Features up to which a linear model is a candidate. Its time is cubic in their number.
MAX_LINEAR = 2000
# Values of gamma, as multiples of 1 / (total variance of the features), which is gamma="scale" of
# scikit-learn. The kernel is narrower with a larger gamma.
GAMMAS = (0.1, 0.3, 1.0)
# Ridge penalties, relative to the largest eigenvalue.
PENALTIES = 10.0 ** np.arange(-5.5, 0.6, 0.5)
# Smaller eigenvalues of the kernel of the landmarks, relative to the largest one, count as 0: their
# directions are noise of float32.
MIN_EIGENVALUE = 1e-5
MIN_LEFT_OUT = 1e-9  # avoids a division by zero for a row that determines its own prediction
# A feature is constant if its standard deviation is at most this fraction of its mean or of the
# other features of its input. Such a deviation is a rounding error, for example of the mean of a
# clip that is normalized to 0.
MIN_SCALE = 1e-5
MIN_VARIANCE = 1e-6  # avoids a division by zero if all features are constant
CONSTANT = 1e30  # scale of a constant feature; not infinity, which is an error in saved weights


class Ridge(NamedTuple):
    """A ridge regression, and its predictions for each row without this row.

    Attributes:
        weight: (F, K).
        bias: (K,).
        scores: (n, K). Predictions of the row by a model that was not trained on it.
        penalty: The penalty with the lowest error of these predictions, see PENALTIES.
        error: This error.
    """

    weight: np.ndarray
    bias: np.ndarray
    scores: np.ndarray
    penalty: float
    error: float


def fit_dense(x: Tensor, targets: ScoreTargets, sizes: Sequence[int]) -> FittedPart:
    """Train a ridge regression on standardized features, or on a kernel of them.

    The kind of the model, gamma, the penalty and the scaling are those with the lowest
    leave-one-out error, which ridge regression has in closed form. Two scalings are tried: each
    feature has variance 1, or each group of features has the same total variance.

    Args:
        x: (n, F). Features of the training rows, NaN where unknown.
        targets: What is learned, (n, K).
        sizes: Number of features of each group; their sum is F. Each input has two groups: its
            features, and the one that says whether a sample has this input.
    """
    size = len(x)
    y = targets.values.double().numpy()
    mean, scale = _standardization(x, sizes)
    scales = [scale]
    balanced = scale * _balance(scale, sizes)
    if not torch.equal(balanced, scale):
        scales.append(balanced)
    order = torch.from_numpy(np.random.default_rng(0).permutation(size))
    compared = order[:MAX_COMPARED].sort().values
    rows = order[:COMPARED_LANDMARKS]
    best: tuple[float, DenseScores] | None = None
    for candidate in _candidates(x, mean, scales, rows, y.shape[1]):
        features, _ = _features(candidate, x[compared])
        error = fit_ridge(features, y[compared.numpy()]).error
        if best is None or error < best[0]:
            best = error, candidate
    assert best is not None
    module = best[1]
    if len(module.landmarks):
        count = min(MAX_LANDMARKS, max(MAX_VALUES // size, COMPARED_LANDMARKS))
        module = _with_landmarks(module, x, order[:count], gamma=float(module.gamma))
    return _fitted(module, x, targets)


def fit_linear(x: Tensor, targets: ScoreTargets, sizes: Sequence[int]) -> FittedPart:
    """Train a linear ridge regression on the features of inputs, which have equal total variances.

    It does not use which inputs a sample has. A sample without an input that nearly all training
    rows have would be far from them, and a linear model extrapolates, unlike a kernel.

    Args:
        x: See `fit_dense`.
        targets: See `fit_dense`.
        sizes: See `fit_dense`.
    """
    mean, scale = _standardization(x, sizes)
    for part in scale.split(list(sizes))[1::2]:
        part.fill_(CONSTANT)
    module = DenseScores(x.shape[1], targets.values.shape[1])
    module.mean.copy_(mean)
    module.scale.copy_(scale * _balance(scale, sizes))
    return _fitted(module, x, targets)


def _fitted(module: DenseScores, x: Tensor, targets: ScoreTargets) -> FittedPart:
    """Fit the weights of a module to the features x (n, F) of all rows."""
    features, basis = _features(module, x)
    ridge = fit_ridge(features, targets.values.double().numpy())
    module.weight.copy_(torch.from_numpy(basis @ ridge.weight))
    name = "RBF kernel ridge" if len(module.landmarks) else "ridge"
    return FittedPart(
        f"{name} {'classifier' if targets.are_classes else 'regression'}",
        [module],
        torch.from_numpy(ridge.bias).float(),
        torch.from_numpy(ridge.scores).float(),
    )


def fit_ridge(features: np.ndarray, y: np.ndarray) -> Ridge:
    """Fit a ridge regression with the penalty that has the lowest leave-one-out error.

    The prediction of row i without row i is y_i - (y_i - p_i) / (1 - h_i), where p is the
    prediction with all rows and h the diagonal of the hat matrix (Allen, 1974).

    Args:
        features: (n, F) float64.
        y: (n, K) float64.
    """
    size = len(features)
    center, mean = features.mean(0), y.mean(0)
    centered, residual = features - center, y - mean
    # The eigenvectors of the smaller one of both products, because its time is cubic.
    if size >= features.shape[1]:
        values, vectors = np.linalg.eigh(centered.T @ centered)
        # (n, r): centered @ vectors are the left singular vectors times the singular values.
        scaled = centered @ vectors
    else:
        values, left = np.linalg.eigh(centered @ centered.T)
        scaled = left * np.sqrt(values.clip(min=0))
        vectors = centered.T @ left / np.sqrt(values.clip(min=values.max() * 1e-12 + 1e-300))
    values = values.clip(min=0)
    product = scaled.T @ residual
    squares = scaled**2
    best: tuple[float, float, np.ndarray] | None = None
    for penalty in PENALTIES * max(float(values.max()), 1e-12):
        inverse = 1 / (values + penalty)
        predicted = scaled @ (inverse[:, None] * product)
        # 1 / n: the mean of the targets is also estimated with the row.
        left_out = 1 - squares @ inverse - 1 / size
        error = (residual - predicted) / left_out.clip(min=MIN_LEFT_OUT)[:, None]
        mean_error = float((error**2).mean())
        if best is None or mean_error < best[0]:
            best = mean_error, penalty, error
    assert best is not None
    mean_error, penalty, error = best
    weight = vectors @ (product / (values + penalty)[:, None])
    return Ridge(weight, mean - center @ weight, y - error, penalty, mean_error)


def _candidates(
    x: Tensor, mean: Tensor, scales: Sequence[Tensor], rows: Tensor, num_outputs: int
) -> Iterator[DenseScores]:
    """Yield modules without weights: for each scale a linear one, and one per gamma.

    Args:
        x: (n, F). Features of the training rows.
        mean: (F,).
        scales: Scales (F,) by which the features can be divided.
        rows: Rows that can be landmarks.
        num_outputs: Number of outputs K.
    """
    for scale in scales:
        linear = DenseScores(x.shape[1], num_outputs)
        linear.mean.copy_(mean)
        linear.scale.copy_(scale)
        if x.shape[1] <= MAX_LINEAR:
            yield linear
        # Features that are always the same have no influence on a distance.
        variance = float(linear.standardized(x).var(0).sum())
        for gamma in GAMMAS:
            yield _with_landmarks(linear, x, rows, gamma=gamma / max(variance, MIN_VARIANCE))


def _with_landmarks(module: DenseScores, x: Tensor, rows: Tensor, *, gamma: float) -> DenseScores:
    """Return a module without weights whose landmarks are these rows of the features x (n, F)."""
    landmarks = module.standardized(x[rows.sort().values]).unique(dim=0)
    kernel = DenseScores(x.shape[1], module.weight.shape[1], len(landmarks))
    kernel.mean.copy_(module.mean)
    kernel.scale.copy_(module.scale)
    kernel.gamma.fill_(gamma)
    kernel.landmarks.copy_(landmarks)
    return kernel


def _features(module: DenseScores, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the design matrix (n, M) of a ridge regression, and the matrix that computes it.

    This matrix is multiplied with the result of `module.features`. With a kernel, it is the inverse
    root of the kernel of the landmarks, so that the penalty is that of kernel ridge regression.
    """
    features = module.features(module.standardized(x)).double().numpy()
    if not len(module.landmarks):
        return features, np.eye(features.shape[1])
    values, vectors = np.linalg.eigh(module.features(module.landmarks).double().numpy())
    is_large = values > MIN_EIGENVALUE * values.max()
    basis = vectors[:, is_large] / np.sqrt(values[is_large])
    return features @ basis, basis


def _standardization(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the mean and the scale of each feature (F,), without unknown values."""
    x = x.double()
    mean = x.nanmean(0).nan_to_num(0.0)
    scale = (x - mean).square().nanmean(0).nan_to_num(0.0).sqrt()
    squares = (mean.square() + scale.square()).split(list(sizes))
    typical = torch.cat([part.mean().sqrt().expand(len(part)) for part in squares])
    # A constant feature has no influence, whatever its value is in new data.
    is_constant = scale <= MIN_SCALE * torch.maximum(mean.abs(), typical)
    return mean, scale.masked_fill(is_constant, CONSTANT)


def _balance(scale: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return factors (F,) of the scales, with which all groups have the same total variance.

    Without them, a number beside a picture of 1,280 features has hardly any influence on a
    distance. Groups of constant features are ignored.
    """
    counts = [int((part < CONSTANT).sum()) for part in scale.split(list(sizes))]
    least = min((count for count in counts if count), default=1)
    factors = [math.sqrt(max(count, least) / least) for count in counts]
    return torch.cat([torch.full((n,), f) for n, f in zip(sizes, factors, strict=True)])
