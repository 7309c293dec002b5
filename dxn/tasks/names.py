"""Targets that consist of names: classes, labels and tags."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from random import Random
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dxn.core.display import list_names, significant
from dxn.core.schema import Strict
from dxn.core.untrusted import shortened
from dxn.tasks.target import IGNORED, Target

Kind = Literal["str", "bool", "int", "float"]
# How the name of a class becomes its value.
TYPES: dict[Kind, Callable[[str], Any]] = {
    "str": str,
    "bool": {"False": False, "True": True}.__getitem__,
    "int": int,
    "float": float,
}
# With more classes, a table with one column per class is too wide to read and large on disk.
MAX_CLASS_COLUMNS = 20
TOP = 5  # number of the most probable classes that such a table contains instead
MAX_CHARS = 60  # of a name in a description
SHOWN = 12  # names in a description, so that it fits on about two lines of a terminal


class NamesState(Strict):
    """The names in a model folder, which may come from an untrusted source."""

    labels: Annotated[list[str], Field(min_length=1)]
    class_weights: list[float] | None = None
    frequencies: list[float] = Field(default_factory=list)
    kind: Kind = "str"

    @model_validator(mode="after")
    def _check(self) -> NamesState:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be distinct, got {shortened(self.labels)}")
        try:
            list(map(TYPES[self.kind], self.labels))
        except (ValueError, KeyError) as error:
            raise ValueError(f"labels must be of the kind {self.kind}") from error
        for name, numbers in (
            ("class_weights", self.class_weights),
            ("frequencies", self.frequencies),
        ):
            if numbers and len(numbers) != len(self.labels):
                raise ValueError(
                    f"{name} must have one number per label, got {len(numbers)} {name} for "
                    f"{len(self.labels)} labels"
                )
        return self


# Weights of classes in the loss: equal, or the inverse roots or inverses of their frequencies.
# Roots suit classes whose frequencies differ by factors of hundreds, as those of pixels.
Balance: TypeAlias = Literal["none", "root", "inverse"]
POWERS: dict[Balance, float] = {"none": 0.0, "root": 0.5, "inverse": 1.0}


class Names(Target):
    """Targets with one or several names of a row. The names are those of the training split.

    Attributes:
        index: Index of each name.
        class_weights: Weight of each class in the loss. None: all classes have the same weight.
        frequencies: Share of the training rows with each name. Empty: unknown, as for the classes
            of a public checkpoint.
        kind: Type of the names in the training table.

    Args:
        balance: Class weights that `fit` computes.
    """

    State: ClassVar[type[Strict]] = NamesState
    nouns = ("class", "classes")

    def __init__(self, *, balance: Balance = "none"):
        self.balance: Balance = balance
        self.labels = ()
        self.class_weights: list[float] | None = None
        self.frequencies: list[float] = []
        self.kind: Kind = "str"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names in the order of the head's outputs."""
        return self._labels

    @labels.setter
    def labels(self, names: Sequence[str]) -> None:
        self._labels = tuple(names)
        self.index = {name: i for i, name in enumerate(names)}

    def names(self, value: Any) -> Sequence[str]:
        """Return the names of a target value."""
        return value

    def weights(self, counts: Counter[str], num_rows: int) -> list[float]:
        """Return weights of classes by how often they occur.

        "inverse" is n / (K * count), as scikit-learn's class_weight="balanced". The mean weight
        over all n occurrences is 1, so that the scale of the loss does not change.
        """
        power = POWERS[self.balance]
        numbers = [counts[name] for name in self.labels]
        scale = counts.total() / sum(number ** (1 - power) for number in numbers if number)
        # A class that only has a name can occur in the validation split, whose loss it would decide
        # if it counted as very rare.
        return [scale / number**power if number else 1.0 for number in numbers]

    def fit(self, values: Sequence[Any]) -> None:
        """Collect the names and their frequencies, and class weights if `balance` is set."""
        counts = Counter(chain.from_iterable(map(self.names, values)))
        # Numbers by value, then the other names. The order must not depend on that of the rows.
        self.labels = sorted(counts, key=_sort_key)
        self.frequencies = [counts[name] / len(values) for name in self.labels]
        is_balanced = self.balance != "none"
        self.class_weights = self.weights(counts, len(values)) if is_balanced else None

    def encode(self, value: Any, sample: dict[str, Any], rand: Random | None = None) -> Any:
        """Return the indices (n,) of the names, IGNORED for names not in the training split."""
        # cross_entropy skips IGNORED, and no predicted index is equal to it: an unknown name adds
        # no loss and counts as a wrong prediction.
        indices = [self.index.get(name, IGNORED) for name in self.names(value)]
        return torch.tensor(indices, dtype=torch.long)

    def describe(self, values: Sequence[Any]) -> str:
        """Return the number of names, and the counts of the most frequent ones.

        The result looks like "2 classes (red 1,200, blue 30)".
        """
        counts = Counter(chain.from_iterable(map(self.names, values)))
        noun = self.nouns[len(counts) != 1]
        parts = [f"{_short(name)} {count:,}" for name, count in counts.most_common()]
        return f"{len(counts)} {noun} ({list_names(parts, SHOWN)})" if parts else f"0 {noun}"

    def unknown(self, values: Sequence[Any]) -> list[str]:
        """Return the first name of each row that is not in the training split."""
        rows = ([name for name in self.names(v) if name not in self.index] for v in values)
        return [names[0] for names in rows if names]


def _short(name: str) -> str:
    """Return a name on one line, without the end of a long one."""
    name = " ".join(name.split())
    return name if len(name) <= MAX_CHARS else f"{name[: MAX_CHARS - 1]}…"


def class_name(value: Any) -> str:
    """Return the name of a class, without outer white space and in the Unicode normal form C."""
    return unicodedata.normalize("NFC", str(value)).strip()


def probability_fields(labels: Sequence[str], probabilities: Tensor) -> dict[str, Any]:
    """Return the columns with probabilities, and their values for one row.

    With at most MAX_CLASS_COLUMNS classes, there is one column per class, such as "p(ham)". With
    more, there are two columns for each of the TOP most probable classes: "top1" contains the name
    and "p(top1)" the probability.

    Args:
        labels: Names of the K classes.
        probabilities: Probability (K,) of each class.
    """
    if len(labels) <= MAX_CLASS_COLUMNS:
        pairs = zip(labels, probabilities.tolist(), strict=True)
        return {f"p({name})": significant(p) for name, p in pairs}
    best = probabilities.topk(TOP)
    fields: dict[str, Any] = {}
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    for rank, (index, p) in enumerate(ranked, 1):
        fields[f"top{rank}"] = labels[index]
        fields[f"p(top{rank})"] = significant(p)
    return fields


def kind_of_classes(values: Sequence[Any]) -> Kind:
    """Return the type that all classes of a column have, or "str"."""
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {int}:
        return "int"
    return "float" if types and types <= {int, float} else "str"


def explain_case(names: Iterable[str]) -> list[str]:
    """Return a note about names that differ only in case; an empty list if there are none."""
    spellings: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        spellings.setdefault(name.casefold(), []).append(name)
    alike = [" and ".join(map(repr, same)) for same in spellings.values() if len(same) > 1]
    if not alike:
        return []
    return [
        f"target: {list_names(alike, SHOWN)} differ only in upper and lower case and are "
        "different classes; write them alike if they mean the same"
    ]


def _sort_key(name: str) -> tuple[float, str]:
    """Sort numbers by value, then all other names alphabetically."""
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    # float() also parses a class called "nan". NaN has no order, so it is not a number here.
    return math.inf if math.isnan(value) else value, name
