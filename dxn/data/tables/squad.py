"""Questions whose answers are parts of a text: tables of them, and the nested format of SQuAD.

A file of SQuAD has articles with paragraphs, each with its questions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.data.rows import Column, as_column
from dxn.tasks.span.target import CONTEXTS, read_answers

if TYPE_CHECKING:
    from dxn.data.tables.read import Table

PARAGRAPHS, QUESTIONS = "paragraphs", "qas"
ANSWERS = ("answers", "answer", "answer_text")
IDS = ("id", "qid", "question_id")
QUESTION = "question"
CONTEXT = "context"
STARTS = ("answer_start", "start")
ENDS = ("answer_end", "end")  # follows from the start and the answer
# A position as a whole number, or as a number without a fraction in a column with gaps.
POSITION = re.compile(r"\s*(-?[0-9]+)(?:\.0*)?\s*")
NUM_TRIED = 200  # answers that are looked for in their texts
MIN_FOUND = 0.9  # share of them that must be there


def are_articles(content: Any) -> bool:
    """Return whether the content of a JSON file is a list of articles with paragraphs."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(article, dict) for article in content)
        and isinstance(content[0].get(PARAGRAPHS), list)
    )


def rows_of_articles(path: Path, articles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per question, with its text and its answers. Titles are not used.

    Args:
        path: The file, for messages.
        articles: The articles.

    Raises:
        UserError: If a paragraph has no list of questions.
    """
    rows: list[dict[str, Any]] = []
    for number, article in enumerate(articles, 1):
        paragraphs = article.get(PARAGRAPHS)
        paragraphs = paragraphs if isinstance(paragraphs, list) else [None]
        for part, paragraph in enumerate(paragraphs, 1):
            if not _is_paragraph(paragraph):
                raise UserError(
                    f"{path}: article {number}: must have a list of paragraphs, which are objects "
                    f"with the keys context and {QUESTIONS}, got {shortened(paragraph)}"
                )
            texts = [(CONTEXT, paragraph.get(CONTEXT))]
            texts += [(QUESTION, question.get(QUESTION)) for question in paragraph[QUESTIONS]]
            for key, text in texts:
                # A missing text is a row that cannot be used, which `dxn check` counts.
                if not isinstance(text, str | None):
                    raise UserError(
                        f"{path}: article {number}, paragraph {part}: {key} must be a text, got "
                        f"{shortened(text)}; correct it"
                    )
            rows += [_row(paragraph, question) for question in paragraph[QUESTIONS]]
    return rows


def count_questions(article: dict[str, Any]) -> int:
    """Return the number of questions of an article that `rows_of_articles` has read."""
    return sum(len(paragraph[QUESTIONS]) for paragraph in article[PARAGRAPHS])


def _is_paragraph(value: Any) -> TypeGuard[dict[str, Any]]:
    questions = value.get(QUESTIONS) if isinstance(value, dict) else None
    return isinstance(questions, list) and all(isinstance(question, dict) for question in questions)


def _row(paragraph: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    row = {QUESTION: question.get(QUESTION), CONTEXT: paragraph.get(CONTEXT)}
    if "id" in question:
        row = {"id": question["id"], **row}
    if question.get("is_impossible"):
        return {**row, "answers": []}
    # New questions have no answers yet.
    return {**row, "answers": question["answers"]} if "answers" in question else row


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
    texts = ((a, t) for a, t in pairs if isinstance(a, str | list | Mapping) and isinstance(t, str))
    tried: list[bool] = []
    for cell, context in islice(texts, NUM_TRIED):
        try:
            answers = [answer for answer, _ in read_answers(cell)]
        except (TypeError, ValueError, OverflowError):
            return False
        if answers:
            tried.append(any(answer in context for answer in answers))
    return bool(tried) and sum(tried) >= MIN_FOUND * len(tried)


def question_ids(columns: Mapping[str, Column], targets: Sequence[str]) -> list[str]:
    """Return the columns with the ids of questions, if a target has their answers.

    They are no inputs: an id of letters and digits could be taken for a text.
    """
    if not any(are_parts(columns, target) for target in targets):
        return []
    return [name for name in columns if name.lower() in IDS]


def check_texts(table: Table, target: str) -> None:
    """Check the texts of a table whose target column contains their parts.

    Raises:
        UserError: If single cells are something else, which would change the type of the column.
    """
    names = {name.lower(): name for name in table.columns}
    text = next((names[name] for name in CONTEXTS if name in names), target)
    for name in dict.fromkeys((text, names.get(QUESTION, target))):
        others = [
            row
            for row, cell in enumerate(table.columns[name])
            if name != target and not isinstance(cell, str | None)
        ]
        if others and len(others) < (1 - MIN_FOUND) * len(table):
            cell = table.columns[name][others[0]]
            raise UserError(
                f"{table.origins[others[0]]}: {name} must be a text, as in the other rows, got "
                f"{shortened(cell)} ({count(len(others), 'such row')}); correct it"
            )
