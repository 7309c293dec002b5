"""Data sets from the Hugging Face Hub, or from a local folder in the same layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.columns.infer import Readers
from dxn.data.rows import Column, OnBad, Origins, Source, Validate, as_column, blank_to_none
from dxn.data.sources.table import from_tables
from dxn.data.splits.split import SPLIT_NAMES, UNDIVIDED
from dxn.data.tables.read import Table

MAX_REASON = 300  # characters; error messages of `datasets` can be pages long


def hub(
    name: str,
    *,
    readers: Readers,
    config: str | None = None,
    revision: str | None = None,
    fractions: Sequence[float] | None = (0.8, 0.1, 0.1),
    group: str | None = None,
    target: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    on_bad: OnBad = "error",
    validate: Validate = "headers",
    seed: int = 0,
    **columns: str | Sequence[str] | None,
) -> Source:
    """Read a data set with `datasets.load_dataset`.

    Files such as images are not decoded by `datasets`. The readers decode them and apply
    their size limits.

    Args:
        name: Name of the data set, or path of a local folder.
        readers: Readers in use, by modality. The caller sets this argument.
        config: Name of the configuration, if the data set has several.
        revision: Branch, tag or commit. A commit always has the same rows.
        fractions: Fractions of training, validation and test rows, if the data set has only a
            training split. Null: the rows are not divided.
        group: Column such as the speaker or the patient. Rows with the same value are in the same
            split.
        target: Column to predict. Default: a column called label, target, class or category.
        exclude: Column or list of columns that are not inputs. Default: inferred inputs are used.
        on_bad: What to do with a bad row: error (stop), skip (leave the row out) or missing (use
            its other inputs).
        validate: What is read of each file before the training: headers (of the files that fit into
            loader.cache_gb everything), full (everything) or none.
        seed: Random seed of the split.
        columns: Column or list of columns of a modality, such as text=title. An empty list: no
            column of this modality is used. Default: columns are inferred from their values.

    Raises:
        UserError: If the data set cannot be loaded, or has no column of a given name.
    """
    splits = _load(name, config, revision)
    known = {split: SPLIT_NAMES[split.lower()] for split in splits if split.lower() in SPLIT_NAMES}
    if "train" not in known.values():
        raise UserError(
            f"data.name: a training split is required, but {name} has only {', '.join(splits)}"
        )
    tables = {known[split]: to_table(splits[split], Path(name, split)) for split in known}
    if list(tables) == ["train"]:
        tables = {UNDIVIDED: tables["train"]}
    source = from_tables(
        tables,
        readers,
        columns=columns,
        target=target,
        exclude=exclude,
        fractions=fractions,
        group=group,
        on_bad=on_bad,
        validate=validate,
        seed=seed,
    )
    others = [split for split in splits if split not in known]
    if not others:
        return source
    return replace(source, notes=[*source.notes, f"not used: split {', '.join(others)}"])


def _load(name: str, config: str | None, revision: str | None) -> dict[str, Any]:
    """Return a `datasets.Dataset` for each split."""
    # Importing the library takes seconds, and only this data source needs it.
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetsError

    try:
        splits: Any = datasets.load_dataset(name, config, revision=revision)
    except (ValueError, OSError, DatasetsError) as error:
        # The message of a DatasetGenerationError has no details; those are in its cause.
        is_wrapper = isinstance(error, DatasetGenerationError) and error.__cause__ is not None
        reason = " ".join(str(error.__cause__ if is_wrapper else error).split())
        raise UserError(f"data.name: {name} cannot be loaded ({reason[:MAX_REASON]})") from error
    return {str(split): splits[split] for split in splits}


def to_table(rows: Any, origin: Path) -> Table:
    """Return a `datasets.Dataset` as a table.

    Args:
        rows: The data set.
        origin: Name of the data set in messages.
    """
    columns: dict[str, Column] = {}
    rows = rows.with_format(None)  # such as "torch", which would give tensors as cells
    for name, feature in rows.features.items():
        cells = [blank_to_none(value) for value in _values(rows, name, feature)]
        columns[name] = as_column(cells)
    return Table(columns, Origins([origin], np.arange(1, len(rows) + 1)))


def _values(rows: Any, name: str, feature: Any) -> list:
    """Return the values of a column, with files as bytes or paths and classes as names."""
    # Features are recognized by their attributes, because their types differ between versions of
    # the library. A feature with `decode` is an encoded file, such as an image.
    if hasattr(feature, "decode"):
        encoded = rows.cast_column(name, type(feature)(decode=False))
        return [value and (value["bytes"] or _cached(value["path"])) for value in encoded[name]]
    # A feature with `int2str` is a ClassLabel.
    if hasattr(feature, "int2str"):
        return [_class_name(feature, value) for value in rows[name]]
    # A list of class labels.
    items: Any = getattr(feature, "feature", None)
    if hasattr(items, "int2str"):
        return [value and list(map(items.int2str, value)) for value in rows[name]]
    return list(rows[name])


def _cached(path: str | None) -> Path | None:
    # A Path and no text: the library chose it, so it may be outside of the folder of the data set.
    return None if path is None else Path(path)


def _class_name(feature: Any, value: int | None) -> str | None:
    # -1 means that a row has no label, for example in a test split without public labels.
    return None if value is None or value < 0 else feature.int2str(value)
