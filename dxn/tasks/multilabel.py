"""Multilabel classification: predict any number of labels for each sample."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.schema import Strict, validated
from dxn.tasks.class_metrics import hidden_metrics, metrics_per_class, with_unknown
from dxn.tasks.divergences import between_labels
from dxn.tasks.heads import Hidden, LinearHead, PreHead, check_hidden
from dxn.tasks.label_format import (
    SEPARATOR,
    LabelFormat,
    are_joined,
    are_label_lists,
    explain_joined,
)
from dxn.tasks.labels import (
    FrequenciesState,
    Labels,
    describe_names,
    explain_case,
    first_unknown,
    kind_of_classes,
)
from dxn.tasks.loss import LossSum
from dxn.tasks.probabilities import list_names, probability_fields
from dxn.tasks.row_scores import ClassScores, RowScores, f1_scores
from dxn.tasks.task import STATE_FILE, Batch, Task


class Multilabel(Task):
    """Predict any number of labels for each sample.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (all targets are 0.5).
        balance: Whether to weight the positive samples of each label by the ratio of negative to
            positive samples (pos_weight).
        hidden: Hidden layer before the output layer: none, linear, tanh, relu or gelu.
        norm: Whether to apply a layer norm before the output layer.
        norm_eps: Epsilon of the layer norm before the output layer.
        dropout: Dropout probability before the output layer.
        threshold: Minimum probability at which a label is predicted.
        separator: Text between the labels of one cell, as in "red|round".
    """

    name = "multilabel"
    preset = "samples"
    monitored = "f1_micro"
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
        threshold: float = 0.5,
        separator: str = SEPARATOR,
    ):
        check_hidden(hidden)
        if not separator:
            raise UserError("head.separator: must be a text between labels, got an empty text")
        self.separator = separator
        self.format = LabelFormat(separator)
        self.label_smoothing = label_smoothing
        self.balance = balance
        self.threshold = threshold
        self.pre_options = {
            "hidden": hidden,
            "norm": norm,
            "norm_eps": norm_eps,
            "dropout": dropout,
        }
        self.names = Labels()
        # The best constant prediction. Models that were saved without it have none.
        self.constant: list[str] | None = None
        # Share of the training rows with each label. Models that were saved without it have none.
        self.frequencies: tuple[float, ...] = ()

    @classmethod
    def accepts(cls, values: Sequence[Any], words: Sequence[Any] | None) -> float:
        """Return a high score for lists, and a medium one for strings of separated labels."""
        if are_label_lists(values):
            return 0.9
        return 0.5 if are_joined(values) else 0.0

    def find_format(self, values: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out whether cells are lists, texts with a separator, or flags."""
        self.format = LabelFormat.find(values, self.separator)
        lists = [value for value in values if isinstance(value, list)]
        are_names = len(lists) == len(values) and not self.format.num_flags
        kind = kind_of_classes(list(chain.from_iterable(lists))) if are_names else "str"
        self.names = replace(self.names, kind=kind)
        notes = [explain_case(self._readable(values))]
        if not any(isinstance(value, str) and self.separator in value for value in values):
            notes.append(explain_joined(values))
        return [f"target: {note}" for note in notes if note]

    def parse(self, value: Any, origin: str) -> list[str]:
        """Return the labels of a cell: a list, a text such as "red|round", or several columns.

        Raises:
            UserError: If the cell has another format.
        """
        return self.format.parse(value, origin)

    def _readable(self, values: Sequence[Any]) -> list[str]:
        """Return the labels of all cells that can be read; the others are reported later."""
        found: list[str] = []
        for value in values:
            with suppress(UserError):
                found += self.parse(value, "")
        return found

    def fit(self, values: Sequence[Sequence[str]]) -> None:
        """Collect the label names and the constant, and label weights if `balance` is set."""
        self.names = Labels.fit(chain.from_iterable(values), self.names.kind)
        counts = Counter(chain.from_iterable(values))
        self.frequencies = tuple(counts[name] / len(values) for name in self.labels)
        frequent = [name for name in self.labels if counts[name] > len(values) / 2]
        # Without such a label, predicting no label would have an F1 of 0.
        self.constant = frequent or _most_frequent_set(values)
        if self.balance:
            # The ratio of negatives to positives, as the documentation of pos_weight recommends.
            weights = [(len(values) - counts[n]) / max(counts[n], 1) for n in self.labels]
            self.names = replace(self.names, weights=tuple(weights))

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the head's outputs."""
        return self.names.names

    def describe(self, values: Sequence[Sequence[str]]) -> str:
        """Return the number of labels, and the number of rows of the most frequent ones."""
        return describe_names(chain.from_iterable(values), "label", "labels")

    def unknown(self, values: Sequence[Sequence[str]]) -> list[str]:
        """Return a label of each row with one that does not occur in the training split."""
        return first_unknown(values, self.names.index)

    def encode(self, value: Sequence[str], rand: random.Random | None = None) -> Tensor:
        """Return the multi-hot target (K,): 1 for each label of the sample, 0 for the others."""
        index = self.names.index
        target = torch.zeros(len(self.labels))
        # The head has no output for a label that is not in the training split, so it is left out.
        target[[index[name] for name in value if name in index]] = 1
        return target

    def mix_targets(self, target: Tensor, order: Tensor, share: float) -> Tensor:
        """Return soft targets (B, K), the mixed label probabilities."""
        return share * target + (1 - share) * target[order]

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to logits."""
        return LinearHead(PreHead(pooled_dim, **self.pre_options), len(self.labels))

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the binary cross-entropy of logits (B, K) and targets (B, K) in [0, 1].

        The loss of a sample is the mean over the labels.
        """
        target = batch["target"] * (1 - self.label_smoothing) + self.label_smoothing / 2
        weights = self.names.weights_on(output.device)
        # float32, because bfloat16 logits are too coarse for the loss.
        losses = F.binary_cross_entropy_with_logits(
            output.float(), target, pos_weight=weights, reduction="none"
        )
        return LossSum.of(losses.mean(-1))

    def divergence(self, output: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """Return the mean symmetric KL divergence of the labels, from logits (B, K)."""
        return between_labels(output, other).mean()

    def combine(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logits (B, K) of the mean of the members' probabilities."""
        stacked = torch.stack(list(outputs))
        # The difference of two logarithms is exact where a probability rounds to 0 or 1.
        return F.logsigmoid(stacked).logsumexp(0) - F.logsigmoid(-stacked).logsumexp(0)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[Tensor]:
        """Return the independent probabilities (K,) of the labels for each sample."""
        return list(output.float().sigmoid().cpu())

    def exported(self, head: nn.Module, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the independent probabilities (B, K) of the labels."""
        return {"probabilities": output.float().sigmoid()}

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the labels, and the probability from which on a sample has one."""
        return {**super().recipe(head), "threshold": self.threshold}

    def weighted_metrics(
        self, predictions: Sequence[Tensor], truths: Sequence[Sequence[str]], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return micro and macro F1, the exact match ratio, and the metrics per label.

        A label that is not in the training split has a probability of 0, so that rows with such a
        label count as wrong. Without any true or predicted label, there is no F1.
        """
        rows = with_unknown(self.class_scores(predictions, truths), truths, self.labels)
        parts = (rows.predicted & rows.true, rows.predicted, rows.true)
        sums = [counts @ each.sum(1).to(counts.dtype) for each in parts]
        exact = (rows.predicted == rows.true).all(1).to(counts.dtype)
        return {
            "f1_micro": f1_scores(*sums),
            "exact_match": counts @ exact / counts.sum(1),
            **metrics_per_class(self.labels, rows, counts, range(len(self.labels))),
        }

    @property
    def details(self) -> set[str]:
        """The metrics that tables do not show, except with rare labels."""
        return hidden_metrics(self.labels, self.frequencies) - {"average_precision"}

    def row_scores(
        self, predictions: Sequence[Tensor], truths: Sequence[Sequence[str]]
    ) -> RowScores:
        """Return the F1 score of the labels of each row; 1 for a row without any label."""
        rows = with_unknown(self.class_scores(predictions, truths), truths, self.labels)
        predicted, true = rows.predicted, rows.true
        f1 = f1_scores((predicted & true).sum(1), predicted.sum(1), true.sum(1))
        return RowScores("F1 of the labels", f1.nan_to_num(1.0).tolist())

    def class_scores(
        self, predictions: Sequence[Tensor], truths: Sequence[Sequence[str]]
    ) -> ClassScores:
        """Return the independent probabilities of the labels."""
        true = torch.stack([self.encode(truth) for truth in truths]).bool()
        return ClassScores(torch.stack(list(predictions)), true, self.threshold)

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the labels that reach the threshold, and the probability of each label."""
        probabilities = dict(zip(self.labels, prediction.tolist(), strict=True))
        return {"prediction": self._chosen(prediction), "probabilities": probabilities}

    def fields(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the predicted labels, and the probabilities of the labels."""
        fields = probability_fields(self.labels, prediction)
        return {"prediction": self._chosen(prediction), **fields}

    def trivial(self) -> tuple[str, Tensor] | None:
        """Return the labels that most training rows have, or the most frequent set of labels."""
        if self.constant is None:
            return None
        return f"always {list_names(self.constant) or 'no label'}", self.encode(self.constant)

    def state(self) -> dict[str, Any]:
        """Return the label names, weights and frequencies, and the constant prediction."""
        frequencies = list(self.frequencies)
        return {
            **self.names.state(),
            "constant": self.constant,
            "frequencies": frequencies,
            "format": self.format.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the label names, weights and frequencies, and the constant prediction."""
        saved = validated(_State, dict(state), STATE_FILE)
        self.names = Labels.from_state(state)
        form = saved.format
        self.format = LabelFormat(form.separator, tuple(form.flags), form.num_flags)
        self.separator = self.format.separator
        self.constant = saved.constant
        self.frequencies = tuple(saved.frequencies or ())

    def typed(self, prediction: list[str]) -> list[Any]:
        """Return labels with the type that they have in the training table."""
        return [self.names.value(name) for name in prediction]

    def _chosen(self, probabilities: Tensor) -> list[str]:
        indices = (probabilities >= self.threshold).nonzero()[:, 0].tolist()
        return [self.labels[i] for i in indices]


def _most_frequent_set(values: Sequence[Sequence[str]]) -> list[str]:
    """Return the set of labels that most rows have, and no labels if there are no rows."""
    # Sorted, because the order of the labels in a cell has no meaning.
    counts = Counter(tuple(sorted(set(value))) for value in values)
    return list(counts.most_common(1)[0][0]) if counts else []


class _FormatState(Strict):
    """How target cells write labels."""

    separator: Annotated[str, Field(min_length=1)] = SEPARATOR
    flags: list[str] = Field(default_factory=list)
    num_flags: Annotated[int, Field(ge=0)] = 0


class _State(FrequenciesState):
    """The content of labels.json."""

    constant: list[str] | None = None
    format: _FormatState = Field(default_factory=_FormatState)

    @model_validator(mode="after")
    def _check_constant(self) -> _State:
        if not set(self.constant or ()) <= set(self.labels):
            raise ValueError("constant must be a list of labels or null")
        return self
