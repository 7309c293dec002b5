"""Class names: their order, indices, loss weights, and serialization."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dxn.core.schema import Strict, validated
from dxn.core.untrusted import shortened
from dxn.tasks.cells import class_name
from dxn.tasks.task import IGNORED, STATE_FILE

Kind = Literal["str", "bool", "int", "float"]
# How the name of a class becomes its value.
TYPES: dict[Kind, Callable[[str], Any]] = {
    "str": str,
    "bool": {"False": False, "True": True}.__getitem__,
    "int": int,
    "float": float,
}
SHOWN = 12  # names in a description, so that it fits on about two lines of a terminal


# Not slots=True, because cached_property needs a __dict__.
@dataclass(frozen=True)
class Labels:
    """Class names in the order of the head's outputs, and optional class weights for the loss.

    Args:
        names: Class names. `fit` sorts numbers by value and puts them before other names.
        weights: Weight of each class in the loss. Default: all classes have the same weight.
        kind: Type of the classes in the training table.
    """

    names: tuple[str, ...] = ()
    weights: tuple[float, ...] | None = None
    kind: Kind = "str"

    @classmethod
    def fit(cls, names: Iterable[str], kind: Kind = "str") -> Labels:
        """Create labels from the names in the training split, which may repeat."""
        # The order must not depend on the order of the rows or on the hashes of a set.
        return cls(tuple(sorted(set(names), key=_sort_key)), kind=kind)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        """Mapping from each name to its index."""
        return {name: i for i, name in enumerate(self.names)}

    def name_of(self, value: Any) -> str:
        """Return the name of a class of any table, in which a class can have another type."""
        name = class_name(value)
        # In a text file, or in a column of pandas with missing values.
        with suppress(ValueError):
            if self.kind == "bool" and name.capitalize() in ("True", "False"):
                return name.capitalize()
            if self.kind == "int" and isinstance(value, float) and value.is_integer():
                return str(int(value))
            if self.kind == "float":
                return str(float(name))
        return name

    def value(self, name: str) -> Any:
        """Return a class with the type that it has in the training table."""
        return TYPES[self.kind](name)

    def weights_on(self, device: torch.device) -> Tensor | None:
        """Return the weights as a float32 tensor (K,) on `device`."""
        if self.weights is None:
            return None
        return torch.tensor(self.weights, dtype=torch.float32, device=device)

    def total_weight(self, target: Tensor) -> Tensor:
        """Return the sum () of the weights of targets, without those that are IGNORED.

        It is the divisor of the mean in `torch.nn.functional.cross_entropy`.
        """
        known = target != IGNORED
        weights = self.weights_on(target.device)
        if weights is None:
            return known.sum().float()
        return (weights[target.clamp(min=0)] * known).sum()

    def state(self) -> dict[str, Any]:
        """Return a JSON-serializable state."""
        weights = None if self.weights is None else list(self.weights)
        return {"labels": list(self.names), "class_weights": weights, "kind": self.kind}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Labels:
        """Create labels from the result of `state()`.

        Raises:
            UserError: If the labels are not distinct strings, or the weights are not one number per
                label.
        """
        saved = validated(LabelsState, dict(state), STATE_FILE)
        weights = saved.class_weights
        return cls(tuple(saved.labels), None if weights is None else tuple(weights), saved.kind)


class LabelsState(Strict):
    """The state of labels in a model folder, which may come from a stranger."""

    labels: Annotated[list[str], Field(min_length=1)]
    class_weights: list[float] | None = None
    kind: Kind = "str"

    @model_validator(mode="after")
    def _check(self) -> LabelsState:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be distinct, got {shortened(self.labels)}")
        try:
            list(map(TYPES[self.kind], self.labels))
        except (ValueError, KeyError) as error:
            raise ValueError(f"labels must be of the kind {self.kind}") from error
        weights = self.class_weights
        if weights is not None and len(weights) != len(self.labels):
            raise ValueError(
                f"class_weights must have one number per label, got {len(weights)} class_weights "
                f"for {len(self.labels)} labels"
            )
        return self


class FrequenciesState(LabelsState):
    """The state of class names with the frequency of each."""

    frequencies: list[float] | None = None

    @model_validator(mode="after")
    def _check_frequencies(self) -> FrequenciesState:
        if self.frequencies and len(self.frequencies) != len(self.labels):
            raise ValueError(f"frequencies must be a list of {len(self.labels)} numbers")
        return self


def kind_of_classes(values: Sequence[Any]) -> Kind:
    """Return the type that all classes of a column have, or "str"."""
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {int}:
        return "int"
    return "float" if types and types <= {int, float} else "str"


def explain_case(names: Iterable[str]) -> str:
    """Return a sentence about names that differ only in case. "": there are none."""
    spellings: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        spellings.setdefault(name.casefold(), []).append(name)
    alike = [" and ".join(map(repr, same)) for same in spellings.values() if len(same) > 1]
    if not alike:
        return ""
    more = f" and {len(alike) - SHOWN} more" if len(alike) > SHOWN else ""
    return (
        f"{', '.join(alike[:SHOWN])}{more} differ only in upper and lower case and are different "
        "classes; write them alike if they mean the same"
    )


def balanced_weights(names: Sequence[str], occurrences: Iterable[str]) -> tuple[float, ...]:
    """Return class weights as scikit-learn's class_weight="balanced" does: n / (K * count).

    The weight of a class is proportional to its inverse frequency. The mean weight over all n
    occurrences is 1, so that the scale of the loss does not change.
    """
    counts = Counter(occurrences)
    return tuple(counts.total() / (len(names) * counts[name]) for name in names)


def first_unknown(rows: Iterable[Sequence[str]], known: Container[str]) -> list[str]:
    """Return the first name of each row that is not known; rows without one are left out."""
    found = [next((name for name in row if name not in known), None) for row in rows]
    return [name for name in found if name is not None]


def encode_names(names: Sequence[str], index: Mapping[str, int]) -> Tensor:
    """Return the indices (n,) of names, IGNORED for each name that `index` does not contain."""
    return torch.tensor([index.get(name, IGNORED) for name in names], dtype=torch.long)


def describe_names(occurrences: Iterable[str], singular: str, plural: str) -> str:
    """Return the number of distinct names, and the counts of the most frequent ones.

    The result looks like "2 classes (red 1,200, blue 30)".
    """
    counts = Counter(occurrences)
    noun = singular if len(counts) == 1 else plural
    parts = [f"{name} {count:,}" for name, count in counts.most_common(SHOWN)]
    if not parts:
        return f"0 {noun}"
    more = f" and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return f"{len(counts)} {noun} ({', '.join(parts)}{more})"


def _sort_key(name: str) -> tuple[float, str]:
    """Sort numbers by value, then all other names alphabetically."""
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    # float() also parses a class called "nan". NaN has no order, so it is not a number here.
    return math.inf if math.isnan(value) else value, name
