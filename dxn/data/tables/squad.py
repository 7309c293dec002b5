"""The nested format of SQuAD: articles with paragraphs, each with its questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened

PARAGRAPHS, QUESTIONS = "paragraphs", "qas"


def are_articles(content: Any) -> bool:
    """Return whether the content of a JSON file is a list of articles with paragraphs."""
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(each, dict) for each in content)
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
        for paragraph in paragraphs if isinstance(paragraphs, list) else [None]:
            if not _is_paragraph(paragraph):
                raise UserError(
                    f"{path}: article {number}: must have a list of paragraphs, which are objects "
                    f"with the keys context and {QUESTIONS}, got {shortened(paragraph)}"
                )
            rows += [_row(paragraph, question) for question in paragraph[QUESTIONS]]
    return rows


def _is_paragraph(value: Any) -> TypeGuard[dict[str, Any]]:
    questions = value.get(QUESTIONS) if isinstance(value, dict) else None
    return isinstance(questions, list) and all(isinstance(each, dict) for each in questions)


def _row(paragraph: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    row = {"question": question.get("question"), "context": paragraph.get("context")}
    if "id" in question:
        row = {"id": question["id"], **row}
    if question.get("is_impossible"):
        return {**row, "answers": []}
    # New questions have no answers yet.
    return {**row, "answers": question["answers"]} if "answers" in question else row
