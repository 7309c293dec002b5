"""Parse JSON and JSONL files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from dxn.data.limits import check_num_cells, check_num_columns
from dxn.errors import UserError
from dxn.printable import valid_text

SURROGATE = "\\ud"  # start of the escape sequence of a surrogate
# Lists that are nested too deeply, and numbers with thousands of digits.
UNREADABLE = (RecursionError, ValueError)


def read_jsonl(path: Path, text: str) -> tuple[dict[str, list], list[int]]:
    """Parse one JSON object per line.

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
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path} row {number}: invalid JSON ({error.msg} at character {error.colno})"
            ) from error
        except UNREADABLE as error:
            raise UserError(f"{path} row {number}: invalid JSON ({error})") from error
        if not isinstance(row, dict):
            raise UserError(
                f'{path} row {number}: must be an object {{"column": value}}, got {line[:40]}'
            )
        rows.append(row)
        lines.append(number)
    return _columns_of(path, rows), lines


def read_json(path: Path, text: str) -> tuple[dict[str, list], list[int]]:
    """Parse a list of objects (one per row) or an object of lists (one per column).

    Returns:
        The values by column name, and the number of each row, from 1.

    Raises:
        UserError: If the file has another structure.
    """
    try:
        content = _load(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} line {error.lineno}: invalid JSON ({error.msg} at character {error.colno})"
        ) from error
    except UNREADABLE as error:
        raise UserError(f"{path}: invalid JSON ({error})") from error
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


def _load(text: str) -> Any:
    content = json.loads(text)
    # JSON can contain half of a surrogate pair, which is no character.
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
