"""Contrastive learning: align the embeddings of the inputs of a row (CLIP, SigLIP)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.models.losses import sigmoid_loss, softmax_loss
from dxn.tasks.classify import Classify
from dxn.tasks.contrastive_head import (
    MISSING,
    Aligned,
    ContrastiveHead,
    Embedded,
    Projection,
    SimilarityHead,
)
from dxn.tasks.loss import LossSum
from dxn.tasks.retrieval import average, chance_figures, directions, search_figures
from dxn.tasks.task import Batch, Task

Loss = Literal["softmax", "sigmoid"]
# Temperature and bias at the start: arXiv:2103.00020, section 2.4, and arXiv:2303.15343,
# section 3.2.
TEMPERATURES = {"softmax": 0.07, "sigmoid": 0.1}
SIGMOID_BIAS = -10.0
KEY_BITS = 63  # a key is a positive int64


class Contrastive(Task):
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
    needs_target = False
    answers = False
    compares_rows = True
    separates_inputs = True
    min_inputs = 2
    monitored = "mrr"
    higher_is_better = True

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
        self.inputs: tuple[str, ...] = ()

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

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Set the inputs.

        Raises:
            UserError: If there are fewer than two.
        """
        if len(adapters) < self.min_inputs:
            names = ", ".join(adapters) or "none"
            raise UserError(
                f"head=contrastive: needs at least two inputs, got {names}; add one, for example "
                "with data.NAME=COLUMN or adapters=[...]"
            )
        self.inputs = tuple(adapters)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the inputs that are aligned."""
        return f"equal embeddings of {' and '.join(self.inputs)}"

    def encode_sample(
        self, sample: dict[str, Any], value: Mapping[str, bytes], rand: random.Random | None = None
    ) -> dict[str, Any]:
        """Add the keys of the inputs (I,): a hash of each, or MISSING."""
        keys = [key_of(value[name]) if name in sample else MISSING for name in self.inputs]
        return {**sample, "target": torch.tensor(keys)}

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

    def metrics(
        self, predictions: Sequence[Embedded], truths: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the recall, the mean reciprocal rank and the median rank of a search.

        Each sample searches with one of its inputs for another one among all samples. The results
        are the means over all pairs of inputs, in both directions.

        Raises:
            UserError: If no sample has two inputs.
        """
        return average(self._figures(predictions))

    def parts(self, predictions: Sequence[Embedded]) -> dict[str, dict[str, float]]:
        """Return the metrics of each direction, such as "text to image"."""
        return self._figures(predictions)

    def chance(self, predictions: Sequence[Embedded]) -> dict[str, dict[str, float]]:
        """Return the metrics of a random order."""
        _, keys = _stacked(predictions)
        pairs = directions(keys != MISSING)
        figures = [chance_figures(keys[rows, a], keys[rows, b]) for a, b, rows in pairs]
        return {"random order": average(dict(enumerate(figures)))}

    def classifier(
        self,
        head: ContrastiveHead,
        names: Sequence[str],
        vectors: Tensor,
        inputs: Sequence[str],
    ) -> tuple[Task, nn.Module]:
        """Return a classifier by similarity, see `ClassifiesByExample`."""
        task = Classify()
        task.load_state({"labels": list(names)})
        layers = [head.pre.layers[self.inputs.index(name)] for name in inputs]
        return task, SimilarityHead(Projection(layers), head.scale.detach().cpu() * vectors)

    def _figures(self, predictions: Sequence[Embedded]) -> dict[str, dict[str, float]]:
        x, keys = _stacked(predictions)
        results = {
            f"{self.inputs[a]} to {self.inputs[b]}": search_figures(
                x[rows, a], x[rows, b], keys[rows, a], keys[rows, b]
            )
            for a, b, rows in directions(keys != MISSING)
        }
        if not results:
            names = ", ".join(self.inputs)
            raise UserError(
                f"head=contrastive: no row of the evaluated split has two of the inputs {names}; "
                "use more rows or other splits"
            )
        return results


def key_of(digest: bytes) -> int:
    """Return the key of an input from the hash of its raw value."""
    return (int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)) or 1


def _having(samples: Embedded, a: int, b: int) -> Tensor:
    """Return the indices of the samples that have the inputs a and b."""
    return ((samples.keys[:, a] != MISSING) & (samples.keys[:, b] != MISSING)).nonzero().flatten()


def _stacked(predictions: Sequence[Embedded]) -> tuple[Tensor, Tensor]:
    x = torch.stack([prediction.x for prediction in predictions])
    return x, torch.stack([prediction.keys for prediction in predictions])
