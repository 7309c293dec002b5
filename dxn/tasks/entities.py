"""Entities in a sequence of tags, and their words and positions in the text."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dxn.tasks.probabilities import significant

OUTSIDE = "O"  # the tag of a word that does not belong to an entity
# A tag with the position of its word in the entity: first, inside, last, or the only one.
PREFIXED = re.compile("([BIELSU])[-_](.+)", re.DOTALL)


@dataclass(frozen=True)
class Entity:
    """An entity in a text.

    Args:
        text: The words of the entity.
        label: Type of the entity.
        score: Mean probability of its tags.
        start_word: Index of the first word.
        end_word: Index of the last word plus 1.
        start: Position of the first character. None if the source is a list of words.
        end: Position of the last character plus 1.
    """

    text: str
    label: str
    score: float
    start_word: int
    end_word: int
    start: int | None = None
    end: int | None = None


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return (start, stop, type) of each entity; an entity is a sequence of tags B-x I-x I-x.

    The last word of an entity can be E-x or L-x, and an entity of one word S-x or U-x, as in BIOES
    and BILOU. B_x is the same as B-x. An I-x that does not continue an entity of type x starts a
    new one, as in conlleval. A tag without a prefix, except O and 0, is an entity of one word.
    """
    spans: list[tuple[int, int, str]] = []
    is_open = False  # whether the next word can continue the last entity
    for i, tag in enumerate(tags):
        if tag in (OUTSIDE, "0"):  # 0 is no entity where tags are numbers
            continue
        match = PREFIXED.fullmatch(tag)
        prefix, kind = match.groups() if match else ("S", tag)
        if prefix in "IEL" and is_open and spans[-1][1:] == (i, kind):
            # The last entity ends at this word and has the same type: extend it.
            spans[-1] = (spans[-1][0], i + 1, kind)
        else:
            spans.append((i, i + 1, kind))
        is_open = prefix in "BI"
    return spans


def split_words(source: str | Sequence[Any]) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of an input, and of a str also the start and end of each word."""
    if not isinstance(source, str):
        return [str(word) for word in source], []
    # The same words as str.split(), which does not tell where they are.
    matches = list(re.finditer(r"\S+", source))
    return [match.group() for match in matches], [match.span() for match in matches]


def describe_entities(
    tags: Sequence[str], scores: Sequence[float], source: str | Sequence[Any]
) -> list[Entity]:
    """Return the entities with their words and positions.

    Args:
        tags: Tag of each word.
        scores: Probability of each tag.
        source: The words, or a text whose words are separated by white space.
    """
    words, positions = split_words(source)
    found: list[Entity] = []
    for start, stop, label in entities(tags):
        score = significant(statistics.fmean(scores[start:stop]))
        entity = Entity(" ".join(words[start:stop]), label, score, start, stop)
        if positions:
            first, last = positions[start][0], positions[stop - 1][1]
            # The text as it is in the source, where words can have several spaces between them.
            entity = replace(entity, text=str(source[first:last]), start=first, end=last)
        found.append(entity)
    return found
