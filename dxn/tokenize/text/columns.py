"""The choice whether the cells of a column are texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dxn.tokenize.media import MAX_INSPECTED
from dxn.tokenize.spaced import evenly_spaced

SENTENCE_WORDS = 4  # mean number of words from which the cells of a column are sentences


def text_score(values: Sequence[Any]) -> float:
    """Return 0.5 for a column of texts or lists of words, and 0 for numbers and categories.

    The score is never above 0.5, because file paths are strings as well: image and audio, which
    recognize them by their suffix, must have a higher score.
    """
    values = list(evenly_spaced(values, MAX_INSPECTED))
    if not values:
        return 0.0
    if all(_is_words(value) for value in values):
        return 0.5
    if not all(isinstance(value, str) for value in values):
        return 0.0
    if all(map(_is_number, values)):
        return 0.0
    words = sum(len(value.split()) for value in values) / len(values)
    unique = len(set(values)) / len(values)
    # Categories repeat, and names and identifiers are one word. So a column contains texts if its
    # values have several words, or are different in almost every row.
    several_words = (words > 1.5 and unique > 0.05) or (words > 1 and unique > 0.5)
    if several_words or unique > 0.9:
        return 0.5
    # Sentences are texts even if they repeat. Other modalities can have a better reason.
    return 0.2 if words >= SENTENCE_WORDS and len(set(values)) > 1 else 0.0


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
