"""Write tables of results: the suffix of the file determines the format."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from torch import Tensor

from dxn.core.display import count, number
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.core.printable import csv_cell, json_text, valid_text

SUFFIXES = (".csv", ".jsonl", ".json", ".parquet")
VECTOR_SUFFIXES = (".npy", ".csv", ".parquet")

Record = dict[str, Any]  # one row: values by column


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
    suffix = path.suffix.lower()
    with atomic_file(path) as partial:
        if suffix == ".parquet":
            pyarrow.parquet.write_table(arrow_table(records), partial)
            return
        with partial.open("w", newline="", encoding="utf-8") as file:
            for text in encode_rows([records], suffix, columns_of(records), separator):
                file.write(text)


def columns_of(records: Sequence[Record]) -> list[str]:
    """Return the names of the columns in the order in which they first appear."""
    columns: dict[str, None] = {}  # it keeps their order, unlike a set
    for record in records:
        columns |= dict.fromkeys(record)
    return list(columns)


def encode_rows(
    batches: Iterable[Sequence[Record]], suffix: str, columns: Sequence[str], separator: str
) -> Iterator[str]:
    """Yield the parts of a text file that contains rows.

    Args:
        batches: The rows, in parts that fit into memory.
        suffix: Suffix of the file: .csv, .json or .jsonl.
        columns: Names of the columns of a CSV file.
        separator: Separator of the items of a list in a CSV cell.
    """
    if suffix == ".csv":
        # The name of a column comes from a table too.
        yield _csv_lines([map(csv_cell, columns)])
        for records in batches:
            yield _csv_lines(
                [format_cell(record.get(name), separator) for name in columns] for record in records
            )
    elif suffix == ".jsonl":
        for records in batches:
            yield "".join(f"{json_text(record)}\n" for record in records)
    else:
        before = "[\n"
        for records in batches:
            for record in records:
                # One line per row: the lists in a row, such as words, would take one per item.
                yield before + json_text(record)
                before = ",\n"
        yield "[]\n" if before == "[\n" else "\n]\n"


def _csv_lines(rows: Iterable[Iterable[str]]) -> str:
    file = StringIO(newline="")
    csv.writer(file).writerows(rows)
    return file.getvalue()


def arrow_table(records: Sequence[Record]) -> pyarrow.Table:
    """Return rows as a table of Arrow."""
    columns = columns_of(records)
    return pyarrow.table({valid_text(n): _array([r.get(n) for r in records]) for n in columns})


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
        is_joined = isinstance(value, list | tuple) and all(_is_plain(v, separator) for v in value)
        text = separator.join(value) if is_joined else json.dumps(value, ensure_ascii=False)
        return csv_cell(text)
    # A number cannot be a formula, not even a negative one.
    return str(value) if isinstance(value, int) else csv_cell(str(value))


def _is_plain(item: Any, separator: str) -> bool:
    # Labels are read without the white space around them.
    return isinstance(item, str) and item != "" and item == item.strip() and separator not in item


def _array(values: Sequence[Any]) -> pyarrow.Array:
    """Return a column of a Parquet file."""
    try:
        return pyarrow.array([valid_text(v) if isinstance(v, str) else v for v in values])
    except (pyarrow.ArrowException, UnicodeEncodeError, OverflowError):
        # A column of a JSON lines file can mix types, such as numbers and texts.
        return texts_of(values)


def texts_of(values: Sequence[Any]) -> pyarrow.Array:
    """Return a column whose values have different types as texts."""
    return pyarrow.array([None if value is None else format_cell(value) for value in values])
