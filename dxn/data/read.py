"""Tables as they stand in their files: CSV, TSV, JSONL and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from dxn.errors import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
MAX_CELL = 2**31 - 1  # characters; the csv module's own limit of 131,072 is too low for a long text


@dataclass(frozen=True)
class Table:
    """Columns as read, and for each row its file and line."""

    columns: Mapping[str, list]
    files: Sequence[Path]
    lines: Sequence[int]

    def __len__(self) -> int:
        return len(self.files)

    def take(self, indices: Sequence[int]) -> Table:
        """The rows of these indices."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return Table(columns, [self.files[i] for i in indices], [self.lines[i] for i in indices])

    def origin(self, i: int) -> str:
        """Where row i came from: "train.csv row 17"."""
        return f"{self.files[i].name} row {self.lines[i]}"


def read(path: Path, *, sep: str | None = None) -> Table:
    """One file. CSV cells are text as they stand; only an empty or blank one is missing (None).

    A row's number is the one a spreadsheet shows: the header of a CSV is row 1. sep: between the cells of a
    CSV; a comma, or a tab in .tsv, unless given. Raises UserError with the file and the row.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _read_csv(path, sep or ("\t" if suffix == ".tsv" else ","))
    if suffix == ".jsonl":
        return _read_jsonl(path)
    if suffix == ".parquet":
        return _read_parquet(path)
    raise UserError(f"{path}: not a table this reads ({', '.join(SUFFIXES)})")


def joined(tables: Sequence[Table]) -> Table:
    """One table of all rows; the columns must be the same, in whatever order."""
    first = tables[0]
    for other in tables[1:]:
        if odd := sorted(set(other.columns) ^ set(first.columns)):
            name = other.files[0] if len(other) else "a table without rows"
            has = "lacks" if odd[0] in first.columns else "alone has"
            raise UserError(f"{name}: {has} column {odd[0]!r}; tables that belong together need the same columns")
    columns = {name: [v for t in tables for v in t.columns[name]] for name in first.columns}
    return Table(columns, [f for t in tables for f in t.files], [n for t in tables for n in t.lines])


def _read_csv(path: Path, sep: str) -> Table:
    if len(sep) != 1:
        raise UserError(f"data.sep: must be one character, got {sep!r}")
    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(io.StringIO(_utf8(path), newline=""), delimiter=sep, strict=True)
    number = 1
    rows, lines = [], []
    try:
        header = _header(path, next(reader, []), sep)
        for number, row in enumerate(reader, 2):
            if row:  # not a blank line
                _check_width(path, number, row, header)
                rows.append(row)
                lines.append(number)
    except csv.Error as error:
        raise UserError(f"{path} after row {number}: not a CSV that can be read ({error})") from error
    columns = {name: [blank(row[i]) for row in rows] for i, name in enumerate(header)}
    return Table(columns, [path] * len(rows), lines)


def _header(path: Path, header: list[str], sep: str) -> list[str]:
    if not any(header):
        raise UserError(f"{path}: empty, a table begins with a row of column names")
    if len(header) == 1 and (other := next((s for s in ";\t|," if s != sep and s in header[0]), None)):
        raise UserError(f"{path} row 1: no {sep!r} between the column names; is it data.sep={other!r}?")
    if twice := [name for name, n in Counter(header).items() if n > 1]:
        raise UserError(f"{path} row 1: two columns called {twice[0]!r}; rename one")
    return header


def _check_width(path: Path, number: int, row: list[str], header: list[str]) -> None:
    if len(row) != len(header):
        hint = "quote cells that hold the separator" if len(row) > len(header) else "fill the row up"
        raise UserError(f"{path} row {number}: {len(row)} cells, the header has {len(header)}; {hint}")


def _read_jsonl(path: Path) -> Table:
    rows, lines = [], []
    for number, line in enumerate(_utf8(path).split("\n"), 1):  # splitlines() also splits inside of strings
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path} row {number}: not JSON ({error.msg}, column {error.colno})") from error
        if not isinstance(row, dict):
            raise UserError(f'{path} row {number}: must be an object {{"column": value}}, got {line[:40]}')
        rows.append(row)
        lines.append(number)
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({n: [blank(row.get(n)) for row in rows] for n in names}, [path] * len(rows), lines)


def _read_parquet(path: Path) -> Table:
    try:
        found = pyarrow.parquet.read_table(path).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file that can be read ({str(error).splitlines()[0]})") from error
    columns = {name: [blank(_file(v)) for v in values] for name, values in found.items()}
    count = len(next(iter(columns.values()), []))
    return Table(columns, [path] * count, list(range(1, count + 1)))


def _file(value: Any) -> Any:
    """A picture or sound as the hub's Parquet files hold it: its bytes, or else its path."""
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        return value["bytes"] or value["path"]
    return value


def _utf8(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} line {line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error


def blank(value: Any) -> Any:
    """None for what stands for nothing: an empty or blank cell, and NaN, with which pandas marks one."""
    blank = not value.strip() if isinstance(value, str) else value != value
    return None if blank else value
