"""Data sets from table files: CSV, TSV, JSONL and Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dxn.data.columns import Columns, Preprocessors, choose_columns, to_rows
from dxn.data.read import SUFFIXES, Table, as_list, concatenate, read_table
from dxn.data.rows import InputSpec, OnBad, Rows, Source
from dxn.data.splits import (
    SPLIT_NAMES,
    SPLITS,
    UNDIVIDED,
    complete_splits,
    divide_table,
    is_categorical,
    usual_split_column,
)
from dxn.errors import UserError

JOINED = " + "  # separator of the column names in `Source.target`


def table(
    path: str | Sequence[str] | None = None,
    *,
    preprocessors: Preprocessors,
    train: str | Sequence[str] | None = None,
    validation: str | Sequence[str] | None = None,
    test: str | Sequence[str] | None = None,
    split: str | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    target: str | Sequence[str] | None = None,
    holdout: Mapping[str, Any] | None = None,
    sep: str | None = None,
    on_bad: OnBad = "error",
    seed: int = 0,
    **columns: str | Sequence[str] | None,
) -> Source:
    """Read a data set from tables.

    Each column that a preprocessor accepts becomes an input. If columns of a modality are set
    explicitly, only these columns of the modality become inputs.

    Args:
        path: A table, a list of tables, or a folder with one table or with train, validation and
            test tables.
        preprocessors: Preprocessors in use, by modality. The caller sets this argument.
        train: Table or list of tables of the training split, instead of path.
        validation: Table or list of tables of the validation split.
        test: Table or list of tables of the test split.
        split: Column with the name of each row's split. Default: the column "split", if there is
            one.
        fractions: Fractions of training, validation and test rows, if the data does not define the
            splits.
        target: Column to predict. Several columns become labels such as "colour=red". Default: a
            column called label, target, class or category.
        holdout: Column and value (or list of values) that select the test rows.
        sep: Separator of CSV cells. Default: a tab in .tsv files, otherwise a comma.
        on_bad: What to do with a bad row: error (stop), skip (leave the row out) or missing (use
            its other inputs).
        seed: Random seed of the split.
        columns: Column or list of columns of a modality, such as text=title or image=[front,back].
            An empty list: no column of this modality is used. Default: columns are inferred from
            their values.

    Raises:
        UserError: If a table cannot be read, a column does not exist, or options contradict each
            other.
    """
    paths = _paths_by_split(path, {"train": train, "validation": validation, "test": test})
    tables: dict[str, Table] = {}
    for name, files in paths.items():
        tables[name] = concatenate([read_table(file, sep=sep) for file in files])
    return from_tables(
        tables,
        preprocessors,
        columns=columns,
        target=target,
        split=split,
        holdout=holdout,
        fractions=fractions,
        on_bad=on_bad,
        seed=seed,
    )


def from_tables(
    tables: Mapping[str, Table],
    preprocessors: Preprocessors,
    *,
    columns: Mapping[str, str | Sequence[str] | None],
    target: str | Sequence[str] | None = None,
    split: str | None = None,
    holdout: Mapping[str, Any] | None = None,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    on_bad: OnBad = "error",
    seed: int = 0,
) -> Source:
    """Create a data set from tables by split, or from one table with the key "all".

    Args:
        tables: Tables by split, or one table with the key "all".
        preprocessors: Preprocessors in use, by modality.
        columns: Columns of each modality, see `table`. The other arguments are those of `table`.
    """
    whole = concatenate(list(tables.values()))
    if not len(whole):
        raise UserError("data.path: the table has a header but no rows; add rows to it")
    notes: list[str] = []
    parts = divide_table(tables, split=split, holdout=holdout, fractions=fractions, notes=notes)
    # Infer the columns from all splits together, so that they are the same in every split.
    chosen = choose_columns(
        whole,
        preprocessors,
        named=columns,
        target=target,
        split=split or usual_split_column(whole),
        notes=notes,
    )
    splits = complete_splits(
        {name: to_rows(part, chosen, preprocessors) for name, part in parts.items()},
        fractions,
        seed=seed,
        notes=notes,
        stratify=len(chosen.target) == 1 and is_categorical(whole.columns[chosen.target[0]]),
    )
    return Source(
        splits,
        chosen.inputs,
        target=JOINED.join(chosen.target) or None,
        notes=notes,
        on_bad=on_bad,
    )


def rows_of_table(
    path: str | Sequence[str],
    inputs: Mapping[str, InputSpec],
    preprocessors: Preprocessors,
    *,
    target: str | None = None,
    sep: str | None = None,
) -> Rows:
    """Read all rows of a table, with the inputs of the data set that a model was trained on.

    Args:
        path: A table, a list of tables, or a folder with one table.
        inputs: Inputs of the training data set, see `Source.inputs`.
        preprocessors: Preprocessors, by modality.
        target: Target of the training data set, see `Source.target`. Targets are read if the table
            has all of its columns.
        sep: Separator of CSV cells. Default: a tab in .tsv files, otherwise a comma.

    Raises:
        UserError: If the table cannot be read, or lacks the column of an input.
    """
    paths = _paths_by_split(path, {})
    files = chain.from_iterable(paths.values())
    whole = concatenate([read_table(file, sep=sep) for file in files])
    # A missing column is an error, because predictions without this input would be less accurate.
    for name, spec in inputs.items():
        whole.column(spec.column, f"input {name}")
    targets = target.split(JOINED) if target is not None else []
    # New data needs no target. With only some of the target columns, the labels would be wrong.
    if any(column not in whole.columns for column in targets):
        targets = []
    return to_rows(whole, Columns(inputs, targets), preprocessors)


def _paths_by_split(
    path: str | Sequence[str] | None, splits: Mapping[str, str | Sequence[str] | None]
) -> dict[str, list[Path]]:
    """Return the paths of tables by split, or all paths with the key "all"."""
    by_split: dict[str, list[Path]] = {}
    for name, value in splits.items():
        if value is not None:
            by_split[name] = [Path(p) for p in as_list(value)]
    first = next(iter(by_split), None)
    # data.path contains all rows, including those of data.train.
    if path is not None and first is not None:
        raise UserError(f"data.path: cannot be combined with data.{first}; remove one of them")
    if first is not None:
        if "train" not in by_split:
            raise UserError(f"data.train: must be set, because data.{first} is set")
        return by_split
    paths = [Path(p) for p in as_list(path)]
    if not paths:
        raise UserError("data.path: must be set, for example data.path=my.csv")
    if len(paths) > 1 or not paths[0].is_dir():
        return {UNDIVIDED: paths}
    return _tables_in(paths[0])


def _tables_in(folder: Path) -> dict[str, list[Path]]:
    """Return the tables called train, validation and test in a folder, or its only table."""
    # Ignore files without the suffix of a table.
    tables = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    by_split: dict[str, list[Path]] = {}
    for file in tables:
        name = SPLIT_NAMES.get(file.stem.lower())
        if name is not None:
            by_split.setdefault(name, []).append(file)
    if "train" in by_split:
        return {name: by_split[name] for name in SPLITS if name in by_split}
    if len(tables) == 1:
        return {UNDIVIDED: tables}
    names = ", ".join(file.name for file in tables) or "no table"
    raise UserError(
        f"{folder}: the folder must contain one table, or tables called train, validation and "
        f"test, got {names}; set data.path to one table, or rename the tables"
    )
