"""Contrastive learning: align the embeddings of the inputs of a row (CLIP, SigLIP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.models.losses import sigmoid_loss, softmax_loss
from dxn.tasks.classify import Classify
from dxn.tasks.contrastive.head import (
    MISSING,
    Aligned,
    ContrastiveHead,
    Embedded,
    Projection,
    SimilarityHead,
)
from dxn.tasks.contrastive.retrieval import average, chance_metrics, directions, search_metrics
from dxn.tasks.metric import Metric, Table
from dxn.tasks.space import Batch, LossSum
from dxn.tasks.target import Target
from dxn.tasks.task import Task

Loss = Literal["softmax", "sigmoid"]
# Temperature and bias at the start: arXiv:2103.00020, section 2.4, and arXiv:2303.15343,
# section 3.2.
TEMPERATURES = {"softmax": 0.07, "sigmoid": 0.1}
SIGMOID_BIAS = -10.0
KEY_BITS = 63  # a key is a positive int64


class InputKeys(Target):
    """A key of each input of a row, which is equal for rows with an equal input.

    Attributes:
        inputs: Names of the inputs. `bind` sets them.
    """

    source = "hashes"

    def __init__(self):
        self.inputs: tuple[str, ...] = ()

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Set the inputs.

        Raises:
            UserError: If there are fewer than two.
        """
        if len(adapters) < 2:
            names = ", ".join(adapters) or "none"
            raise UserError(
                f"head=contrastive: needs at least two inputs, got {names}; add one, for example "
                "with data.NAME=COLUMN or adapters=[...]"
            )
        self.inputs = tuple(adapters)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the inputs that are aligned."""
        return f"equal embeddings of {' and '.join(self.inputs)}"

    def encode(
        self, value: Mapping[str, bytes], sample: dict[str, Any], rand: Random | None = None
    ) -> Tensor:
        """Return the keys of the inputs (I,): a hash of each, or MISSING."""
        keys = [key_of(value[name]) if name in sample else MISSING for name in self.inputs]
        return torch.tensor(keys)


class SearchMetric(Metric):
    """The recall, the mean reciprocal rank and the median rank of a search.

    Each sample searches with one of its inputs for another one among all samples. The results are
    the means over all pairs of inputs, in both directions.

    Args:
        target: The inputs.
    """

    monitored = "mrr"
    lower_is_better = ("median_rank",)

    def __init__(self, target: InputKeys):
        self.target = target

    def metrics(
        self, predictions: Sequence[Embedded], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the means over all directions.

        Raises:
            UserError: If no sample has two inputs.
        """
        return average(self.parts(predictions))

    def parts(self, predictions: Sequence[Embedded]) -> Table:
        """Return the metrics of each direction, such as "text to image"."""
        x, keys = _stacked(predictions)
        inputs = self.target.inputs
        results = {
            f"{inputs[a]} to {inputs[b]}": search_metrics(
                x[rows, a], x[rows, b], keys[rows, a], keys[rows, b]
            )
            for a, b, rows in directions(keys != MISSING)
        }
        if not results:
            raise UserError(
                "head=contrastive: no row of the evaluated split has two of the inputs "
                f"{', '.join(inputs)}; use more rows or other splits"
            )
        return results

    def chance(self, predictions: Sequence[Embedded]) -> Table:
        """Return the metrics of a random order."""
        _, keys = _stacked(predictions)
        pairs = directions(keys != MISSING)
        results = [chance_metrics(keys[rows, a], keys[rows, b]) for a, b, rows in pairs]
        return {"random order": average(dict(enumerate(results)))}


class Contrastive(Task[InputKeys]):
    """Align the inputs of a row: their embeddings are more similar than those of other rows.

    The loss compares each pair of inputs, over the samples of a batch that have both, and is the
    mean over the pairs. Samples with equal inputs are not contrasted with each other.

    Args:
        loss: Loss of a pair of inputs: softmax (CLIP, arXiv:2103.00020) or sigmoid (SigLIP,
            arXiv:2303.15343).
        embedding_dim: Width of the shared space.
        temperature: Initial divisor of the cosine similarities; it is learned. Null: 0.07 for
            softmax, 0.1 for sigmoid.
        min_temperature: Lower limit of the learned temperature.
        label_smoothing: Amount of label smoothing of the softmax loss, from 0 (none) to 1.
    """

    name = "contrastive"
    separates_inputs = True

    def __init__(
        self,
        *,
        loss: Loss = "softmax",
        embedding_dim: int = 128,
        temperature: float | None = None,
        min_temperature: float = 0.01,
        label_smoothing: float = 0.0,
    ):
        if loss not in get_args(Loss):
            raise ValueError(f"loss must be one of {', '.join(get_args(Loss))}, got {loss!r}")
        if embedding_dim < 1:
            raise ValueError(f"embedding_dim must be at least 1, got {embedding_dim}")
        start = TEMPERATURES[loss] if temperature is None else temperature
        if not 0 < min_temperature <= start:
            raise ValueError(
                "temperature must be at least min_temperature, and both above 0, "
                f"got {start} and {min_temperature}"
            )
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        if label_smoothing and loss != "softmax":
            raise ValueError(f"label_smoothing needs loss=softmax, got loss={loss}")
        self.kind: Loss = loss
        self.embedding_dim = embedding_dim
        self.temperature = start
        self.min_temperature = min_temperature
        self.label_smoothing = label_smoothing
        self.target = InputKeys()
        self.metric = SearchMetric(self.target)

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
            min_temperature=self.min_temperature,
            bias=SIGMOID_BIAS if self.kind == "sigmoid" else None,
        )

    def loss(self, output: Aligned, batch: Batch) -> LossSum:
        """Return the mean loss over the pairs of inputs that samples of the batch have.

        Its weight is the number of samples with at least two inputs.
        """
        own, others = output.own, output.others
        losses: list[Tensor] = []
        for a, b in combinations(range(own.keys.shape[1]), 2):
            rows = _having(own, a, b)
            candidates = _having(others, a, b)
            if not len(rows):
                continue
            # The position of each own sample among the candidates.
            at = torch.searchsorted(candidates, rows + output.first)
            right = torch.zeros(len(rows), len(candidates), dtype=torch.bool, device=at.device)
            right[torch.arange(len(rows), device=at.device), at] = True
            equal = own.keys[rows, a][:, None] == others.keys[candidates, a]
            equal |= own.keys[rows, b][:, None] == others.keys[candidates, b]
            ignored = equal & ~right
            for query, key in ((a, b), (b, a)):
                cosine = own.x[rows, query] @ others.x[candidates, key].T
                logits = cosine * output.scale + output.bias
                if self.kind == "sigmoid":
                    losses.append(sigmoid_loss(logits, right, ignored))
                else:
                    losses.append(softmax_loss(logits, at, ignored, self.label_smoothing))
        # Connects the loss to the weights of all inputs, also if no sample has two of them.
        connected = 0 * (own.x.sum() + output.scale + output.bias)
        mean = connected + (torch.stack(losses).mean() if losses else 0)
        weight = ((own.keys != MISSING).sum(1) > 1).sum().float()
        return LossSum(mean * weight, weight)

    def predict(
        self, head: nn.Module, output: Aligned, batch: Batch, *, draft: bool = False
    ) -> list[Embedded]:
        """Return the unit vectors (I, E) and the keys (I,) of each sample."""
        pairs = zip(output.own.x.detach().cpu(), output.own.keys.cpu(), strict=True)
        return [Embedded(x, keys) for x, keys in pairs]


def zero_shot_classifier(
    task: Contrastive,
    head: ContrastiveHead,
    names: Sequence[str],
    vectors: Tensor,
    inputs: Sequence[str],
) -> tuple[Task, nn.Module]:
    """Return a task that predicts one of several classes by similarity, and its head.

    Args:
        task: The task of the model.
        head: Its head.
        names: Names of the K classes.
        vectors: (K, E). Embedding of the example of each class.
        inputs: Names of the inputs of the classified samples, in the order of the model.
    """
    classify = Classify()
    classify.target.load({"labels": list(names)})
    layers = [head.pre.layers[task.target.inputs.index(name)] for name in inputs]
    scaled = head.scale.detach().cpu() * vectors
    return classify, SimilarityHead(Projection(layers), scaled)


def key_of(digest: bytes) -> int:
    """Return the key of an input from the hash of its raw value."""
    return (int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)) or 1


def _having(samples: Embedded, a: int, b: int) -> Tensor:
    """Return the indices of the samples that have the inputs a and b."""
    return ((samples.keys[:, a] != MISSING) & (samples.keys[:, b] != MISSING)).nonzero().flatten()


def _stacked(predictions: Sequence[Embedded]) -> tuple[Tensor, Tensor]:
    x = torch.stack([prediction.x for prediction in predictions])
    return x, torch.stack([prediction.keys for prediction in predictions])
