"""A simple model on the vectors of published weights, which stands beside a fine-tuned model."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dxn.data.dataset import Samples
from dxn.models.model import Batch, MultimodalModel
from dxn.stacking.dense import fit_dense
from dxn.stacking.train import MIN_ROWS, score_targets
from dxn.tasks import Task
from dxn.tasks.space import AnswerKind
from dxn.training.predict import Predictions, run_batches, score

FROZEN = "classical model, frozen weights"
# Training rows whose vectors are computed, if the time suffices: more hardly change the model.
MAX_ROWS = 10_000
ENOUGH_ROWS = 1_000  # fewer of many would make the model look worse than it is
FIRST_ROWS = 64  # with which the speed is measured
# The outputs are about -1 to 1, too small for probabilities.
SCALE = 2.0


@torch.inference_mode()
def frozen_figures(
    model: MultimodalModel,
    task: Task,
    train: Samples,
    evaluated: Samples,
    *,
    batch_size: int,
    seconds: float = math.inf,
) -> dict[str, float] | None:
    """Return the metrics of ridge regression, linear or with a kernel, on the first vectors.

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
        The metrics; None if the task or the time allows no such model.
    """
    is_scored = task.answer_kind in (AnswerKind.CLASS, AnswerKind.LABELS, AnswerKind.NUMBER)
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
        output = SCALE * (module(vectors) + part.bias)
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
    return {name: value for name, value in figures.items() if name != "loss"}


def _vectors(model: MultimodalModel, batch: Mapping[str, Any]) -> Tensor:
    """Return the vectors (B, E) of a batch: pooled ones, or the means of the tokens of inputs."""
    if any(name.startswith("backbone.") for name in model.loaded):
        _, pooled = model.encode(model.embed(batch))
        return pooled
    size = batch["#size"]
    means: dict[str, Tensor] = {}
    for part in model.embed(batch):
        weight = part.mask[..., None].to(part.x)
        means[part.spans[0].name] = (part.x * weight).sum(1) / weight.sum(1).clamp(min=1)
    missing = next(iter(means.values())).new_zeros(size, model.fusion.width)
    return torch.cat([means.get(name, missing) for name in model.inputs], 1)
