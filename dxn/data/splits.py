"""Training, validation and test: by name, by a column, or by drawing."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dxn.errors import UserError

NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


def draw(labels: Sequence, fractions: Sequence[float], *, seed: int) -> list[list[int]]:
    """Row indices of each part, every label spread over the parts in proportion (stratified).

    labels: one a row; rows whose label is None, or rare, are spread like one label of their own.
    """
    if not fractions or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise UserError(f"data.fractions: must be shares that add up to 1, got {list(fractions)}")
    by_label: dict[str, list[int]] = {}
    for i, label in enumerate(labels):
        by_label.setdefault(repr(label), []).append(i)
    order: list[int] = []
    for label in sorted(by_label):
        random.Random(f"{seed}/{label}").shuffle(by_label[label])
        order += by_label[label]
    # Rows of a label stand together; dealing each to the part that is furthest behind keeps all in proportion.
    parts: list[list[int]] = [[] for _ in fractions]
    owed = [0.0] * len(fractions)
    for i in order:
        owed = [o + f for o, f in zip(owed, fractions, strict=True)]
        most = max(range(len(owed)), key=owed.__getitem__)
        owed[most] -= 1
        parts[most].append(i)
    return [sorted(part) for part in parts]


def strata(labels: Sequence) -> list:
    """What to stratify by: the labels where they are classes, nothing where they are anything else."""
    return [label if isinstance(label, str) or label is None else "" for label in labels]
