"""The layout of a table in which one row is a word, and a column says of which sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.data.rows import as_column
from dxn.data.tables.read import Layout, Rearranging, Table, differing_values, one_value_each

WORD = re.compile(r"words?|tokens?", re.IGNORECASE)
MIN_WORDS = 2  # mean number of rows per sentence from which the rows are recognized as words
# Name of a column that identifies the sentence of a row, if each row is a word.
SENTENCE = re.compile(r"sent(ence)?[ _]?(id|idx|index|no|nr|num|number|#)?", re.IGNORECASE)


@dataclass(frozen=True)
class Sentences(Layout):
    """Several rows are one sentence: each row is a word.

    Args:
        id: Column that identifies the sentence of a row. A blank cell means the sentence of the row
            before. A table without this column has one sentence per row already.
        columns: Columns with a value per word, which become lists: the words and their tags.
    """

    id: str
    columns: Sequence[str]

    kind = "sentence"

    def __post_init__(self) -> None:
        names = [self.id, *self.columns]
        if isinstance(self.columns, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"id and columns must be names of columns, got {names!r}")

    @property
    def ids(self) -> Sequence[str]:
        return [self.id]

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return a table with one row per sentence.

        Other columns are kept if they have one value per sentence, such as the split.
        """
        if self.id not in table.columns:
            return table
        sentences = _sentences(table, self.id)
        columns: dict[str, list] = {}
        varying: list[str] = []
        for name, column in table.columns.items():
            values = list(column)  # a cell is used several times
            cells, differing = one_value_each(values, sentences)
            if name in self.columns:
                columns[name] = [_cells(table, name, values, rows) for rows in sentences]
            elif differing is None:
                columns[name] = cells
            elif name in use.required:
                raise differing_values(table, name, differing, "sentence")
            else:
                varying.append(name)
        used = [name for name in self.columns if name in columns]
        use.notes.append(
            f"each row is a word: the rows with the same {self.id} are one sentence, of which "
            f"{' and '.join(used)} become lists"
        )
        if varying:
            use.notes.append(f"not used: {', '.join(varying)} (several values per sentence)")
        packed = {name: as_column(cells) for name, cells in columns.items()}
        first = np.array([rows[0] for rows in sentences], np.int64)
        return Table(packed, table.origins.take(first), table.notes, table.path)

    def options(self) -> dict[str, Any]:
        return {self.kind: self.id}


def find_sentences(
    table: Table, column: str | None, *, inputs: Sequence[str], targets: Sequence[str]
) -> Sentences | None:
    """Return the layout of a table whose rows are words. None: the table has another layout.

    Args:
        table: All rows of all splits.
        column: Column that identifies the sentence, which the user chose. None: it is recognized by
            its name, such as sentence_id, next to a column such as word.
        inputs: Columns that the user chose as inputs.
        targets: Possible target columns.

    Raises:
        UserError: If the chosen column does not exist, or no column has the words.
    """

    words = [name for name in table.columns if WORD.fullmatch(name) or name in inputs]
    words = [name for name in words if name not in targets]
    if column is None:
        names = [name for name in table.columns if SENTENCE.fullmatch(name) and name not in words]
        if not names or not words or not _are_ids(table.columns[names[0]]):
            return None
        if any(isinstance(value, list | dict) for value in table.columns[words[0]]):
            return None
        column = names[0]
        if len(_sentences(table, column)) * MIN_WORDS > len(table):
            return None
    else:
        table.column(column, "data.sentence")
        if not words:
            raise UserError(
                "data.sentence: the column of the words must be called word or token, or be set, "
                "as in data.text=COLUMN"
            )
    sentences = _sentences(table, column)
    used = [*words, *targets]
    varying = [name for name in used if _varies(list(table.columns.get(name, ())), sentences)]
    return Sentences(column, list(dict.fromkeys(varying)))


def _are_ids(values: Sequence[Any]) -> bool:
    """Return whether values are numbers or short texts, not the sentences themselves."""
    present = [value for value in values if value is not None]
    return all(
        isinstance(value, int | float) or (isinstance(value, str) and len(value.split()) <= 2)
        for value in present
    )


def _sentences(table: Table, column: str) -> list[list[int]]:
    """Return the indices of the rows of each sentence."""
    values = table.columns[column]
    # Some tables name the sentence only in the row of its first word.
    filled: list[Any] = []
    for i, value in enumerate(values):
        if isinstance(value, list | dict):
            raise UserError(
                f"{table.origin(i)}: column {column!r} must have a text or a number, which "
                "identifies the sentence; set data.sentence to another column"
            )
        filled.append(filled[-1] if value is None and filled else value)
    # A number of a sentence can occur again in the next document.
    return [list(rows) for _, rows in groupby(range(len(table)), filled.__getitem__)]


def _varies(values: Sequence[Any], sentences: Sequence[Sequence[int]]) -> bool:
    """Return whether a column has several values in one sentence."""
    if not values:
        return False
    return any(values[i] != values[rows[0]] for rows in sentences for i in rows)


def _cells(table: Table, name: str, values: Sequence[Any], rows: Sequence[int]) -> list[str]:
    """Return the values of the words of a sentence."""
    missing = next((i for i in rows if values[i] is None), None)
    if missing is not None:
        raise UserError(
            f"{table.origin(missing)}: no value in column {name!r}, although each row is a word; "
            "remove the row, or write a value"
        )
    return [str(values[i]) for i in rows]
