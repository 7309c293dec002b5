"""The part of a baseline that learns from the columns of a table: gradient-boosted trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.stacking.counted import NUM_FOLDS, split_folds
from dxn.stacking.modules import MAX_DEPTH, FittedPart, ScoreTargets, Trees

# Trees per output. The number with the lowest loss of rows that were held out is used.
MAX_TREES = 200
# The factor of the trees is fitted later, so numbers of trees are compared with the best of these.
# Without them, the many trees that separate classes well would lose because of too large logits.
FACTORS = (0.25, 0.35, 0.5, 0.7, 1.0)
# A table for which time suffices for fewer trees gets none.
MIN_TREES = 20
# Labels of a sample up to which each one gets trees of its own.
MAX_LABELS = 20
MAX_LEAVES = 31
# Operations of a training: TREE_WORK for each tree, and for each of its features, one per row and
# one per bin of each leaf.
# One core takes about 10 seconds for 1e9, so the trees of a table take at most about 40 seconds.
MAX_WORK = 2e9
# With more, only one fold is scored.
MAX_FOLDED_WORK = 5e8
LEAF_WORK = MAX_LEAVES * 256
TREE_WORK = 50_000
# Scores of the rows that are held out, after each number of trees: 200 MB in float32.
MAX_SCORES = 50_000_000


# A fitted model of scikit-learn, and what its outputs contribute to those of the baseline:
# (outputs of the model, K).
Weighted = tuple[Any, np.ndarray]


def fit_trees(
    x: Tensor,
    columns: Tensor,
    targets: ScoreTargets,
    loss_of_rows: Callable[[Tensor, Tensor], Tensor],
    share: float = 1.0,
) -> FittedPart | None:
    """Train gradient-boosted trees.

    Args:
        x: (n, F). Features of the training rows, NaN where unknown.
        columns: Indices of the features that the trees may use.
        targets: What is learned, (n, K).
        loss_of_rows: Mean loss of the task, for the outputs (m, K) and the indices (m,) of rows.
        share: Share of MAX_WORK and MAX_FOLDED_WORK for which there is time, 0 to 1.

    Returns:
        None if the table or the number of outputs is so large that too few trees would be trained,
        or if no tree lowers the loss.
    """
    size, num_outputs = targets.values.shape
    if not targets.are_exclusive and num_outputs > MAX_LABELS:
        return None
    work = num_outputs * (len(columns) * (size + LEAF_WORK) + TREE_WORK)
    limit = min(MAX_TREES, int(share * MAX_WORK / work))
    num_folds = NUM_FOLDS if work * limit <= share * MAX_FOLDED_WORK else 1
    limit = min(limit, MAX_SCORES * NUM_FOLDS // (num_folds * size * num_outputs) - 1)
    if limit < MIN_TREES:
        return None
    features, y = x[:, columns].numpy(), targets.values.numpy()
    folds = split_folds(y)
    rows = np.flatnonzero(folds < num_folds)
    held_out = np.empty((limit + 1, len(rows), num_outputs), dtype=np.float32)
    for fold in range(num_folds):
        is_out = folds == fold
        models, bias = _fit(features[~is_out], y[~is_out], targets, limit)
        held_out[:, is_out[rows]] = _staged(models, bias, features[is_out], limit)
    index = torch.from_numpy(rows)
    losses = [
        min(float(loss_of_rows(factor * torch.from_numpy(scores), index)) for factor in FACTORS)
        for scores in held_out
    ]
    best = int(np.argmin(losses))
    if not best:
        return None
    scores = torch.full(targets.values.shape, torch.nan)
    scores[index] = torch.from_numpy(held_out[best])
    models, bias = _fit(features, y, targets, best)
    module = _module(models, columns.numpy(), num_outputs)
    return FittedPart("gradient-boosted trees", [module], torch.from_numpy(bias).float(), scores)


def _fit(
    x: np.ndarray, y: np.ndarray, targets: ScoreTargets, count: int
) -> tuple[list[Weighted], np.ndarray]:
    """Train models with this number of iterations, and return them with the constant (K,)."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    options: dict[str, Any] = {
        "max_iter": count,
        "max_leaf_nodes": MAX_LEAVES,
        "max_depth": MAX_DEPTH,
        "early_stopping": False,
        "random_state": 0,
    }
    # scikit-learn cannot bin a feature without any value. A constant is never split.
    x = np.where(np.isnan(x).all(0), 0.0, x)
    num_outputs = y.shape[1]
    if targets.are_exclusive:
        goals = [(y.argmax(1), np.eye(num_outputs))]
    else:
        goals = [(y[:, k], np.eye(num_outputs)[k : k + 1]) for k in range(num_outputs)]
    models: list[Weighted] = []
    bias = np.zeros(num_outputs)
    for goal, weight in goals:
        present = np.unique(goal)
        if len(present) == 1:  # a class without rows in this part of the split
            bias += 0.0 if targets.are_exclusive else present[0] * weight[0]
            continue
        kind = (
            HistGradientBoostingClassifier if targets.are_classes else HistGradientBoostingRegressor
        )
        model: Any = kind(**options).fit(x, goal)
        if targets.are_exclusive:
            weight = weight[present]
            if len(present) == 2:  # one logit: the difference of both classes
                weight = (weight[1:] - weight[:1]) / 2
        models.append((model, weight))
        start = np.ravel(model._baseline_prediction)
        bias += start @ weight
        if targets.are_exclusive and len(present) < num_outputs:
            absent = np.setdiff1d(np.arange(num_outputs), present)
            bias[absent] = bias[present].min()
    return models, bias


def _staged(models: list[Weighted], bias: np.ndarray, x: np.ndarray, count: int) -> np.ndarray:
    """Return the scores (count + 1, n, K) after each number of iterations."""
    from sklearn.base import is_classifier

    result = np.tile(bias.astype(np.float32), (count + 1, len(x), 1))
    for model, weight in models:
        start = np.ravel(model._baseline_prediction)
        staged = model.staged_decision_function if is_classifier(model) else model.staged_predict
        for number, raw in enumerate(staged(x), start=1):
            result[number] += (raw.reshape(len(x), -1) - start) @ weight
    return result


def _module(models: list[Weighted], columns: np.ndarray, num_outputs: int) -> Trees:
    """Copy the nodes of all trees into tensors."""
    trees = [
        (predictor.nodes, weight[number])
        for model, weight in models
        for predictors in model._predictors
        for number, predictor in enumerate(predictors)
    ]
    starts = np.cumsum([0] + [len(nodes) for nodes, _ in trees])
    nodes = np.concatenate([nodes for nodes, _ in trees])
    module = Trees(len(trees), len(nodes), num_outputs)
    is_leaf = nodes["is_leaf"].astype(bool)
    itself = np.arange(len(nodes))
    start = np.repeat(starts[:-1], np.diff(starts))
    for name in ("left", "right"):
        child = np.where(is_leaf, itself, nodes[name].astype(np.int64) + start)
        module.get_buffer(name).copy_(torch.from_numpy(child))
    module.roots.copy_(torch.from_numpy(starts[:-1]))
    module.feature.copy_(torch.from_numpy(np.where(is_leaf, 0, columns[nodes["feature_idx"]])))
    module.threshold.copy_(torch.from_numpy(_rounded_down(nodes["num_threshold"])))
    module.missing_left.copy_(torch.from_numpy(nodes["missing_go_to_left"].astype(bool)))
    module.value.copy_(torch.from_numpy(nodes["value"].astype(np.float32)))
    module.weight.copy_(torch.from_numpy(np.stack([weight for _, weight in trees])))
    return module


def _rounded_down(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 up to each threshold, with which float32 compares the same."""
    largest = np.finfo(np.float32).max
    rounded = thresholds.clip(-largest, largest).astype(np.float32)
    is_above = rounded.astype(np.float64) > thresholds
    return np.where(is_above, np.nextafter(rounded, np.float32(-np.inf)), rounded)
