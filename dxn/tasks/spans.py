"""Entities as positions in a text, such as [15, 23, "place"], and the tags of their words."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxn.core.errors import UserError
from dxn.tasks.entities import OUTSIDE
from dxn.tasks.names import class_name

# Keys of an object that describes an entity, as annotation tools write them.
STARTS = ("start", "start_offset", "start_char", "begin")
ENDS = ("end", "end_offset", "end_char", "stop")
LABELS = ("label", "labels", "type", "entity", "tag")


@dataclass(frozen=True)
class Span:
    """An entity in a text.

    Args:
        start: Position of the first character.
        end: Position of the last character plus 1.
        label: Type of the entity.
    """

    start: int
    end: int
    label: str


def read_spans(cell: Any) -> list[Span] | None:
    """Return the entities of a cell: a list of (start, end, label) or of objects with these keys.

    A cell of a CSV file contains such a list as a text.

    Returns:
        None if the cell is anything else.
    """
    if isinstance(cell, str):
        if not cell.lstrip().startswith(("[", "(", "{")):
            return None
        try:
            cell = ast.literal_eval(cell.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if isinstance(cell, Mapping) and isinstance(cell.get("entities"), list):  # as spaCy writes it
        cell = cell["entities"]
    single = None if isinstance(cell, list) else _span(cell)
    if single is not None:
        return [single]
    if not isinstance(cell, list | tuple):
        return None
    spans: list[Span] = []
    for item in cell:
        span = _span(item)
        if span is None:
            return None
        spans.append(span)
    return spans


def are_spans(cells: Sequence[Any]) -> bool:
    """Return whether target cells contain positions of entities; a list can also be empty."""
    has_span = False
    for cell in cells:
        spans = read_spans(cell)
        if spans is None:
            return False
        has_span = has_span or bool(spans)
    return has_span


def tags_of(
    spans: Sequence[Span], words: Sequence[tuple[int, int]], length: int, origin: str
) -> tuple[list[str], list[Span]]:
    """Return the tag of each word in the scheme IOB2.

    Args:
        spans: The entities. Of entities that overlap, the one that begins first is used, and of
            those that begin together, the longest.
        words: Start and end of each word.
        length: Number of characters of the text.
        origin: Origin of the row, for messages.

    Returns:
        The tags, and the entities that are not used, or that begin or end within a word.

    Raises:
        UserError: If an entity contains no word.
    """
    tags = [OUTSIDE] * len(words)
    inexact: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        touched = [i for i, (a, b) in enumerate(words) if a < span.end and b > span.start]
        if not touched or span.start < 0 or span.end > length:
            raise UserError(
                f"{origin}: the entity {span.label!r} from character {span.start} to {span.end} "
                f"is not in the text of {length} characters; correct its positions"
            )
        bounds = words[touched[0]][0], words[touched[-1]][1]
        is_used = all(tags[i] == OUTSIDE for i in touched)
        if not is_used or bounds[0] < span.start or bounds[1] > span.end:
            inexact.append(span)
        for i in touched if is_used else ():
            tags[i] = f"{'B' if i == touched[0] else 'I'}-{span.label}"
    return tags, inexact


def _span(item: Any) -> Span | None:
    if isinstance(item, Mapping):
        item = [next((item[k] for k in keys if k in item), None) for keys in (STARTS, ENDS, LABELS)]
    if not isinstance(item, list | tuple) or len(item) != 3:
        return None
    start, end, label = item
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    are_positions = type(start) is int and type(end) is int
    return Span(start, end, class_name(label)) if are_positions and isinstance(label, str) else None
