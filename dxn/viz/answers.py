"""The answer of a model in one line, for the title of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxn.tasks.entities import Entity
from dxn.viz.numbers import number, percent

MAX_LENGTH = 120  # characters of an answer in a title
MAX_LISTED = 5  # classes whose probabilities are listed


def answer_line(answer: Mapping[str, Any]) -> str:
    """Return a prediction in one line, with its probability if the model gives one.

    Args:
        answer: Result of `Task.answer`.
    """
    prediction = answer["prediction"]
    probabilities = answer.get("probabilities") or {}
    if "entities" in answer:
        entities = [Entity(**entity) for entity in answer["entities"]]
        line = ", ".join(f"{each.text} ({each.label})" for each in entities) or "no entities"
    elif isinstance(prediction, list):
        line = ", ".join(_named(part, probabilities) for part in prediction) or "none"
    else:
        line = _named(prediction, probabilities)
    return line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 1]}…"


def listed_probabilities(answer: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the largest probabilities and their classes, largest first."""
    probabilities = answer.get("probabilities") or {}
    order = sorted(probabilities.items(), key=lambda item: -item[1])
    return [(str(name), float(share)) for name, share in order[:MAX_LISTED]]


def _named(prediction: Any, probabilities: Mapping[str, float]) -> str:
    share = probabilities.get(str(prediction))
    if share is not None:
        return f"{prediction} ({percent(share)})"
    return number(prediction) if isinstance(prediction, float) else str(prediction)
