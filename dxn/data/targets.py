"""What is to be predicted: raw values to tensors and back, fitted on the training split."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dxn.tokenize import TargetTokenizer

IGNORED = -100  # cross_entropy's ignore_index: no loss here, and never counted as right


@dataclass(frozen=True)
class Target:
    """kind: class, labels, number, tags, text (to be written), next (token of the text itself) or masked (what is
    hidden of the input); names: the classes in order; mean and std: of numbers; writing: the tokenizer of texts."""

    kind: str
    names: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    writing: TargetTokenizer | None = None

    @classmethod
    def fit(cls, kind: str, values: Sequence, writing: TargetTokenizer | None = None) -> Target:
        """The names, the mean and deviation, or the subwords of the training split's values."""
        if kind == "text":
            assert writing is not None
            writing.fit(values)
            return cls(kind, writing=writing)
        if kind in ("next", "masked"):
            return cls(kind)
        if kind == "number":
            numbers = torch.tensor(values, dtype=torch.float64)
            return cls(kind, (), float(numbers.mean()), max(float(numbers.std(correction=0)), 1e-12))
        pieces = values if kind == "class" else [piece for value in values for piece in value]
        return cls(kind, tuple(sorted(set(pieces), key=_natural)))

    def encode(self, value, rng: random.Random | None = None) -> Tensor:
        """class () long, labels (K,) float, number () float, tags (words,) long, text (n,) long with its beginning and
        its end. IGNORED for an unknown name; rng: what training draws at random of a text is drawn from it."""
        if self.writing is not None:
            return self.writing.encode(value, rng)
        index = self._index()
        if self.kind == "class":
            return torch.tensor(index.get(value, IGNORED))
        if self.kind == "number":
            return torch.tensor(float(value))
        if self.kind == "tags":
            return torch.tensor([index.get(tag, IGNORED) for tag in value], dtype=torch.long)
        labels = torch.zeros(len(self.names))
        labels[[index[name] for name in value if name in index]] = 1
        return labels

    def unknown(self, values: Sequence) -> int:
        """How many of these rows hold a name that training never saw."""
        known = set(self.names)
        if self.kind in ("number", "text", "next", "masked"):
            return 0
        return sum(not known.issuperset([v] if self.kind == "class" else v) for v in values)

    def balanced_weights(self, values: Sequence) -> list[float]:
        """Inverse frequency of each name, of mean 1 over the samples; labels: negatives over positives."""
        if self.kind == "labels":
            counts = Counter(name for value in values for name in value)
            return [(len(values) - counts[n]) / max(counts[n], 1) for n in self.names]
        counts = Counter(values if self.kind == "class" else [tag for value in values for tag in value])
        return [counts.total() / (len(self.names) * counts[n]) for n in self.names]

    def to_json(self) -> Mapping[str, object]:
        """Plain data, for labels.json."""
        return {"kind": self.kind, "names": list(self.names), "mean": self.mean, "std": self.std}

    @classmethod
    def from_json(cls, data: Mapping) -> Target:
        """Undo `to_json`."""
        return cls(data["kind"], tuple(data["names"]), data["mean"], data["std"])

    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


def _natural(name: str) -> tuple[float, str]:
    """Numbers by value before words by letter."""
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    return math.inf if math.isnan(value) else value, name  # a class may be called nan, which sorts nowhere
