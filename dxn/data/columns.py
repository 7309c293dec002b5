"""Choose the input columns and the target column of a table."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxn.data.read import Table, as_list
from dxn.data.rows import RESERVED, TARGET, InputSpec, Rows
from dxn.data.target_columns import target_cells, target_columns
from dxn.errors import UserError
from dxn.tasks.cells import are_dates, are_identifiers, are_numbers, kind_of
from dxn.tokenize.adapter import Preprocessor, accepts, has_words, reads_files

# Minimum score of `accepts` at which a column becomes an input. Lower scores come from columns in
# which only a few values look like the modality.
MIN_SCORE = 0.1
# A file name has no spaces, and its suffix starts with a letter. A decimal number such as 3.14
# does not match.
FILE_NAME = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{1,4}")
URL = re.compile(r"(?i)(?:https?|ftp|s3|gs)://")

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
    excluded: Sequence[str | None] = (),
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
        excluded: Columns that are neither inputs nor unused, such as the split of each row.
        notes: Sentences about inferred and unused columns are appended to this list.

    Raises:
        UserError: If a column or modality does not exist, or if there is no input column.
    """
    by_modality = _named_columns(table, named, preprocessors)
    targets = target_columns(table, target, notes)
    for column in targets:
        if any(column in columns for columns in by_modality.values()):
            raise UserError(
                f"data.target: column {column!r} is also an input, so the model would read its "
                "own target; choose another column"
            )
    # A target column as an input would leak the target. A split column does not exist in new data.
    columns = [column for column in table.columns if column not in {*targets, *excluded}]
    _infer_columns(table, columns, preprocessors, by_modality, notes)
    inputs = name_inputs({m: by_modality.get(m, []) for m in preprocessors})
    if not inputs:
        raise UserError(
            f"data: no adapter in use ({', '.join(preprocessors)}) accepts any of the columns "
            f"{', '.join(table.columns)}; choose a column, for example "
            f"data.{next(iter(preprocessors), 'MODALITY')}={next(iter(columns), 'COLUMN')}"
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


def to_rows(
    table: Table,
    columns: Columns,
    preprocessors: Preprocessors,
    labels: Sequence[str] | None = None,
) -> Rows:
    """Convert a table to rows with the cells of its inputs and target.

    The folder of the table is prepended to relative paths.

    Args:
        table: The table.
        columns: The columns that are used.
        preprocessors: Preprocessors, by modality.
        labels: Names of the target columns in labels such as "colour=red". Default: the names of
            the columns.
    """
    cells: dict[str, list[Any]] = {}
    for name, spec in columns.inputs.items():
        cells[name] = _input_cells(table, spec.column, preprocessors[spec.modality])
    if columns.target:
        cells[TARGET] = target_cells(table, columns.target, labels or columns.target)
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
    unused: dict[str, str] = {}  # reasons by column
    identifiers: dict[str, str] = {}  # modalities by column
    for column in columns:
        if any(column in names for names in named.values()):
            continue
        values = [value for value in table.columns[column] if value is not None]
        modality = infer_modality(values, _readers(values, preprocessors))
        if modality is None:
            unused[column] = _reason(values)
        elif modality in named:  # the user chose other columns for this modality
            unused[column] = f"not in data.{modality}"
        elif are_identifiers(values) and has_words(preprocessors[modality]):
            identifiers[column] = modality
        else:
            by_modality.setdefault(modality, []).append(column)
    for column, modality in identifiers.items():
        # A code such as SKU-1234 says nothing about other rows, but it can be the only input.
        if any(by_modality.values()):
            unused[column] = kind_of(table.columns[column])
        else:
            by_modality[modality] = [column]
    if unused:
        reasons = ", ".join(
            f"{column} ({unused[column]})" for column in columns if column in unused
        )
        notes.append(f"not used: {reasons}")


def _readers(values: Sequence[Any], preprocessors: Preprocessors) -> Preprocessors:
    """Return the preprocessors that can be meant for values, which are not None."""
    # Numbers such as "$1,200.50" and dates are strings as well, but they are no texts.
    if are_numbers(values) or are_dates(values):
        return {name: p for name, p in preprocessors.items() if not has_words(p)}
    return preprocessors


def _reason(values: Sequence[Any]) -> str:
    """Return why a column is not an input."""
    if _are_file_names(values):
        return "file names, which no adapter in use reads"
    kind = kind_of(values)
    return "texts, which no adapter in use reads" if kind == "texts" else kind


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
    if reads_files(preprocessor):
        _check_urls(table, column)
    for value, file in zip(table.columns[column], table.files, strict=True):
        # A relative path is relative to the folder of its table. Bytes and arrays need no path.
        if reads_files(preprocessor) and isinstance(value, str) and not URL.match(value):
            value = str(file.parent / value)
        elif has_words(preprocessor):
            value = _as_text(value)
        cells.append(value)
    return cells


def _check_urls(table: Table, column: str) -> None:
    """Check that most of the files of a column are local. A single URL is a bad cell."""
    values = table.columns[column]
    urls = [i for i, v in enumerate(values) if isinstance(v, str) and URL.match(v)]
    if len(urls) > len(values) / 2:
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
