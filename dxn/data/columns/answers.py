"""Tables of questions whose answers are parts of a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from dxn.data.rows import Column, as_column
from dxn.data.tables.read import Table
from dxn.tasks.infer import CONTEXTS

ANSWERS = ("answers", "answer", "answer_text")
QUESTION = "question"
STARTS = ("answer_start", "start")
ENDS = ("answer_end", "end")  # follows from the start and the answer
# A position as a whole number, or as a number without a fraction in a column with gaps.
POSITION = re.compile(r"\s*(-?[0-9]+)(?:\.0*)?\s*")
NUM_TRIED = 200  # answers that are looked for in their texts
MIN_FOUND = 0.9  # share of them that must be there


def with_positions(table: Table) -> Table:
    """Return a table in which the column of the answers also contains their positions.

    A table without a column of questions, answers and positions stays as it is.
    """
    names = {name.lower(): name for name in table.columns}
    answer = next((names[name] for name in ANSWERS if name in names), None)
    start = next((names[name] for name in STARTS if name in names), None)
    if answer is None or start is None or QUESTION not in names:
        return table
    cells: list[Any] = []
    for text, at in zip(table.columns[answer], table.columns[start], strict=True):
        match = POSITION.fullmatch(str(at)) if isinstance(text, str) else None
        cells.append({"text": [text], "answer_start": [int(match[1])]} if match else text)
    used = {start, *(names[name] for name in ENDS if name in names)}
    columns = {name: column for name, column in table.columns.items() if name not in used}
    return replace(table, columns={**columns, answer: as_column(cells, is_json=True)})


def are_parts(columns: Mapping[str, Column], target: str) -> bool:
    """Return whether the cells of a target column are parts of the texts of a table."""
    names = {name.lower(): name for name in columns}
    text = next((names[name] for name in CONTEXTS if name in names), target)
    if target.lower() not in ANSWERS or text == target or QUESTION not in names:
        return False
    pairs = zip(columns[target], columns[text], strict=True)
    known = ((a, t) for a, t in pairs if isinstance(a, str) and isinstance(t, str))
    tried = [answer in text for answer, text in islice(known, NUM_TRIED)]
    return bool(tried) and sum(tried) >= MIN_FOUND * len(tried)
