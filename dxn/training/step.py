"""The parts of an optimizer step: the loss of a batch, the moving average, and bad values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dxn.core.dropout import selected
from dxn.data.dataset import Samples
from dxn.tasks import LossSum
from dxn.tasks.task import Task
from dxn.training.distributed import not_synchronized
from dxn.training.evaluate import as_float

# Number of the dropout masks of a second pass. `Model.embed` numbers its selections from 0.
SECOND_PASS = 2**20
MAX_NAMED = 5  # rows in a message


def batch_loss(
    model: nn.Module,
    task: Task,
    batch: dict[str, Any],
    mixing: tuple[Tensor, float] | None,
    bf16: bool,
    r_drop: float,
) -> LossSum:
    """Return the loss of a batch.

    Args:
        model: The model, or the model in DDP.
        task: Task that computes the loss.
        batch: The batch.
        mixing: Permutation and share of mixup.
        bf16: Compute matrix products in bf16.
        r_drop: Weight of the divergence of two outputs with different dropout (R-Drop,
            arXiv:2106.14448). 0: only one output.
    """
    device = next(model.parameters()).device

    def output() -> Any:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            # Losses are computed in float32, because bf16 has too few digits for sums over many
            # terms.
            return as_float(model(batch, mixing))

    if not r_drop:
        return task.loss(output(), batch)
    # DDP prepares each forward pass that synchronizes gradients for a backward pass of its own.
    # Both passes have the same one, so only the second pass is prepared.
    with not_synchronized(model):
        first = output()
    with selected(torch.arange(batch["#size"], device=device), SECOND_PASS):
        second = output()
    # The mean of the two losses instead of their sum, so that the weight of the target does not
    # depend on this option. The paper's code does the same.
    loss, other = task.loss(first, batch), task.loss(second, batch)
    assert task.space is not None  # see Task.check
    divergence = task.space.divergence(first, second, batch) * loss.weight
    return LossSum((loss.total + other.total) / 2 + r_drop * divergence, loss.weight)


def make_ema(model: nn.Module, decay: float) -> AveragedModel:
    """Create a moving average of the weights and buffers of a model.

    At step n the decay is min(decay, n / (n + 10)). With the smaller decay at the start, the random
    initial weights soon disappear from the average. Call `update_parameters(model)` after each
    optimizer step.
    """

    def update(averages: Sequence[Tensor], values: Sequence[Tensor], step: Tensor | int) -> None:
        n = int(step)
        weight = 1 - min(decay, n / (n + 10))
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point():
                average.lerp_(value, weight)
            else:
                average.copy_(value)  # a counter

    ema = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    # The first update of an AveragedModel only copies the weights. After it, n_averaged is 1, so
    # `update` receives step = 1 at the first optimizer step.
    ema.update_parameters(model)
    return ema


@contextmanager
def use_ema(model: nn.Module, ema: AveragedModel | None) -> Iterator[None]:
    """Load the averaged weights into the model inside the context, and restore its own after it."""
    if ema is None:
        yield
        return
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(ema.module.state_dict())
    try:
        yield
    finally:
        model.load_state_dict(own)


def name_rows(samples: Samples, epoch: int, rows: Sequence[int]) -> str:
    """Name the rows of a batch whose loss is not finite.

    These are the samples with values that are not finite, if there are any, or all rows of the
    batch.

    Args:
        samples: Samples of the training split.
        epoch: Epoch, which determines the augmentation.
        rows: Rows of the batch.
    """
    positions = {row: i for i, row in enumerate(samples.rows)}
    bad = [row for row in rows if not _is_finite(samples[epoch, positions[row]])]
    kind = "values that are not finite in" if bad else "batch with"
    named = bad or list(rows)
    names = [samples.describe_index(row) for row in named[:MAX_NAMED]]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"{kind} {', '.join(names)}{more}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        value = list(value.values())
    return not isinstance(value, list | tuple) or all(_is_finite(item) for item in value)
