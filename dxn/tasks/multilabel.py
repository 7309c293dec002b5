"""Multilabel classification: predict any number of labels for each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dxn.core.display import list_names
from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.tasks.class_metrics import LabelMetric
from dxn.tasks.heads import HeadOptions
from dxn.tasks.label_format import SEPARATOR, LabelFormat, explain_joined
from dxn.tasks.names import Names, NamesState, explain_case, kind_of_classes, probability_fields
from dxn.tasks.space import Bernoulli
from dxn.tasks.task import Task


class LabelsState(NamesState):
    """The content of labels.json."""

    constant: list[str] | None = None
    format: LabelFormat = Field(default_factory=LabelFormat)

    @model_validator(mode="after")
    def _check_constant(self) -> LabelsState:
        if not set(self.constant or ()) <= set(self.labels):
            raise ValueError("constant must be a list of labels or null")
        return self


class Labels(Names):
    """Any number of labels per row: a list, a text such as "red|round", or several columns.

    Args:
        separator: Text between the labels of one cell.
        balance: Whether `fit` computes the weights of positive samples.

    Attributes:
        format: How cells write labels.
        constant: The best constant prediction. None: unknown.
    """

    State: ClassVar[type[Strict]] = LabelsState
    nouns = ("label", "labels")

    def __init__(self, separator: str = SEPARATOR, *, balance: bool = False):
        super().__init__(balance=balance)
        self.format = LabelFormat(separator=separator)
        self.constant: list[str] | None = None

    @property
    def separator(self) -> str:
        """Text between the labels of one cell."""
        return self.format.separator

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out whether cells are lists, texts with a separator, or flags."""
        separator = self.separator
        self.format = LabelFormat.find(cells, separator)
        lists = [cell for cell in cells if isinstance(cell, list)]
        are_names = len(lists) == len(cells) and not self.format.num_flags
        self.kind = kind_of_classes(list(chain.from_iterable(lists))) if are_names else "str"
        readable: list[str] = []
        for cell in cells:
            with suppress(UserError):  # is reported when the rows are read
                readable += self.format.parse(cell, "")
        notes = explain_case(readable)
        if any(isinstance(cell, str) and separator in cell for cell in cells):
            return notes
        joined = explain_joined(cells)
        return [*notes, f"target: {joined}"] if joined else notes

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> list[str]:
        """Return the labels of a cell.

        Raises:
            UserError: If the cell has another format.
        """
        return self.format.parse(cell, origin)

    def weights(self, counts: Counter[str], num_rows: int) -> list[float]:
        """Return the ratio of negatives to positives, as the documentation of pos_weight does."""
        return [(num_rows - counts[name]) / max(counts[name], 1) for name in self.labels]

    def fit(self, values: Sequence[Sequence[str]]) -> None:
        """Collect the labels and the constant, and label weights if `balance` is set."""
        super().fit(values)
        pairs = zip(self.labels, self.frequencies, strict=True)
        frequent = [name for name, frequency in pairs if frequency > 0.5]
        # Without such a label, predicting no label would have an F1 of 0. Sorted, because the order
        # of the labels in a cell has no meaning.
        sets = Counter(tuple(sorted(set(value))) for value in values)
        self.constant = frequent or list(sets.most_common(1)[0][0])

    def encode(
        self, value: Sequence[str], sample: dict[str, Any], rand: Random | None = None
    ) -> Tensor:
        """Return the multi-hot target (K,): 1 for each label of the sample, 0 for the others."""
        target = torch.zeros(len(self.labels))
        # The head has no output for a label that is not in the training split, so it is left out.
        target[[self.index[name] for name in value if name in self.index]] = 1
        return target

    def typed(self, prediction: list[str]) -> list[Any]:
        """Return labels with the type that they have in the training table."""
        return [self.value(name) for name in prediction]


@dataclass(kw_only=True, eq=False)
class Multilabel(HeadOptions, Task[Labels]):
    """Predict any number of labels for each sample.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (all targets are 0.5).
        balance: Whether to weight the positive samples of each label by the ratio of negative to
            positive samples (pos_weight).
        threshold: Minimum probability at which a label is predicted.
        separator: Text between the labels of one cell, as in "red|round".
    """

    name = "multilabel"

    label_smoothing: float = 0.0
    balance: bool = False
    threshold: float = 0.5
    separator: str = SEPARATOR

    def __post_init__(self):
        super().__post_init__()
        if not self.separator:
            raise UserError("head.separator: must be a text between labels, got an empty text")
        self.target = Labels(self.separator, balance=self.balance)
        self.space = Bernoulli(
            self.target, label_smoothing=self.label_smoothing, threshold=self.threshold
        )
        self.metric = LabelMetric(self.target, self.threshold)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps the pooled vector to logits."""
        return self.linear_head(pooled_dim, len(self.target.labels))

    def recipe(self, head: nn.Module) -> dict[str, Any]:
        """Return the labels, and the probability from which on a sample has one."""
        return {**super().recipe(head), "threshold": self.threshold}

    def answer(self, prediction: Tensor, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the labels that reach the threshold, and the probability of each label."""
        labels = self.target.labels
        return {
            "prediction": self._chosen(prediction),
            "probabilities": dict(zip(labels, prediction.tolist(), strict=True)),
        }

    def columns(
        self, prediction: Tensor, target: Any = None, inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the predicted labels, and the probabilities of the labels."""
        fields = probability_fields(self.target.labels, prediction)
        return {"prediction": self._chosen(prediction), **fields}

    def naive(self, raws: Sequence[Mapping[str, Any]]) -> tuple[str, list[Tensor]] | None:
        """Return the labels that most training rows have, or the most frequent set of labels."""
        constant = self.target.constant
        if constant is None:
            return None
        prediction = self.target.encode(constant, {})
        return f"always {list_names(constant) or 'no label'}", [prediction] * len(raws)

    def _chosen(self, probabilities: Tensor) -> list[str]:
        indices = (probabilities >= self.threshold).nonzero()[:, 0].tolist()
        return [self.target.labels[i] for i in indices]
