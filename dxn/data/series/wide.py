"""The layout of a table in which one row is a whole series, with one column per time step."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxn.core.errors import UserError, similar
from dxn.data.rows import VALUES, as_column
from dxn.data.series.long import WideColumns, check_unused, series_cell
from dxn.data.tables.read import Layout, Table, as_list

WILDCARDS = "*?["


@dataclass(frozen=True)
class Wide(Layout):
    """One row is one series, whose time steps are columns of the table.

    Args:
        columns: Columns of the series in the order of time: a list of names, or a pattern such as
            "t_*". For several channels, a mapping from the name of a channel to its columns.
    """

    columns: WideColumns

    kind = "wide"

    def __post_init__(self) -> None:
        groups = self.columns.values() if isinstance(self.columns, Mapping) else [self.columns]
        names = [name for group in groups for name in as_list(group)]
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError(
                "must be a pattern such as 't_*', a list of columns, or a mapping from channels "
                f"to columns, got {self.columns!r}"
            )

    def apply(
        self,
        table: Table,
        *,
        key: str = "data.",
        required: Collection[str] = (),
        with_target: bool = True,
        notes: list[str] | None = None,
    ) -> Table:
        """Return the table with the column `values`: a list per row, or a list of lists (T, C)."""
        is_joint = isinstance(self.columns, Mapping)
        groups = self.columns if isinstance(self.columns, Mapping) else {VALUES: self.columns}
        names = {
            channel: _matching_columns(table, columns, f"{key}wide", excluded=required)
            for channel, columns in groups.items()
        }
        lengths = {channel: len(columns) for channel, columns in names.items()}
        if len(set(lengths.values())) > 1:
            raise UserError(
                f"{key}wide: every channel must have the same number of columns, got {lengths}"
            )
        used = {name for columns in names.values() for name in columns}
        columns = {name: values for name, values in table.columns.items() if name not in used}
        check_unused(columns, VALUES, table)
        channels = []
        for group in names.values():
            channels.append(list(zip(*(table.columns[name] for name in group), strict=True)))
        rows = channels[0] if not is_joint else list(zip(*channels, strict=True))
        cells: list[Any] = []
        for row in rows:
            # Rows of a mapping are (C, T), and a cell is (T, C).
            steps = [list(step) for step in zip(*row, strict=True)] if is_joint else list(row)
            cells.append(series_cell(steps))
        if notes is not None:
            shape = f"{len(names)} channels of " if len(names) > 1 else ""
            first = next(iter(names.values()))
            notes.append(
                f"values: {shape}{len(first)} columns of each row, {first[0]} to {first[-1]}"
            )
        columns[VALUES] = as_column(cells)
        return Table(columns, table.origins, table.notes, table.path)


def _matching_columns(
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
    selected: dict[str, None] = {}
    for name in as_list(columns):
        if name in table.columns or not any(character in name for character in WILDCARDS):
            table.column(name, key)
            selected[name] = None
            continue
        matches = [c for c in table.columns if fnmatch.fnmatchcase(c, name) and c not in excluded]
        if not matches:
            close = similar(name.strip(WILDCARDS), list(table.columns))
            hint = f"; did you mean {close!r}?" if close else ""
            raise UserError(
                f"{key}: no column of {table.name} matches {name!r}; its columns are "
                f"{', '.join(table.columns)}{hint}"
            )
        selected |= dict.fromkeys(_in_order(matches))
    return list(selected)


def _in_order(names: Sequence[str]) -> list[str]:
    numbers = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
    texts = {re.sub(r"\d+", "#", name) for name in names}
    if len(texts) > 1:
        return list(names)
    return [name for _, name in sorted(zip(numbers, names, strict=True))]
