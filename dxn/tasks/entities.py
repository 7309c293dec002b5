"""Entities in a sequence of tags, and as positions in a text, such as [15, 23, "place"]."""

from __future__ import annotations

import functools
import re
import statistics
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dxn.core.display import significant
from dxn.core.errors import UserError
from dxn.core.untrusted import parsed_cell, shortened
from dxn.tasks.names import class_name
from dxn.tokenize.text.scripts import UNSPACED

OUTSIDE = "O"  # usual tag of a word that does not belong to an entity
UNTYPED = "entity"  # type of the entities of tags that are only B, I and O
# What the letter of a tag says: an entity begins at the word, continues, ends, or is this single
# word. The letters are those of the schemes IOB, BIOES, BILOU and BMES.
IOB = {"B": "B", "I": "I"}
LETTERS = {**IOB, "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
SEPARATORS = "-_:/|."
# Punctuation marks and symbols that are written next to a word, without a space.
MARKS = (
    r"!-/:-@\[-^`{-~\u00a1-\u00bf\u0964\u0965\u2010-\u205e\u3001-\u3030\uff01-\uff0f\uff1a-\uff20"
)
WORDS = re.compile(r"\S+")
WORDS_AND_MARKS = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})[^\s{MARKS}])+|\S")
# Keys of an object that describes an entity, as annotation tools write them.
START_KEYS = ("start", "start_offset", "start_char", "begin")
END_KEYS = ("end", "end_offset", "end_char", "stop")
LABEL_KEYS = ("label", "labels", "type", "entity", "tag")
TEXT_KEY = "text"


@dataclass(frozen=True)
class Scheme:
    """How tags mark the words of an entity.

    Args:
        separator: Character between the letter and the type of a tag. "": tags have no type.
        is_prefix: Whether the letter is in front of the type, as in B-x.
        letters: Meaning of each letter that is used, see `LETTERS`.
        outside: Tag of a word that does not belong to an entity.
    """

    separator: str = "-"
    is_prefix: bool = True
    letters: Mapping[str, str] = field(default_factory=lambda: IOB)
    outside: str = OUTSIDE

    def divide(self, tag: str) -> tuple[str, str]:
        """Return the meaning of the letter of a tag, "" if it has none, and the type."""
        if not self.separator:
            letter, kind = tag, UNTYPED
        elif self.is_prefix:
            letter, _, kind = tag.partition(self.separator)
        else:
            kind, _, letter = tag.rpartition(self.separator)
        meaning = self.letters.get(letter.upper(), "")
        return (meaning, kind) if meaning and kind else ("", tag)

    def marked(self, tags: Sequence[str]) -> list[str]:
        """Return the tags that consist of a letter and a type."""
        return [tag for tag in tags if self.divide(tag)[0]]


@functools.lru_cache(maxsize=8)
def scheme_of(tags: tuple[str, ...]) -> Scheme:
    """Return the scheme that fits most of the distinct tags of a training split."""
    schemes = [Scheme(sep, first, LETTERS) for sep in SEPARATORS for first in (True, False)]
    best = max([*schemes, Scheme("", True, LETTERS)], key=lambda s: len(s.marked(tags)))
    marked = best.marked(tags)
    others = [tag for tag in tags if tag not in marked]
    used = {best.divide(tag)[0] for tag in marked}
    # A class such as E-mail is not the end of an entity, because no entity begins.
    has_begin = bool(used & {"B", "I"}) or used == {"S"}
    if not has_begin or len(others) > max(len(marked), 1):
        return Scheme(outside=_outside(tags))
    # Without a type, every tag but one must be a letter: "I" can also be a part of speech.
    if not best.separator and len(others) > 1:
        return Scheme(outside=_outside(tags))
    outside = others[0] if len(others) == 1 and OUTSIDE not in tags else OUTSIDE
    return replace(best, letters=IOB if used <= IOB.keys() else LETTERS, outside=outside)


def are_integers(tags: Sequence[str]) -> bool:
    """Return whether there are tags, and all of them are numbers such as 0, 1, 2."""
    return bool(tags) and all(tag.isdecimal() for tag in tags)


def entities(tags: Sequence[str], scheme: Scheme = Scheme()) -> list[tuple[int, int, str]]:
    """Return (start, stop, type) of each entity.

    Tags that do not follow the scheme are read as conlleval does: a tag that continues or ends no
    entity of its type begins a new one. A tag without a letter is an entity of one word.
    """
    spans: list[tuple[int, int, str]] = []
    is_open = False  # whether the next word can continue the last entity
    for i, tag in enumerate(tags):
        if tag == scheme.outside:
            is_open = False
            continue
        letter, kind = scheme.divide(tag)
        if is_open and letter in ("I", "E") and spans[-1][2] == kind:
            spans[-1] = (spans[-1][0], i + 1, kind)
        else:
            spans.append((i, i + 1, kind))
        is_open = letter in ("B", "I")
    return spans


def _outside(tags: Sequence[str]) -> str:
    """Return the tag of a word outside of entities, of tags without letters."""
    if are_integers(tags):
        return "0"
    return "o" if "o" in tags and OUTSIDE not in tags else OUTSIDE


def split_words(
    source: str | Sequence[Any], *, punctuation: bool = False
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the words of an input, and of a str also the start and end of each word.

    Args:
        source: The words, or a text, which is split at white space.
        punctuation: Whether each punctuation mark of a text is a word, and each character of a
            script without spaces between words.
    """
    if not isinstance(source, str):
        return [str(word) for word in source], []
    matches = list((WORDS_AND_MARKS if punctuation else WORDS).finditer(source))
    return [match.group() for match in matches], [match.span() for match in matches]


def describe_entities(
    tags: Sequence[str],
    scores: Sequence[float],
    source: str | Sequence[Any],
    scheme: Scheme,
    *,
    punctuation: bool = False,
) -> list[dict[str, Any]]:
    """Return the entities with their words and positions.

    Args:
        tags: Tag of each word.
        scores: Probability of each tag.
        source: The words, or a text.
        scheme: How the tags mark entities.
        punctuation: How a text is split, see `split_words`.

    Returns:
        For each entity: its text, label (type) and score (mean probability of its tags), the index
        start_word of the first word, end_word of the last word plus 1, and the positions start of
        the first character and end of the last one plus 1, both None if the source is a list.
    """
    words, positions = split_words(source, punctuation=punctuation)
    described: list[dict[str, Any]] = []
    for first, stop, label in entities(tags, scheme):
        text = " ".join(words[first:stop])
        start = end = None
        if positions:
            start, end = positions[first][0], positions[stop - 1][1]
            # The text as it is in the source, where words can have several spaces between them.
            text = str(source[start:end])
        score = significant(statistics.fmean(scores[first:stop]))
        entity = {"text": text, "label": label, "score": score, "start_word": first}
        described.append({**entity, "end_word": stop, "start": start, "end": end})
    return described


@dataclass(frozen=True)
class Span:
    """An entity in a text.

    Args:
        start: Position of the first character.
        end: Position of the last character plus 1.
        label: Type of the entity.
        text: Its text, "" if it is not written.
    """

    start: int
    end: int
    label: str
    text: str = ""


def read_spans(cell: Any) -> list[Span] | None:
    """Return the entities of a cell: a list of (start, end, label) or of objects with these keys.

    A cell of a CSV file contains such a list as a text, in JSON or Python.

    Returns:
        None if the cell is anything else.
    """
    if isinstance(cell, str):
        cell = parsed_cell(cell)
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
    """Return whether most target cells are positions of entities; a list can also be empty.

    The others are reported when the rows are read.
    """
    right = wrong = 0
    for cell in cells:
        spans = read_spans(cell)
        right, wrong = right + bool(spans), wrong + (spans is None)
    return right > wrong


def tags_of(
    spans: Sequence[Span], words: Sequence[tuple[int, int]], text: str, origin: str
) -> tuple[list[str], list[Span]]:
    """Return the tag of each word in the scheme IOB2.

    Args:
        spans: The entities. Of entities that overlap, the one that begins first is used, and of
            those that begin together, the longest.
        words: Start and end of each word.
        text: The text.
        origin: Origin of the row, for messages.

    Returns:
        The tags, and the entities that are not used, or that begin or end within a word.

    Raises:
        UserError: If an entity contains no word, or another text than the written one.
    """
    tags = [OUTSIDE] * len(words)
    inexact: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        touched = [i for i, (a, b) in enumerate(words) if a < span.end and b > span.start]
        if not touched or span.start < 0 or span.end > len(text):
            raise UserError(
                f"{origin}: the entity {span.label!r} from character {span.start} to {span.end} "
                f"is not in the text of {len(text)} characters; correct its positions"
            )
        found = text[span.start : span.end]
        if span.text and _plain(span.text) != _plain(found):
            raise UserError(
                f"{origin}: the entity {shortened(span.text)} is not at its positions {span.start} "
                f"to {span.end}, where the text has {shortened(found)}; correct them, and count "
                "characters, not bytes"
            )
        bounds = words[touched[0]][0], words[touched[-1]][1]
        is_used = all(tags[i] == OUTSIDE for i in touched)
        if not is_used or bounds[0] < span.start or bounds[1] > span.end:
            inexact.append(span)
        for i in touched if is_used else ():
            tags[i] = f"{'B' if i == touched[0] else 'I'}-{span.label}"
    return tags, inexact


def _plain(text: str) -> str:
    """Return a text without differences that are no other text."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _span(item: Any) -> Span | None:
    text = item.get(TEXT_KEY) if isinstance(item, Mapping) else ""
    if isinstance(item, Mapping):
        item = [
            next((item[k] for k in keys if k in item), None)
            for keys in (START_KEYS, END_KEYS, LABEL_KEYS)
        ]
    if not isinstance(item, list | tuple) or len(item) != 3:
        return None
    start, end, label = item
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    are_positions = type(start) is int and type(end) is int
    if not are_positions or not isinstance(label, str):
        return None
    return Span(start, end, class_name(label), text if isinstance(text, str) else "")
