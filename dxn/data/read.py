"""Read tables from files: CSV, TSV, JSONL and Parquet."""

from __future__ import annotations

import csv
import difflib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from dxn.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
# Maximum number of characters of a CSV cell. The default of the csv module, 131,072, is too low for
# long texts. A larger value than this overflows the C long on Windows.
MAX_CELL = 2**31 - 1


@dataclass(frozen=True)
class Table:
    """The content of one or several table files.

    Args:
        columns: Values by column name, one per row. None where the cell is blank.
        files: File of each row.
        lines: Number of each row in its file, as a spreadsheet or an editor shows it.
    """

    columns: Mapping[str, list]
    files: Sequence[Path]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Sequence[int]) -> Table:
        """Return a table of the rows at these indices, in this order."""
        columns: dict[str, list] = {}
        for name, values in self.columns.items():
            columns[name] = [values[i] for i in indices]
        return Table(columns, [self.files[i] for i in indices], [self.lines[i] for i in indices])

    def column(self, name: str, key: str) -> list:
        """Return the values of a column.

        Args:
            name: Name of the column.
            key: Option that contains the name, for the error message.

        Raises:
            UserError: If there is no such column.
        """
        if name not in self.columns:
            close = difflib.get_close_matches(name, self.columns, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            file = self.files[0].name if self.files else "the table"
            known = ", ".join(self.columns)
            raise UserError(f"{key}: no column {name!r} in {file}; its columns are {known}{hint}")
        return self.columns[name]

    def origin(self, i: int) -> str:
        """Return the file and number of row i, such as "train.csv row 17"."""
        return f"{self.files[i].name} row {self.lines[i]}"


def read_table(path: Path, *, sep: str | None = None) -> Table:
    """Read one table file.

    CSV cells are not converted; only an empty or blank cell becomes None. The header of a CSV file
    is row 1, as in a spreadsheet.

    Args:
        path: The file. Its suffix determines the format.
        sep: Separator of CSV cells. Default: a tab in a .tsv file, otherwise a comma.

    Raises:
        UserError: If the file cannot be read; the message names the file and the row.
    """
    if not path.is_file():
        raise UserError(f"{path}: file not found (current directory: {Path.cwd()})")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, sep or ("\t" if suffix == ".tsv" else ","))
    if suffix == ".jsonl":
        return _read_jsonl(path)
    if suffix == ".parquet":
        return _read_parquet(path)
    raise UserError(f"{path}: unknown table format {suffix!r}; use one of {', '.join(SUFFIXES)}")


def concatenate(tables: Sequence[Table]) -> Table:
    """Concatenate the rows of tables that have the same columns, in any order.

    Raises:
        UserError: If the columns differ.
    """
    first = tables[0]
    for other in tables[1:]:
        different = sorted(set(other.columns) ^ set(first.columns))
        if different:
            _raise_different_columns(first, other, different[0])
    columns = {name: [] for name in first.columns}
    files: list[Path] = []
    lines: list[int] = []
    for table in tables:
        for name, values in columns.items():
            values += table.columns[name]
        files += table.files
        lines += table.lines
    return Table(columns, files, lines)


def as_list(value: Any) -> list:
    """Convert an option to a list: None to an empty list, a single value to a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def blank_to_none(value: Any) -> Any:
    """Convert blank strings and NaN to None. pandas writes NaN for a missing value."""
    # NaN is the only value that is not equal to itself.
    is_blank = not value.strip() if isinstance(value, str) else value != value
    return None if is_blank else value


def _raise_different_columns(first: Table, other: Table, column: str) -> None:
    name = other.files[0] if len(other) else "a table without rows"
    if column in first.columns:
        problem = f"has no column {column!r}, which the other tables have"
    else:
        problem = f"has a column {column!r}, which the other tables do not have"
    raise UserError(f"{name}: {problem}; use tables that all have the same columns")


def _read_csv(path: Path, sep: str) -> Table:
    if len(sep) != 1:
        raise UserError(f"data.sep: must be one character, got {sep!r}")
    csv.field_size_limit(MAX_CELL)
    # strict=True raises an error for broken quotes, which the csv module would otherwise silently
    # interpret in some way.
    reader = csv.reader(io.StringIO(_read_utf8(path), newline=""), delimiter=sep, strict=True)
    number = 1
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        header = next(reader, [])
        _check_header(path, header, sep)
        for number, row in enumerate(reader, 2):
            if not row:  # a blank line
                continue
            _check_width(path, number, row, header)
            rows.append(row)
            lines.append(number)
    except csv.Error as error:
        raise UserError(f"{path}: invalid CSV after row {number} ({error})") from error
    # Cells are not converted to numbers, because a zip code such as 01234 must not become 1234.
    columns: dict[str, list] = {}
    for i, name in enumerate(header):
        columns[name] = [blank_to_none(row[i]) for row in rows]
    return Table(columns, [path] * len(rows), lines)


def _check_header(path: Path, header: list[str], sep: str) -> None:
    if not any(header):
        raise UserError(f"{path}: no column names; the first row must contain them")
    if len(header) == 1:
        # A single column name that contains another common separator: sep is probably wrong.
        other = next((s for s in ";\t|," if s != sep and s in header[0]), None)
        if other is not None:
            raise UserError(
                f"{path} row 1: column names must be separated by {sep!r}, got {header[0]!r}; "
                f"try data.sep={other!r}"
            )
    # A dict of columns would silently keep only the last of several columns with the same name.
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise UserError(
            f"{path} row 1: column names must be unique, got {repeated[0]!r} more than once; "
            "rename a column"
        )


def _check_width(path: Path, number: int, row: list[str], header: list[str]) -> None:
    if len(row) == len(header):
        return
    if len(row) > len(header):
        hint = "put cells that contain the separator in quotes"
    else:
        hint = "add the missing cells"
    raise UserError(
        f"{path} row {number}: must have {len(header)} cells, as the header has, got {len(row)}; "
        f"{hint}"
    )


def _read_jsonl(path: Path) -> Table:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    # str.splitlines would also split at line separators such as U+2028 within a JSON string.
    for number, line in enumerate(_read_utf8(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path} row {number}: invalid JSON ({error.msg} at character {error.colno})"
            ) from error
        if not isinstance(row, dict):
            raise UserError(
                f'{path} row {number}: must be an object {{"column": value}}, got {line[:40]}'
            )
        rows.append(row)
        lines.append(number)
    # Objects may have different keys. Columns are in the order in which their keys first appear;
    # a dict keeps that order, unlike a set.
    names = dict.fromkeys(chain.from_iterable(rows))
    columns: dict[str, list] = {}
    for name in names:
        columns[name] = [blank_to_none(row.get(name)) for row in rows]
    return Table(columns, [path] * len(rows), lines)


def _read_parquet(path: Path) -> Table:
    try:
        values = pyarrow.parquet.read_table(path).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]  # pyarrow appends a C++ stack trace
        raise UserError(f"{path}: invalid Parquet file ({reason})") from error
    columns: dict[str, list] = {}
    for name, column in values.items():
        columns[name] = [blank_to_none(_encoded_file(value)) for value in column]
    count = len(next(iter(columns.values()), []))
    return Table(columns, [path] * count, list(range(1, count + 1)))


def _encoded_file(value: Any) -> Any:
    """Return the bytes or the path of a file in the format of Hugging Face data sets.

    They store a file as {"bytes": ..., "path": ...}. All other values are returned unchanged.
    """
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["bytes"] or value["path"]
    return value


def _read_utf8(path: Path) -> str:
    data = path.read_bytes()
    try:
        # Excel writes a byte order mark at the start of a file, which utf-8-sig removes.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} line {line}: the file is not valid UTF-8 ({error.reason}); save it as UTF-8"
        ) from error
