"""Choose the columns of the inputs and the target of a table, and find those of a trained model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError, did_you_mean, similar
from dxn.core.randomness import spaced_rows
from dxn.core.tokens import RESERVED
from dxn.data.columns.infer import Readers, infer_columns
from dxn.data.columns.steps import explain_steps
from dxn.data.formats import CONFINE
from dxn.data.rows import (
    CHUNK_ROWS,
    FIT_ROWS,
    TARGET,
    VALUES,
    Column,
    InputSpec,
    Rows,
    as_column,
    join_columns,
)
from dxn.data.tables.read import Table, as_list, column_name
from dxn.tasks.infer import are_amounts, kind_of
from dxn.tokenize.base import Reader
from dxn.tokenize.cells.cell_values import has_no_value
from dxn.tokenize.cells.date import DateReader
from dxn.tokenize.column_profile import profile_of
from dxn.tokenize.media import is_file_name

# Names of target columns, in the order of preference, if the user does not choose one.
USUAL_TARGETS = ("label", "target", "class", "category", "tags", "answers", "answer")
# Beginning of the note that no column was chosen as the target.
NO_TARGET = "no target: "
# Maximum number of different values of one of several target columns.
MAX_LABELS = 50
MAX_TARGET_FILES = 20  # cells in which files are looked for
MAX_LENGTH = 100  # characters; a longer value is a text
URL = re.compile(r"(?i)(?:https?|ftp|s3|gs)://")


def choose_columns(
    table: Table,
    readers: Readers,
    *,
    named: Mapping[str, str | Sequence[str] | None],
    target: str | Sequence[str] | None,
    excluded: Sequence[str | None] = (),
    exclude: Sequence[str] = (),
    new_groups: Collection[str] = (),
    notes: list[str],
) -> tuple[dict[str, InputSpec], list[str]]:
    """Choose the input columns and the target columns of a table.

    A column that the user did not choose is assigned to the modality whose reader accepts its
    values with the highest score.

    Args:
        table: All rows of all splits.
        readers: Readers in use, by modality.
        named: Columns that the user chose, by modality. None: infer them. An empty list: use no
            column of this modality.
        target: Target columns that the user chose. None: a column with a common name, such as
            "label". An empty list: no target.
        excluded: Columns that are neither inputs nor unused, such as the split of each row.
        exclude: Columns that the user does not want as inputs.
        new_groups: Columns that name groups which only the test split has, such as speakers.
        notes: Sentences about inferred and unused columns are appended to this list.

    Returns:
        Column and modality of each input, by input name; and the target columns.

    Raises:
        UserError: If a column or modality does not exist, or if there is no input column.
    """
    by_modality = _named_columns(table, named, readers)
    if exclude:
        _check_excluded(table, exclude, by_modality)
    targets = target_columns(table, target, notes)
    for column in targets:
        if any(column in columns for columns in by_modality.values()):
            raise UserError(
                f"data.target: column {column!r} is also an input, so the model would read its "
                "own target; choose another column"
            )
    # A target column as an input would leak the target. A split column does not exist in new data.
    columns = [column for column in table.columns if column not in {*targets, *excluded, *exclude}]
    infer_columns(table, columns, readers, by_modality, targets, new_groups, notes)
    inputs = name_inputs({m: by_modality.get(m, []) for m in readers})
    if not inputs:
        # Such as "not used: id (row numbers)".
        reasons = "".join(f"; {note}" for note in notes if note.startswith("not used: "))
        # A target of numbers beside nothing, or beside times and row numbers.
        has_numbers = any(profile_of(table.columns[name]).numbers is not None for name in targets)
        if has_numbers and (len(columns) < 2 or "(row numbers" in reasons):
            reasons += (
                f"; to forecast {targets[0]} from its own past, with one row per time step, set "
                "data=timeline"
            )
        raise UserError(
            f"data: no adapter in use ({', '.join(readers)}) accepts any of the columns "
            f"{', '.join(table.columns)}{reasons}; choose a column, for example "
            f"data.{next(iter(readers), 'MODALITY')}={next(iter(columns), 'COLUMN')}"
        )
    times = by_modality.get(DateReader.modality, [])
    if times and len(targets) == 1 and are_amounts(profile_of(table.columns[targets[0]])):
        about = explain_steps(table, times, targets[0], columns)
        notes += [about] if about else []
    return inputs, targets


def name_inputs(by_modality: Mapping[str, Sequence[str]]) -> dict[str, InputSpec]:
    """Name the inputs: an input has the name of its column.

    The name has the modality as a prefix if several inputs are read from the column, or if it is
    reserved for a key of batches. The series that a layout makes of other columns have no column of
    the file, so they have the name of their modality.

    Args:
        by_modality: Columns of each modality.
    """
    inputs: dict[str, InputSpec] = {}
    counts = Counter(chain.from_iterable(by_modality.values()))
    for modality, columns in by_modality.items():
        for column in columns:
            name = modality if column == VALUES else column
            if counts[column] > 1 or name in RESERVED:
                name = f"{modality}_{name}"
            while name in inputs:
                name = f"{modality}_{name}"
            inputs[name] = InputSpec(column, modality)
    return inputs


def to_rows(
    table: Table,
    inputs: Mapping[str, InputSpec],
    targets: Sequence[str],
    readers: Readers,
    labels: Sequence[str] | None = None,
    *,
    confine: str | None = CONFINE,
) -> Rows:
    """Convert a table to rows with the cells of its inputs and target.

    The folder of the table is prepended to relative paths. A path that leads out of this folder
    becomes an `OutsidePath`.

    Args:
        table: The table.
        inputs: Column and modality of each input, by input name.
        targets: Target columns. Several columns become labels such as "colour=red".
        readers: Readers, by modality.
        labels: Names of the target columns in labels such as "colour=red". Default: the names of
            the columns.
        confine: Option that allows paths out of the folder, for messages. None: they are allowed.
    """
    cells: dict[str, Column] = {}
    for name, spec in inputs.items():
        cells[name] = _input_cells(table, spec.column, readers[spec.modality], confine)
    if len(targets) == 1:
        # The cells of one column stay raw, because the task parses them. Files get a folder.
        cells[TARGET] = _target_cells(table, targets[0], confine)
    elif targets:
        cells[TARGET] = joined_targets(table, targets, labels or targets)
    return Rows(cells, table.origins)


def _named_columns(
    table: Table, named: Mapping[str, str | Sequence[str] | None], readers: Readers
) -> dict[str, list[str]]:
    """Return the columns that the user chose, by modality, after checking that they exist."""
    by_modality: dict[str, list[str]] = {}
    for modality, value in named.items():
        if value is None:  # the columns of this modality are inferred
            continue
        if modality not in readers:
            # `data.NAME` with an unknown NAME is passed as a modality, so NAME may also be a
            # misspelled option of the data source.
            hint = did_you_mean(modality, [*readers, TARGET], "data.{}")
            raise UserError(
                f"data.{modality}: must be an option of this data source or the modality of an "
                f"adapter in use; the modalities are {', '.join(readers)}{hint}"
            )
        by_modality[modality] = [str(column) for column in as_list(value)]
        for column in by_modality[modality]:
            table.column(column, f"data.{modality}")
    return by_modality


def _check_excluded(
    table: Table, exclude: Sequence[str], by_modality: Mapping[str, Sequence[str]]
) -> None:
    for column in exclude:
        table.column(column, "data.exclude")
        for modality, names in by_modality.items():
            if column in names:
                raise UserError(
                    f"data.exclude: column {column!r} is also in data.{modality}; remove it from "
                    "one of them"
                )


def _input_cells(table: Table, column: str, reader: Reader, confine: str | None) -> Column:
    values = table.columns[column]
    if reader.tabular or (reader.words and values.has_only_texts):
        return values
    parts: list[Column] = []
    cells: list[Any] = []
    if reader.files:
        _check_urls(table, column)
    folders = [file.parent for file in table.origins.files]
    for value, file in zip(values, table.origins.file_of.tolist(), strict=True):
        if reader.is_path(value) and not URL.match(value):
            value = _located(value, folders[file], confine)
        elif reader.words:
            value = _as_text(value)
        cells.append(value)
        if len(cells) == CHUNK_ROWS:
            parts.append(as_column(cells))
            cells.clear()
    return join_columns([*parts, as_column(cells)])


def _target_cells(table: Table, column: str, confine: str | None) -> Column:
    """Return the cells of a target column, with the folder of the table if they name its files."""
    values = table.columns[column]
    inspected = spaced_rows(len(values), MAX_TARGET_FILES)
    texts = values.take(inspected)
    num_present = sum(text is not None for text in texts)
    if 2 * sum(map(is_file_name, texts)) <= num_present:
        return values
    folders = [file.parent for file in table.origins.files]
    places = [folders[i] for i in table.origins.file_of.tolist()]
    pairs = zip(texts, inspected, strict=True)
    if not any(isinstance(v, str) and (places[i] / v).is_file() for v, i in pairs):
        return values  # such as the names of web sites
    located = [
        _located(value, folder, confine) if isinstance(value, str) else value
        for value, folder in zip(values, places, strict=True)
    ]
    return as_column(located)


def _located(value: str, folder: Path, confine: str | None) -> Any:
    """Return the path of the file that a cell names, or its content. None: the cell has no value.

    A relative path is relative to the folder of its table. Bytes and arrays need no path.
    """
    from dxn.data.cell_paths import confined, file_of_cell, usual_file

    if has_no_value(value):
        return None
    file = usual_file(value, folder, confine)
    if file is None:
        file = file_of_cell(value, folder)
        if isinstance(file, str) and confine is not None:
            file = confined(file, folder, confine)
    return file


def _check_urls(table: Table, column: str) -> None:
    """Check that most of the files of a column are local. A single URL is a bad cell."""
    values = table.columns[column]
    rows = spaced_rows(len(values), FIT_ROWS)
    inspected = zip(rows, values.take(rows), strict=True)
    urls = [i for i, value in inspected if isinstance(value, str) and URL.match(value)]
    if len(urls) > len(rows) / 2:
        raise UserError(
            f"{table.origin(urls[0])}: column {column!r} contains URLs such as {values[urls[0]]}, "
            "but only local files are read; download the files and write their paths into the "
            "column"
        )


def _as_text(value: Any) -> Any:
    """Convert a number or boolean to a string, and an empty list of words to None (missing)."""
    if isinstance(value, bool | int | float):
        return str(value)
    return None if value == [] else value


def target_columns(table: Table, target: str | Sequence[str] | None, notes: list[str]) -> list[str]:
    """Return the target columns: those that the user chose, or one with a common name.

    Args:
        table: All rows of all splits.
        target: Columns that the user chose. None: infer them. An empty list: no target.
        notes: A sentence about an inferred target is appended to this list.

    Raises:
        UserError: If a column does not exist, or several columns are not categories.
    """
    # An empty list is also a choice: it means that there is no target.
    if target is not None:
        columns = [str(column) for column in as_list(target)]
        for column in columns:
            table.column(column, "data.target")
        if len(columns) > 1:
            _check_labels(table, columns)
        return columns
    names = list(table.columns)
    by_name = {name.lower(): name for name in names[::-1]} | {name: name for name in names}
    columns = [by_name[name] for name in USUAL_TARGETS if name in by_name][:1]
    if columns:
        notes.append(f"target: column {columns[0]}, chosen by its name")
    else:
        notes.append(f"{NO_TARGET}none of the columns {', '.join(table.columns)} was chosen")
    return columns


def candidate_targets(table: Table, inputs: Mapping[str, InputSpec]) -> list[str]:
    """Return the columns of a table, the most likely target first.

    A target is rarely an input, and it is usually one of the last columns.
    """
    used = {spec.column for spec in inputs.values()}

    def order(column: str) -> tuple[bool, bool, bool]:
        is_own = column.startswith("__")  # of a file format, such as __key__ of tar files
        kind = kind_of(profile_of(table.columns[column]))
        return is_own, column in used, kind not in ("categories", "numbers")

    from_last = list(table.columns)[::-1]
    return sorted(from_last, key=order)


def joined_targets(table: Table, columns: Sequence[str], names: Sequence[str]) -> Column:
    """Return the values of several target columns in each row, by name.

    Args:
        table: The table.
        columns: The target columns.
        names: Name of each column in the training table.
    """
    cells: list[Any] = []
    for values in zip(*(table.columns[column] for column in columns), strict=True):
        row = dict(zip(names, values, strict=True))
        cells.append({name: value for name, value in row.items() if value is not None} or None)
    return Column(cells)


def _check_labels(table: Table, targets: Sequence[str]) -> None:
    """Check that several target columns contain categories, which become labels.

    Raises:
        UserError: If a column contains quantities, dates or texts.
    """
    for column in targets:
        profile = profile_of(table.columns[column])
        num_different = profile.num_different
        if are_amounts(profile) or num_different > max(MAX_LABELS, len(profile.values) / 2):
            raise UserError(
                f"data.target: column {column!r} contains {kind_of(profile)} ({num_different:,} "
                "different values), but several target columns are read as labels such as "
                f"{column}=1; choose one column, data.target={column}, and train one model per "
                "target"
            )


def identifying_columns(
    table: Table, used: Sequence[str | None], keep: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Return the columns to copy to the results, so that they can be matched with the table.

    Args:
        table: All rows.
        used: Columns that are inputs, target or split, which are not ids.
        keep: Further columns that the user wants in the results.

    Raises:
        UserError: If a column of `keep` does not exist.
    """
    columns: dict[str, Sequence[Any]] = {}
    for name, values in table.columns.items():
        if name not in used and is_identifier(values):
            columns[name] = values
    for name in keep:
        columns[name] = table.column(name, "keep")
    return columns


def is_identifier(values: Sequence[Any]) -> bool:
    """Return whether the values are present and distinct, and are codes or whole numbers.

    Measurements and texts can be distinct as well, but nobody looks up a row by them.
    """
    return bool(values) and all(map(_is_code, values)) and len(set(values)) == len(values)


def _is_code(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return True
    if not isinstance(value, str) or len(value) > MAX_LENGTH or any(c.isspace() for c in value):
        return False
    # 7.5 and 1e3 are measurements. An IP address or a version has several points.
    is_decimal = value.replace(".", "", 1).lstrip("+-").isdigit() and "." in value
    return not is_decimal


def map_columns(
    table: Table,
    inputs: Mapping[str, InputSpec],
    targets: Sequence[str],
    columns: Mapping[str, str] | None,
) -> tuple[dict[str, InputSpec], list[str]]:
    """Return the columns of a new table that contain the inputs and the target.

    Args:
        table: The new table.
        inputs: Inputs of the training data set, by input name.
        targets: Target columns of the training data set.
        columns: Column of the new table, by input name or by column of the training data set. None:
            a program passes the table, which renames columns itself.

    Returns:
        The inputs and the target columns, see `choose_columns`.

    Raises:
        UserError: If `columns` has an unknown key, or the column of an input is missing.
    """
    by_input = {name: spec.column for name, spec in inputs.items()}
    names = dict.fromkeys([*by_input, *by_input.values(), *targets])
    renamed = columns or {}
    for key, column in renamed.items():
        if key not in names:
            hint = did_you_mean(key, names, "columns.{}")
            raise UserError(
                f"columns.{key}: must be an input or a column of the training, which are "
                f"{', '.join(names)}{hint}"
            )
        table.column(str(column), f"columns.{key}")

    def column_of(name: str, trained: str) -> str:
        return column_name(str(renamed.get(name, renamed.get(trained, trained))))

    mapped = {n: InputSpec(column_of(n, s.column), s.modality) for n, s in inputs.items()}
    # A missing column is an error, because predictions without this input would be less accurate.
    for name, spec in mapped.items():
        if spec.column not in table.columns:
            used = {other.column for other in mapped.values()}
            _raise_missing(table, name, spec.column, used, has_option=columns is not None)
    # New data needs no target. With only some of the target columns, the labels would be wrong.
    new_targets = [column_of(target, target) for target in targets]
    has_all = all(column in table.columns for column in new_targets)
    return mapped, new_targets if has_all else []


def _raise_missing(
    table: Table, name: str, column: str, used: set[str], *, has_option: bool
) -> None:
    free = [other for other in table.columns if other not in used]
    hint = did_you_mean(column, free)
    # If no name is similar, any column that is not used yet is at least a valid example.
    example = similar(column, free) or (free or ["COLUMN"])[0]
    advice = f"columns.{column}={example} reads the input from another column"
    if not has_option:
        advice = f"add it, or rename another one: .rename(columns={{{example!r}: {column!r}}})"
    raise UserError(
        f"{table.name}: no column {column!r}, which is the input {name!r} of the model; its "
        f"columns are {', '.join(table.columns)}{hint} ({advice})"
    )
