"""Read Parquet and Excel files."""

from __future__ import annotations

import datetime
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from dxn.data.csv_format import check_names
from dxn.errors import UserError


def read_parquet(path: Path) -> tuple[dict[str, list], list[int]]:
    """Read a Parquet file.

    Returns:
        The values by column name, and the number of each row, from 1.

    Raises:
        UserError: If the file is damaged.
    """
    try:
        values = pyarrow.parquet.read_table(path).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]  # pyarrow appends a C++ stack trace
        raise UserError(f"{path}: invalid Parquet file ({reason})") from error
    columns = {name: list(map(_encoded_file, column)) for name, column in values.items()}
    count = len(next(iter(columns.values()), []))
    return columns, list(range(1, count + 1))


def read_excel(
    path: Path, sheet: str | None, key: str, notes: list[str]
) -> tuple[dict[str, list], list[int]]:
    """Read a sheet of an Excel file. Its first row contains the column names.

    Args:
        path: The file.
        sheet: Name of the sheet. None: the first one.
        key: Option that sets the sheet, for messages.
        notes: A sentence is appended if the file has further sheets.

    Returns:
        The values by column name, and the number of each row in the sheet.

    Raises:
        UserError: If the file is damaged, has no such sheet, or has no column names.
    """
    names, rows = _read_sheet(path, sheet, key)
    if sheet is None and len(names) > 1:
        others = ", ".join(names[1:])
        notes.append(f"sheet of {path.name}: {names[0]}, the first one ({key} sets it: {others})")
    # Excel can store formatted cells without content below and right of the table.
    while rows and _is_empty(rows[-1]):
        rows.pop()
    width = max((i + 1 for row in rows for i, v in enumerate(row) if v is not None), default=0)
    # Rows can be shorter, because empty cells at the end of a row are not stored.
    padded = [(*row, *[None] * (width - len(row))) for row in rows]
    header = ["" if name is None else str(name) for name in padded[0][:width]] if rows else []
    if not header or not all(header):
        got = ", ".join(map(repr, header)) or "an empty sheet"
        raise UserError(f"{path} row 1: each column must have a name, got {got}")
    check_names(path, header)
    numbered = [(i, row) for i, row in enumerate(padded[1:], 2) if not _is_empty(row)]
    columns: dict[str, list] = {}
    for i, name in enumerate(header):
        columns[name] = [_plain(row[i]) for _, row in numbered]
    return columns, [number for number, _ in numbered]


def _read_sheet(path: Path, sheet: str | None, key: str) -> tuple[list[str], list[tuple]]:
    """Return the names of all sheets, and the rows of one sheet."""
    # Importing openpyxl takes a moment, and only this format needs it.
    import openpyxl

    with warnings.catch_warnings():
        # openpyxl warns about features such as data validation, which do not affect the values.
        warnings.simplefilter("ignore")
        try:
            # data_only: the results of formulas instead of the formulas.
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            raise UserError(
                f"{path}: invalid Excel file ({error}); save it as .xlsx without a password"
            ) from error
        try:
            names = [page.title for page in book.worksheets]
            if sheet is not None and sheet not in names:
                raise UserError(f"{key}: no sheet {sheet!r} in {path}; it has {', '.join(names)}")
            page = book[sheet or names[0]]
            # A file can state a wrong size, which would cut off rows or columns.
            page.reset_dimensions()
            return names, [tuple(row) for row in page.iter_rows(values_only=True)]
        finally:
            book.close()


def _is_empty(row: tuple) -> bool:
    return all(value is None for value in row)


def _plain(value: Any) -> Any:
    """Convert a date without a time to a date. Excel stores both in the same way."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time.min:
        return value.date()
    return value


def _encoded_file(value: Any) -> Any:
    """Return the bytes or the path of a file in the format of Hugging Face data sets.

    They store a file as {"bytes": ..., "path": ...}. All other values are returned unchanged.
    """
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["bytes"] or value["path"]
    return value
