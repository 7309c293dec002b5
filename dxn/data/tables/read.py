"""Read tables from files: CSV, TSV, JSON, JSONL, Excel, Parquet and CoNLL."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dxn.core.errors import UserError, did_you_mean
from dxn.data.formats import CONLL, TABLES, require_path, table_format
from dxn.data.rows import Column, Origins, as_column, blank_to_none, join_columns
from dxn.data.tables.binary import read_excel, read_parquet
from dxn.data.tables.csv import filled_names, read_conll, read_csv
from dxn.data.tables.files import read_text
from dxn.data.tables.json import read_json, read_jsonl

MAX_NAME = 500  # characters of the name of a column; an input can have a longer name of its own
MAX_SHOWN = 40  # of these in a message


def column_name(name: str) -> str:
    """Return the name of a column in its usual form: composed, and without outer spaces.

    The same name can be typed with composed letters and be written with decomposed ones in a file,
    which look equal.
    """
    return unicodedata.normalize("NFC", name).strip() or name


class MissingColumn(UserError):
    """A table lacks a column that an option names."""


@dataclass(frozen=True)
class Table:
    """The content of one or several table files.

    Args:
        columns: Cells by column name, one per row. None where the cell is blank.
        origins: File and number of each row, as a spreadsheet or an editor shows it.
        notes: Sentences about how the files were read.
        path: The first file, which messages about the whole table name.
    """

    columns: Mapping[str, Column]
    origins: Origins
    notes: Sequence[str] = ()
    path: Path | None = None

    def __post_init__(self):
        names = [column_name(name) for name in filled_names(self.columns)]
        long = next((name for name in names if len(name) > MAX_NAME), None)
        if long is not None:
            raise UserError(
                f"{self.name}: a column name has {len(long):,} characters, but at most {MAX_NAME} "
                f"are possible; rename column {long[:MAX_SHOWN]!r}..."
            )
        repeated = [name for name in names if names.count(name) > 1] if names else []
        if repeated and names != list(self.columns):
            raise UserError(
                f"{self.name}: two columns called {repeated[0]!r}, if spaces at their ends and "
                "Unicode forms are left out of account; rename one of them"
            )
        columns = dict(zip(names, map(as_column, self.columns.values()), strict=True))
        object.__setattr__(self, "columns", columns)  # the dataclass is frozen

    def __len__(self) -> int:
        return len(self.origins)

    @property
    def name(self) -> str:
        """Name of the first file, for messages."""
        path = self.path or next(iter(self.origins.files), None)
        return "the table" if path is None else path.name

    def take(self, indices: Sequence[int] | np.ndarray) -> Table:
        """Return a table of the rows at these indices, without copying any cell."""
        rows = np.asarray(indices, np.int64)
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return Table(columns, self.origins.take(rows), self.notes, self.path)

    def column(self, name: str, key: str) -> Column:
        """Return a column.

        Args:
            name: Name of the column.
            key: Option that contains the name, for the error message.

        Raises:
            MissingColumn: If there is no such column.
        """
        name = column_name(name)
        if name not in self.columns:
            hint = did_you_mean(name, self.columns)
            names = ", ".join(self.columns)
            sheets = "".join(f"; {note}" for note in self.notes if note.startswith("sheet of"))
            raise MissingColumn(
                f"{key}: no column {name!r} in {self.name}; its columns are {names}{hint}{sheets}"
            )
        return self.columns[name]

    def origin(self, i: int) -> str:
        """Return the file and number of row i, such as "train.csv row 17"."""
        return self.origins[i]


class Rearranging(NamedTuple):
    """What a table is rearranged for, see `Layout.apply`."""

    key: str
    required: Collection[str]
    with_target: bool
    notes: list[str]


class Layout:
    """How a table is rearranged. Base class of dataclasses, see `dxn.data.series.layouts`.

    Attributes:
        kind: Key of the node.
    """

    kind: ClassVar[str]

    @property
    def ids(self) -> Sequence[str]:
        """Columns that identify a row of the new table. They are not inputs. Default: none."""
        return ()

    def apply(
        self,
        table: Table,
        *,
        key: str = "data.",
        required: Collection[str] = (),
        with_target: bool = True,
        notes: list[str] | None = None,
    ) -> Table:
        """Return the rearranged table.

        Args:
            table: The table as it was read.
            key: Prefix of the options in error messages; "" for a table of predict or evaluate.
            required: Columns that later code needs, such as the target.
            with_target: Whether the rows are used with their targets. False: predict.
            notes: Sentences about what was left out are appended to this list.

        Raises:
            UserError: If a column is missing, or the rows cannot be rearranged.
        """
        use = Rearranging(key, required, with_target, [] if notes is None else notes)
        return self.rearranged(table, use)

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return the rearranged table, see `apply`."""
        raise NotImplementedError

    def node(self) -> dict[str, Any]:
        """Return the layout as plain data with one key, its kind, see `layout_of`.

        The value is a mapping of the fields, or the columns if there is no other field.
        """
        values = {name: value for name, value in vars(self).items() if value is not None}
        return {self.kind: values["columns"] if list(values) == ["columns"] else values}

    def options(self) -> dict[str, Any]:
        """Return the options of a data source that create this layout again."""
        return self.node()


def read_table(
    path: Path,
    *,
    sep: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    prefix: str = "data.",
) -> Table:
    """Read one table file.

    CSV cells are not converted; only an empty or blank cell becomes None. The header of a CSV or
    Excel file is row 1, as in a spreadsheet.

    Args:
        path: The file. Its name determines the format.
        sep: Separator of CSV cells. None: detect it.
        encoding: Encoding of text formats. None: UTF-8, or UTF-16 with a byte order mark.
        sheet: Name of the sheet of an Excel file. None: the first one with a table.
        prefix: Prefix of these options on the command line, for error messages.

    Raises:
        UserError: If the file cannot be read; the message names the file and the row.
    """
    require_path(path)
    notes: list[str] = []
    form = table_format(path)
    if form is None or path.is_dir():
        raise UserError(f"{path}: must be a table; use one of the formats {', '.join(TABLES)}")
    if form == ".parquet":
        columns, lines = read_parquet(path)
    elif form == ".xlsx":
        columns, lines = read_excel(path, sheet, f"{prefix}sheet", notes)
    else:
        key = f"{prefix}encoding"
        # A whole JSON file is usually one line.
        text = read_text(path, encoding, key=key, has_lines=form != ".json")
        if form == ".jsonl":
            columns, lines = read_jsonl(path, text)
        elif form == ".json":
            columns, lines = read_json(path, text)
        elif form in CONLL:
            columns, lines = read_conll(path, text, notes)
        else:
            default = "\t" if form == ".tsv" else ","
            key = f"{prefix}sep"
            columns, lines = read_csv(path, text, sep, default, key, notes)
    packed: dict[str, Column] = {}
    for name, cells in columns.items():
        present = cells if isinstance(cells, Column) else list(map(blank_to_none, cells))
        packed[name] = as_column(present, is_json=form in (".json", ".jsonl"))
    return Table(packed, Origins([path], lines), notes, path)


def concatenate(tables: Sequence[Table]) -> Table:
    """Concatenate the rows of tables that have the same columns, in any order.

    Raises:
        UserError: If the columns differ.
    """
    first = tables[0]
    if len(tables) == 1:
        return first
    for other in tables[1:]:
        different = sorted(set(other.columns) ^ set(first.columns))
        if different:
            _raise_different_columns(first, other, different[0])
    columns: dict[str, Column] = {}
    for name in first.columns:
        columns[name] = join_columns([table.columns[name] for table in tables])
    files: list[Path] = []
    file_of: list[np.ndarray] = []
    notes: dict[str, None] = {}  # a dict keeps the order and drops repetitions
    for table in tables:
        file_of.append(table.origins.file_of + len(files))
        files += table.origins.files
        notes |= dict.fromkeys(table.notes)
    lines = np.concatenate([table.origins.lines for table in tables])
    origins = Origins(files, lines, np.concatenate(file_of))
    return Table(columns, origins, list(notes), first.path)


def one_value_each(
    cells: Sequence[Any], groups: Collection[Sequence[int]]
) -> tuple[list[Any], tuple[int, int] | None]:
    """Return the value of each group of rows, and two rows of a group that differ.

    Args:
        cells: The cells of a column; None where missing. A group without any value has None.
        groups: The rows of each group.
    """
    values: list[Any] = []
    differing: tuple[int, int] | None = None
    for rows in groups:
        present = [row for row in rows if cells[row] is not None]
        values.append(cells[present[0]] if present else None)
        for row in present:
            if differing is None and cells[row] != cells[present[0]]:
                differing = present[0], row
    return values, differing


def differing_values(table: Table, column: str, rows: tuple[int, int], what: str) -> UserError:
    """Return the error about two rows of a group, such as a series, that differ in a column."""
    first, other = rows
    cells = table.columns[column]
    return UserError(
        f"{table.origin(other)}: column {column!r} must have one value per {what}, got "
        f"{cells[first]!r} and {cells[other]!r}; correct the table, or remove the column"
    )


def as_list(value: Any) -> list:
    """Convert an option to a list: None to an empty list, a single value to a list of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _raise_different_columns(first: Table, other: Table, column: str) -> None:
    name = other.path or other.name
    if column in first.columns:
        problem = f"has no column {column!r}, which the other tables have"
    else:
        problem = f"has a column {column!r}, which the other tables do not have"
    raise UserError(f"{name}: {problem}; use tables that all have the same columns")
