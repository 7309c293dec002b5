"""Answers beside what they are compared with: texts, decoded values and created inputs."""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from dxn.core.display import count, cut, duration, number
from dxn.core.randomness import spaced_rows
from dxn.report.answers import Answers, Evidence, RowScores, row_scores
from dxn.report.examples import MAX_TEXT, Budget, fragments, is_readable
from dxn.tokenize.text.tokenizer import plain_text
from dxn.viz.drawers import Shown
from dxn.viz.html import escaped

TEXTS_PER_PART = 5  # from the worst, the middle and the best answers
VALUES_PER_PART = 3
ANSWERED_ROWS = 8  # conversations
CREATED_ROWS = 8  # rows of which each input is created
CREATED_TOGETHER = 4
CREATED_SOUND = 28_000  # bytes of a sound, because a model of three inputs shows one 32 times
# Seconds after which no more values are created. A report is written after each training.
CREATED_SECONDS = 30.0
# A row: "where" it is from, and in "parts" what is side by side: headings, and the HTML of a value,
# or the names and the HTML of several inputs.
Row = dict[str, Any]


def side_by_side(
    evidence: Evidence, last: Answers | None, scores: RowScores | None, budget: Budget
) -> dict[str, Any] | None:
    """Return the section with answers beside what they are compared with; None: there is none.

    Args:
        evidence: What a report asks the model for.
        last: Predictions of the model.
        scores: Score of each row; None if the rows have no targets.
        budget: Room for pictures, sounds and clips.
    """
    if last is not None and evidence.answered is not None:
        return _answered(evidence, last)
    if last is None or not last.predictions.predicted:
        return None
    task, predicted = evidence.task, last.predictions.predicted
    if task.creates:
        return _created(evidence, last, budget)
    if task.restored(predicted[0]):
        return _restored(evidence, last, budget)
    if task.target.is_text and scores is not None and all(map(is_readable, last.truths)):
        return _written(evidence, last, scores, budget)
    return None


def _written(
    evidence: Evidence, last: Answers, scores: RowScores, budget: Budget
) -> dict[str, Any]:
    """Return generated texts beside their references: the worst, middle and best ones."""

    def row(i: int) -> Row:
        truth = cut(str(last.truths[i]), MAX_TEXT)
        output = marked(cut(last.predictions.predicted[i], MAX_TEXT), truth)
        return {
            "where": f"{last.origins[i]} · {scores.name} {number(scores.values[i])}",
            "parts": [
                ("Source", fragments(evidence.shown(last.predictions.rows[i]), budget)),
                ("Reference", _text(escaped(truth))),
                ("Output", _text(output or "(empty)")),
            ],
        }

    parts = _ranked(scores, range(len(scores.values)), TEXTS_PER_PART, "Texts")
    return {
        "id": "texts",
        "title": "Texts",
        "about": "The words of an output that the reference does not have are marked.",
        "groups": [(title, [row(i) for i in rows]) for title, rows in parts],
    }


def _answered(evidence: Evidence, last: Answers) -> dict[str, Any]:
    """Return answers of a model of conversations beside those of the data."""
    assert evidence.answered is not None
    opened = last.samples.opened
    rows = spaced_rows(len(opened), ANSWERED_ROWS)

    def row(i: int, before: str, truth: str, answer: str) -> Row:
        output = marked(cut(answer, MAX_TEXT), truth)
        return {
            "where": opened.origin[i],
            "parts": [
                ("Messages", _text(escaped(cut(before, MAX_TEXT)))),
                ("Reference", _text(escaped(cut(truth, MAX_TEXT)))),
                ("Answer", _text(output or "(empty)")),
            ],
        }

    texts = evidence.answered(rows)
    return {
        "id": "texts",
        "title": "Answers",
        "about": "The most probable answer to the messages before the last one. Its words that the "
        "reference does not have are marked.",
        "groups": [("Conversations", [row(i, *t) for i, t in zip(rows, texts, strict=True)])],
    }


def _restored(evidence: Evidence, last: Answers, budget: Budget) -> dict[str, Any] | None:
    """Return inputs beside what is decoded from their codes: the worst, middle and best ones."""
    task, predicted = evidence.task, last.predictions.predicted
    scores = row_scores(task.metric, predicted, last.truths, undefined=math.nan)
    if scores is None:
        return None
    codes = [task.answer(prediction)["prediction"] for prediction in predicted]

    def row(i: int) -> Row:
        ((name, value),) = task.restored(predicted[i]).items()
        original = evidence.shown(last.predictions.rows[i])[name]
        numbers = cut(" ".join("/".join(map(str, stages)) for stages in codes[i]), MAX_TEXT)
        true, decoded = _alike(original, replace(original, raw=value, source=None), budget)
        return {
            "where": f"{last.origins[i]} · {scores.name} {number(scores.values[i])}",
            "parts": [
                ("Original", true),
                ("Decoded", decoded),
                (
                    f"Codes of {count(len(codes[i]), 'token')}",
                    _text(escaped(numbers)),
                ),
            ],
        }

    # Rows with equal codes, such as copies of a file, are shown once.
    defined = [i for i, score in enumerate(scores.values) if not math.isnan(score)]
    distinct = {str(codes[i]): i for i in defined}
    parts = _ranked(scores, distinct.values(), VALUES_PER_PART, "Rows")
    about = f"Inputs beside what is decoded from their codes, sorted by {scores.name}."
    if rest := len(codes) - len(defined):
        are = "is" if rest == 1 else "are"
        about += f" {scores.name} is not defined for {count(rest, 'row')} with a constant value, "
        about += f"which {are} left out."
    return {
        "id": "examples",
        "title": "Examples",
        "about": about,
        "groups": [(title, [row(i) for i in rows]) for title, rows in parts],
    }


def _created(evidence: Evidence, last: Answers, budget: Budget) -> dict[str, Any] | None:
    """Return rows with each input beside the value that the model creates from the others."""
    start = time.monotonic()
    budget.sound = CREATED_SOUND
    task, samples = evidence.task, last.samples
    groups: dict[str, list[Row]] = {name: [] for name in task.creates}
    left_out = ""
    for first in range(0, CREATED_ROWS, CREATED_TOGETHER):
        for name, shown_rows in groups.items():
            others = [other for other in samples.inputs if other != name]
            usable = np.flatnonzero(
                np.any([samples.opened.present[other] for other in others], axis=0)
            )
            spread = usable[spaced_rows(len(usable), CREATED_ROWS)]
            rows = spread[first : first + CREATED_TOGETHER].tolist()
            if not rows:
                continue
            if time.monotonic() - start > CREATED_SECONDS:
                left_out = f" The other rows would need more than {duration(CREATED_SECONDS)}."
                continue
            for row, created in zip(rows, evidence.created(name, rows), strict=True):
                shown = evidence.shown(row)
                sources = {other: shown.get(other) for other in others}
                true, created_html = _answer(shown.get(name), created, budget)
                shown_rows.append(
                    {
                        "where": samples.opened.origin[row],
                        "parts": [
                            *fragments(sources, budget),
                            (f"True {name}", true),
                            (f"Created {name}", created_html),
                        ],
                    }
                )
    seconds = time.monotonic() - start
    return {
        "id": "examples",
        "title": "Examples",
        "about": f"Values that the model creates from the other inputs, with temperature 1 and the "
        f"default guidance, beside the true ones. They took {max(seconds, 0.1):.1f} s.{left_out}",
        "groups": [(f"{name} from the others", rows) for name, rows in groups.items() if rows],
    }


def _answer(true: Shown | None, created: Shown, budget: Budget) -> tuple[Markup, Markup]:
    """Return a true and a created value. Words that the true value does not have are marked."""
    if true is None:
        return _drawn(None, budget), _drawn(created, budget)
    if not isinstance(created.raw, str):
        return _alike(true, created, budget)
    text = marked(cut(created.raw, MAX_TEXT), cut(plain_text(true.raw), MAX_TEXT))
    return _drawn(true, budget), _text(text or "(empty)")


def _alike(first: Shown, second: Shown, budget: Budget) -> tuple[Markup, Markup]:
    """Return two values that are drawn in the same range."""
    return (
        _drawn(replace(first, like=[second.raw]), budget),
        _drawn(replace(second, like=[first.raw]), budget),
    )


def _drawn(shown: Shown | None, budget: Budget) -> Markup:
    ((_, html),) = fragments({"": shown}, budget)
    return html


def _ranked(
    scores: RowScores, rows: Iterable[int], size: int, single: str
) -> list[tuple[str, list[int]]]:
    """Return the worst, middle and best rows, each row once.

    Args:
        scores: Score of each row.
        rows: Rows of which some are returned.
        size: Number of rows of each kind.
        single: Title if there is only one kind of rows, because all rows are shown.
    """
    values = scores.values
    order = sorted(rows, key=values.__getitem__, reverse=not scores.higher_is_better)
    if order and values[order[0]] == values[order[-1]]:
        # No answer is better than another one.
        order = order[:size]
    middle = max((len(order) - size) // 2, 0)
    parts = {
        "Worst": order[:size],
        "Typical": order[middle : middle + size],
        "Best": order[-size:][::-1],
    }
    if len(order) <= size:
        parts = {single: order}
    seen: set[int] = set()
    groups: list[tuple[str, list[int]]] = []
    for title, part in parts.items():
        new = [i for i in part if i not in seen]
        seen.update(new)
        groups += [(title, new)] if new else []
    return groups


def marked(output: str, truth: str) -> Markup:
    """Return a text as HTML, in which the words that the reference lacks are marked."""
    words, other = output.split(), truth.split()
    matcher = difflib.SequenceMatcher(None, other, words, autojunk=False)
    parts: list[str] = []
    for tag, _, _, start, stop in matcher.get_opcodes():
        text = escaped(" ".join(words[start:stop]))
        if text:
            parts.append(text if tag == "equal" else f"<mark>{text}</mark>")
    return Markup(" ".join(parts))


def _text(html: str) -> Markup:
    return Markup(f'<p class="text" dir="auto">{html}</p>')
