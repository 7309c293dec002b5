"""The classical models beside a transformer: what they learn, and the trained modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.tokens import without_autocast
from dxn.stacking.features import ENCODER, Features
from dxn.tokenize.encoded_adapter import EncodedAdapter

# Standardized numbers are limited, so that an outlier does not dominate all other values.
MAX_VALUE = 10.0
MAX_DEPTH = 12  # of a tree


@dataclass(frozen=True, slots=True)
class ScoreTargets:
    """What a baseline learns to predict in place of the output of the head.

    Args:
        values: (n, K) float. Classes: 1 for each class of a sample and -1 for the others. Otherwise
            numbers in the space of the output.
        are_classes: Whether the values are classes.
        are_exclusive: Whether each sample has exactly one class (softmax).
    """

    values: Tensor
    are_classes: bool
    are_exclusive: bool = False


class FittedPart(NamedTuple):
    """A trained part of a baseline.

    Attributes:
        name: Name of the model, such as "linear SVM".
        modules: Their scores are added up. They are without `bias`.
        bias: (K,).
        scores: (n, K). Scores of the training rows by models that were not trained on them, NaN in
            rows that were not scored.
    """

    name: str
    modules: Sequence[Any]
    bias: Tensor
    scores: Tensor


class TfIdf(nn.Module):
    """Weights the counted features of samples by TF-IDF, and multiplies them with a matrix.

    The weight of a feature with the count c is (1 + log c) idf. The vector of a sample has the
    length 1. Features that are not known are ignored.

    Args:
        num_features: Number of known features F.
        num_outputs: Number of outputs K.
    """

    codes: Tensor
    idf: Tensor
    weight: Tensor

    def __init__(self, num_features: int, num_outputs: int):
        super().__init__()
        self.register_buffer("codes", torch.zeros(num_features, dtype=torch.long))  # ascending
        self.register_buffer("idf", torch.zeros(num_features))
        self.register_buffer("weight", torch.zeros(num_features, num_outputs))

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The codes, idf and weight. On a CPU, they share the memory of the buffers."""
        return self.codes.cpu().numpy(), self.idf.cpu().numpy(), self.weight.cpu().numpy()

    def entries(self, counted: Tensor, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the row, the column and the value of each entry of the matrix (size, F).

        They are computed on the CPU, with NumPy: starting an operation of torch takes longer than
        the work for a short text.

        Args:
            counted: (2, n). Sample and code of each occurrence.
            size: Number of samples.
        """
        rows, codes = counted.cpu().numpy()
        vocabulary, idf, _ = self.arrays
        columns = vocabulary.searchsorted(codes)
        is_known = vocabulary.take(columns, mode="clip") == codes
        cells = (rows * len(vocabulary) + columns)[is_known]
        # As np.unique, which takes three times longer for a short text. `take` is faster than [].
        cells.sort()
        is_edge = np.ones(len(cells) + 1, bool)
        np.not_equal(cells[1:], cells[:-1], out=is_edge[1:-1])
        edges = is_edge.nonzero()[0]
        counts, cells = edges[1:] - edges[:-1], cells.take(edges[:-1])
        rows, columns = np.divmod(cells, len(vocabulary))
        values = (1 + np.log(counts.astype(np.float32))) * idf.take(columns)
        norms = np.sqrt(np.bincount(rows, values * values, size)).astype(np.float32)
        return rows, columns, values / norms.take(rows)

    def forward(self, counted: Tensor, size: int) -> Tensor:
        """Return scores (size, K). `counted` is a block of `Features`."""
        rows, columns, values = self.entries(counted, size)
        if size == 1 and self.weight.device.type == "cpu":
            # The operation below takes longer to start.
            return torch.from_numpy(values[None] @ self.arrays[2].take(columns, 0))
        # The entries are sorted by row, as embedding_bag needs it.
        offsets = rows.searchsorted(np.arange(size))
        columns, values, offsets = (
            torch.from_numpy(array).to(self.weight.device) for array in (columns, values, offsets)
        )
        return F.embedding_bag(columns, self.weight, offsets, mode="sum", per_sample_weights=values)


class DenseScores(nn.Module):
    """Standardizes numbers, and computes scores by a linear model or by a kernel.

    The kernel is exp(-gamma |x - landmark|^2), as in kernel ridge regression with a subset of the
    training samples (Nystroem's method).

    Args:
        num_features: Number of features F.
        num_outputs: Number of outputs K.
        num_landmarks: Number of landmarks of the kernel. 0: a linear model.
    """

    mean: Tensor
    scale: Tensor
    landmarks: Tensor
    gamma: Tensor
    weight: Tensor

    def __init__(self, num_features: int, num_outputs: int, num_landmarks: int = 0):
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("scale", torch.ones(num_features))
        self.register_buffer("gamma", torch.zeros(()))
        self.register_buffer("landmarks", torch.zeros(num_landmarks, num_features))
        self.register_buffer("weight", torch.zeros(num_landmarks or num_features, num_outputs))

    def standardized(self, x: Tensor) -> Tensor:
        """Return features (B, F) with mean 0 and variance 1 in the training, 0 where unknown."""
        z = (x - self.mean) / self.scale
        return z.nan_to_num(0.0).clamp(-MAX_VALUE, MAX_VALUE)

    def features(self, z: Tensor) -> Tensor:
        """Return the inputs of the linear layer: standardized features, or their kernel."""
        if not len(self.landmarks):
            return z
        # The weights of a kernel are large and cancel each other, so float32 would not suffice.
        # MPS has nothing else.
        dtype = torch.float32 if z.device.type == "mps" else torch.float64
        z, landmarks = z.to(dtype), self.landmarks.to(dtype)
        squares = z.square().sum(1, keepdim=True) + landmarks.square().sum(1)
        distances = (squares - 2 * z @ landmarks.T).clamp(min=0)
        return torch.exp(-self.gamma.to(dtype) * distances)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, F) to scores (B, K)."""
        features = self.features(self.standardized(x))
        return (features @ self.weight.to(features.dtype)).float()


class Trees(nn.Module):
    """Gradient-boosted trees over the dense features.

    All nodes of all trees have one index. A leaf is its own child, so that MAX_DEPTH steps from a
    root end in a leaf. Their number is fixed: no folder from an untrusted source can make a walk
    endless.

    Args:
        num_trees: Number of trees T.
        num_nodes: Number of nodes N of all trees.
        num_outputs: Number of outputs K.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    missing_left: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    weight: Tensor

    def __init__(self, num_trees: int, num_nodes: int, num_outputs: int):
        super().__init__()
        self.register_buffer("roots", torch.zeros(num_trees, dtype=torch.long))
        self.register_buffer("feature", torch.zeros(num_nodes, dtype=torch.long))
        self.register_buffer("threshold", torch.zeros(num_nodes))
        self.register_buffer("missing_left", torch.zeros(num_nodes, dtype=torch.bool))
        self.register_buffer("left", torch.zeros(num_nodes, dtype=torch.long))
        self.register_buffer("right", torch.zeros(num_nodes, dtype=torch.long))
        self.register_buffer("value", torch.zeros(num_nodes))
        # What the value of each tree contributes to each output.
        self.register_buffer("weight", torch.zeros(num_trees, num_outputs))

    def is_valid(self, num_features: int) -> bool:
        """Whether all indices are in range."""
        count = len(self.value)
        limits = [(self.roots, count), (self.left, count), (self.right, count)]
        limits.append((self.feature, num_features))
        return all(bool(((x >= 0) & (x < limit)).all()) for x, limit in limits)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (B, F), NaN where unknown, to scores (B, K)."""
        node = self.roots.expand(x.shape[0], -1)
        for _ in range(MAX_DEPTH):
            value = x.gather(1, self.feature[node])
            # ONNX Runtime cannot choose between booleans. A comparison with NaN is false.
            is_left = (value.isnan() & self.missing_left[node]) | (value <= self.threshold[node])
            node = torch.where(is_left, self.left[node], self.right[node])
        return self.value[node] @ self.weight


class Baseline(nn.Module):
    """Base class of the classical models. Their output is in the space of the head's output.

    Attributes:
        about: Name of the model, such as "TF-IDF + linear SVM".
        counted: Number of known features of each block of counted features, by input name.
        inputs: Names of the inputs that are read.
        encoded: Names of those whose output vectors of an encoder are read.
        output_shape: Shape of the output of a sample.
    """

    about: str
    counted: Mapping[str, Sequence[int]]
    inputs: Sequence[str]
    encoded: Sequence[str] = ()
    output_shape: tuple[int, ...]

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain data."""
        raise NotImplementedError

    def problem(self, adapters: Mapping[str, Any]) -> str:
        """Return what is wrong with values that may come from an untrusted folder. "": nothing.

        Args:
            adapters: Adapters of the inputs, by input name.
        """
        raise NotImplementedError

    def forward(self, features: Mapping[str, Features], size: int) -> Tensor:
        """Return the output (B, *output_shape).

        Args:
            features: Features of each input, by input name. Inputs that no sample has are left out.
            size: Number of samples B.

        Raises:
            UserError: If there are other features than in the training.
        """
        raise NotImplementedError


class FeatureBaseline(Baseline):
    """The sum of the scores of all counted features and of all numbers.

    Args:
        about: Name of the model, such as "TF-IDF + linear SVM".
        dense: Number of dense features of each input, by input name. It can be 0.
        counted: Number of known counted features of each block of each input, by input name.
        num_outputs: Number of outputs K, as many as the task has.
        linear: Number of features that the linear model on the vectors of encoders reads, by input
            name, or that of its encoder. Empty: there is none.
        num_landmarks: Number of landmarks of the kernel. 0: a linear model.
        num_trees: Number of gradient-boosted trees.
        num_nodes: Number of nodes of all trees.
    """

    def __init__(
        self,
        about: str,
        *,
        dense: Mapping[str, int],
        counted: Mapping[str, Sequence[int]],
        num_outputs: int,
        linear: Mapping[str, int],
        num_landmarks: int = 0,
        num_trees: int = 0,
        num_nodes: int = 0,
    ):
        super().__init__()
        self.about = about
        self.num_dense = {name: count for name, count in dense.items() if count}
        self.counted = {name: list(counts) for name, counts in counted.items() if counts}
        self.num_linear = {name: count for name, count in linear.items() if count}
        keys = {**self.num_dense, **self.counted, **self.num_linear}
        self.inputs = list(dict.fromkeys(key.removeprefix(ENCODER) for key in keys))
        self.encoded = [key.removeprefix(ENCODER) for key in keys if key.startswith(ENCODER)]
        self.output_shape = (num_outputs,)
        sizes = [count for counts in self.counted.values() for count in counts]
        self.tfidf = nn.ModuleList(TfIdf(size, num_outputs) for size in sizes)
        self.dense = self.linear = None
        self.trees = None
        # One additional feature per input: whether the sample has it.
        self.num_features = sum(self.num_dense.values()) + len(self.num_dense)
        if self.num_dense:
            self.dense = DenseScores(self.num_features, num_outputs, num_landmarks)
        if self.num_linear:
            count = sum(self.num_linear.values()) + len(self.num_linear)
            self.linear = DenseScores(count, num_outputs)
        if self.num_dense and num_trees:
            self.trees = Trees(num_trees, num_nodes, num_outputs)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(num_outputs))

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain data."""
        return {
            "about": self.about,
            "dense": dict(self.num_dense),
            "linear": dict(self.num_linear),
            "counted": {name: list(counts) for name, counts in self.counted.items()},
            "num_outputs": len(self.bias),
            "num_landmarks": 0 if self.dense is None else len(self.dense.landmarks),
            "num_trees": 0 if self.trees is None else len(self.trees.roots),
            "num_nodes": 0 if self.trees is None else len(self.trees.value),
        }

    def problem(self, adapters: Mapping[str, Any]) -> str:
        """See `Baseline.problem`."""
        for name in self.encoded:
            if not isinstance(adapters[name], EncodedAdapter):
                return f"reads the vectors of an encoder of {name}, which has none"
        if self.trees is None or self.trees.is_valid(self.num_features):
            return ""
        return "a tree names a node or feature that does not exist"

    def forward(self, features: Mapping[str, Features], size: int) -> Tensor:
        """See `Baseline.forward`."""
        # In float32: standardized numbers and distances need more digits than bf16 has.
        with without_autocast(self.bias):
            output = self.bias.expand(size, -1)
            tfidf = iter(self.tfidf)
            for name, counts in self.counted.items():
                modules = [next(tfidf) for _ in counts]
                if name not in features:
                    continue
                blocks = features[name].counted
                check_count(name, len(blocks), len(counts))
                for block, module in zip(blocks, modules, strict=True):
                    output = output + module(block, size)
            if self.dense is not None:
                x = self.dense_features(features, size, self.num_dense)
                output = output + self.dense(x)
                if self.trees is not None:
                    output = output + self.trees(x)
            if self.linear is not None:
                x = self.dense_features(features, size, self.num_linear)
                output = output + self.linear(x)
        return output

    def dense_features(
        self, features: Mapping[str, Features], size: int, counts: Mapping[str, int]
    ) -> Tensor:
        """Return the numbers of inputs (B, F), NaN where a sample lacks an input.

        Args:
            features: See `forward`.
            size: See `forward`.
            counts: Number of these features by their key.
        """
        parts: list[Tensor] = []
        for name, count in counts.items():
            if name in features:
                x = features[name].dense.float()
                check_count(name, x.shape[1], count)
            else:
                x = self.bias.new_full((size, count), torch.nan)
            is_present = ~x.isnan().all(1, keepdim=True)
            parts += [x, is_present.float()]
        return torch.cat(parts, 1)


def check_count(name: str, number: int, expected: int) -> None:
    """Raise UserError if an input has another number of features than in the training."""
    if number != expected:
        raise UserError(
            f"baseline.{name}: the adapter computes {number} features, but the baseline was "
            f"trained with {expected}; copy the model folder again"
        )
