"""The page of a model of conversations: which models have it, and its examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.writing import Writer
from dxn.tokenize.base import BadMedia
from dxn.tokenize.text.chat import (
    TEXT,
    Message,
    count_files,
    is_conversation,
    read_messages,
    text_of,
)


def has_conversation_page(predictor: Predictor, writer: Writer) -> bool:
    """Whether the page of a model is a conversation, and not a form with its inputs.

    A message can have one file of each type, and no other values, such as those of columns.
    """
    if writer.template is None:
        return False
    assert writer.language is not None
    others = [t for name, t in predictor.tokenizers.items() if name != writer.language.name]
    types = {tokenizer.modality for tokenizer in others}
    return len(types) == len(others) and all(t.reader.files for t in others)


def example_messages(
    cell: Any, files: Mapping[str, str], max_chars: int
) -> tuple[list[Message], str] | None:
    """Return the messages of a cell before its last answer, and this answer.

    Args:
        cell: The cell of a table.
        files: Name of the input of each type of file that the row has.
        max_chars: Maximum number of characters of the messages.

    Returns:
        A part of a content that is a file has the name of its "input". None: the cell is no
        conversation that the page can show.
    """
    if not is_conversation(cell):
        return None
    try:
        messages = read_messages(cell)
    except BadMedia:
        return None
    while messages[-1]["role"] != "assistant":
        messages.pop()
    target = text_of(messages.pop())
    size = len(target) + sum(len(text_of(message)) for message in messages)
    if size > max_chars or not messages or messages[-1]["role"] != "user":
        return None
    # A file in a column of its own is a part of the first question.
    if files and not count_files(messages):
        first = next(message for message in messages if message["role"] == "user")
        parts = [{"type": kind} for kind in files]
        first["content"] = [*parts, {"type": TEXT, TEXT: text_of(first)}]
    for message in messages:
        for part in [] if isinstance(message["content"], str) else message["content"]:
            if part["type"] == TEXT:
                continue
            if part["type"] not in files:
                return None
            part["input"] = files[part["type"]]
    return [{name: message[name] for name in ("role", "content")} for message in messages], target
