"""Contrastive learning: align the embeddings of the inputs of a row (CLIP, SigLIP)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from random import Random
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import Tokens
from dxn.models.losses import gather, sigmoid_loss, softmax_loss, unit
from dxn.models.model import InputVectors
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
MISSING = 0  # key of an input that a sample does not have
TOP = (1, 5, 10)
STRICT_TOP = (1, 10)
# Similarities that are computed at once: 64 MB.
CHUNK = 2**24


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
        # The logarithm, so that the scale stays positive. (1,) and not (), because a single number
        # cannot be divided over processes (trainer.shard).
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))
        self.max_log_scale = -math.log(min_temperature)
        self.bias = None if bias is None else nn.Parameter(torch.tensor([bias]))

    @property
    def scale(self) -> Tensor:
        """() Factor of the cosine similarities."""
        return self.log_scale.squeeze().clamp(max=self.max_log_scale).exp()

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
    """

    target: InputKeys
    monitored = "mrr"
    lower_is_better = ("median_rank",)

    def metrics(
        self, predictions: Sequence[Embedded], targets: Sequence[Any], loss: float
    ) -> dict[str, float]:
        """Return the means over all directions.

        Raises:
            UserError: If no sample has two inputs.
        """
        return average(self._directions(predictions))

    def further_rows(self, predictions: Sequence[Embedded]) -> Table:
        """Return the metrics of each direction, such as "text to image", and of a random order."""
        keys = torch.stack([prediction.keys for prediction in predictions])
        pairs = directions(keys != MISSING)
        results = [chance_metrics(keys[rows, a], keys[rows, b]) for a, b, rows in pairs]
        chance = {"random order": average(dict(enumerate(results)))}
        return {**self._directions(predictions), **chance}

    def _directions(self, predictions: Sequence[Embedded]) -> Table:
        """Return the metrics of each direction."""
        x = torch.stack([prediction.x for prediction in predictions])
        keys = torch.stack([prediction.keys for prediction in predictions])
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
    min_inputs = 2

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


def key_of(digest: bytes) -> int:
    """Return the key of an input from the hash of its raw value."""
    return (int.from_bytes(digest[:8], "big") >> (64 - KEY_BITS)) or 1


def directions(present: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Yield each ordered pair of inputs, and the indices of the rows that have both.

    Args:
        present: (N, I) bool. Whether a row has an input.
    """
    for a, b in permutations(range(present.shape[1]), 2):
        rows = (present[:, a] & present[:, b]).nonzero().flatten()
        if len(rows):
            yield a, b, rows


def search_metrics(
    queries: Tensor, candidates: Tensor, query_keys: Tensor, candidate_keys: Tensor
) -> dict[str, float]:
    """Return the metrics of a search in which row i is the right answer to query i.

    A candidate also counts as right if its row has an equal query or an equal candidate. The
    metrics that begin with "strict" count only the own row.

    Args:
        queries: (N, E). Unit vectors.
        candidates: (N, E). Unit vectors.
        query_keys: (N,). Equal queries have equal keys.
        candidate_keys: (N,). Equal candidates have equal keys.
    """
    ranks: list[Tensor] = []
    strict: list[Tensor] = []
    size = max(1, CHUNK // len(queries))
    for start in range(0, len(queries), size):
        rows = torch.arange(start, min(start + size, len(queries)))
        # Without NaN, which is neither larger nor smaller than any number.
        similarity = (queries[rows] @ candidates.T).nan_to_num(-torch.inf)
        right = query_keys[rows, None] == query_keys
        right |= candidate_keys[rows, None] == candidate_keys
        best = similarity.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        # A wrong candidate that is as similar counts as better: a model whose vectors are all
        # equal must not have rank 1.
        ranks.append(1 + ((similarity >= best) & ~right).sum(1))
        own_similarity = similarity[torch.arange(len(rows)), rows][:, None]
        strict.append((similarity >= own_similarity).sum(1))
    rank = torch.cat(ranks).double()
    results = {f"recall@{k}": float((rank <= k).double().mean()) for k in TOP}
    own_rank = torch.cat(strict).double()
    return {
        "mrr": float((1 / rank).mean()),
        **results,
        "median_rank": float(rank.median()),
        **{f"strict_recall@{k}": float((own_rank <= k).double().mean()) for k in STRICT_TOP},
    }


def chance_metrics(query_keys: Tensor, candidate_keys: Tensor) -> dict[str, float]:
    """Return the expected metrics of `search_metrics` for candidates in a random order."""
    count = len(query_keys)
    pairs = list(zip(query_keys.tolist(), candidate_keys.tolist(), strict=True))
    queries = Counter(query for query, _ in pairs)
    candidates = Counter(candidate for _, candidate in pairs)
    both = Counter(pairs)
    # How many queries have how many right candidates.
    numbers = Counter(queries[q] + candidates[c] - both[q, c] for q, c in pairs)
    results: dict[int, dict[str, float]] = {}
    for right, number in numbers.items():
        none = _none_in_first(count, right)
        steps = [none[m - 1] - none[m] for m in range(1, count + 1)]
        results[right] = {
            "mrr": sum(step / m for m, step in enumerate(steps, 1)),
            **{f"recall@{k}": 1 - none[min(k, count)] for k in TOP},
            # The expected rank of the first of `right` candidates.
            "median_rank": (count + 1) / (right + 1),
            **{f"strict_recall@{k}": min(k / count, 1.0) for k in STRICT_TOP},
        }
        for name in results[right]:
            results[right][name] *= number / count
    names = next(iter(results.values()))
    return {name: math.fsum(figures[name] for figures in results.values()) for name in names}


def average(results: Mapping[Any, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over several searches."""
    rows = list(results.values())
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _none_in_first(count: int, right: int) -> list[float]:
    """Return the probabilities that none of `right` of `count` candidates is among the first m.

    Item m is for the first m candidates, from 0 to `count`.
    """
    result = [1.0]
    for m in range(count):
        result.append(result[-1] * max(count - right - m, 0) / (count - m))
    return result
