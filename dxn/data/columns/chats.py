"""The layout of a table with conversations, or with instructions and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dxn.core.errors import UserError
from dxn.core.randomness import spaced_rows
from dxn.core.untrusted import parsed_cell, shortened
from dxn.data.rows import AUTO, CHUNK_ROWS, Column, as_column, join_columns
from dxn.data.tables.read import Layout, Rearranging, Table, as_list, column_name
from dxn.tokenize.text.chat import is_conversation, split_files

MESSAGES = "messages"
SYSTEM = ("system", "system_prompt")
HISTORY = "history"
# Usual names of the columns of a conversation, in order; the answer is the last one.
USUAL = (
    (SYSTEM[0], HISTORY, "instruction", "input", "output"),
    (SYSTEM[0], "prompt", "completion"),
    (SYSTEM[0], "prompt", "response"),
)
OPTIONAL = (SYSTEM[0], HISTORY, "input")  # columns that can be empty or missing
NUM_SHOWN = 1_000  # conversations that show whether there are files in them
# Start of a list of messages as a text, also as pandas writes it.
LISTED = re.compile(r"\s*(?:array\()?\[\s*\{\s*['\"](?:role|content|from|value)['\"]")
CONVERSATIONS = (MESSAGES, "conversation", "conversations")
RATINGS = ("true", "false", "0", "1", "0.0", "1.0")  # labels of good and bad answers
# Keys of a table of messages, as the library datasets stores a list of objects.
KEYS = (("role", "content"), ("from", "value"))


@dataclass(frozen=True)
class Chats(Layout):
    """Each row is a conversation.

    Args:
        columns: A column of messages. Or several columns of texts: those of the message of the
            user, and at the end that of the answer. The first one can be that of the system, and
            the last one a column of messages.
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
            parsed = _with_messages(table, self.column, option, every=False)
            return _with_files(parsed, self.column, option)
        if len(self.columns) == 1:
            return table
        has_system = is_system(self.columns)
        for name in self.columns:
            table.column(name, option)
            # A text is not read as messages if other texts of the column are none.
            every = name.lower() not in CONVERSATIONS
            table = _with_messages(table, name, option, every=every)
        texts = [table.columns[name] for name in self.columns]
        use.notes.append(self._note())
        parts: list[Column] = []
        for start in range(0, len(table), CHUNK_ROWS):
            rows = zip(*(column[start : start + CHUNK_ROWS] for column in texts), strict=True)
            messages = [_messages(row, has_system=has_system) for row in rows]
            parts.append(as_column(messages, is_json=True))
        others = {name: cells for name, cells in table.columns.items() if name not in self.columns}
        table = replace(table, columns={**others, MESSAGES: join_columns(parts)})
        return _with_files(table, MESSAGES, option)

    def _note(self) -> str:
        """Return who writes what is in the columns."""
        *questions, answer = self.columns
        system = [f"{questions.pop(0)} (system)"] if is_system(self.columns) else []
        users = [f"{' and '.join(questions)} (user)"] if questions else []
        last = f"{answer} (assistant)" if questions else answer
        return f"conversations: {', '.join([*system, *users, last])}"


def is_system(columns: Sequence[str]) -> bool:
    """Return whether the first of several columns has the message of the system."""
    first, *others = [name.lower() for name in columns]
    return first in SYSTEM and (len(others) > 1 or not {*others}.isdisjoint(CONVERSATIONS))


def _with_messages(table: Table, column: str, option: str, *, every: bool) -> Table:
    """Return a table in which conversations that are texts are lists of messages.

    Args:
        table: The table.
        column: Name of the column.
        option: Option that names it, for messages.
        every: Whether the column stays as it is if one of its texts is not a list of messages.

    Raises:
        UserError: If a text looks like a list of messages but cannot be read.
    """
    cells = table.columns[column]
    if cells.has_only_texts:
        texts: Iterable[Any] = (cell for cell in cells if cell is not None)
        check = all if every else any
        if not check(LISTED.match(cell) or cell.lstrip().startswith("{") for cell in texts):
            return table
    elif not _has_texts(cells):
        return table
    parsed = [_parsed(cell) for cell in cells]
    for row, cell in enumerate(parsed):
        if isinstance(cell, str) and LISTED.match(cell):
            raise UserError(
                f"{table.origins[row]}: {option}: {column} must be a list of messages in JSON, got "
                f"{shortened(cell)}; write the column with json.dumps"
            )
    if every and not all(cell is None or is_conversation(cell) for cell in parsed):
        return table
    return replace(table, columns={**table.columns, column: as_column(parsed, is_json=True)})


def _has_texts(cells: Column) -> bool:
    """Return whether a column has a text or an object instead of a list, judged by all cells."""
    array = cells.array()
    if array is None:
        return any(isinstance(cell, str | Mapping) for cell in cells)
    if cells.decode is None:  # all cells have one type
        first = next((cell for cell in cells if cell is not None), None)
        return isinstance(first, str | Mapping)
    from pyarrow import compute

    # Reading the JSON of all messages takes long. That of a text or an object starts with these.
    starts = compute.call_function("utf8_slice_codeunits", [array], compute.SliceOptions(0, 1))
    return not {'"', "{"}.isdisjoint(starts.unique().to_pylist())


def _parsed(cell: Any) -> Any:
    """Return the messages in a cell, or the cell as it is."""
    content = parsed_cell(cell) if isinstance(cell, str) else cell
    if isinstance(content, Mapping):
        names = [name for name in CONVERSATIONS if is_conversation(content.get(name))]
        content = content[names[0]] if len(names) == 1 else _rows_of(content)
    return content if is_conversation(content) else cell


def _is_meant(cell: Any) -> bool:
    """Return whether a cell is a list of messages, or a text that should be one."""
    is_text = isinstance(cell, str) and LISTED.match(cell) is not None
    return is_text or is_conversation(_parsed(cell))


def _rows_of(content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the messages of an object with one list per key. None: it is something else."""
    lists = {key: value for key, value in content.items() if isinstance(value, list)}
    is_table = (
        any(lists.keys() >= {*keys} for keys in KEYS) and len({*map(len, lists.values())}) < 2
    )
    if not is_table:
        return None
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


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
    system = [by_name[name] for name in SYSTEM if name in by_name][:1]
    for name in CONVERSATIONS:
        cells = table.columns.get(by_name.get(name, ""), ())
        # Single cells can be empty or texts.
        if any(map(_is_meant, (cells[row] for row in spaced_rows(len(cells), NUM_SHOWN)))):
            _check_pairs(table, by_name, by_name[name])
            return Chats([*system, by_name[name]])
    _check_pairs(table, by_name)
    for names in USUAL:
        if all(name in by_name or name in OPTIONAL for name in names):
            others = [by_name[name] for name in names[1:] if name in by_name]
            return Chats([*system, *others])
    return None


def _check_pairs(table: Table, by_name: Mapping[str, str], messages: str = "") -> None:
    """Refuse pairs of a chosen and a rejected answer, and answers that are rated.

    Learning all of them would teach the bad ones as well.

    Raises:
        UserError: If the table has them.
    """
    if {"chosen", "rejected"} <= by_name.keys():
        cells = table.columns[by_name["chosen"]]
        rows = spaced_rows(len(cells), NUM_SHOWN)
        chosen = [_parsed(cells[row]) for row in rows]
        are_whole = all(is_conversation(cell) and len(cell) > 1 for cell in chosen)
        prompt = messages or by_name.get("prompt", "")
        if not prompt and not are_whole:
            return  # a table of something else
        names = [*([] if are_whole else [prompt]), by_name["chosen"]]
        raise UserError(
            f"data.chat: {table.name} has pairs of chosen and rejected answers, which cannot be "
            f"learned as preferences; set data.chat=[{','.join(names)}] to learn the chosen ones"
        )
    if {"prompt", "completion", "label"} <= by_name.keys():
        labels = table.columns[by_name["label"]]
        if all(cell is None or str(cell).strip().lower() in RATINGS for cell in labels):
            raise UserError(
                f"data.chat: {table.name} has answers that are labeled as good or bad, which "
                "cannot be learned as preferences; remove the bad ones and the column label"
            )


def _messages(row: Sequence[Any], *, has_system: bool) -> list[Any]:
    """Return the messages of cells: the last one is the answer, and texts are one message.

    A cell can also be a list of messages, as TRL writes prompts and completions, or earlier turns
    as pairs of texts. What is none of them is reported when the conversation is read.
    """
    cells = list(row)
    system = cells.pop(0) if has_system else None
    *questions, answer = cells
    messages: list[Any] = []
    texts: list[str] = []

    def add(*new: Any) -> None:
        # The texts before a list of messages come before it.
        if texts:
            messages.append({"role": "user", "content": "\n\n".join(texts)})
            texts.clear()
        messages.extend(new)

    for cell in questions:
        if is_conversation(cell):
            add(*cell)
        elif _are_pairs(cell):
            for asked, said in cell:
                add({"role": "user", "content": asked}, {"role": "assistant", "content": said})
        elif isinstance(cell, list | dict):
            if cell:
                add({"role": "user", "content": cell})
        elif cell is not None and str(cell).strip():
            texts.append(str(cell))
    add()
    if is_conversation(answer):
        messages += answer
    elif isinstance(answer, Mapping) and any(answer.keys() >= {*keys} for keys in KEYS):
        messages.append(answer)
    else:
        is_text = not isinstance(answer, list | dict | None)
        if not messages:
            messages.append({"role": "user", "content": ""})
        messages.append({"role": "assistant", "content": str(answer) if is_text else answer})
    is_first = "system" in (messages[0].get("role"), messages[0].get("from"))
    if system is not None and str(system).strip() and not is_first:
        messages.insert(0, {"role": "system", "content": str(system)})
    return messages


def _are_pairs(cell: Any) -> bool:
    """Return whether a cell contains pairs of a question and an answer."""
    if not isinstance(cell, list) or not cell:
        return False
    return all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in cell
    )
