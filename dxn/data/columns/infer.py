"""Infer which columns of a table are inputs, and the modality of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dxn.core.display import track
from dxn.data.columns.useless import determines, why_useless
from dxn.data.tables.read import Table
from dxn.tasks.infer import are_identifiers, kind_of
from dxn.tokenize.base import Reader
from dxn.tokenize.cells.dates import are_dates
from dxn.tokenize.cells.numbers import are_numbers

# Minimum score of a reader at which a column becomes an input. Lower scores come from columns in
# which only a few values look like the modality.
MIN_SCORE = 0.1
# A file name has no spaces, and its suffix starts with a letter. A decimal number such as 3.14
# does not match.
FILE_NAME = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{1,4}")

Readers = Mapping[str, Reader]


def infer_columns(
    table: Table,
    columns: Sequence[str],
    readers: Readers,
    by_modality: dict[str, list[str]],
    targets: Sequence[str],
    new_groups: Collection[str],
    notes: list[str],
) -> None:
    """Assign the remaining columns to modalities, and append notes about unused columns.

    Args:
        table: All rows of all splits.
        columns: Candidate columns.
        readers: Readers in use, by modality.
        by_modality: Columns that the user chose. Inferred columns are added in place.
        targets: Target columns.
        new_groups: Columns that name groups which only the test split has, see
            `dxn.data.columns.useless.names_new_groups`.
        notes: Sentences about unused columns are appended to this list.
    """
    named = {modality: set(names) for modality, names in by_modality.items()}
    unused: dict[str, str] = {}  # reasons by column
    identifiers: dict[str, str] = {}  # modalities by column
    leaks: dict[str, str] = {}
    answers = _answers(table, targets)
    for column in track(columns, len(columns), "reading columns"):
        if any(column in names for names in named.values()):
            continue
        values = [value for value in table.columns[column] if value is not None]
        modality = infer_modality(values, _possible(values, readers))
        if modality is None:
            unused[column] = _reason(values)
            continue
        is_cell = readers[modality].tabular
        useless = why_useless(column, values) if is_cell else None
        if is_cell and column in new_groups:
            useless = "training has none of its values in the test split"
        if useless is not None:
            unused[column] = useless
        elif modality in named:  # the user chose other columns for this modality
            unused[column] = f"not in data.{modality}"
        elif is_cell and answers and determines(table.columns[column], answers):
            leaks[column] = modality
        elif readers[modality].words and are_identifiers(values):
            identifiers[column] = modality
        else:
            by_modality.setdefault(modality, []).append(column)
    for column, modality in identifiers.items():
        # A code such as SKU-1234 says nothing about other rows, but it can be the only input.
        if any(by_modality.values()):
            unused[column] = kind_of(table.columns[column])
        else:
            by_modality[modality] = [column]
    if not any(by_modality.values()):
        # Without any other input, the column is not a leak, but what the target is to be read from.
        for column, modality in leaks.items():
            by_modality.setdefault(modality, []).append(column)
        leaks = {}
    if unused:
        reasons = ", ".join(
            f"{column} ({unused[column]})" for column in columns if column in unused
        )
        notes.append(f"not used: {reasons}")
    for column, modality in leaks.items():
        notes.append(
            f"not used: {column}, because its value always determines {' and '.join(targets)}, so "
            f"it was probably made from it; name it in data.{modality} to use it anyway"
        )


def _answers(table: Table, targets: Sequence[str]) -> list[str | None]:
    """Return the target of each row as one text; None where it is missing. Empty: no target."""
    if not targets:
        return []
    rows = zip(*(table.columns[target] for target in targets), strict=True)
    return [None if all(v is None for v in row) else repr(row) for row in rows]


def _possible(values: Sequence[Any], readers: Readers) -> Readers:
    """Return the readers that can be meant for values, which are not None."""
    # Numbers such as "$1,200.50" and dates are strings as well, but neither texts nor files.
    if not are_numbers(values) and not are_dates(values):
        return readers
    are_files = _are_file_names(values)  # "0.wav" could be 0 of the unit wav
    return {
        name: reader
        for name, reader in readers.items()
        if not reader.words and (are_files or not reader.files)
    }


def _reason(values: Sequence[Any]) -> str:
    """Return why a column is not an input."""
    if _are_file_names(values):
        if any(isinstance(value, list) for value in values):
            return "lists of file names; write one file name per column"
        return "file names, which no adapter in use reads"
    kind = kind_of(values)
    return "texts, which no adapter in use reads" if kind == "texts" else kind


def by_modality(readers: Mapping[str, Reader]) -> dict[str, Reader]:
    """Return one reader per modality: that of the first adapter of this modality."""
    result: dict[str, Reader] = {}
    for reader in readers.values():
        result.setdefault(reader.modality, reader)
    return result


def infer_modality(values: Sequence[Any], readers: Readers) -> str | None:
    """Return the modality whose reader gives the values the highest score. None: there is none."""
    present = [value for value in values if value is not None]
    if not present:  # a blank column has no modality
        return None
    are_files = _are_file_names(present)
    scores = {
        modality: reader.score(present)
        for modality, reader in readers.items()
        # A column of file names is only for readers that read files. Otherwise the paths of
        # audio files would become texts if no audio adapter is in use.
        if reader.files or not are_files
    }
    best = max(scores, key=lambda modality: scores[modality], default=None)
    return best if best is not None and scores[best] > MIN_SCORE else None


def _are_file_names(values: Sequence[Any]) -> bool:
    """Return whether more than half of the values are file names, or lists of them."""
    return sum(map(_is_file_name, values)) > len(values) / 2


def _is_file_name(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(v, str) and _is_file_name(v) for v in value)
    return isinstance(value, str) and FILE_NAME.fullmatch(value.strip()) is not None
