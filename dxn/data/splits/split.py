"""Divide rows into training, validation and test splits, and leave out splits without labels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.data.files import survey
from dxn.data.formats import SPLIT_NAMES, SPLITS
from dxn.data.rows import FIT_ROWS, TARGET, Rows, Source, as_column
from dxn.data.splits.duplicates import groups_of
from dxn.data.tables.read import Table, as_list
from dxn.tasks.infer import are_amounts, are_joined, are_label_lists
from dxn.tokenize.cells.cell_values import has_no_value
from dxn.tokenize.column_profile import profile_of

RARE = ""  # key of the stratum of rare labels; the others are representations of a label
UNDIVIDED = "all"  # key of rows that have not been divided into splits
FRACTIONS = (0.8, 0.1, 0.1)  # default of most data sources
# Names of columns with the split of each row, in the order of preference and in lower case.
SPLIT_COLUMNS = ("split", "splits", "subset", "partition", "fold", "set")


def check_fractions(fractions: Sequence[float]) -> None:
    """Check the fractions of the splits.

    Raises:
        UserError: If they are not one to three numbers that add up to 1.
    """
    is_valid = 1 <= len(fractions) <= 3 and min(fractions) >= 0
    if not is_valid or abs(sum(fractions) - 1) > 1e-6:
        raise UserError(
            "data.fractions: must be one to three numbers of at least 0 that add up to 1, "
            f"got {list(fractions)}"
        )


def divide(
    labels: Sequence, fractions: Sequence[float], *, seed: int, groups: np.ndarray | None = None
) -> list[list[int]]:
    """Divide rows into random parts, stratified by label.

    Labels with fewer groups than there are parts are one stratum together. Otherwise, rows with
    labels of their own, such as sentences, would be divided in the order of their labels.

    The order of the rows does not depend on the groups. A few groups of several rows, which appear
    if a column is left out, therefore change the part of only a few rows.

    Args:
        labels: One label per row. None is a label of its own.
        fractions: Fraction of the rows in each part.
        seed: Random seed.
        groups: Group of each row, see `groups_of`. Rows of a group are in the same part, and its
            most frequent label counts. Default: each row is a group.

    Returns:
        Sorted row indices of each part.

    Raises:
        UserError: If the fractions are not one to three numbers that add up to 1.
    """
    check_fractions(fractions)
    _, group_of, sizes = np.unique(
        np.arange(len(labels)) if groups is None else groups,
        return_inverse=True,
        return_counts=True,
    )
    codes: dict[str, int] = {}
    label_of = np.array([codes.setdefault(repr(label), len(codes)) for label in labels], np.int64)
    by_group = label_of[np.argsort(group_of, kind="stable")]
    starts = np.cumsum(sizes) - sizes
    group_label = by_group[starts]
    for group in np.flatnonzero(sizes > 1).tolist():
        members = by_group[starts[group] : starts[group] + sizes[group]]
        group_label[group] = Counter(members.tolist()).most_common(1)[0][0]
    is_rare = np.bincount(group_label, minlength=len(codes)) < np.count_nonzero(fractions)
    order = _random_order(codes, label_of, is_rare, seed)
    part_of = np.zeros(len(labels), np.int64)
    part_of[order] = _fill(np.ones(len(labels), np.int64), fractions)
    if len(sizes) < len(labels):
        # A group has the position of the first of its rows with its label.
        leaders = order[label_of[order] == group_label[group_of[order]]]
        _, first = np.unique(group_of[leaders], return_index=True)
        leaders = leaders[np.sort(first)]
        part_of_group = np.zeros(len(sizes), np.int64)
        order_of_groups = group_of[leaders]
        part_of_group[order_of_groups] = _fill(sizes[order_of_groups], fractions, part_of[leaders])
        # A few large groups can exceed all fractions, for example five speakers with a fifth of the
        # rows each. Then a part without rows gets the smallest group of the largest part.
        for i, fraction in enumerate(fractions):
            counts = np.bincount(part_of_group, minlength=len(fractions))
            largest = np.flatnonzero(part_of_group == counts.argmax())
            if fraction > 0 and not counts[i] and len(largest) > 1:
                part_of_group[largest[sizes[largest].argmin()]] = i
        part_of = part_of_group[group_of]
    return [np.flatnonzero(part_of == i).tolist() for i in range(len(fractions))]


def _random_order(
    codes: Mapping[str, int], label_of: np.ndarray, is_rare: np.ndarray, seed: int
) -> np.ndarray:
    """Return all rows, int64, in an order that is random within each label.

    Args:
        codes: Code of each label, by its representation.
        label_of: Code of the label of each row.
        is_rare: For each code, whether the label belongs to the stratum of rare labels.
        seed: Random seed.
    """
    ends = np.cumsum(np.bincount(label_of, minlength=len(codes)))
    rows_of = np.split(np.argsort(label_of, kind="stable"), ends[:-1])
    strata = {label: rows_of[codes[label]] for label in sorted(codes) if not is_rare[codes[label]]}
    strata[RARE] = np.flatnonzero(is_rare[label_of])
    order: list[int] = []
    for label, rows in strata.items():
        # Use one generator per label, so that new rows of one label do not change the split of
        # another.
        shuffled = rows.tolist()
        random.Random(f"{seed}/{label}").shuffle(shuffled)
        order += shuffled
    return np.array(order, np.int64)


def _fill(
    sizes: np.ndarray, fractions: Sequence[float], wanted: np.ndarray | None = None
) -> list[int]:
    """Return the part of each group: the one with the largest deficit.

    The deficit is the expected size minus the actual size. The groups of a label are consecutive,
    so this keeps the fractions within each label, and also within all rows: rounding each label
    separately would assign all rare labels to the first part.

    Args:
        sizes: Number of rows of each group.
        fractions: Fraction of the rows in each part.
        wanted: Part that each group gets if its deficit is at most one row below the largest.
    """
    parts: list[int] = []
    deficits = [0.0] * len(fractions)
    for i, size in enumerate(sizes.tolist()):
        deficits = [d + fraction * size for d, fraction in zip(deficits, fractions, strict=True)]
        part = max(range(len(deficits)), key=deficits.__getitem__)
        if wanted is not None and deficits[part] - deficits[wanted[i]] <= 1:
            part = int(wanted[i])
        deficits[part] -= size
        parts.append(part)
    return parts


def complete_splits(
    splits: Mapping[str, Rows],
    fractions: Sequence[float] | None,
    *,
    seed: int,
    notes: list[str],
    stratify: bool = True,
    files: Sequence[str] = (),
) -> dict[str, Rows]:
    """Survey the files, and create missing splits at random. Equal inputs are in the same split.

    Undivided rows (with the key "all") are divided by `fractions`. Otherwise, if there is no
    validation split, 10% of the training rows become the validation split.

    Args:
        splits: Rows by split, or all rows with the key "all".
        fractions: Fractions of the training, validation and test split. None: no split is created.
        seed: Random seed.
        notes: A sentence about a random split is appended to this list.
        stratify: Whether each split has the same proportions of target values; see
            `is_categorical`.
        files: Names of the inputs whose cells are paths or contents of files. Rows that share a
            file are in the same split.

    Raises:
        UserError: If there are fewer groups of rows than splits.
    """
    splits = survey(splits, files)
    complete = {name: splits[name] for name in (*SPLITS, UNDIVIDED) if name in splits}
    if fractions is None:
        return complete
    # If the data set defines a training split, do not create a test split from it: its metrics
    # would not be comparable with published ones. Training needs a validation split, however, to
    # select the best epoch.
    if UNDIVIDED in complete:
        complete, together = _draw(
            complete[UNDIVIDED], fractions, files, seed=seed, stratify=stratify
        )
        counts = ", ".join(f"{name} {len(rows):,}" for name, rows in complete.items())
        notes.append(f"splits: chosen at random with seed {seed}: {counts}{together}")
    elif "validation" not in complete and len(complete.get("train", ())) > 1:
        drawn, together = _draw(complete["train"], (0.9, 0.1), files, seed=seed, stratify=stratify)
        complete |= drawn
        complete = {name: complete[name] for name in SPLITS if name in complete}
        notes.append(
            f"validation: 10% of the training rows, chosen at random with seed {seed}{together}"
        )
    return complete


def divide_table(
    table: Table,
    rows_of: Mapping[str, np.ndarray],
    *,
    split: str | None,
    holdout: Mapping[str, Any] | None,
    fractions: Sequence[float] | None,
    notes: list[str],
    used: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Divide a table into splits by the values of a column, if there is such a column.

    Args:
        table: The table.
        rows_of: Row numbers by split, or all of them with the key "all".
        split: Column with the name of each row's split. Default: see `usual_split_column`.
        holdout: Column and value (or list of values) that select the test rows.
        fractions: Fractions of the splits. If there is only one, the table is not divided.
        notes: A sentence about the division is appended to this list.
        used: Columns that the user chose as inputs or as the target.

    Returns:
        Row numbers by split, int64, or all of them with the key "all".

    Raises:
        UserError: If a column does not exist or has other values, or if the table is already
            divided and `split`, `holdout` or other fractions than the default are set.
    """
    if holdout and (split or UNDIVIDED not in rows_of):
        other = "data.split" if split else "tables of the splits, such as data.test"
        raise UserError(f"data.holdout: cannot be combined with {other}; remove one of them")
    if holdout:
        return _hold_out(table, holdout, notes)
    if UNDIVIDED not in rows_of:
        if split:
            raise UserError(
                "data.split: cannot be combined with data.train, data.validation and data.test, "
                f"got {split}; remove data.split"
            )
        _refuse_fractions(fractions, "the data has tables of the splits", "remove data.fractions")
        _note_other_splits(table, rows_of, used, notes)
        return dict(rows_of)
    column = split or usual_split_column(table, used, notes)
    # A single fraction means that all rows are used in one split, for example for prediction.
    if column is None or (fractions is not None and len(fractions) == 1):
        return dict(rows_of)
    advice = "remove data.fractions, or rename the column"
    _refuse_fractions(fractions, f"column {column} divides the rows", advice)
    return _divide_by_column(table, column, notes)


def _refuse_fractions(fractions: Sequence[float] | None, reason: str, advice: str) -> None:
    """Refuse fractions that the user has chosen, if something else divides the rows."""
    if fractions is not None and len(fractions) > 1 and tuple(fractions) != FRACTIONS:
        raise UserError(
            f"data.fractions: has no effect, because {reason}, got {list(fractions)}; {advice}"
        )


def _note_other_splits(
    table: Table, rows_of: Mapping[str, np.ndarray], used: Collection[str], notes: list[str]
) -> None:
    """Say how many rows are in the file of another split than a column such as "split" names."""
    column = usual_split_column(table, used)
    if column is None:
        return
    names = np.array(list(map(_split_name, table.columns[column])))
    others = [name for name, rows in rows_of.items() for other in names[rows] if other != name]
    if others:
        notes.append(
            f"splits: from the files, not from column {column}, which names another split in "
            f"{count(len(others), 'row')}"
        )


def usual_split_column(
    table: Table, used: Collection[str] = (), notes: list[str] | None = None
) -> str | None:
    """Return a column with a name such as "Split" or "fold" that contains only names of splits.

    Args:
        table: The table.
        used: Columns that the user chose as inputs or as the target.
        notes: A sentence about a column with names of several splits in only some rows is appended
            to this list.
    """
    columns = [column for column in reversed(list(table.columns)) if column not in used]
    by_name = {_last_part(column): column for column in columns}
    for name in SPLIT_COLUMNS:
        if name in by_name:
            names = list(map(_split_name, table.columns[by_name[name]]))
            if "train" in names and None not in names:
                return by_name[name]
            if notes is not None and "train" in names:
                notes.append(
                    f"splits: not from column {by_name[name]}, which names no split in "
                    f"{count(names.count(None), 'row')}, such as {table.origin(names.index(None))}"
                )
    return None


def more_split_columns(
    table: Table,
    used: Collection[str],
    rows_of: Mapping[str, np.ndarray],
    decided_by: str,
    notes: list[str],
) -> list[str]:
    """Return the columns with only names of splits, which are no inputs, and note each of them.

    Args:
        table: The table.
        used: Columns that have another use.
        rows_of: Row numbers by split, or all of them with the key "all".
        decided_by: What has divided the rows, if anything has, for notes.
        notes: A sentence about each column is appended to this list.
    """
    columns = [n for n, cells in table.columns.items() if n not in used and _are_splits(cells)]
    for column in columns:
        names = np.array(list(map(_split_name, table.columns[column])))
        others = sum(int((names[rows] != split).sum()) for split, rows in rows_of.items())
        about = f" and names another split in {count(others, 'row')}" if others else ""
        about += f"; the splits are those of {decided_by}"
        if UNDIVIDED in rows_of:
            about = f"; data.split={column} divides the rows by it"
        notes.append(f"not used: {column}, which contains only names of splits{about}")
    return columns


def _are_splits(cells: Sequence[Any]) -> bool:
    """Return whether cells name several splits and nothing else."""
    names: set[str] = set()
    for cell in cells:
        if has_no_value(cell):
            continue
        name = _split_name(cell) if isinstance(cell, str) else None
        if name is None:
            return False
        names.add(name)
    return "train" in names and len(names) > 1


def is_split_column(column: str) -> bool:
    """Return whether a column has a usual name of one with the split of each row."""
    return _last_part(column) in SPLIT_COLUMNS


def _last_part(column: str) -> str:
    """Return the name of a column without that of the object that contains it, in lower case."""
    return column.rpartition(".")[2].strip().lower()


def is_categorical(values: Sequence[Any]) -> bool:
    """Return whether target values are categories, so that random splits can be stratified.

    Lists, quantities, and strings such as "a|b" that contain several labels are not categories.

    Args:
        values: Raw cells of the target column; None where missing.
    """
    rows = spaced_rows(len(values), FIT_ROWS)
    profile = profile_of(values[row] for row in rows)
    if are_label_lists(profile.cells) or are_amounts(profile):
        return False
    return not are_joined(profile)


def _hold_out(table: Table, holdout: Mapping[str, Any], notes: list[str]) -> dict[str, np.ndarray]:
    """Return the rows with one of the values as the test split, all others as training split."""
    if len(holdout) > 1:
        raise UserError(f"data.holdout: must be a single column, got {', '.join(holdout)}")
    column, value = next(iter(holdout.items()))
    # Compare strings: in data.holdout.fold=2, YAML parses 2 as a number, but CSV cells are strings.
    held_out = {str(v) for v in as_list(value)}
    values = [str(v) for v in table.column(column, "data.holdout")]
    unknown = held_out - set(values)
    if unknown:
        listed = ", ".join(sorted(set(values))[:10])
        raise UserError(
            f"data.holdout.{column}: no row has the value {min(unknown)!r}; the column contains "
            f"{listed}"
        )
    if held_out >= set(values):
        raise UserError(
            f"data.holdout.{column}: at least one row must be left for training, got all values "
            "of the column; remove a value"
        )
    notes.append(f"test: the rows whose {column} is {', '.join(sorted(held_out))}")
    is_test = np.array([value in held_out for value in values], bool)
    return {"train": np.flatnonzero(~is_test), "test": np.flatnonzero(is_test)}


def _divide_by_column(table: Table, column: str, notes: list[str]) -> dict[str, np.ndarray]:
    """Divide a table by a column with the name of each row's split."""
    rows: dict[str, list[int]] = {}
    for i, value in enumerate(table.column(column, "data.split")):
        name = _split_name(value)
        if name is None:
            got = "an empty cell" if value is None else repr(value)
            raise UserError(
                f"{table.origin(i)}: column {column!r} must be train, validation or test, got {got}"
            )
        rows.setdefault(name, []).append(i)
    notes.append(f"splits: from column {column}")
    return {name: np.array(rows[name], np.int64) for name in SPLITS if name in rows}


def _split_name(value: Any) -> str | None:
    return SPLIT_NAMES.get(str(value).strip().lower())


def _draw(
    rows: Rows, fractions: Sequence[float], files: Sequence[str], *, seed: int, stratify: bool
) -> tuple[dict[str, Rows], str]:
    """Divide rows at random. Splits without rows are left out.

    Returns:
        The rows by split, and the end of the note about them: which rows are kept together.
    """
    groups = groups_of(rows, files)
    num_parts = np.count_nonzero(fractions)
    num_groups = len(np.unique(groups))
    if rows.groups is not None and num_groups < num_parts:
        raise UserError(
            f"data.group: at least {num_parts} groups are needed for {num_parts} splits, got "
            f"{num_groups} (rows with equal inputs count as one group); choose another column, or "
            "set data.fractions to fewer splits, such as [0.8,0.2]"
        )
    labels: list[str | None] = []
    for target in rows.cells.get(TARGET, [None] * len(rows)):
        # Rows without a target always have their own stratum, so that each split has its fraction
        # of the rows with a target.
        label = str(target) if stratify else ""
        labels.append(None if target is None else label)
    parts = divide(labels, fractions, seed=seed, groups=groups)
    splits = {name: rows.take(part) for name, part in zip(SPLITS, parts, strict=False) if part}
    if rows.groups is not None:
        counts = ", ".join(f"{n} {len(set(map(str, r.groups or ())))}" for n, r in splits.items())
        return splits, f"; rows of a group are in the same split; number of groups: {counts}"
    sizes = np.bincount(groups)
    shared = sizes[sizes > 1].sum()
    return splits, f"; {shared:,} rows that share inputs are kept together" if shared else ""


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
