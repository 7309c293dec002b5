"""Multilabel classification: predict any number of labels for each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from dxn.core.display import list_names
from dxn.core.errors import UserError
from dxn.core.randomness import Probability
from dxn.core.schema import Strict
from dxn.core.untrusted import shortened
from dxn.tasks.classify import hidden_metrics, per_class, with_unknown
from dxn.tasks.heads import HeadOptions
from dxn.tasks.infer import FEW, SEPARATOR, explain_joined
from dxn.tasks.metric import ClassScores, Metric, f1_scores
from dxn.tasks.names import (
    POWERS,
    TYPES,
    Balance,
    Names,
    NamesState,
    class_name,
    explain_case,
    kind_of_classes,
    probability_fields,
)
from dxn.tasks.space import AnswerKind, Batch, LossSum, Space
from dxn.tasks.task import Task
from dxn.tokenize.cells.joined import list_of

YES = frozenset({"1", "1.0", "true", "yes", "t", "y"})
NO = frozenset({"0", "0.0", "false", "no", "f", "n"})


MIN_EQUAL = 0.95  # share of lists of flags that have the same length


class LabelSetsState(NamesState):
    """The content of labels.json."""

    separator: Annotated[str, Field(min_length=1)] = SEPARATOR
    flags: list[str] = Field(default_factory=list)
    num_flags: Annotated[int, Field(ge=0)] = 0
    are_lists: bool = True
    constant: list[str] | None = None

    @model_validator(mode="after")
    def _check_constant(self) -> LabelSetsState:
        if not set(self.constant or ()) <= set(self.labels):
            raise ValueError("constant must be a list of labels or null")
        return self


class LabelSets(Names):
    """Any number of labels per row: a list, a text such as "red|round", or several columns.

    Args:
        separator: Text between the labels of one cell.
        balance: Weights of positive samples that `fit` computes.

    Attributes:
        separator: Text between the labels of one cell.
        flags: Those of several target columns that say whether a label applies, such as 0 and 1.
        num_flags: Length of lists that say by 0 and 1 whether each label applies. 0: lists contain
            the labels themselves.
        are_lists: Whether more than a few texts are those of lists, such as ["a", "b"].
        constant: The best constant prediction. None: unknown.
    """

    State: ClassVar[type[Strict]] = LabelSetsState
    nouns = ("label", "labels")

    def __init__(self, separator: str = SEPARATOR, *, balance: Balance = "none"):
        super().__init__(balance=balance)
        self.separator = separator
        self.flags: list[str] = []
        self.num_flags = 0
        self.are_lists = True
        self.constant: list[str] | None = None

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out whether cells are lists, texts with a separator, or flags."""
        rows = [cell for cell in cells if isinstance(cell, Mapping)]
        columns = dict.fromkeys(name for row in rows for name in row)
        self.flags = [c for c in columns if _are_flags([row[c] for row in rows if c in row])]
        texts = [cell for cell in cells if isinstance(cell, str)]
        listed = [text for text in texts if list_of(text) is not None]
        self.are_lists = not texts or len(listed) > FEW * len(texts)
        self.num_flags = _num_flags(list(map(self._list_of, cells)))
        lists = [cell for cell in cells if isinstance(cell, list)]
        are_names = len(lists) == len(cells) and not self.num_flags
        self.kind = kind_of_classes(list(chain.from_iterable(lists))) if are_names else "str"
        readable: list[str] = []
        for cell in cells:
            with suppress(UserError):  # is reported when the rows are read
                readable += self.read(cell, "", {})
        notes = [*explain_case(readable), *self._explain_flags(rows, columns)]
        if listed and not self.are_lists:
            notes.append(
                f"target: {len(listed):,} of {len(texts):,} texts look like lists, such as "
                f"{shortened(listed[0])}: each is read like the other texts"
            )
        if any(isinstance(cell, str) and self.separator in cell for cell in cells):
            return notes
        joined = explain_joined([cell for cell in cells if list_of(cell) is None])
        return [*notes, f"target: {joined}"] if joined else notes

    def _explain_flags(
        self, rows: Sequence[Mapping[str, Any]], columns: Iterable[str]
    ) -> list[str]:
        """Return a note about columns of flags that have a few other values."""
        notes: list[str] = []
        for column in columns:
            values = [row[column] for row in rows if row.get(column) is not None]
            others = [value for value in values if not _are_flags([value])]
            if others and len(others) <= (1 - MIN_EQUAL) * len(values):
                notes.append(
                    f"target: the column {column!r} has 0 and 1 in "
                    f"{len(values) - len(others):,} of {len(values):,} rows, but not in others, "
                    f"such as {str(others[0])[:20]!r}: each of its values is a label; correct them "
                    "to make the column a label"
                )
        return notes

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> list[str]:
        """Return the labels of a cell.

        Raises:
            UserError: If the cell has another format.
        """
        items: list[Any] = []
        if isinstance(cell, Mapping):
            # The label of a column of flags is its name, and that of another one "name=value".
            for name, value in cell.items():
                if name in self.flags and value is not None:
                    items += [name] * _is_yes(value, f"{origin}: column {name!r}")
                elif value is not None:
                    items.append(f"{name}={class_name(value)}")
        elif (listed := self._list_of(cell)) is not None:
            items = listed
            if self.num_flags:
                if len(items) != self.num_flags:
                    raise UserError(
                        f"{origin}: the target must be a list of {self.num_flags} values 0 or 1, "
                        f"got {len(items)} values"
                    )
                items = [i for i, item in enumerate(items) if _is_yes(item, origin)]
        elif isinstance(cell, str) and not self.num_flags:
            items = cell.split(self.separator)
        else:
            raise UserError(f"{origin}: the target must be a list, got {cell!r}")
        names = [class_name(item) for item in items if item is not None]
        return [name for name in dict.fromkeys(names) if name]

    def _list_of(self, cell: Any) -> list[Any] | None:
        """Return the items of a list. A text such as "[1, 2]" among other texts is none."""
        return list_of(cell) if self.are_lists or not isinstance(cell, str) else None

    def weights(self, counts: Counter[str], num_rows: int) -> list[float]:
        """Return the ratio of negatives to positives, as the documentation of pos_weight does.

        With balance="root", these are the roots of the ratios.
        """
        # At least one of each: a label that all rows have would get no gradient.
        ratios = [max(num_rows - counts[name], 1) / max(counts[name], 1) for name in self.labels]
        return [ratio ** POWERS[self.balance] for ratio in ratios]

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
        return [TYPES[self.kind](name) for name in prediction]


class Bernoulli(Space):
    """Logits (B, K) of K independent yes-or-no decisions; targets are 0 to 1, (B, K).

    Args:
        names: The labels and their pos_weight in the loss. None: the decisions have no names.
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (all targets are 0.5).
        threshold: Minimum probability of a decision for yes.
    """

    kind = AnswerKind.LABELS

    def __init__(
        self, names: Names | None = None, *, label_smoothing: float = 0.0, threshold: float = 0.5
    ):
        self.names = names
        self.label_smoothing = label_smoothing
        self.threshold = threshold

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the binary cross-entropy. The loss of a sample is the mean over the decisions."""
        target = batch["target"] * (1 - self.label_smoothing) + self.label_smoothing / 2
        weights = None if self.names is None else self.names.class_weights
        if weights is not None:
            weights = torch.tensor(weights, dtype=torch.float32, device=output.device)
        # float32, because bfloat16 logits are too coarse for the loss.
        losses = F.binary_cross_entropy_with_logits(
            output.float(), target, pos_weight=weights, reduction="none"
        )
        return LossSum.of(losses.mean(-1))

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the independent probabilities (B, K)."""
        return {"probabilities": output.float().sigmoid()}

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logits of the mean of the probabilities."""
        stacked = torch.stack(list(outputs))
        # The difference of two logarithms is exact where a probability rounds to 0 or 1.
        return F.logsigmoid(stacked).logsumexp(0) - F.logsigmoid(-stacked).logsumexp(0)


class LabelMetric(Metric):
    """Metrics of the labels of which each row has any number: F1, exact match, and per label.

    Args:
        target: The labels.
        threshold: Minimum probability at which a label is predicted.
    """

    monitored = "f1_micro"
    row: ClassVar = ("f1_micro", "F1 of the labels")

    def __init__(self, target: LabelSets, threshold: float):
        self.target = target
        self.threshold = threshold

    def class_scores(
        self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]]
    ) -> ClassScores:
        """Return the independent probabilities of the labels."""
        true = torch.stack([self.target.encode(names, {}) for names in targets]).bool()
        return ClassScores(torch.stack(list(predictions)), true, self.threshold)

    def rows(self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]]) -> Tensor:
        """Return 1, the right, the predicted and the true labels, and whether all are right."""
        scores = with_unknown(self.class_scores(predictions, targets), self.target, targets)
        predicted, true = scores.predicted, scores.true
        parts = [
            torch.ones(len(true)),
            (predicted & true).sum(1),
            predicted.sum(1),
            true.sum(1),
            (predicted == true).all(1),
        ]
        return torch.stack([part.double() for part in parts], 1)

    def value(self, sums: Tensor) -> dict[str, Tensor]:
        """Return the micro F1 and the exact match; without any label, there is no F1."""
        total, right, predicted, true, exact = sums.unbind(-1)
        return {"f1_micro": f1_scores(right, predicted, true), "exact_match": exact / total}

    def weighted(
        self, predictions: Sequence[Tensor], targets: Sequence[Sequence[str]], counts: Tensor
    ) -> dict[str, Tensor]:
        """Return all metrics."""
        results = super().weighted(predictions, targets, counts)
        scores = with_unknown(self.class_scores(predictions, targets), self.target, targets)
        names = self.target.labels
        return results | per_class(scores, names, counts, range(len(names)))

    @property
    def details(self) -> Collection[str]:
        """The metrics that tables do not show, except with rare labels."""
        return hidden_metrics(self.target) - {"average_precision"}


@dataclass(kw_only=True, eq=False)
class Multilabel(HeadOptions, Task[LabelSets]):
    """Predict any number of labels for each sample.

    Args:
        label_smoothing: Amount of label smoothing, from 0 (none) to 1 (all targets are 0.5).
        balance: Weight of the positive samples of each label: the ratio of negative to positive
            samples (inverse; pos_weight of PyTorch), the root of this (root), or 1 (none).
        threshold: Minimum probability at which a label is predicted.
        separator: Text between the labels of one cell, as in "red|round".
    """

    name = "multilabel"

    label_smoothing: Probability = 0.0
    balance: Balance = "none"
    threshold: Probability = 0.5
    separator: str = SEPARATOR

    def __post_init__(self):
        if not self.separator:
            raise UserError("head.separator: must be a text between labels, got an empty text")
        self.target = LabelSets(self.separator, balance=self.balance)
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


def _num_flags(lists: Sequence[list[Any] | None]) -> int:
    """Return the length of nearly all lists, if they contain only 0 and 1; 0 for other lists."""
    # Lists of the ids 0 and 1, such as [0, 1] and [1], have different lengths. A few lists of flags
    # can be too short, or contain another value.
    lengths = Counter(len(items) for items in lists if items and _are_flags(items))
    (length, number), *_ = lengths.most_common(1) or [(0, 0)]
    return length if length > 1 and number >= MIN_EQUAL * len(lists) else 0


def _are_flags(values: Sequence[Any]) -> bool:
    present = {str(value).strip().lower() for value in values if value is not None}
    return bool(present) and present <= YES | NO


def _is_yes(value: Any, where: str) -> bool:
    name = str(value).strip().lower()
    if name not in YES | NO:
        raise UserError(f"{where}: must be 0 or 1, as in the training, got {value!r}")
    return name in YES
