"""Parse JSON and JSONL files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dxn.core.errors import UserError
from dxn.core.printable import valid_text
from dxn.core.untrusted import unique_keys
from dxn.data.tables.files import check_num_cells, check_num_columns
from dxn.data.tables.squad import are_articles, count_questions, rows_of_articles

SURROGATE = "\\ud"  # start of the escape sequence of a surrogate
# Lists that are nested too deeply, and numbers with thousands of digits.
UNREADABLE = (RecursionError, ValueError)
NO_SPACE = re.compile(r"\S")
SPLIT_KEYS = {"columns", "index", "data"}


def read_jsonl(path: Path, text: str) -> tuple[dict[str, list], list[int]]:
    """Parse one JSON object per line: a row, or an article of SQuAD (one row per question).

    Returns:
        The values by column name, and the number of each line.

    Raises:
        UserError: If a line is not a JSON object.
    """
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    # str.splitlines would also split at line separators such as U+2028 within a JSON string.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = _load(line)
            problem = f'must be an object {{"column": value}}, got {line[:40]}'
        except json.JSONDecodeError as error:
            row, problem = None, f"invalid JSON ({error.msg} at character {error.colno})"
        except UNREADABLE as error:
            raise UserError(f"{path} row {number}: invalid JSON ({error})") from error
        if not isinstance(row, dict):
            # The first object can have several lines.
            several = None if lines else _several(text)
            if several is not None:
                return _columns_of(path, several[0]), several[1]
            raise UserError(f"{path} row {number}: {problem}")
        rows.append(row)
        lines.append(number)
    if are_articles(rows):
        questions = rows_of_articles(path, rows)
        counts = [count_questions(article) for article in rows]
        lines = [line for line, n in zip(lines, counts, strict=True) for _ in range(n)]
        rows = questions
    return _columns_of(path, rows), lines


def read_json(path: Path, text: str) -> tuple[dict[str, list], list[int]]:
    """Parse a list of objects (one per row) or an object of lists (one per column).

    The other forms that pandas writes are read as well, an object with one list of objects in it,
    the articles of SQuAD (one row per question), and a file with one object after the other.

    Returns:
        The values by column name, and the number of each row, from 1.

    Raises:
        UserError: If the file has another structure.
    """
    try:
        content = _load(text)
    except json.JSONDecodeError as error:
        several = _several(text)
        if several is not None:
            return _columns_of(path, several[0]), several[1]
        raise UserError(
            f"{path} line {error.lineno}: invalid JSON ({error.msg} at character {error.colno})"
        ) from error
    except UNREADABLE as error:
        raise UserError(f"{path}: invalid JSON ({error})") from error
    content = _unwrapped(content)
    if are_articles(content):
        content = rows_of_articles(path, content)
    if isinstance(content, list):
        wrong = next((i for i, row in enumerate(content) if not isinstance(row, dict)), None)
        if wrong is not None:
            got = str(content[wrong])[:40]
            raise UserError(
                f'{path} row {wrong + 1}: must be an object {{"column": value}}, got {got}'
            )
        return _columns_of(path, content), list(range(1, len(content) + 1))
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise UserError(
            f"{path}: must be a list of objects (one per row) or an object of lists (one per "
            f"column), got {text.lstrip()[:40]}"
        )
    lengths = {name: len(values) for name, values in content.items()}
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"{path}: all columns must have the same number of values, got {got}")
    check_num_columns(path, len(content))
    return content, list(range(1, max(lengths.values(), default=0) + 1))


def _several(text: str) -> tuple[list[dict[str, Any]], list[int]] | None:
    """Return objects that follow each other, which can have several lines, and their lines.

    Returns:
        None if the text is anything else. A list of objects is the same as its objects.
    """
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    end, line = 0, 1
    while match := NO_SPACE.search(text, end):
        line += text.count("\n", end, match.start())
        try:
            row, end = decoder.raw_decode(text, match.start())
        except UNREADABLE:
            return None
        if isinstance(row, list) and not rows and text[end:].strip() == "":
            if not all(isinstance(item, dict) for item in row):
                return None
            return _valid(row), list(range(1, len(row) + 1))
        if not isinstance(row, dict):
            return None
        rows.append(_valid(row))
        lines.append(line)
        line += text.count("\n", match.start(), end)
    return rows, lines


def _unwrapped(content: Any) -> Any:
    """Return a list of objects for the other forms of a table, anything else unchanged."""
    if not isinstance(content, dict) or not content:
        return content
    names, data = content.get("columns"), content.get("data")
    # DataFrame.to_json(orient="split")
    if isinstance(names, list) and isinstance(data, list) and content.keys() <= SPLIT_KEYS:
        if all(isinstance(row, list) and len(row) == len(names) for row in data):
            return {str(name): [row[i] for row in data] for i, name in enumerate(names)}
        return content
    values = list(content.values())
    if all(isinstance(value, dict) for value in values):
        return _of_objects(content)
    lists = [value for value in values if _are_objects(value)]
    # The others describe the data, such as a version.
    return lists[0] if len(lists) == 1 and not any(map(_is_column, values)) else content


def _of_objects(content: dict[str, dict[str, Any]]) -> Any:
    """Return a table of rows by index, or of columns whose values are by index."""
    inner = dict.fromkeys(chain.from_iterable(content.values()))
    # An index is usually numbers, and there are usually more rows than columns.
    if all(map(str.isdigit, inner)) and inner:
        are_rows = False
    else:
        are_rows = all(map(str.isdigit, content)) or len(content) > len(inner)
    if are_rows:
        return list(content.values())
    return {name: [values.get(i) for i in inner] for name, values in content.items()}


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _is_column(value: Any) -> bool:
    return isinstance(value, list) and not _are_objects(value)


def _load(text: str) -> Any:
    content = json.loads(text, object_pairs_hook=unique_keys)
    # JSON can contain half of a surrogate pair, which is not a character.
    return _valid(content) if SURROGATE in text.lower() else content


def _valid(content: Any) -> Any:
    if isinstance(content, str):
        return valid_text(content)
    if isinstance(content, list):
        return [_valid(item) for item in content]
    if isinstance(content, dict):
        return {valid_text(name): _valid(item) for name, item in content.items()}
    return content


def _columns_of(path: Path, rows: Sequence[dict[str, Any]]) -> dict[str, list]:
    # Objects may have different keys. Columns are in the order in which their keys first appear;
    # a dict keeps that order, unlike a set.
    names = dict.fromkeys(chain.from_iterable(rows))
    check_num_cells(path, len(rows), len(names), sum(map(len, rows)))
    columns: dict[str, list] = {}
    for name in names:
        columns[name] = [row.get(name) for row in rows]
    return columns
