"""The moving average of the weights of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

# With the smaller decay of the first steps, which is step / (step + 10), the random initial weights
# soon disappear from the average.
FIRST_STEPS = 10


class Average:
    """Exponential moving average of the trained weights and of the buffers of a model.

    Frozen weights are their own average, so it does not contain them.

    Args:
        model: The model.
        decay: Decay per optimizer step.

    Attributes:
        tensors: The averages by the name of the weight. A tied weight has one name.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay = model, decay
        saved = model.state_dict().keys()
        self.tensors = {
            name: tensor.detach().clone()
            for name, tensor in weights_and_buffers(model)
            if name in saved and (tensor.requires_grad or not isinstance(tensor, nn.Parameter))
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights of the model to the average, after optimizer step number `step`."""
        decay = min(self.decay, step / (step + FIRST_STEPS))
        # One call for all tensors. It cannot mix whole tensors and those that are divided over
        # processes (FSDP2 divides no buffers).
        averages: dict[type, list[Tensor]] = {}
        weights: dict[type, list[Tensor]] = {}
        for average, weight in zip(self.tensors.values(), self._weights(), strict=True):
            if average.is_floating_point():
                averages.setdefault(type(average), []).append(average)
                weights.setdefault(type(average), []).append(weight)
            else:
                average.copy_(weight)  # a counter, such as that of a batch norm
        for kind in averages:
            torch._foreach_lerp_(averages[kind], weights[kind], 1 - decay)  # pyright: ignore

    @torch.no_grad()
    def restart(self) -> None:
        """Start again at the weights of the model."""
        for average, weight in zip(self.tensors.values(), self._weights(), strict=True):
            average.copy_(weight)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the model have the averaged weights inside the context, and its own after it."""
        weights = [weight.detach() for weight in self._weights()]
        before = [weight.clone() for weight in weights]
        for weight, average in zip(weights, self.tensors.values(), strict=True):
            weight.copy_(average)
        try:
            yield
        finally:
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)

    def _weights(self) -> list[Tensor]:
        """Return the tensors of the model in the order of the averages."""
        tensors = dict(weights_and_buffers(self.model))
        return [tensors[name] for name in self.tensors]


def weights_and_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and the buffers of a model with their names, a tied one once."""
    return chain(model.named_parameters(), model.named_buffers())
