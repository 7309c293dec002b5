"""Heads of contrastive learning: the inputs of a sample as vectors of one shared space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dxn.core.tokens import Tokens
from dxn.models.losses import gather, unit
from dxn.models.separate import InputVectors
from dxn.tasks.space import Batch

MISSING = 0  # key of an input that a sample does not have


class Embedded(NamedTuple):
    """The inputs of B samples as unit vectors of the shared space.

    Attributes:
        x: (B, I, E) float32. Zeros where a sample lacks an input.
        keys: (B, I) int64. Equal inputs have equal keys; MISSING where a sample lacks an input.
    """

    x: Tensor
    keys: Tensor


class Aligned(NamedTuple):
    """Output of `ContrastiveHead`.

    Attributes:
        own: Samples of this batch.
        others: Samples that they are compared with: those of the batches of all processes.
        first: Index of the first own sample among the others.
        scale: () Factor of the cosine similarities, 1 / temperature.
        bias: () Constant that the sigmoid loss adds to the scaled similarities.
    """

    own: Embedded
    others: Embedded
    first: int
    scale: Tensor
    bias: Tensor


class Projection(nn.Module):
    """Map the pooled vector of each input to the shared space, with a linear layer per input.

    Args:
        layers: The linear layer of each of the I inputs.
    """

    def __init__(self, layers: Sequence[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def each(self, pooled: InputVectors) -> Tensor:
        """Return a unit vector (B, I, E) for each input, zeros where a sample lacks it."""
        columns = zip(self.layers, pooled.x.unbind(1), strict=True)
        x = torch.stack([layer(vector) for layer, vector in columns], 1)
        # float32: the similarities of a large batch differ by less than the digits of bf16.
        return unit(x.float()) * pooled.mask[..., None]

    def forward(self, pooled: InputVectors) -> Tensor:
        """Return one unit vector (B, E) per sample: the direction of the mean over its inputs."""
        return unit(self.each(pooled).sum(1))


class ContrastiveHead(nn.Module):
    """Embed each input of a sample in a shared space.

    Args:
        pre: Layers that map the pooled vectors to the shared space.
        temperature: Initial divisor of the cosine similarities.
        min_temperature: Lower limit of the learned temperature.
        bias: Initial bias of the sigmoid loss. None: there is no bias.
    """

    separates_inputs = True

    def __init__(
        self, pre: Projection, *, temperature: float, min_temperature: float, bias: float | None
    ):
        super().__init__()
        self.pre = pre
        # The logarithm, so that the scale stays positive.
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.max_log_scale = -math.log(min_temperature)
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias))

    @property
    def scale(self) -> Tensor:
        """() Factor of the cosine similarities."""
        return self.log_scale.clamp(max=self.max_log_scale).exp()

    def forward(self, tokens: Tokens, pooled: InputVectors, batch: Batch) -> Aligned:
        """Return the unit vectors of the samples, and of those that they are compared with."""
        x = self.pre.each(pooled)
        # Data without keys is only embedded, never compared.
        keys = batch.get("target")
        if keys is None:
            keys = torch.full(x.shape[:2], MISSING, device=x.device)
        # An input can be present but have no tokens, such as an empty text.
        own = Embedded(x, keys.masked_fill(~pooled.mask, MISSING))
        bias = self.log_scale.new_zeros(()) if self.bias is None else self.bias
        # Only in training: evaluation runs on all samples in each process, or in one process alone.
        others, first = gather(own) if self.training else (own, 0)
        return Aligned(own, Embedded(*others), first, self.scale, bias)


class SimilarityHead(nn.Module):
    """Logits of K classes: the scaled cosine similarities with one vector per class.

    Args:
        pre: Layers that map the pooled vectors to the shared space.
        vectors: (K, E). Vector of each class, multiplied by the scale.
    """

    separates_inputs = True

    def __init__(self, pre: Projection, vectors: Tensor):
        super().__init__()
        self.pre = pre
        self.register_buffer("vectors", vectors)

    def forward(self, tokens: Tokens, pooled: InputVectors, batch: Batch) -> Tensor:
        """Return the logits (B, K)."""
        return self.pre(pooled) @ self.get_buffer("vectors").T
