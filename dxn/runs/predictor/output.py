"""Write tables of results: the suffix of the file determines the format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from torch import Tensor

from dxn.core.display import count, number
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.core.printable import csv_cell, json_text, valid_text

SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")
VECTOR_SUFFIXES = (".npy", ".csv", ".parquet")

# A row group of a Parquet file ends after this number of rows or bytes, which are in memory.
GROUP_ROWS, GROUP_BYTES = 10_000, 1 << 26
VECTOR = "vector"  # column of the embeddings before they become an array

Record = dict[str, Any]  # one row: values by column
# Reads the rows of a file from the start, in tables of Arrow that fit into memory.
Chunks = Callable[[], Iterator[pyarrow.Table]]
Finish = Callable[[Chunks, Path], None]  # writes a file from them


def check_suffix(output: str | None, suffixes: Sequence[str] = SUFFIXES) -> Path | None:
    """Return the path of the option `output`, or None if it is not set.

    Raises:
        UserError: If the path does not end in one of the suffixes.
    """
    if output is None:
        return None
    path = Path(output)
    if path.suffix.lower() not in suffixes:
        listed = list_suffixes(suffixes)
        raise UserError(f"output: must be a file that ends in {listed}, got {output}")
    return path


def rows_text(size: int, skipped: int) -> str:
    """Return a number of rows, and how many were skipped, as text."""
    return count(size, "row") + (f", {skipped:,} skipped" if skipped else "")


def list_suffixes(suffixes: Sequence[str]) -> str:
    """Return suffixes as text, such as ".csv, .json or .parquet"."""
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"


def write_records(path: Path, records: Sequence[Record], *, separator: str = "|") -> None:
    """Write one row per record. The suffix of the path determines the format.

    A .json file contains a list of objects, and a .jsonl file one object per line. Texts of a .csv
    file cannot be formulas of a spreadsheet or escape codes of a terminal, see
    `dxn.core.printable.csv_cell`. The other formats contain them as they are.

    Args:
        path: File to write.
        records: The rows. A value that a record lacks is missing in its row.
        separator: Separator of the items of a list in a CSV cell.
    """
    if path.suffix.lower() == ".parquet":
        with atomic_file(path) as partial:
            pyarrow.parquet.write_table(arrow_table(records), partial)
    else:
        write_text_rows(path, [records], columns_of(records), separator)


def columns_of(records: Sequence[Record]) -> list[str]:
    """Return the names of the columns in the order in which they first appear."""
    columns: dict[str, None] = {}  # it keeps their order, unlike a set
    for record in records:
        columns |= dict.fromkeys(record)
    return list(columns)


def write_text_rows(
    path: Path, batches: Iterable[Sequence[Record]], columns: Sequence[str], separator: str = "|"
) -> None:
    """Write rows to a CSV, JSON or JSON lines file.

    Args:
        path: File to write.
        batches: The rows, in parts that fit into memory.
        columns: Names of the columns of a CSV file.
        separator: Separator of the items of a list in a CSV cell.
    """
    suffix = path.suffix.lower()
    with (
        atomic_file(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8") as file,
    ):
        if suffix == ".csv":
            table = csv.writer(file)
            # The name of a column comes from a table too.
            table.writerow(map(csv_cell, columns))
            for records in batches:
                table.writerows(
                    [format_cell(record.get(name), separator) for name in columns]
                    for record in records
                )
        elif suffix == ".jsonl":
            for records in batches:
                file.writelines(f"{json_text(record)}\n" for record in records)
        else:
            before = "[\n"
            for records in batches:
                for record in records:
                    # One line per row: the lists in a row, such as words, would take one per item.
                    file.write(before + json_text(record))
                    before = ",\n"
            file.write("[]\n" if before == "[\n" else "\n]\n")


def arrow_table(records: Sequence[Record]) -> pyarrow.Table:
    """Return rows as a table of Arrow."""
    table: dict[str, pyarrow.Array] = {}
    for name in columns_of(records):
        values = [record.get(name) for record in records]
        try:
            valid = [valid_text(value) if isinstance(value, str) else value for value in values]
            column = pyarrow.array(valid)
        except (pyarrow.ArrowException, UnicodeEncodeError, OverflowError):
            # A column of a JSON lines file can mix types, such as numbers and texts.
            column = texts_of(values)
        table[valid_text(name)] = column
    return pyarrow.table(table)


def vector_lines(vector: Tensor, count: int = 6) -> list[str]:
    """Return the size and the first numbers of an embedding as lines to read."""
    shown = ", ".join(number(value) for value in vector[:count].tolist())
    more = ", ..." if len(vector) > count else ""
    return [f"embedding: {len(vector)} numbers", f"  {shown}{more}"]


def format_cell(value: Any, separator: str = "|") -> str:
    """Return a value as one cell of a CSV file.

    Args:
        value: A number, a text, None, or a list or dict of them.
        separator: Separator of the items of a list of texts. If the separated items could not be
            told apart, the cell contains the list as JSON.
    """
    if value is None:
        return ""
    if isinstance(value, float):
        # repr has the digits that are needed to read the same float64 again; 3 instead of 3.0.
        return repr(value).removesuffix(".0")
    if isinstance(value, list | tuple | dict):
        # Labels are read without the white space around them.
        is_joined = isinstance(value, list | tuple) and all(
            isinstance(item, str) and item == item.strip() != "" and separator not in item
            for item in value
        )
        text = separator.join(value) if is_joined else json.dumps(value, ensure_ascii=False)
        return csv_cell(text)
    # A number cannot be a formula, not even a negative one.
    return str(value) if isinstance(value, int) else csv_cell(str(value))


def texts_of(values: Sequence[Any]) -> pyarrow.Array:
    """Return a column whose values have different types as texts."""
    return pyarrow.array([None if value is None else format_cell(value) for value in values])


def write_rows(chunks: Chunks, path: Path, *, separator: str) -> None:
    """Write chunks as one CSV, JSON or JSON lines file."""
    columns = common_schema(chunk.schema for chunk in chunks()).names
    write_text_rows(path, (chunk.to_pylist() for chunk in chunks()), columns, separator)


def write_parquet(chunks: Chunks, path: Path) -> None:
    """Write chunks as one Parquet file. A column whose types differ contains texts."""
    schema = exact_schema(common_schema(chunk.schema for chunk in chunks()), chunks())
    with (
        atomic_file(path) as unfinished,
        pyarrow.parquet.ParquetWriter(unfinished, schema) as writer,
    ):
        group: list[pyarrow.Table] = []
        for chunk in chunks():
            group.append(with_schema(chunk, schema))
            num_bytes = sum(table.nbytes for table in group)
            if num_bytes >= GROUP_BYTES or sum(map(len, group)) >= GROUP_ROWS:
                writer.write_table(pyarrow.concat_tables(group).combine_chunks())
                group = []
        if group:
            writer.write_table(pyarrow.concat_tables(group).combine_chunks())


def write_array(chunks: Chunks, path: Path) -> None:
    """Write the column of vectors as a .npy file, and the others as a CSV file beside it."""
    num_rows = sum(map(len, chunks()))
    size = len(next(chunks())[VECTOR][0])
    header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, size)}
    columns = next(chunks()).drop_columns([VECTOR]).column_names
    ids = (chunk.drop_columns([VECTOR]).to_pylist() for chunk in chunks())
    write_text_rows(ids_file(path), ids, columns)
    with atomic_file(path) as unfinished, unfinished.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in chunks():
            file.write(chunk[VECTOR].combine_chunks().flatten().to_numpy().tobytes())


def ids_file(path: Path) -> Path:
    """Return the file with the columns that identify the rows of an array."""
    return path.with_suffix(".ids.csv")


def common_schema(schemas: Iterable[pyarrow.Schema]) -> pyarrow.Schema:
    """Return all columns of tables. A column whose types differ contains texts."""
    common: dict[str, pyarrow.Field] = {}
    for schema in schemas:
        for field in schema:
            column = common.setdefault(field.name, field)
            if column.type == field.type:
                continue
            pair = [pyarrow.schema([column]), pyarrow.schema([field])]
            try:
                merged = pyarrow.unify_schemas(pair, promote_options="permissive").field(0)
            except pyarrow.ArrowException:
                merged = field.with_type(pyarrow.string())
            common[field.name] = merged
    return pyarrow.schema(list(common.values()))


def exact_schema(schema: pyarrow.Schema, tables: Iterable[pyarrow.Table]) -> pyarrow.Schema:
    """Return the schema of tables with texts where values do not fit into the common type.

    Whole numbers beyond 2^53, such as identifiers, are no exact decimals.
    """
    fields = {field.name: field for field in schema}
    for table in tables:
        for column, own in zip(table.columns, table.schema, strict=True):
            field = fields[own.name]
            if field.type in (own.type, pyarrow.string()):
                continue
            try:
                column.cast(field.type)
            except pyarrow.ArrowException:
                fields[own.name] = field.with_type(pyarrow.string())
    return pyarrow.schema(list(fields.values()))


def with_schema(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """Return a table with the columns of `exact_schema`."""
    columns: list[Any] = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pyarrow.nulls(len(table), field.type))
            continue
        column = table[field.name]
        is_text = field.type == pyarrow.string() and not pyarrow.types.is_null(column.type)
        is_mixed = is_text and column.type != field.type
        columns.append(texts_of(column.to_pylist()) if is_mixed else column.cast(field.type))
    return pyarrow.table(columns, schema=schema)
