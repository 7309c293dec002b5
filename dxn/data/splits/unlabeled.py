"""Validation and test splits without targets, such as the public part of a competition's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dxn.data.rows import TARGET, Source, as_column
from dxn.data.splits.split import complete_splits, is_categorical
from dxn.data.tables.read import Table
from dxn.tokenize.cells.cell_values import has_no_value

HIDDEN = ("-1", "-1.0")  # what many data sets have instead of labels that are not published


def without_unlabeled(source: Source, node: Mapping[str, Any]) -> Source:
    """Leave out a validation or test split whose rows have no targets. A note names it.

    A new validation split is made of the training rows, as if there had been none.

    Args:
        source: The data set.
        node: Its configuration, with the options `fractions` and `seed` if it has them.
    """
    train = source.splits.get("train")
    if train is None or TARGET not in train.cells:
        return source
    notes: list[str] = []
    splits = dict(source.splits)
    for name in ("validation", "test"):
        rows = splits.get(name)
        if not rows:
            continue
        hidden = hidden_labels(rows.cells.get(TARGET, ()), train.cells[TARGET])
        if hidden is not None:
            del splits[name]
            listed = f", only {' and '.join(sorted(hidden))}" if hidden else ""
            notes.append(
                f"{name}: left out of the metrics, because none of its {len(rows):,} rows has a "
                f"value of {source.target}{listed}"
            )
    if "validation" in source.splits and "validation" not in splits:
        targets = train.cells[TARGET]
        splits = complete_splits(
            splits,
            node.get("fractions"),
            seed=node.get("seed", 0),
            notes=notes,
            stratify=is_categorical(targets),
            files=source.files,
        )
    # The training must not read the new validation rows from the stream.
    stream = source.stream and source.stream.without_other_splits(splits)
    return replace(source, splits=splits, notes=[*source.notes, *notes], stream=stream)


def hidden_labels(cells: Sequence[Any], trained: Sequence[Any]) -> set[str] | None:
    """Return the placeholders such as -1 or "?" if all targets are missing or placeholders.

    Args:
        cells: Targets of a validation or test split.
        trained: Targets of the training split. None of them is the placeholder.

    Returns:
        None: There are labels.
    """
    placeholders: set[str] = set()
    for cell in cells:
        texts = texts_of_target(cell)
        if any(text not in HIDDEN and not has_no_value(text) for text in texts):
            return None
        placeholders.update(texts)
    if not placeholders:
        return placeholders
    labels = {text for cell in trained for text in texts_of_target(cell)}
    # With negative numbers in the training, -1 is a number like others.
    has_negative = any(text[:1] == "-" and text[1:2].isdigit() for text in labels)
    is_number = has_negative and placeholders.intersection(HIDDEN)
    return None if is_number or not placeholders.isdisjoint(labels) else placeholders


def texts_of_target(cell: Any) -> list[str]:
    """Return the values of a cell as texts; a cell of several target columns has several."""
    values = cell.values() if isinstance(cell, Mapping) else [cell]
    return [str(value).strip() for value in values if value is not None]


def add_missing_targets(tables: Mapping[str, Table], targets: Sequence[str]) -> dict[str, Table]:
    """Add an empty target column to the tables of a validation or test split that lack it.

    Args:
        tables: Tables by split.
        targets: Target columns.
    """
    complete = dict(tables)
    train = tables.get("train")
    for name, table in tables.items():
        if train is None or any(target in table.columns for target in targets):
            continue
        empty = as_column([None] * len(table))
        added = {target: empty for target in targets if target in train.columns}
        complete[name] = replace(table, columns={**table.columns, **added})
    return complete
