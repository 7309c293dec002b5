"""Choose the input columns and the target column of a table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxn.data.read import Table, as_list
from dxn.data.rows import RESERVED, TARGET, InputSpec, Rows
from dxn.errors import UserError
from dxn.tokenize.adapter import Preprocessor, accepts, has_words, reads_files

# Names of target columns, in the order of preference, if the user does not choose one.
USUAL_TARGETS = ("label", "target", "class", "category")
# Minimum score of `accepts` at which a column becomes an input. Lower scores come from columns in
# which only a few values look like the modality.
MIN_SCORE = 0.1
# A file name has no spaces, and its suffix starts with a letter. A decimal number such as 3.14
# does not match.
FILE_NAME = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{1,4}")

Preprocessors = Mapping[str, Preprocessor]


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are used.

    Args:
        inputs: Column and modality of each input, by input name.
        target: Target columns. Several columns become labels such as "colour=red".
    """

    inputs: Mapping[str, InputSpec]
    target: Sequence[str]


def choose_columns(
    table: Table,
    preprocessors: Preprocessors,
    *,
    named: Mapping[str, str | Sequence[str] | None],
    target: str | Sequence[str] | None,
    split: str | None = None,
    notes: list[str],
) -> Columns:
    """Choose the input columns and the target columns of a table.

    A column that the user did not choose is assigned to the modality whose preprocessor accepts its
    values with the highest score.

    Args:
        table: All rows of all splits.
        preprocessors: Preprocessors in use, by modality.
        named: Columns that the user chose, by modality. None: infer them. An empty list: use no
            column of this modality.
        target: Target columns that the user chose. None: a column with a common name, such as
            "label". An empty list: no target.
        split: Column with the name of the split, which cannot be an input.
        notes: Sentences about inferred and unused columns are appended to this list.

    Raises:
        UserError: If a column or modality does not exist, or if there is no input column.
    """
    by_modality = _named_columns(table, named, preprocessors)
    targets = _target_columns(table, target, notes)
    for column in targets:
        if any(column in columns for columns in by_modality.values()):
            raise UserError(
                f"data.target: column {column!r} is also an input, so the model would read its "
                "own target; choose another column"
            )
    # A target column as an input would leak the target. A split column does not exist in new data.
    columns = [column for column in table.columns if column not in {*targets, split}]
    _infer_columns(table, columns, preprocessors, by_modality, notes)
    inputs = name_inputs({m: by_modality.get(m, []) for m in preprocessors})
    if not inputs:
        raise UserError(
            f"data: no adapter in use ({', '.join(preprocessors)}) accepts any of the columns "
            f"{', '.join(table.columns)}; choose a column, for example "
            f"data.{next(iter(preprocessors), 'MODALITY')}={next(iter(table.columns))}"
        )
    return Columns(inputs, targets)


def name_inputs(by_modality: Mapping[str, Sequence[str]]) -> dict[str, InputSpec]:
    """Choose the names of inputs.

    If a modality has one column, the input has the name of the modality. If it has several, each
    input has the name of its column, with the modality as a prefix if that name is already used or
    is reserved for a key of batches.

    Args:
        by_modality: Columns of each modality.
    """
    inputs: dict[str, InputSpec] = {}
    # Assign the names of modalities first, because they do not depend on the data.
    for modality, columns in by_modality.items():
        if len(columns) == 1:
            inputs[modality] = InputSpec(columns[0], modality)
    for modality, columns in by_modality.items():
        for column in columns if len(columns) > 1 else ():
            is_used = column in inputs or column in RESERVED
            name = f"{modality}_{column}" if is_used else column
            inputs[name] = InputSpec(column, modality)
    # Sort by modality. The sort is stable, so columns of one modality keep the user's order.
    order = list(by_modality)
    return dict(sorted(inputs.items(), key=lambda item: order.index(item[1].modality)))


def to_rows(table: Table, columns: Columns, preprocessors: Preprocessors) -> Rows:
    """Convert a table to rows with the cells of its inputs and target.

    The folder of the table is prepended to relative paths.
    """
    cells: dict[str, list[Any]] = {}
    for name, spec in columns.inputs.items():
        cells[name] = _input_cells(table, spec.column, preprocessors[spec.modality])
    if columns.target:
        cells[TARGET] = _target_cells(table, columns.target)
    return Rows(cells, [table.origin(i) for i in range(len(table))])


def _named_columns(
    table: Table, named: Mapping[str, str | Sequence[str] | None], preprocessors: Preprocessors
) -> dict[str, list[str]]:
    """Return the columns that the user chose, by modality, after checking that they exist."""
    by_modality: dict[str, list[str]] = {}
    for modality, value in named.items():
        if value is None:  # the columns of this modality are inferred
            continue
        if modality not in preprocessors:
            # `data.NAME` with an unknown NAME is passed as a modality, so NAME may also be a
            # misspelled option of the data source.
            close = difflib.get_close_matches(modality, [*preprocessors, TARGET], 1)
            hint = f"; did you mean data.{close[0]}?" if close else ""
            raise UserError(
                f"data.{modality}: must be an option of this data source or the modality of an "
                f"adapter in use; the modalities are {', '.join(preprocessors)}{hint}"
            )
        by_modality[modality] = [str(column) for column in as_list(value)]
        for column in by_modality[modality]:
            table.column(column, f"data.{modality}")
    return by_modality


def _target_columns(
    table: Table, target: str | Sequence[str] | None, notes: list[str]
) -> list[str]:
    """Return the target columns: those that the user chose, or one with a common name."""
    # An empty list is also a choice: it means that there is no target.
    if target is not None:
        columns = [str(column) for column in as_list(target)]
        for column in columns:
            table.column(column, "data.target")
        return columns
    columns = [column for column in USUAL_TARGETS if column in table.columns][:1]
    if columns:
        notes.append(f"target: column {columns[0]}, chosen by its name")
    else:
        notes.append(f"target: none of the columns {', '.join(table.columns)} was chosen")
    return columns


def _infer_columns(
    table: Table,
    columns: Sequence[str],
    preprocessors: Preprocessors,
    by_modality: dict[str, list[str]],
    notes: list[str],
) -> None:
    """Assign the remaining columns to modalities, and append notes about unused columns.

    Args:
        table: All rows of all splits.
        columns: Candidate columns.
        preprocessors: Preprocessors in use, by modality.
        by_modality: Columns that the user chose. Inferred columns are added in place.
        notes: Sentences about unused columns are appended to this list.
    """
    named = {modality: set(names) for modality, names in by_modality.items()}
    not_accepted: list[str] = []
    not_named: list[str] = []
    for column in columns:
        if any(column in names for names in named.values()):
            continue
        modality = infer_modality(table.columns[column], preprocessors)
        if modality is None:
            not_accepted.append(column)
        elif modality in named:  # the user chose other columns for this modality
            not_named.append(column)
        else:
            by_modality.setdefault(modality, []).append(column)
    if not_accepted:
        notes.append(
            f"not used: {', '.join(not_accepted)} "
            f"(not accepted by any adapter in use: {', '.join(preprocessors)})"
        )
    if not_named:
        options = ", ".join(f"data.{modality}" for modality in named)
        notes.append(f"not used: {', '.join(not_named)} (not among the columns of {options})")


def infer_modality(values: Sequence[Any], preprocessors: Preprocessors) -> str | None:
    """Return the modality whose preprocessor accepts the values with the highest score.

    None means that no preprocessor accepts them.
    """
    present = [value for value in values if value is not None]
    if not present:  # a blank column has no modality
        return None
    are_files = _are_file_names(present)
    scores = {
        modality: accepts(preprocessor, present)
        for modality, preprocessor in preprocessors.items()
        # A column of file names is only for preprocessors that read files. Otherwise the paths of
        # audio files would become texts if no audio adapter is in use.
        if reads_files(preprocessor) or not are_files
    }
    best = max(scores, key=lambda modality: scores[modality], default=None)
    return best if best is not None and scores[best] > MIN_SCORE else None


def _are_file_names(values: Sequence[Any]) -> bool:
    """Return whether more than half of the values are file names."""
    matches = sum(isinstance(v, str) and FILE_NAME.fullmatch(v) is not None for v in values)
    return matches > len(values) / 2


def _input_cells(table: Table, column: str, preprocessor: Preprocessor) -> list[Any]:
    cells: list[Any] = []
    for value, file in zip(table.columns[column], table.files, strict=True):
        # A relative path is relative to the folder of its table. Bytes and arrays need no path.
        if reads_files(preprocessor) and isinstance(value, str):
            value = str(file.parent / value)
        elif has_words(preprocessor):
            value = _as_text(value)
        cells.append(value)
    return cells


def _as_text(value: Any) -> Any:
    """Convert a number or boolean to a string, and an empty list of words to None (missing)."""
    if isinstance(value, bool | int | float):
        return str(value)
    return None if value == [] else value


def _target_cells(table: Table, columns: Sequence[str]) -> list[Any]:
    """Return the cells of one column, or lists of labels "column=value" for several columns."""
    # The cells of one column stay raw, because the task parses them.
    if len(columns) == 1:
        return table.columns[columns[0]]
    cells: list[Any] = []
    for i in range(len(table)):
        values = {column: table.columns[column][i] for column in columns}
        cells.append([f"{column}={v}" for column, v in values.items() if v is not None])
    return cells
