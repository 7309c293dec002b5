"""A simple model on the vectors of published weights, which stands beside a fine-tuned model."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dxn.data.dataset import Samples
from dxn.data.rows import TARGET
from dxn.models.model import Batch, MultimodalModel
from dxn.stacking.dense import fit_dense, fit_ridge
from dxn.stacking.features import mean_vectors
from dxn.stacking.train import MIN_ROWS, score_targets
from dxn.tasks import Task
from dxn.tasks.heads import LinearHead
from dxn.tasks.space import PER_SAMPLE
from dxn.tokenize.encoded_adapter import EncodedAdapter
from dxn.training.predict import Predictions, run_batches, score

FROZEN = "classical model, frozen weights"
# Training rows whose vectors are computed, if the time suffices: more hardly change the model.
MAX_ROWS = 10_000
ENOUGH_ROWS = 1_000  # fewer of many would make the model look worse than it is
FIRST_ROWS = 64  # with which the speed is measured
# Factors of scores from -1 to 1, of which the one with the lowest loss gives probabilities.
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class Frozen(NamedTuple):
    """A simple model on the vectors of published weights.

    Attributes:
        figures: Its metrics.
        layer: Weight (K, E) and bias (K,) of a linear layer, from which the head of the model can
            start. None: its head is no linear layer of these vectors.
        rows: Number of training rows that it has learned from.
    """

    figures: dict[str, float]
    layer: tuple[Tensor, Tensor] | None
    rows: int


@torch.inference_mode()
def frozen_model(
    model: MultimodalModel,
    task: Task,
    train: Samples,
    evaluated: Samples,
    *,
    batch_size: int,
    seconds: float = math.inf,
) -> Frozen | None:
    """Train ridge regression, linear or with a kernel, on the vectors of published weights.

    The vectors are those of the model before it is trained. If its backbone is new, they are the
    means of the tokens of each input.

    Args:
        model: The model with its published weights.
        task: Its task.
        train: Samples of the training split, of which only some are kept if there are many.
        evaluated: Samples of the split that is evaluated.
        batch_size: Number of samples per batch.
        seconds: Time that the vectors may take.

    Returns:
        The model; None if the task or the time allows none.
    """
    is_scored = task.answer_kind in PER_SAMPLE
    targets = train.opened.targets
    if not is_scored or targets is None or len(train.opened) < MIN_ROWS:
        return None
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()

    def run(batch: Batch) -> tuple[list[int], Tensor]:
        return batch["#index"], _vectors(model, batch).float().cpu()

    def answer(batch: Batch) -> tuple[list[int], list[object]]:
        vectors = _vectors(model, batch).float().cpu()
        output = scale * (module(vectors) + part.bias)
        return batch["#index"], task.predict(model.head, output.to(device), batch)

    try:
        # Rows that are spread over all of them, the first ones to measure the speed.
        count = min(MAX_ROWS, len(train))
        if math.isfinite(seconds):
            few = copy.copy(train)
            few.keep(FIRST_ROWS)
            started = time.perf_counter()
            list(run_batches(run, few, batch_size, device=device))
            per_row = (time.perf_counter() - started) / len(few)
            count = min(count, int(seconds / per_row) - len(evaluated))
        if count < min(ENOUGH_ROWS, len(train)):
            return None
        train.keep(count)
        batches = list(run_batches(run, train, batch_size, device=device))
        rows = [row for index, _ in batches for row in index]
        learned = score_targets(task, [targets[row] for row in rows])
        assert learned is not None
        x = torch.cat([vectors for _, vectors in batches])
        part = fit_dense(x, learned, [x.shape[1]])
        (module,) = part.modules
        scale, layer = 1.0, None
        target = task.target.collate([task.target.encode(targets[row], {}) for row in rows])
        if learned.are_classes:
            scale = _best_scale(task, target, part.scores)
        if _starts_linear(model):
            ridge = fit_ridge(x.double().numpy(), learned.values.double().numpy())
            scores = torch.from_numpy(ridge.scores).float()
            factor = _best_scale(task, target, scores) if learned.are_classes else 1.0
            weight, bias = (torch.from_numpy(a).float() for a in (ridge.weight, ridge.bias))
            layer = (factor * weight.T).contiguous(), factor * bias
        answers = list(run_batches(answer, evaluated, batch_size, device=device))
    finally:
        model.train(was_training)
    predictions = Predictions(
        [row for index, _ in answers for row in index],
        [value for _, values in answers for value in values],
        math.nan,
    )
    figures = score(predictions, evaluated, task)
    # Its outputs are no logits, so they have no loss.
    figures = {name: value for name, value in figures.items() if name != "loss"}
    return Frozen(figures, layer, len(rows))


def _starts_linear(model: MultimodalModel) -> bool:
    """Whether the output is a linear layer of the vectors, whose weights are new."""
    head = model.head
    if not isinstance(head, LinearHead) or head.input is not None or not _is_encoded(model):
        return False
    is_plain = not head.pre.normalize and not any(True for _ in head.pre.parameters())
    return is_plain and isinstance(head.out, nn.Linear)


def _best_scale(task: Task, target: Tensor, scores: Tensor) -> float:
    """Return the factor with which scores (n, K) of rows have the lowest loss.

    They are those of models that were not trained on the row, NaN where there are none.
    """
    known = ~scores.isnan().any(1)
    batch = {TARGET: target[known], "#size": int(known.sum())}

    def loss(scale: float) -> float:
        total, weight = task.loss(scale * scores[known], batch)
        return float(total / weight)

    return min(SCALES, key=loss)


def _is_encoded(model: MultimodalModel) -> bool:
    """Whether the backbone has published weights, and not only encoders of single inputs."""
    return any(name.startswith("backbone.") for name in model.loaded)


def _vectors(model: MultimodalModel, batch: Mapping[str, Any]) -> Tensor:
    """Return the vectors (B, E) of a batch: pooled ones, or the means of the tokens of inputs."""
    if _is_encoded(model):
        _, pooled = model.encode(model.embed(batch))
        return pooled
    batch = model.first_part(batch)
    vectors: list[Tensor] = []
    for name in model.inputs:
        adapter = model.adapter(name)
        width = (adapter.adapter if isinstance(adapter, EncodedAdapter) else adapter).dim
        mean = torch.zeros(batch["#size"], width)
        if name in batch:
            means = mean_vectors(adapter, batch[name])
            mean = mean.to(means).index_copy(0, batch[name]["rows"], means)
        vectors.append(mean.float().cpu())
    return torch.cat(vectors, 1)
