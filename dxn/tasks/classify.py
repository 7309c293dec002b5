"""Classification: predict one of several classes for each sample."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dxn.core.schema import validated
from dxn.tasks.cells import problem_of
from dxn.tasks.class_metrics import hidden_metrics, metrics_per_class, with_unknown
from dxn.tasks.divergences import between_classes
from dxn.tasks.heads import Hidden, LinearHead, PreHead, check_hidden
from dxn.tasks.label_format import are_label_lists, explain_joined
from dxn.tasks.labels import (
    FrequenciesState,
    Labels,
    balanced_weights,
    describe_names,
    explain_case,
    kind_of_classes,
)
from dxn.tasks.loss import LossSum
from dxn.tasks.number_notes import explain_classes
from dxn.tasks.probabilities import (
    MAX_CLASS_COLUMNS,
    TOP,
    mean_probabilities,
    probability_fields,
    significant,
)
from dxn.tasks.row_scores import ClassScores, RowScores, one_hot
from dxn.tasks.task import IGNORED, STATE_FILE, Batch, Task


class Classify(Task):
    """Predict one of several classes for each sample.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (uniform targets)
            (arXiv:1512.00567, section 7).
        balance: Whether to weight each class in the loss by its inverse frequency.
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        norm: Whether to apply a layer norm before the output layer.
        norm_eps: Epsilon of the layer norm before the output layer.
        dropout: Dropout probability before the output layer.
    """

    name = "classify"
    preset = "samples"
    plots = "confusion"
    monitored = "accuracy"
    higher_is_better = True

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        balance: bool = False,
        hidden: Hidden = "none",
        norm: bool = False,
        norm_eps: float = 1e-5,
        dropout: float = 0.1,
    ):
        check_hidden(hidden)
        self.label_smoothing = label_smoothing
        self.balance = balance
        self.pre_options = {
            "hidden": hidden,
            "norm": norm,
            "norm_eps": norm_eps,
            "dropout": dropout,
        }
        self.classes = Labels()
        # Share of each class in the training split. Models that were saved without it have none.
        self.frequencies: tuple[float, ...] = ()

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return a low score for any column that does not consist of lists."""
        # Every value can be a class label. The score is below those of all other tasks (0.5 to 1),
        # so that classification is the fallback if no other task accepts the values.
        return 0.3 if values and not are_label_lists(values) and problem_of(values) is None else 0.0

    @classmethod
    def reason(cls, values: Sequence[Any]) -> str:
        """Return why numbers are read as classes instead of a quantity."""
        return explain_classes(values) or explain_joined(values)

    def find_format(self, values: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find the type of the classes, and names that differ only in case."""
        self.classes = replace(self.classes, kind=kind_of_classes(values))
        note = explain_case(map(self.classes.name_of, values))
        return [f"target: {note}"] if note else []

    def parse(self, value: Any, origin: str) -> str:
        """Return the class name."""
        return self.classes.name_of(value)

    def fit(self, values: Sequence[str]) -> None:
        """Collect the class names and frequencies, and class weights if `balance` is set."""
        self.classes = Labels.fit(values, self.classes.kind)
        counts = Counter(values)
        self.frequencies = tuple(counts[name] / len(values) for name in self.labels)
        if self.balance:
            weights = balanced_weights(self.classes.names, values)
            self.classes = replace(self.classes, weights=weights)

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the head's outputs."""
        return self.classes.names

    def describe(self, values: Sequence[str]) -> str:
        """Return the number of classes, and the number of rows of the most frequent ones."""
        return describe_names(values, "class", "classes")

    def unknown(self, values: Sequence[str]) -> list[str]:
        """Return the class of each row whose class does not occur in the training split."""
        return [value for value in values if value not in self.classes.index]

    def encode(self, value: str, rand: random.Random | None = None) -> Tensor:
        """Return the class index (), or IGNORED for a class that is not in the training split."""
        # cross_entropy skips IGNORED, and no predicted index is equal to it: an unknown class
        # adds no loss and counts as a wrong prediction.
        return torch.tensor(self.classes.index.get(value, IGNORED))

    def mix_targets(self, target: Tensor, order: Tensor, share: float) -> Tensor:
        """Return soft targets (B, K), the mixed class probabilities."""
        # one_hot cannot encode IGNORED. It does not occur here, because mixup is applied only in
        # training, where all classes are known.
        one_hot = F.one_hot(target, len(self.labels)).float()
        return share * one_hot + (1 - share) * one_hot[order]

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to logits."""
        return LinearHead(PreHead(pooled_dim, **self.pre_options), len(self.labels))

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the cross-entropy of logits (B, K), weighted by the class.

        Targets are class indices (B,), or class probabilities (B, K) after mixup.
        """
        target = batch["target"]
        # The softmax is computed in float32 even if the model uses bfloat16, whose 8 significant
        # bits are too few for the differences between logits.
        total = F.cross_entropy(
            output.float(),
            target,
            weight=self.classes.weights_on(output.device),
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        if target.is_floating_point():
            # As in cross_entropy, soft targets have the weight 1.
            return LossSum(total, total.new_tensor(len(target)))
        return LossSum(total, self.classes.total_weight(target))

    def divergence(self, output: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Return the mean symmetric KL divergence of logits (B, K)."""
        return between_classes(output, other).mean()

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logarithm (B, K) of the mean of the members' probabilities."""
        return mean_probabilities(outputs)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tensor]:
        """Return the probabilities (K,) of each sample."""
        return list(output.float().softmax(-1).cpu())

    def exported(self, head: nn.Module, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, K)."""
        return {"probabilities": output.float().softmax(-1)}

    def weighted_metrics(
        self, predictions: Sequence[Tensor], truths: Sequence[str], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return the accuracy, the balanced accuracy, the log loss and the metrics per class.

        With more than MAX_CLASS_COLUMNS classes, also return the fraction of rows whose class is
        among the TOP most probable ones, instead of the metrics of single classes. With two
        classes, the average precision is that of the rarer one. A class that is not in the training
        split has a probability of 0, so its rows count as wrong in every metric.
        """
        known = self.class_scores(predictions, truths)
        rows = with_unknown(known, [[truth] for truth in truths], self.labels)
        probabilities, predicted, true = rows
        correct = (predicted & true).to(counts.dtype)
        totals = counts.sum(1)
        recall = counts @ correct / (counts @ true.to(counts.dtype))
        # A probability of 0 is replaced, as in scikit-learn.
        chosen = (probabilities * true).sum(1).clamp(min=torch.finfo(torch.float32).eps)
        results = {
            "accuracy": counts @ correct.sum(1) / totals,
            "balanced_accuracy": recall.nanmean(1),
            "log_loss": counts @ -chosen.to(counts.dtype).log() / totals,
        }
        if len(self.labels) > MAX_CLASS_COLUMNS:
            is_top = true.gather(1, probabilities.topk(TOP).indices).any(1)
            results[f"accuracy_top{TOP}"] = counts @ is_top.to(counts.dtype) / totals
        if len(self.labels) > 1:
            # The ranking by the other one of two classes is the same in the opposite order.
            is_binary = len(self.labels) == 2
            ranked = [self._rarer()] if is_binary else range(len(self.labels))
            results |= metrics_per_class(self.labels, rows, counts, ranked)
        return results

    @property
    def details(self) -> set[str]:
        """The metrics that tables do not show, except with rare classes."""
        hidden = hidden_metrics(self.labels, self.frequencies)
        return {"balanced_accuracy", "log_loss", *hidden}

    def row_scores(self, predictions: Sequence[Tensor], truths: Sequence[str]) -> RowScores:
        """Return 1 for each row with the right class, and 0 for the others."""
        predicted = torch.stack(list(predictions)).argmax(1)
        return RowScores("correct", (predicted == self._encode_all(truths)).double().tolist())

    def class_scores(self, predictions: Sequence[Tensor], truths: Sequence[str]) -> ClassScores:
        """Return the probabilities of the classes, of which exactly one is predicted."""
        true = one_hot(self._encode_all(truths), len(self.labels))
        return ClassScores(torch.stack(list(predictions)), true)

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the most probable class, and the probability of each class."""
        probabilities = dict(zip(self.labels, prediction.tolist(), strict=True))
        return {
            "prediction": self.labels[int(prediction.argmax())],
            "probabilities": probabilities,
        }

    def fields(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the predicted class, its probability, and the probabilities of the classes."""
        return {
            "prediction": self.labels[int(prediction.argmax())],
            "confidence": significant(float(prediction.max())),
            **probability_fields(self.labels, prediction),
        }

    def typed(self, prediction: str) -> Any:
        """Return a class with the type that it has in the training table."""
        return self.classes.value(prediction)

    def trivial(self) -> tuple[str, Tensor] | None:
        """Return the most frequent class of the training split."""
        if not self.frequencies:
            return None
        # The frequencies as probabilities: the most frequent class is then the predicted one.
        prediction = torch.tensor(self.frequencies)
        return f"always {self.labels[int(prediction.argmax())]}", prediction

    def state(self) -> dict[str, Any]:
        """Return the class names, weights and frequencies."""
        return {**self.classes.state(), "frequencies": list(self.frequencies)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the class names, weights and frequencies."""
        self.classes = Labels.from_state(state)
        self.frequencies = read_frequencies(state)

    def _rarer(self) -> int:
        """Return the index of the rarer of two classes, 1 if both are as frequent."""
        return int(not self.frequencies or self.frequencies[1] <= self.frequencies[0])

    def _encode_all(self, truths: Sequence[str]) -> Tensor:
        index = self.classes.index
        return torch.tensor([index.get(truth, IGNORED) for truth in truths])


def read_frequencies(state: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the frequencies in the content of labels.json; () if it has none.

    Raises:
        UserError: If there is not one number per class.
    """
    return tuple(validated(FrequenciesState, dict(state), STATE_FILE).frequencies or ())
