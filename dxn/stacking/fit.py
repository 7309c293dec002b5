"""The training of a baseline, and its combination with the model (stacking)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dxn.stacking.counted import fit_counted
from dxn.stacking.dense import fit_dense, fit_linear
from dxn.stacking.features import COLUMNS, ENCODER, Features
from dxn.stacking.modules import FeatureBaseline, FittedPart, ScoreTargets
from dxn.stacking.trees import fit_trees

# The scores of a linear model are about -1 to 1, too small for probabilities.
INITIAL_SCALE = 2.0
# Smaller factors of a baseline are not worth its time.
MIN_FACTOR = 1e-3
MAX_ITERATIONS = 100
# Features of the columns of a table that stand beside the vectors of encoders in a linear model.
MAX_COLUMNS = 500

# What a model reads: only columns of a table; texts, alone or with columns; or something else.
InputKind = Literal["cells", "texts", "other"]

# The factors of the head and of the baseline that are good without any rows, and the weight of the
# penalty that pulls the fitted ones to them, in rows. A few rows that all fit are not reason for
# large changes, above all if later rows come from other speakers or places
# (benchmarks/studies/presets.md).
MIX_OF_CLASSES: dict[InputKind, tuple[tuple[float, float], float]] = {
    # Without mixup and augmentation, a model of few cells is more certain than it is right.
    "cells": ((0.5, 0.5), 3.0),
    # With few texts, a linear model that counts their words is better than a transformer from
    # random weights, whose share of the answers must be earned on the validation rows.
    "texts": ((0.0, 1.0), 10.0),
    "other": ((1.0, 0.5), 3.0),
}
# A mean of two numbers. The rows of a small validation split have chosen the best epoch of the
# model, so that it looks better there than it is. The weight is that of rows with the lowest loss
# of both. A forecast has many windows, and a quadratic loss.
MIX_OF_NUMBERS, ROWS_OF_NUMBERS = (0.5, 0.5), 30.0
MIX_OF_FORECASTS, ROWS_OF_FORECASTS = (0.6, 0.4), 0.1

# Mean loss of the task for outputs (n, K).
Loss = Callable[[Tensor], Tensor]


def fit_baseline(
    features: Mapping[str, Features],
    targets: ScoreTargets,
    loss_of_rows: Callable[[Tensor, Tensor], Tensor],
    share: float = 1.0,
) -> FeatureBaseline:
    """Train a baseline on the features of a training split.

    The scores are scaled so that they minimize the loss of rows on which they were not trained.
    The output of the baseline is then in the space of the head's output.

    Args:
        features: Features of all n rows, by input name. Rows that lack the input have NaN.
        targets: What the baseline learns, (n, K).
        loss_of_rows: Mean loss of the task, for the outputs (m, K) and the indices (m,) of rows.
        share: Share of the usual time of the trees that is left, 0 to 1.
    """
    blocks = [block for summary in features.values() for block in summary.counted]
    counted = fit_counted(blocks, targets) if blocks else None
    widths = {name: summary.dense.shape[1] for name, summary in features.items()}
    vectors = [name for name in features if name.startswith(ENCODER)]
    # Unlike small pictures, columns need few features, with which vectors are worth more.
    columns = [name for name in features if features[name].about == COLUMNS]
    columns = columns if sum(widths[name] for name in columns) <= MAX_COLUMNS else []
    empty = FeatureBaseline(
        "",
        dense={name: widths[name] for name in features if name not in vectors},
        linear={name: widths[name] for name in (*columns, *vectors) if vectors},
        counted={name: [1] * len(summary.counted) for name, summary in features.items()},
        num_outputs=targets.values.shape[1],
    )
    dense = linear = trees = None
    if empty.linear is not None:
        x = empty.dense_features(features, len(targets.values), empty.num_linear)
        linear = fit_linear(x, targets, _groups(empty.num_linear))
    if empty.dense is not None:
        x = empty.dense_features(features, len(targets.values), empty.num_dense)
        dense = fit_dense(x, targets, _groups(empty.num_dense))
        indices = _table_columns(empty, features)
        if len(indices):
            trees = fit_trees(x, indices, targets, loss_of_rows, share)
    parts = [part for part in (counted, dense, linear, trees) if part is not None]
    scores = torch.stack([part.scores for part in parts])
    rows = (~scores.isnan().any(2).any(0)).nonzero()[:, 0]
    initial = INITIAL_SCALE if targets.are_classes else 1.0
    scales = fit_scales(
        list(scores[:, rows]),
        lambda output: loss_of_rows(output, rows),
        # A few rows are not reason to use trees.
        [0.0 if part is trees else initial for part in parts],
    )
    scale_of = {id(part): scale for part, scale in zip(parts, scales, strict=True)}
    useless = {number for number, scale in scale_of.items() if scale < MIN_FACTOR}
    linear = None if id(linear) in useless else linear
    trees = None if id(trees) in useless else trees
    if id(dense) in useless and (linear or trees):
        dense = None
    sizes = iter([] if counted is None else [len(module.codes) for module in counted.modules])
    baseline = FeatureBaseline(
        _about(features, [part for part in (counted, dense, linear, trees) if part is not None]),
        dense=empty.num_dense,
        linear={} if linear is None else empty.num_linear,
        counted={name: [next(sizes) for _ in ones] for name, ones in empty.counted.items()},
        num_outputs=targets.values.shape[1],
    )
    if counted is not None:
        baseline.tfidf = nn.ModuleList(counted.modules)
    if dense is not None:
        baseline.dense = dense.modules[0]
    if linear is not None:
        baseline.linear = linear.modules[0]
    if trees is not None:
        baseline.trees = trees.modules[0]
    for part in (counted, dense, linear, trees):
        if part is not None:
            scale = scale_of[id(part)]
            baseline.bias += scale * part.bias
            for module in part.modules:
                module.weight *= scale
    return baseline


def fit_mix(
    outputs: Tensor,
    baseline_outputs: Tensor,
    loss: Loss,
    *,
    are_classes: bool = True,
    inputs: InputKind = "other",
    are_forecasts: bool = False,
    are_few: bool = False,
) -> tuple[float, float]:
    """Return the factors (a, b) with which a * outputs + b * baseline_outputs has the lowest loss.

    Args:
        outputs: (n, K). Outputs of the head for rows of the validation split.
        baseline_outputs: (n, K). Outputs of the baseline for the same rows.
        loss: Mean loss of the task for these rows.
        are_classes: Whether the outputs are logits.
        inputs: What the model reads.
        are_forecasts: Whether the rows are windows of one period. They overlap, so how much the
            outputs should be enlarged there says little about later periods, and the factors add up
            to at most 1.
        are_few: Whether there are too few independent rows to shrink forecasts either, so that the
            factors add up to 1.

    Returns:
        Factors of at least 0. b is 0 if the baseline does not lower the loss; of forecasts, a is 0
        if the model does not.
    """
    (alone,) = fit_scales([outputs], loss, [1.0])
    if are_classes:
        start, rows = MIX_OF_CLASSES[inputs]
    elif are_forecasts:
        start, rows = MIX_OF_FORECASTS, ROWS_OF_FORECASTS
    else:
        lowest = min(float(loss(part)) for part in (outputs, baseline_outputs))
        start, rows = MIX_OF_NUMBERS, ROWS_OF_NUMBERS * lowest
    a, b = fit_scales([outputs, baseline_outputs], loss, start, rows)
    if are_forecasts:
        alone = 1.0 if are_few else min(alone, 1.0)
    if are_forecasts and (a + b > 1 or are_few):
        (a,) = fit_scales(
            [outputs - baseline_outputs],
            lambda difference: loss(baseline_outputs + difference),
            start[:1],
            rows,
        )
        a = min(a, 1.0)
        b = 1.0 - a
    # A lower loss of a few rows is no reason to leave out a part of a model of cells, texts or
    # numbers.
    has_both = b > MIN_FACTOR and not are_forecasts and (inputs != "other" or not are_classes)
    choices = [] if has_both else [(alone, 0.0)]
    choices += [(a, b)] if b > MIN_FACTOR else []
    # A few rows that a classifier fits perfectly are no reason to leave the model out.
    choices += [(0.0, 1.0)] if are_forecasts else []
    losses = [float(loss(a * outputs + b * baseline_outputs)) for a, b in choices]
    return choices[losses.index(min(losses))]


def fit_scales(
    parts: Sequence[Tensor], loss: Loss, initial: Sequence[float], rows: float = 1.0
) -> list[float]:
    """Return factors of at least 0 whose weighted sum of the parts has the lowest loss.

    A squared penalty with the weight of a few rows pulls them to their initial values.

    Args:
        parts: Outputs (n, K) to add up.
        loss: Mean loss of n rows.
        initial: Factors that are good without any rows. The fitted ones stay near them if there are
            few rows.
        rows: Weight of the penalty: its loss counts as much as that of this number of rows.
    """
    from scipy.optimize import minimize  # it takes time to import

    start = torch.tensor(initial, dtype=torch.float64)
    stacked = torch.stack(list(parts)).double()
    size = max(stacked.shape[1], 1)

    def objective(factors: np.ndarray) -> tuple[float, np.ndarray]:
        # The caller changes weights in place, so it has turned gradients off.
        with torch.enable_grad():
            x = torch.tensor(factors, dtype=torch.float64, requires_grad=True)
            output = torch.tensordot(x, stacked, 1)
            penalty = rows / size * (x - start).square().sum()
            total = loss(output) + penalty
            total.backward()
            assert x.grad is not None
            return total.item(), x.grad.numpy()

    result = minimize(
        objective,
        np.array(initial),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * len(parts),
        options={"maxiter": MAX_ITERATIONS},
    )
    return [float(factor) for factor in result.x]


def _groups(counts: Mapping[str, int]) -> list[int]:
    """Return the sizes of the groups of features: the additional one has another unit."""
    return [size for count in counts.values() for size in (count, 1)]


def _table_columns(baseline: FeatureBaseline, features: Mapping[str, Features]) -> Tensor:
    """Return the indices of the dense features that are columns of a table."""
    columns: list[int] = []
    start = 0
    for name, count in baseline.num_dense.items():
        if features[name].about == COLUMNS:
            columns += range(start, start + count)
        start += count + 1  # the last one says whether a sample has the input
    return torch.tensor(columns, dtype=torch.long)


def _about(features: Mapping[str, Features], parts: Sequence[FittedPart]) -> str:
    """Return the name of the baseline, such as "TF-IDF + linear SVM"."""
    read = [summary for summary in features.values() if summary.counted or summary.dense.shape[1]]
    names = [*(summary.about for summary in read), *(part.name for part in parts)]
    return " + ".join(dict.fromkeys(names))
