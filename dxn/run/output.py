"""Write tables of results: CSV, JSON, JSON lines or Parquet, by the suffix of the file."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from dxn.errors import UserError

SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")

Record = Mapping[str, Any]  # one row: values by column


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


def list_suffixes(suffixes: Sequence[str]) -> str:
    """Return suffixes as text, such as ".csv, .json or .parquet"."""
    return f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"


def write_records(path: Path, records: Sequence[Record], *, separator: str = "|") -> None:
    """Write one row per record. The suffix of the path determines the format.

    A .json file contains a list of objects, and a .jsonl file one object per line.

    Args:
        path: File to write.
        records: The rows. A value that a record lacks is missing in its row.
        separator: Separator of the items of a list in a CSV cell.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A dict keeps the order in which the columns first appear, unlike a set.
    columns: dict[str, None] = {}
    for record in records:
        columns |= dict.fromkeys(record)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        arrays = {name: _array([record.get(name) for record in records]) for name in columns}
        pyarrow.parquet.write_table(pyarrow.table(arrays), path)
        return
    if suffix == ".json":
        # One line per row: the lists in a row, such as words, would take one line per item.
        lines = ",\n".join(map(_as_json, records))
        path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        if suffix == ".jsonl":
            file.writelines(f"{_as_json(record)}\n" for record in records)
            return
        writer = csv.writer(file)
        writer.writerow(columns)
        for record in records:
            writer.writerow([format_cell(record.get(name), separator) for name in columns])


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
        is_joined = isinstance(value, list | tuple) and all(_is_plain(v, separator) for v in value)
        return separator.join(value) if is_joined else json.dumps(value, ensure_ascii=False)
    return str(value)


def _as_json(record: Mapping[str, Any]) -> str:
    # Cells of Excel and Parquet tables can be dates, which JSON does not have.
    return json.dumps(record, ensure_ascii=False, default=str)


def _is_plain(item: Any, separator: str) -> bool:
    # Labels are read without the white space around them.
    return isinstance(item, str) and item != "" and item == item.strip() and separator not in item


def _array(values: Sequence[Any]) -> pyarrow.Array:
    """Return a column of a Parquet file."""
    try:
        return pyarrow.array(values)
    except pyarrow.ArrowException:
        # A column of a JSON lines file can mix types, such as numbers and texts.
        return pyarrow.array([None if value is None else format_cell(value) for value in values])
