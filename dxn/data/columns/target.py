"""Choose the target columns of a table, and read their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dxn.core.errors import UserError
from dxn.data.rows import Column, InputSpec
from dxn.data.tables.read import Table, as_list
from dxn.tasks.infer import are_amounts, kind_of

# Names of target columns, in the order of preference, if the user does not choose one.
USUAL_TARGETS = ("label", "target", "class", "category", "tags")
# Maximum number of different values of one of several target columns.
MAX_LABELS = 50


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
        _check_labels(table, columns)
        return columns
    columns = [column for column in USUAL_TARGETS if column in table.columns][:1]
    if columns:
        notes.append(f"target: column {columns[0]}, chosen by its name")
    else:
        notes.append(f"no target: none of the columns {', '.join(table.columns)} was chosen")
    return columns


def candidate_targets(table: Table, inputs: Mapping[str, InputSpec]) -> list[str]:
    """Return the columns of a table, the most likely target first.

    A target is rarely an input, and it is usually one of the last columns.
    """
    used = {spec.column for spec in inputs.values()}

    def order(column: str) -> tuple[bool, bool]:
        return column in used, kind_of(table.columns[column]) not in ("categories", "numbers")

    from_last = list(table.columns)[::-1]
    return sorted(from_last, key=order)


def target_cells(table: Table, columns: Sequence[str], names: Sequence[str]) -> Column:
    """Return the cells of one column, or the values by name for several columns.

    Args:
        table: The table.
        columns: The target columns.
        names: Name of each column in the training table.
    """
    # The cells of one column stay raw, because the task parses them.
    if len(columns) == 1:
        return table.columns[columns[0]]
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
    for column in targets if len(targets) > 1 else ():
        values = [value for value in table.columns[column] if value is not None]
        distinct = len(set(map(str, values)))
        if are_amounts(values) or distinct > max(MAX_LABELS, len(values) / 2):
            raise UserError(
                f"data.target: column {column!r} contains {kind_of(values)} ({distinct:,} "
                "different values), but several target columns are read as labels such as "
                f"{column}=1; choose one column, data.target={column}, and train one model per "
                "target"
            )
