"""What the layouts of tables have in common: the columns that they read and add."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np

from dxn.core.errors import UserError, similar
from dxn.data.tables.read import Table, as_list
from dxn.tokenize.series.values import from_list

WILDCARDS = "*?["


def matching_columns(
    table: Table, columns: str | Sequence[str], key: str, *, excluded: Collection[str] = ()
) -> list[str]:
    """Return the columns of a table that names and patterns select.

    Columns of a pattern that differ only in numbers are sorted by these numbers, so t_2 comes
    before t_10. Other columns of a pattern have the order of the table.

    Args:
        table: The table.
        columns: A name or a pattern with the wildcards * and ?, or a list of them.
        key: Option that contains them, for error messages.
        excluded: Columns that a pattern never selects.

    Raises:
        UserError: If a name or a pattern matches no column.
    """
    found: dict[str, None] = {}
    for name in as_list(columns):
        if name in table.columns or not any(character in name for character in WILDCARDS):
            table.column(name, key)
            found[name] = None
            continue
        matches = [c for c in table.columns if fnmatch.fnmatchcase(c, name) and c not in excluded]
        if not matches:
            close = similar(name.strip(WILDCARDS), list(table.columns))
            hint = f"; did you mean {close!r}?" if close else ""
            raise UserError(
                f"{key}: no column of {table.name} matches {name!r}; its columns are "
                f"{', '.join(table.columns)}{hint}"
            )
        found |= dict.fromkeys(_in_order(matches))
    return list(found)


def check_unused(columns: Collection[str], name: str, table: Table) -> None:
    """Check that a layout can add a column.

    Raises:
        UserError: If the table has another column of this name.
    """
    if name in columns:
        raise UserError(
            f"{table.name}: has a column {name!r}, which is the name of the series that are made "
            "of the other columns; rename the column"
        )


def _in_order(names: Sequence[str]) -> list[str]:
    numbers = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
    texts = {re.sub(r"\d+", "#", name) for name in names}
    if len(texts) > 1:
        return list(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True))]


def series_cell(steps: Sequence[Any]) -> np.ndarray | list | None:
    """Return the cell of a series.

    Args:
        steps: Cells of the T time steps, or lists of the cells of C channels; None where a value is
            missing.

    Returns:
        An array (T,) or (T, C), float64, with NaN for missing values. None if all of them are
        missing. A list if a cell is not a number, so that it is reported as a bad cell of this row.
    """
    cells = chain.from_iterable(s if isinstance(s, list | tuple) else [s] for s in steps)
    has_texts = any(isinstance(cell, str) for cell in cells)
    try:
        # NumPy would read the text "1_000" as a number.
        values = from_list(list(steps)) if has_texts else np.array(steps, dtype=np.float64)
    except (TypeError, ValueError):
        return list(steps)
    return None if np.isnan(values).all() else values
