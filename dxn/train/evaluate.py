"""Predict all samples of a split, and compute the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dxn.data.batches import BatchOrder, make_loader
from dxn.data.samples import Samples
from dxn.display import track
from dxn.models import Model
from dxn.runtime import release_memory
from dxn.tasks.task import Task


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for a split.

    Args:
        rows: Row in the split of each of the n predictions.
        predicted: The n predictions, in the format of `Task.predict`.
        loss: Mean loss over all targets. NaN if there are no targets.
    """

    rows: Sequence[int]
    predicted: Sequence[Any]
    loss: float


@torch.inference_mode()
def predict(
    model: Model,
    task: Task,
    samples: Samples,
    *,
    batch_size: int,
    device: torch.device,
    bf16: bool = False,
    draft: bool = False,
    on_batch: Callable[[int], None] | None = None,
) -> Predictions:
    """Run a model over all samples in order, without augmentation.

    Args:
        model: Model to run. Its training mode is restored afterwards.
        task: Task that created the head of the model.
        samples: Samples of one split.
        batch_size: Number of samples per batch.
        device: Device of the model.
        bf16: Compute matrix products in bf16.
        draft: For a task that generates sequences, use the fastest decoding, such as greedy search.
        on_batch: Function that is called after each batch with the number of samples that are done.
            Default: show the progress on stderr.
    """
    # Batches without gradients need blocks of other sizes than the training, so they would not
    # reuse its memory.
    release_memory()
    was_training = model.training
    # Without dropout, and with the running statistics of batch norms.
    model.eval()
    rows: list[int] = []
    predicted: list[Any] = []
    losses: list[tuple[float, int]] = []
    order = BatchOrder(samples, batch_size)
    batches = make_loader(order)
    for batch in batches if on_batch else track(batches, len(order), "predicting"):
        batch = to_device(batch, device)
        rows += batch["index"]
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            output = as_float(model(batch))
            # Inside autocast, because a task that generates sequences runs its decoder here.
            predicted += task.predict(model.head, output, batch, draft=draft)
        # Batches have different numbers of targets, so their losses are weighted by these numbers.
        count = task.num_targets(batch) if "target" in batch else 0
        if count:
            losses.append((float(task.loss(output, batch)), count))
        if on_batch is not None:
            on_batch(len(rows))
    model.train(was_training)
    return Predictions(rows, predicted, _weighted_mean(losses))


def score(predictions: Predictions, samples: Samples, task: Task) -> dict[str, float]:
    """Return the loss and the metrics of the task for these predictions."""
    # A task such as masked prediction derives its targets from the inputs.
    targets = samples.opened.targets if task.needs_target else None
    truths = [] if targets is None else [targets[row] for row in predictions.rows]
    metrics = task.metrics(predictions.predicted, truths, predictions.loss)
    # A task whose loss is not a mean over targets returns its own "loss", which replaces the mean.
    return {"loss": predictions.loss, **metrics}


def as_float(output: Any) -> Any:
    """Convert a tensor to float32. Any other type of output is returned unchanged."""
    return output.float() if isinstance(output, Tensor) else output


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move every tensor of a batch to `device`, including those in nested dicts and lists."""
    if device.type == "cpu":
        return batch  # the loader creates its tensors on the CPU
    return {name: _moved(value, device) for name, value in batch.items()}


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        # non_blocking: the CPU continues while the GPU copies.
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value


def _weighted_mean(losses: Sequence[tuple[float, int]]) -> float:
    total = sum(count for _, count in losses)
    return sum(loss * count for loss, count in losses) / total if total else float("nan")
