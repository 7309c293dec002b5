"""Find the columns that identify rows, such as an id or a product code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dxn.data.tables.read import Table

MAX_LENGTH = 100  # characters; a longer value is a text


def identifying_columns(
    table: Table, used: Sequence[str | None], keep: Sequence[str], key: str = "keep"
) -> dict[str, Sequence[Any]]:
    """Return the columns to copy to the results, so that they can be matched with the table.

    Args:
        table: All rows.
        used: Columns that are inputs, target or split, which are not ids.
        keep: Further columns that the user wants in the results.
        key: Option that contains `keep`, for error messages.

    Raises:
        UserError: If a column of `keep` does not exist.
    """
    columns: dict[str, Sequence[Any]] = {}
    for name, values in table.columns.items():
        if name not in used and is_identifier(values):
            columns[name] = values
    for name in keep:
        columns[name] = table.column(name, key)
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
