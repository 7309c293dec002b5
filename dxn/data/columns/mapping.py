"""Assign the columns of a new table to the inputs and the target of a trained model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from dxn.core.errors import UserError
from dxn.data.columns.choose import Columns
from dxn.data.rows import InputSpec
from dxn.data.tables.read import Table, column_name


def map_columns(
    table: Table,
    inputs: Mapping[str, InputSpec],
    targets: Sequence[str],
    columns: Mapping[str, str],
) -> Columns:
    """Return the columns of a new table that contain the inputs and the target.

    Args:
        table: The new table.
        inputs: Inputs of the training data set, by input name.
        targets: Target columns of the training data set.
        columns: Column of the new table, by input name or by column of the training data set.

    Raises:
        UserError: If `columns` has an unknown key, or the column of an input is missing.
    """
    by_input = {name: spec.column for name, spec in inputs.items()}
    names = dict.fromkeys([*by_input, *by_input.values(), *targets])
    for key, column in columns.items():
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            hint = f"; did you mean columns.{close[0]}?" if close else ""
            raise UserError(
                f"columns.{key}: must be an input or a column of the training, which are "
                f"{', '.join(names)}{hint}"
            )
        table.column(str(column), f"columns.{key}")

    def column_of(name: str, trained: str) -> str:
        return column_name(str(columns.get(name, columns.get(trained, trained))))

    mapped = {n: InputSpec(column_of(n, s.column), s.modality) for n, s in inputs.items()}
    # A missing column is an error, because predictions without this input would be less accurate.
    for name, spec in mapped.items():
        if spec.column not in table.columns:
            used = {other.column for other in mapped.values()}
            _raise_missing(table, name, spec.column, used)
    # New data needs no target. With only some of the target columns, the labels would be wrong.
    new_targets = [column_of(target, target) for target in targets]
    has_all = all(column in table.columns for column in new_targets)
    return Columns(mapped, new_targets if has_all else [])


def _raise_missing(table: Table, name: str, column: str, used: set[str]) -> None:
    free = [other for other in table.columns if other not in used]
    close = difflib.get_close_matches(column, free, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    # If no name is similar, any column that is not used yet is at least a valid example.
    example = (close or free or ["COLUMN"])[0]
    raise UserError(
        f"{table.name}: no column {column!r}, which is the input {name!r} of the model; its "
        f"columns are {', '.join(table.columns)}{hint} (columns.{column}={example} reads the "
        "input from another column)"
    )
