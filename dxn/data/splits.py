"""Training, validation and test: by name, by a column, or by drawing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from dxn.data.rows import Rows
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


def check_fractions(fractions: Sequence[float]) -> None:
    """UserError unless these are up to three shares of a whole."""
    if not 1 <= len(fractions) <= 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise UserError(f"data.fractions: must be up to three shares that add up to 1, got {list(fractions)}")


def draw(labels: Sequence, fractions: Sequence[float], *, seed: int) -> list[list[int]]:
    """Row indices of each part, every label spread over the parts in proportion (stratified).

    labels: one a row; rows whose label is None, or rare, are spread like one label of their own.
    """
    check_fractions(fractions)
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


def complete(splits: Mapping[str, Rows], fractions: Sequence[float], *, seed: int, notes: list[str]) -> dict[str, Rows]:
    """Draw the splits that are not given: all of them from "all", or a tenth of the training rows for validation.

    What was drawn is added to notes.
    """
    found = dict(splits)
    if "all" in found:
        found = _drawn(found["all"], ("train", "validation", "test"), fractions, seed)
        shares = ", ".join(f"{name} {len(rows):,}" for name, rows in found.items())
        notes.append(f"splits: drawn by seed {seed}: {shares}")
    elif "validation" not in found and len(found.get("train", ())) > 1:
        found |= _drawn(found["train"], ("train", "validation"), (0.9, 0.1), seed)
        found = {name: found[name] for name in ("train", "validation", "test") if name in found}
        notes.append(f"validation: a tenth of the training rows, drawn by seed {seed}")
    return found


def _drawn(rows: Rows, names: Sequence[str], fractions: Sequence[float], seed: int) -> dict[str, Rows]:
    parts = draw(_strata(rows), fractions, seed=seed)
    return {name: rows.take(part) for name, part in zip(names, parts, strict=False) if part}


def _strata(rows: Rows) -> list:
    """What to stratify by: the targets where they are classes, nothing where they are anything else."""
    targets = rows.cells.get("target", [None] * len(rows))
    return [target if isinstance(target, str) or target is None else "" for target in targets]
