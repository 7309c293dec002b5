"""The layout of a table with conversations, or with instructions and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.data.rows import AUTO, CHUNK_ROWS, Column, as_column, join_columns
from dxn.data.tables.read import Layout, Rearranging, Table, as_list, column_name
from dxn.tokenize.text.chat import is_conversation, split_files

MESSAGES = "messages"
# Usual names of the columns of a message of the user, in order, and of the answer. The second
# column of the user can be empty or missing.
USUAL = (("instruction", "input", "output"), ("prompt", "completion"), ("prompt", "response"))
OPTIONAL = "input"
NUM_SHOWN = 1_000  # conversations that show whether there are files in them
JSON_OBJECTS = re.compile(r"\s*\[\s*\{")  # start of a list of objects
CONVERSATIONS = (MESSAGES, "conversation", "conversations")


@dataclass(frozen=True)
class Chats(Layout):
    """Each row is a conversation.

    Args:
        columns: A column of messages. Or several columns of texts: those of the message of the
            user, and at the end that of the answer.
    """

    columns: Sequence[str]

    kind = "chat"

    def __post_init__(self) -> None:
        is_list = isinstance(self.columns, list | tuple) and len(self.columns) > 0
        if not is_list or not all(isinstance(name, str) for name in self.columns):
            raise ValueError(f"chat must be a list of names of columns, got {self.columns!r}")

    @property
    def column(self) -> str:
        """Column of the conversations."""
        return self.columns[0] if len(self.columns) == 1 else MESSAGES

    def rearranged(self, table: Table, use: Rearranging) -> Table:
        """Return a table with a column of messages instead of the columns of texts.

        The files in messages become columns of their own, named after their type.
        """
        option = f"{use.key}{self.kind}"
        # New tables can have messages instead of the columns of the training.
        has_columns = len(self.columns) > 1 and {*self.columns} <= table.columns.keys()
        if self.column in table.columns and not has_columns:
            return _with_files(_with_parsed(table, self.column), self.column, option)
        if len(self.columns) == 1:
            return table
        texts = [table.column(name, option) for name in self.columns]
        *questions, answer = self.columns
        use.notes.append(f"conversations: {' and '.join(questions)} (user), {answer} (assistant)")
        parts: list[Column] = []
        for start in range(0, len(table), CHUNK_ROWS):
            rows = zip(*(column[start : start + CHUNK_ROWS] for column in texts), strict=True)
            parts.append(as_column([_messages(row) for row in rows], is_json=True))
        others = {name: cells for name, cells in table.columns.items() if name not in self.columns}
        return replace(table, columns={**others, MESSAGES: join_columns(parts)})


def _with_parsed(table: Table, column: str) -> Table:
    """Return a table in which conversations that are JSON texts are lists of messages."""
    cells = table.columns[column]
    if not any(_parsed(cells[row]) is not cells[row] for row in spaced_rows(len(cells), NUM_SHOWN)):
        return table
    parsed = as_column([_parsed(cell) for cell in cells], is_json=True)
    return replace(table, columns={**table.columns, column: parsed})


def _parsed(cell: Any) -> Any:
    """Return the messages of a JSON text, or the cell as it is."""
    if isinstance(cell, str) and JSON_OBJECTS.match(cell):
        try:
            content = json.loads(cell)
        except (ValueError, RecursionError):
            return cell
        return content if is_conversation(content) else cell
    return cell


def _with_files(table: Table, column: str, option: str) -> Table:
    """Return a table in which the files of a column of messages have columns of their own."""
    cells = table.columns[column]
    # Reading all messages takes long, and few tables have files in them.
    if not any(split_files(cells[row])[1] for row in spaced_rows(len(cells), NUM_SHOWN)):
        return table
    parts: list[Column] = []
    files: list[dict[str, Any]] = []
    for start in range(0, len(table), CHUNK_ROWS):
        pairs = [split_files(cell) for cell in cells[start : start + CHUNK_ROWS]]
        parts.append(as_column([messages for messages, _ in pairs], is_json=True))
        files += [by_kind for _, by_kind in pairs]
    columns = {**table.columns, column: join_columns(parts)}
    for kind in dict.fromkeys(kind for by_kind in files for kind in by_kind):
        if kind in columns:
            raise UserError(
                f"{option}: {table.path or table.name} has a column {kind}, and messages with "
                f"files of this type; rename the column, or remove one of both"
            )
        columns[kind] = as_column([by_kind.get(kind) for by_kind in files])
    return replace(table, columns=columns)


def find_chats(table: Table, columns: str | Sequence[str] | None) -> Chats | None:
    """Return the layout of a table with conversations. None: it has none.

    Args:
        table: All rows of all splits.
        columns: The columns that the user chose. "auto": they are recognized by their names.

    Raises:
        UserError: If a column does not exist.
    """
    if columns is None:
        return None
    if columns != AUTO:
        chats = Chats([column_name(name) for name in as_list(columns)])
        for name in chats.columns:
            table.column(name, "data.chat")
        return chats
    by_name = {name.lower(): name for name in table.columns}
    for name in CONVERSATIONS:
        cells = table.columns.get(by_name.get(name, ""), ())
        first = next((cell for cell in cells if cell is not None), None)
        if is_conversation(_parsed(first)):
            return Chats([by_name[name]])
    for names in USUAL:
        if all(name in by_name or name == OPTIONAL for name in names):
            return Chats([by_name[name] for name in names if name in by_name])
    return None


def _messages(row: Sequence[Any]) -> list[Any]:
    """Return the messages of cells: the last one is the answer, and the others are one message.

    A cell can also be a list of messages, as TRL writes prompts and completions. What is neither is
    reported when the conversation is read.
    """
    *questions, answer = row
    messages: list[Any] = []
    texts: list[str] = []
    for cell in questions:
        if is_conversation(cell):
            messages += cell
        elif isinstance(cell, list | dict):
            messages.append({"role": "user", "content": cell})
        elif cell is not None and str(cell).strip():
            texts.append(str(cell))
    if texts or not messages:
        messages.append({"role": "user", "content": "\n\n".join(texts)})
    if is_conversation(answer):
        return [*messages, *answer]
    is_text = not isinstance(answer, list | dict | None)
    return [*messages, {"role": "assistant", "content": str(answer) if is_text else answer}]
