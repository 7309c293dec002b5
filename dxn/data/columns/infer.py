"""Infer which columns of a table are inputs, and the modality of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dxn.core.display import track
from dxn.core.randomness import spaced_rows
from dxn.data.columns.useless import determines, why_useless
from dxn.data.rows import FIT_ROWS
from dxn.data.tables.read import Table
from dxn.tasks.infer import are_identifiers, kind_of
from dxn.tokenize.base import Reader
from dxn.tokenize.column_profile import ColumnProfile, profile_of
from dxn.tokenize.recognize import modality_of

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
        table: All rows of all splits. At most FIT_ROWS of them are inspected.
        columns: Candidate columns.
        readers: Readers in use, by modality.
        by_modality: Columns that the user chose. Inferred columns are added in place.
        targets: Target columns.
        new_groups: Columns that name groups which only the test split has, see
            `dxn.data.columns.useless.names_new_groups`.
        notes: Sentences about unused columns are appended to this list.
    """
    if len(table) > FIT_ROWS:
        table = table.take(spaced_rows(len(table), FIT_ROWS))
    named = {modality: set(names) for modality, names in by_modality.items()}
    unused: dict[str, str] = {}  # reasons by column
    identifiers: dict[str, str] = {}  # modalities by column
    leaks: dict[str, str] = {}
    rows = zip(*(table.columns[target] for target in targets), strict=True) if targets else ()
    # The target of each row as one text; None where it is missing.
    answers = [None if all(cell is None for cell in row) else repr(row) for row in rows]
    for column in track(columns, len(columns), "reading columns"):
        if any(column in names for names in named.values()):
            continue
        profile = profile_of(table.columns[column])
        modality = modality_of(profile, readers, column=column)
        if modality is None:
            unused[column] = _reason(profile)
            continue
        is_cell = readers[modality].tabular
        useless = why_useless(column, profile) if is_cell else None
        if is_cell and column in new_groups:
            useless = "training has none of its values in the test split"
        if useless is not None:
            unused[column] = useless
        elif modality in named:  # the user chose other columns for this modality
            unused[column] = f"not in data.{modality}"
        elif is_cell and answers and determines(table.columns[column], answers):
            leaks[column] = modality
        elif readers[modality].words and are_identifiers(profile):
            identifiers[column] = modality
        else:
            by_modality.setdefault(modality, []).append(column)
    for column, modality in identifiers.items():
        # A code such as SKU-1234 says nothing about other rows, but it can be the only input.
        if any(by_modality.values()):
            unused[column] = "identifiers"
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


def _reason(profile: ColumnProfile) -> str:
    """Return why a column is not an input."""
    if profile.are_file_names:
        if list in profile.types:
            return "lists of file names; write one file name per column"
        return "file names, which no adapter in use reads"
    kind = kind_of(profile)
    return "texts, which no adapter in use reads" if kind == "texts" else kind
