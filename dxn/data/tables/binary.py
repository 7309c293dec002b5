"""Read Parquet and Excel files."""

from __future__ import annotations

import datetime
import re
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.rows import CHUNK_ROWS, Column, as_column, blank_to_none, join_columns
from dxn.data.tables.csv import check_names, named_columns
from dxn.data.tables.files import check_expansion, check_num_cells
from dxn.tokenize.cells.cell_values import plain_value

# pyarrow takes time to import, and few tables need it.
if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

MAX_NAMES = 10  # columns in a message
# A formula without a number. An empty text, which has the type "str", is a result. A formula that
# cells share is written in the first of them: <f t="shared" si="0"/>.
WITHOUT_RESULT = re.compile(rb"<c(?:(?! t=)[^>])*><f[^>]*(?:/>|>[^<]*</f>)(?:<v ?/>|<v></v>)?</c>")
MAX_TITLES = 20  # rows above the header of a sheet
# Bytes. A dictionary of Arrow holds at most 2 GB.
MAX_DICTIONARY = 1_000_000_000


def read_parquet(path: Path) -> tuple[dict[str, Column], np.ndarray]:
    """Read a Parquet file.

    Returns:
        The values by column name, and the number of each row, from 1.

    Raises:
        UserError: If the file is damaged, or exceeds a limit of `dxn.data.tables.files`.
    """
    import pyarrow

    parts: dict[str, list[Column]] = {}
    num_rows = 0
    num_bytes = 0
    try:
        with _open_parquet(path) as file:
            check_names(path, file.schema_arrow.names)
            parts = {name: [] for name in file.schema_arrow.names}
            # In batches: a small file can repeat a long text many times.
            for batch in file.iter_batches(CHUNK_ROWS):
                num_rows += batch.num_rows
                num_bytes += sum(map(_num_bytes, batch.columns))
                check_expansion(path, num_bytes)
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    parts[name].append(_column(column))
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), "")  # pyarrow appends a C++ stack trace
        raise UserError(f"{path}: invalid Parquet file ({reason})") from error
    columns = {
        name: join_columns(batches) if batches else Column([]) for name, batches in parts.items()
    }
    return columns, np.arange(1, num_rows + 1)


def _open_parquet(path: Path) -> pyarrow.parquet.ParquetFile:
    """Open a file after checking the sizes that its header states."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        header = file.metadata
        groups = [header.row_group(i) for i in range(header.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        check_expansion(path, sum(chunk.total_uncompressed_size for chunk in chunks))
        # The values of lists, which can be more than the cells of the table.
        num_values = sum(chunk.num_values for chunk in chunks)
        columns = max(len(file.schema_arrow.names), 1)
        size = path.stat().st_size
        check_num_cells(path, max(header.num_rows, num_values // columns), columns, size)
        # Texts stay in the form of a dictionary, in which each of them exists once.
        texts = {
            chunk.path_in_schema
            for chunk in chunks
            if chunk.physical_type == "BYTE_ARRAY"
            and chunk.total_uncompressed_size < MAX_DICTIONARY
        }
    return pyarrow.parquet.ParquetFile(path, read_dictionary=sorted(texts))


def _num_bytes(array: pyarrow.Array) -> int:
    """Return the size of the values of a column, each counted as often as it occurs."""
    import pyarrow.compute

    if isinstance(array, pyarrow.DictionaryArray):
        lengths = pyarrow.compute.call_function("binary_length", [array.dictionary])
        return pyarrow.compute.call_function("sum", [lengths.take(array.indices)]).as_py() or 0
    if isinstance(array, pyarrow.MapArray):
        return _num_bytes(array.keys) + _num_bytes(array.items)
    if isinstance(array, pyarrow.StructArray):
        return sum(map(_num_bytes, array.flatten()))
    if isinstance(array, pyarrow.ListArray | pyarrow.LargeListArray | pyarrow.FixedSizeListArray):
        return _num_bytes(array.flatten())
    return array.nbytes


def _column(array: pyarrow.Array) -> Column:
    """Return a column of a batch, with None for blank texts and NaN, and files as their content."""
    import pyarrow

    if isinstance(array, pyarrow.DictionaryArray):
        values = list(map(blank_to_none, array.dictionary.to_pylist()))
        return as_column([None if i is None else values[i] for i in array.indices.to_pylist()])
    is_changed = pyarrow.types.is_floating(array.type) or pyarrow.types.is_struct(array.type)
    is_text = pyarrow.types.is_string(array.type) or pyarrow.types.is_large_string(array.type)
    if is_changed or is_text:
        return as_column([blank_to_none(_encoded_file(value)) for value in array.to_pylist()])
    is_special = pyarrow.types.is_decimal(array.type) or pyarrow.types.is_duration(array.type)
    if is_special or isinstance(array, pyarrow.ExtensionArray):
        return as_column([blank_to_none(plain_value(value)) for value in array.to_pylist()])
    return Column(array)


def read_excel(
    path: Path, sheet: str | None, key: str, notes: list[str]
) -> tuple[dict[str, Column], list[int]]:
    """Read a sheet of an Excel file. Its first row contains the column names.

    Args:
        path: The file.
        sheet: Name of the sheet. None: the first one with a table.
        key: Option that sets the sheet, for messages.
        notes: A sentence is appended if the file has further sheets.

    Returns:
        The values by column name, and the number of each row in the sheet.

    Raises:
        UserError: If the file is damaged, has no such sheet, or has no column names.
    """
    _check_archive(path)
    names, rows, num_unknown = _read_sheet(path, sheet, key)
    try:
        table = _table_of(path, rows, num_unknown, notes)
        if not table[1] and len(names) > 1:
            raise UserError(f"{path}: the sheet {sheet or names[0]} has no rows")
    except UserError as error:
        if sheet is not None or len(names) == 1:
            raise
        # The first sheet is often a title page.
        other = _other_sheet(path, names[1:], key, notes)
        if other is None:
            reason = f"{error}; the file has several sheets, {key}=SHEET chooses another one"
            raise UserError(f"{reason}: {', '.join(names[1:])}") from None
        sheet, table = other
    if len(names) > 1:
        chosen = sheet or names[0]
        others = ", ".join(name for name in names if name != chosen)
        notes.append(f"sheet of {path.name}: {chosen} ({key} sets it; the others are {others})")
    return table


def _other_sheet(
    path: Path, names: Sequence[str], key: str, notes: list[str]
) -> tuple[str, tuple[dict[str, Column], list[int]]] | None:
    """Return the first of these sheets that contains a table, and the table."""
    for name in names:
        with suppress(UserError):
            _, rows, num_unknown = _read_sheet(path, name, key)
            table = _table_of(path, rows, num_unknown, notes)
            if table[1]:
                return name, table
    return None


def _table_of(
    path: Path, rows: list[tuple], num_unknown: int, notes: list[str]
) -> tuple[dict[str, Column], list[int]]:
    """Return the table of the rows of a sheet, see `read_excel`.

    Args:
        path: The file.
        rows: The rows.
        num_unknown: Number of formulas without a result.
        notes: Sentences are appended if there are titles or such formulas.
    """
    # Excel can store formatted cells without content below and right of the table.
    while rows and _is_empty(rows[-1]):
        rows.pop()
    width = max((i + 1 for row in rows for i, v in enumerate(row) if v is not None), default=0)
    check_num_cells(path, len(rows), width, path.stat().st_size)
    # Rows can be shorter, because empty cells at the end of a row are not stored.
    padded = [(*row[:width], *[None] * (width - len(row))) for row in rows]
    top = _num_titles(padded)
    header = ["" if name is None else str(name) for name in padded[top]] if rows else []
    # The first column of pandas is the index, which has no name. Other blank cells are those of a
    # merged cell, or of a title page.
    if not any(header) or not all(header[1:]):
        more = ", ..." if len(header) > MAX_NAMES else ""
        got = ", ".join(map(repr, header[:MAX_NAMES])) + more or "an empty sheet"
        raise UserError(f"{path} row 1: each column must have a name, got {got}")
    check_names(path, [name for name in header if name.strip()])
    numbered = [(i, r) for i, r in enumerate(padded[top + 1 :], top + 2) if not _is_empty(r)]
    columns = [
        as_column([blank_to_none(_plain(row[i])) for _, row in numbered]) for i in range(width)
    ]
    named = named_columns(path, header, columns)
    if numbered and top:
        notes.append(f"header of {path.name}: row {top + 1}; the rows above it are not used")
    if numbered and num_unknown:
        notes.append(
            f"{path.name}: {count(num_unknown, 'formula')} without a result; such a cell is read "
            "as empty; open the file in a spreadsheet program and save it"
        )
    return named, [number for number, _ in numbered]


def _num_titles(rows: Sequence[tuple]) -> int:
    """Return the number of rows above the header: titles in the first column, and empty rows.

    The header is the first row that is filled with texts. 0 if there is no such row.
    """
    for i, row in enumerate(rows[:MAX_TITLES]):
        if all(isinstance(value, str) and value.strip() for value in row):
            return i
        if not _is_empty(row[1:]):
            return 0
    return 0


def _check_archive(path: Path) -> None:
    """Check the sizes of the compressed files that an Excel file consists of."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_expansion(path, sum(info.file_size for info in archive.infolist()))
    except UserError:
        raise
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _invalid_excel(path, error) from error


def _invalid_excel(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: invalid Excel file ({error}); save it as .xlsx without a password")


def _read_sheet(path: Path, sheet: str | None, key: str) -> tuple[list[str], list[tuple], int]:
    """Return the names of all sheets, the rows of one, and how many formulas have no result.

    Programs that do not compute write such formulas.
    """
    # Importing openpyxl takes a moment, and only this format needs it.
    import openpyxl

    with warnings.catch_warnings():
        # openpyxl warns about features such as data validation, which do not affect the values.
        warnings.simplefilter("ignore")
        book = None
        try:
            # data_only: the results of formulas instead of the formulas.
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            names = [page.title for page in book.worksheets]
            if sheet is not None and sheet not in names:
                raise UserError(f"{key}: no sheet {sheet!r} in {path}; it has {', '.join(names)}")
            page: Any = book[sheet or names[0]]
            # A file can state a wrong size, which would cut off rows or columns.
            page.reset_dimensions()
            rows = []
            num_cells = 0
            size = path.stat().st_size
            for row in page.iter_rows(values_only=True):
                rows.append(tuple(row))
                # A cell can say that it is in the last column, and all before it are empty.
                num_cells += len(row)
                check_num_cells(path, num_cells, 1, size)
            # No public function of openpyxl tells a formula without a result from an empty cell.
            with page._get_source() as file:
                return names, rows, len(WITHOUT_RESULT.findall(file.read()))
        except UserError:
            raise
        # Damaged XML raises many kinds of errors, such as ParseError and AttributeError.
        except Exception as error:
            raise _invalid_excel(path, error) from error
        finally:
            if book is not None:
                book.close()


def _is_empty(row: tuple) -> bool:
    return all(value is None for value in row)


def _plain(value: Any) -> Any:
    """Convert a date without a time to a date. Excel stores both in the same way."""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time.min:
        return value.date()
    return plain_value(value)


def _encoded_file(value: Any) -> Any:
    """Return the bytes or the path of a file in the format of Hugging Face data sets.

    They store a file as {"bytes": ..., "path": ...}. All other values are returned unchanged.
    """
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["bytes"] or value["path"]
    return value
