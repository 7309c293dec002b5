"""An exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


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
                average.copy_(value)  # a counter, such as num_batches_tracked of a batch norm

    # Buffers are averaged too: the running statistics of a batch norm must fit the averaged
    # weights.
    ema = AveragedModel(model, multi_avg_fn=update, use_buffers=True)
    # The first update of an AveragedModel only copies the weights. After it, n_averaged is 1, so
    # `update` receives step = 1 at the first optimizer step.
    ema.update_parameters(model)
    return ema


@contextmanager
def use_ema(model: nn.Module, ema: AveragedModel) -> Iterator[None]:
    """Load the averaged weights into the model inside the context, and restore its own after it."""
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(ema.module.state_dict())
    try:
        yield
    finally:
        model.load_state_dict(own)
