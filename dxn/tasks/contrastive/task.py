"""Contrastive learning: align the embeddings of the inputs of a row (CLIP, SigLIP)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.models.losses import gather, sigmoid_loss, softmax_loss, unit
from dxn.models.model import InputVectors
from dxn.tasks.contrastive.search import (
    MISSING,
    Embedded,
    InputKeys,
    SearchMetric,
    average,
    keys_of,
)
from dxn.tasks.contrastive.simple import MAX_PAIRS, simple_searches
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.task import Raws, Task

Loss = Literal["softmax", "sigmoid"]
# Temperature and bias at the start: arXiv:2103.00020, section 2.4, and arXiv:2303.15343,
# section 3.2.
TEMPERATURES = {"softmax": 0.07, "sigmoid": 0.1}
SIGMOID_BIAS = -10.0
MIN_TEMPERATURE = 0.01  # arXiv:2103.00020, section 2.5


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
        bias: Initial bias of the sigmoid loss. None: there is no bias.
    """

    separates_inputs = True

    def __init__(self, pre: Projection, *, temperature: float, bias: float | None):
        super().__init__()
        self.pre = pre
        # The logarithm, so that the scale stays positive. (1,) and not (), because a single number
        # cannot be divided over processes (trainer.shard).
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))
        self.bias = None if bias is None else nn.Parameter(torch.tensor([bias]))

    @property
    def scale(self) -> Tensor:
        """() Factor of the cosine similarities."""
        return self.log_scale.squeeze().clamp(max=-math.log(MIN_TEMPERATURE)).exp()

    def forward(self, tokens: Tokens, pooled: InputVectors, batch: Batch) -> Aligned:
        """Return the unit vectors of the samples, and of those that they are compared with."""
        x = self.pre.each(pooled)
        # Data without keys is only embedded, never compared.
        keys = batch.get("target")
        if keys is None:
            keys = torch.full(x.shape[:2], MISSING, device=x.device)
        # An input can be present but have no tokens, such as an empty text.
        own = Embedded(x, keys.masked_fill(~pooled.mask, MISSING))
        bias = self.log_scale.new_zeros(()) if self.bias is None else self.bias.squeeze()
        # Only in training: evaluation runs on all samples in each process, or in one process alone.
        others, first = gather(own) if self.training else (own, 0)
        return Aligned(own, Embedded(*others), first, self.scale, bias)


class UnitVectors(nn.Module):
    """Map the pooled vector of a sample to a unit vector of the shared space.

    Args:
        layer: Layer that maps it to the shared space.
    """

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, pooled: Tensor) -> Tensor:
        """Return unit vectors (B, E)."""
        return unit(self.layer(pooled).float())


class SimilarityHead(nn.Module):
    """Logits of K classes: the scaled cosine similarities with one vector per class.

    Args:
        pre: Layers that map the pooled vectors to unit vectors of the shared space.
        vectors: (K, E). Vector of each class, multiplied by the scale.
    """

    def __init__(self, pre: Projection | UnitVectors, vectors: Tensor):
        super().__init__()
        self.separates_inputs = isinstance(pre, Projection)
        self.pre = pre
        self.register_buffer("vectors", vectors)

    def forward(self, tokens: Tokens, pooled: Any, batch: Batch) -> Tensor:
        """Return the logits (B, K)."""
        return self.pre(pooled) @ self.get_buffer("vectors").T


class Contrastive(Task[InputKeys]):
    """Align the inputs of a row: their embeddings are more similar than those of other rows.

    The loss compares each pair of inputs, over the samples of a batch that have both, and is the
    mean over the pairs. Samples with equal inputs are not contrasted with each other.

    Args:
        loss: Loss of a pair of inputs: softmax (CLIP, arXiv:2103.00020) or sigmoid (SigLIP,
            arXiv:2303.15343).
        embedding_dim: Width of the shared space.
        temperature: Initial divisor of the cosine similarities; it is learned. Null: 0.07 for
            softmax, 0.1 for sigmoid. It stays at or above 0.01.
        label_smoothing: Amount of label smoothing of the softmax loss, from 0 (none) to 1.
    """

    name = "contrastive"
    separates_inputs = True
    min_inputs = 2

    def __init__(
        self,
        *,
        loss: Loss = "softmax",
        embedding_dim: Annotated[int, Ge(1)] = 128,
        temperature: Annotated[float, Ge(MIN_TEMPERATURE)] | None = None,
        label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0,
    ):
        if label_smoothing and loss != "softmax":
            raise ValueError(f"label_smoothing needs loss=softmax, got loss={loss}")
        self.kind: Loss = loss
        self.embedding_dim = embedding_dim
        self.temperature = TEMPERATURES[loss] if temperature is None else temperature
        self.label_smoothing = label_smoothing
        self.target = InputKeys()
        self.metric: SearchMetric = SearchMetric(self.target)

    def check(self, config: Mapping[str, Any]) -> None:
        """Check the composed configuration.

        Raises:
            UserError: If mixup or input dropout is set.
        """
        super().check(config)
        if (config.get("loader") or {}).get("input_dropout"):
            raise UserError(
                "loader.input_dropout: cannot be combined with head=contrastive, which compares "
                "the inputs of a row with each other; set loader.input_dropout=0"
            )

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a head with one linear layer per input."""
        layers = [nn.Linear(pooled_dim, self.embedding_dim, bias=False) for _ in adapters]
        return ContrastiveHead(
            Projection(layers),
            temperature=self.temperature,
            bias=SIGMOID_BIAS if self.kind == "sigmoid" else None,
        )

    def loss(self, output: Aligned, batch: Batch) -> LossSum:
        """Return the mean loss over the pairs of inputs that samples of the batch have.

        Its weight is the number of samples with at least two inputs.
        """
        own, others = output.own, output.others
        has, is_candidate = own.keys != MISSING, others.keys != MISSING
        # The position of each own sample among the candidates.
        at = torch.arange(len(own.keys), device=own.keys.device) + output.first
        right = at[:, None] == torch.arange(len(others.keys), device=at.device)
        losses: list[Tensor] = []
        counts: list[Tensor] = []
        for a, b in combinations(range(own.keys.shape[1]), 2):
            # All samples are computed, because a GPU is not asked which of them have both inputs.
            has_both = has[:, a] & has[:, b]
            equal = own.keys[:, a, None] == others.keys[:, a]
            equal |= own.keys[:, b, None] == others.keys[:, b]
            ignored = (equal | ~(is_candidate[:, a] & is_candidate[:, b])) & ~right
            for query, key in ((a, b), (b, a)):
                cosine = own.x[:, query] @ others.x[:, key].T
                logits = cosine * output.scale + output.bias
                if self.kind == "sigmoid":
                    pair_losses = sigmoid_loss(logits, right, ignored)
                else:
                    pair_losses = softmax_loss(logits, at, ignored, self.label_smoothing)
                losses.append(pair_losses.where(has_both, 0).sum() / has_both.sum().clamp(min=1))
                counts.append(has_both.any())
        # Connects the loss to the weights of all inputs, also if no sample has two of them.
        connected = 0 * (own.x.sum() + output.scale + output.bias)
        mean = connected + torch.stack(losses).sum() / torch.stack(counts).sum().clamp(min=1)
        weight = ((own.keys != MISSING).sum(1) > 1).sum().float()
        return LossSum(mean * weight, weight)

    def predict(
        self, head: nn.Module, output: Aligned, batch: Batch, *, draft: bool = False
    ) -> list[Embedded]:
        """Return the unit vectors (I, E) and the keys (I,) of each sample."""
        pairs = zip(output.own.x.detach().cpu(), output.own.keys.cpu(), strict=True)
        return [Embedded(x, keys) for x, keys in pairs]

    def simple_figures(
        self,
        train: Raws,
        targets: Sequence[Any],
        raws: Raws,
        true: Sequence[Any],
        predictions: Sequence[Any],
        *,
        share: float = 1.0,
    ) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the metrics of searches by words and colors, in the rows that the model searches.

        If these are many, only some of them are queries.
        """
        keys = keys_of(predictions)
        num_inputs = len(self.target.inputs)
        pairs = share * MAX_PAIRS / (num_inputs * (num_inputs - 1))
        count = max(round(pairs / len(keys)), 1)
        searches = list(simple_searches(self.target.inputs, train, raws, share))
        if searches and count < len(keys):
            print_line(
                f"note: {count:,} of the {len(keys):,} rows are the queries of simple methods, "
                "which search all rows"
            )
        for description, search in searches:
            yield description, average(self.metric.searched(keys, search, count))
