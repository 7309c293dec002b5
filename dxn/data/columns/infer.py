"""Infer which columns are inputs, their modality, and which say nothing or too much."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dxn.core.display import track
from dxn.core.randomness import spaced_rows
from dxn.data.rows import FIT_ROWS
from dxn.data.tables.read import Table
from dxn.tasks.infer import SAME_VALUE, are_identifiers, explain_decimals, kind_of, mixed_units
from dxn.tokenize.base import READERS, Reader
from dxn.tokenize.cells.cell_values import has_no_value
from dxn.tokenize.column_profile import ColumnProfile, LazyReaders, modality_of, profile_of

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
            `dxn.data.columns.infer.names_new_groups`.
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
            unused[column] = _reason(profile, len(table))
            continue
        is_cell = readers[modality].tabular
        useless = why_useless(column, profile, len(table)) if is_cell else None
        if (is_cell or readers[modality].words) and (decimals := explain_decimals(profile)):
            useless = decimals
        elif is_cell and column in new_groups:
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
            if not profile.are_dates and len(units := mixed_units(profile)) > 1:
                notes.append(
                    f"{column}: read as {modality}, because its numbers have different units "
                    f"({', '.join(units[:MAX_UNITS])}); convert them to one unit"
                )
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


def _reason(profile: ColumnProfile, num_rows: int) -> str:
    """Return why a column is not an input."""
    for kind, pattern in ADDRESSES.items():
        texts = [value.strip() for value in profile.values if isinstance(value, str)]
        if texts and all(map(pattern.fullmatch, texts)):
            return kind
    if profile.are_file_names:
        if list in profile.types:
            return "lists of file names; write one file name per column"
        return "file names, which no adapter in use reads"
    units = mixed_units(profile)
    if len(units) > 1:
        return f"numbers with different units: {', '.join(units[:MAX_UNITS])}"
    if decimals := explain_decimals(profile):
        return decimals
    kind = kind_of(profile)
    if kind == SAME_VALUE:
        return _same_value(profile, num_rows)
    if kind != "texts":
        return kind
    every = LazyReaders({modality: modality for modality in READERS}, {})
    if modality_of(profile, every) is None:
        different = f"{profile.num_different:,} different values in {len(profile.values):,} rows"
        return f"{different}, too many for categories and too few for texts"
    return "texts, which no adapter in use reads"


# Reasons why columns of texts are not used.
ADDRESSES = {
    "e-mail addresses": re.compile(r"[^\s@]+@[^\s@]+"),
    "web addresses": re.compile(r"(?i)(?:[a-z]+://|www\.)\S+"),
}
MAX_UNITS = 3  # in a note
# Below this number of rows, distinct numbers are not surprising.
MIN_NUMBERED = 20
# Names of columns that number the rows. "Unnamed: 0" is the index that pandas writes.
ID_NAME = re.compile(r"(?i)(?:.*[ _.-])?(?:id|idx|index|key|nr|no|num|number|row|rowid)|unnamed.*")
CAMEL_ID = re.compile(r".*[a-z](?:Id|ID|Nr|No|Key|Index)")
# Row numbers can have gaps, because rows were removed.
MAX_GAPS = 2.0
# A column that determines the target is a leak only if this cannot be a coincidence.
MIN_ROWS = 100
MIN_ROWS_PER_VALUE = 5  # mean
MAX_SINGLE = 0.01  # fraction of rows whose value occurs once, which says nothing
MIN_OTHER = 10  # rows with another target than the most frequent one
# Numbers and share of the rows with a value, and of those without, in a column with one value.
MIN_CHECKED, MIN_CHECKED_SHARE = 2, 0.05
# Values that name groups of rows, such as speakers, repeat so often on average, in every split.
MIN_ROWS_PER_GROUP = 2
# Whole numbers in this range are taken for years, and other ones for numbers of groups.
YEARS = (1900, 2100)


def why_useless(name: str, profile: ColumnProfile, num_rows: int) -> str | None:
    """Return why numbers, categories or dates say nothing about new rows; None if they can.

    A single value beside empty cells can say something, such as the checkbox of a survey.

    Args:
        name: Name of the column.
        profile: Its profile.
        num_rows: Number of rows, with those that have no value.
    """
    if not profile.values:
        return "no values"
    if profile.num_different < 2:
        num_filled = len(profile.values)
        num_rarer = min(num_filled, num_rows - num_filled)
        if num_rarer >= max(MIN_CHECKED, MIN_CHECKED_SHARE * num_rows):
            return None
        return _same_value(profile, num_rows)
    if _are_row_numbers(name, profile):
        return "row numbers or identifiers"
    return None


def _same_value(profile: ColumnProfile, num_rows: int) -> str:
    return SAME_VALUE + (" that have one" if len(profile.values) < num_rows else "")


def names_new_groups(train: Sequence[Any], test: Sequence[Any]) -> bool:
    """Return whether a column names groups of rows, of which the test split has only new ones.

    A column of speakers is an example, if the test split has other speakers than the training
    split. A model learns nothing from such a column that helps in the test split.

    Args:
        train: Cells of the column in the training split; None where missing.
        test: Cells of the column in the test split.
    """
    if any(isinstance(cell, bytes | bytearray | dict) for cell in train):  # embedded files
        return False
    splits = [[str(cell) for cell in cells if not has_no_value(cell)] for cells in (train, test)]
    train_values, test_values = (set(cells) for cells in splits)
    if len(train_values) < 2 or not test_values or train_values & test_values:
        return False
    if any(len(cells) < MIN_ROWS_PER_GROUP * len(set(cells)) for cells in splits):
        return False
    # Quantities of new rows are new as well, but they can be compared with those of the training.
    profile = profile_of(splits[0] + splits[1])
    return not profile.are_dates and not _are_quantities(profile)


def _are_quantities(profile: ColumnProfile) -> bool:
    """Return whether cells are years or numbers with decimals. Other numbers often name groups."""
    numbers = profile.numbers
    if numbers is None or numbers.others:
        return False
    low, high = YEARS
    return not numbers.are_whole or all(low <= value <= high for value in numbers.values)


def determines(cells: Sequence[Any], targets: Sequence[Hashable]) -> bool:
    """Return whether the value of a column always determines the target.

    Such a column was often made from the target, such as a finer label.

    Args:
        cells: Cells of the column.
        targets: The target of each row. None where missing.
    """
    if len(targets) < MIN_ROWS:
        return False
    pairs: Counter[tuple[str, Hashable]] = Counter()
    for cell, target in zip(cells, targets, strict=True):
        if target is not None and not has_no_value(cell):
            pairs[str(cell), target] += 1
    total = pairs.total()
    rows_of = Counter[str]()
    for (value, _), count in pairs.items():
        rows_of[value] += count
    if total < MIN_ROWS or len(rows_of) * MIN_ROWS_PER_VALUE > total:
        return False
    num_single = sum(count == 1 for count in rows_of.values())
    if num_single > MAX_SINGLE * total or len(pairs) > len(rows_of):
        return False
    # With hardly any other target, most columns determine it.
    by_target: Counter[Hashable] = Counter()
    for (value, target), count in pairs.items():
        by_target[target] += count if rows_of[value] > 1 else 0
    return by_target.total() - max(by_target.values()) >= MIN_OTHER


def _are_row_numbers(name: str, profile: ColumnProfile) -> bool:
    """Return whether a column numbers the rows: different whole numbers, in order or named so."""
    count, numbers = len(profile.values), profile.numbers
    if count < MIN_NUMBERED or profile.num_different < count or numbers is None:
        return False
    values = numbers.values
    if len(values) < count or not numbers.are_whole:
        return False
    if ID_NAME.fullmatch(name.strip()) or CAMEL_ID.fullmatch(name.strip()):
        return True
    if YEARS[0] <= min(values) and max(values) <= YEARS[1]:
        return False
    span = max(values) - min(values) + 1
    steps = [b - a for a, b in pairwise(values)]
    return span == count or (span <= MAX_GAPS * count and min(steps) > 0)
