"""The answers of a question, and where they are in a text."""

from __future__ import annotations

import statistics
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.marks import Described
from dxn.core.schema import Strict
from dxn.core.untrusted import parsed_cell, shortened
from dxn.tasks.target import Target
from dxn.tasks.windows import Windows, crop, special_tokens
from dxn.tokenize.text.tokenizer import plain_text

# Usual names of a text that contains answers, the most likely one first.
CONTEXTS = ("context", "passage", "paragraph", "document", "article", "text")
TEXTS = ("text", "texts", "answer")
STARTS = ("answer_start", "start", "starts")
WITH_ANSWER = 0.5  # probability that a window of a long training text contains the answer
# A start can be wrong by so many characters, for example if spaces were removed from the text.
MAX_SHIFT = 3
# From this number, and this share of the starts, wrong ones mean that the texts are other ones.
MIN_WRONG, MAX_WRONG = 3, 0.1

# How the position of an answer was found: it was given; the text contains the answer once, or
# several times; the given one was wrong, or counts the bytes of another encoding than Python.
Found = Literal["", "start", "once", "several", "wrong", "UTF-8", "UTF-16"]
# Encodings in which other languages count positions, with the bytes of a unit.
UNITS: dict[Found, tuple[str, int]] = {"UTF-8": ("utf-8", 1), "UTF-16": ("utf-16-le", 2)}


@dataclass(frozen=True, slots=True, repr=False)
class Answers(Described):
    """The right answers of a question.

    Args:
        texts: The answers, of which each is right. Empty: the text does not contain an answer.
        start: Position of the first character of an answer in the text; -1 if it is unknown.
        stop: Position behind the last character of the same answer.
        found: How the position was found. "": there is none.
    """

    texts: tuple[str, ...] = ()
    start: int = -1
    stop: int = -1
    found: Found = field(default="", compare=False)

    def __repr__(self) -> str:
        return " | ".join(self.texts)


class SpanState(Strict):
    """The content of labels.json."""

    context: str = ""
    is_optional: bool = False
    are_lists: bool | None = None


class SpanTarget(Target):
    """The answer to a question, which is a part of a text.

    Args:
        context: Name of the input with the text. "": it has a usual name, or it is the longest.
        overlap: Number of tokens that a window of a long text has in common with the next one.
        max_question: Maximum number of tokens of a question in the same sequence.

    Attributes:
        is_optional: Whether there are questions without an answer.
        are_lists: Whether the texts in the column of the answers are lists or objects, in JSON or
            Python. None: the column of the training contained no texts.
        windows: How long texts are cut; `bind` sets it.
    """

    State: ClassVar[type[Strict]] = SpanState
    needs_inputs = True
    reads_missing = True  # a question without an answer

    def __init__(self, context: str = "", *, overlap: int = 128, max_question: int = 64):
        self.context = context
        self.overlap = overlap
        self.max_question = max_question
        self.is_optional = False
        self.are_lists: bool | None = None
        self.windows = Windows(context)
        # Number of characters of each text, from which the longest one is chosen.
        self.lengths: Counter[str] = Counter()

    def find_format(self, cells: Sequence[Any], origins: Sequence[str]) -> list[str]:
        """Find out whether most texts in the column are lists or objects."""
        texts = [cell for cell in cells if isinstance(cell, str) and cell.strip()]
        num_lists = sum(parsed(text) is not None for text in texts)
        self.are_lists = 2 * num_lists > len(texts) if texts else None
        return []

    def see_inputs(self, raws: Mapping[str, Sequence[Any]]) -> None:
        """Measure the texts, of which the longest one contains the answers."""
        for name, column in raws.items():
            texts = (raw for raw in column if isinstance(raw, str | list))
            self.lengths[name] += sum(len(plain_text(raw)) for raw in texts)

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Answers:
        """Return the answers in a cell, and the position of one of them in the text.

        Raises:
            UserError: If the cell contains no answers, or none of them is in the text.
        """
        try:
            items = list(read_answers(cell, is_plain=self.are_lists is False))
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{origin}: the target must be an answer, a list of answers, or an object with the "
                f"keys text and answer_start, got {shortened(cell)}"
            ) from None
        texts = {name: plain_text(r) for name, r in raws.items() if isinstance(r, str | list)}
        # The names of all rows: this one can lack the text.
        name = self._context(self.lengths or {name: len(text) for name, text in texts.items()})
        answers = tuple(dict.fromkeys(text for text, _ in items))
        if not answers or name not in texts:
            return Answers(answers)
        text, problem = texts[name], ""
        for answer, start in items:
            places = list(places_of(text, answer, start))
            place, found = chosen_place(text, places, start)
            if place is not None:
                # As the text contains it: an accent can be a character of its own.
                written = text[place.start : place.stop]
                answers = tuple(written if other == answer else other for other in answers)
                return Answers(answers, place.start, place.stop, found)
            if places and not problem:
                problem = (
                    f"{origin}: answer_start {start} is not the start of {shortened(answer)}, "
                    f"which occurs {len(places)} times in {name}; "
                    + ("correct it" if found == "wrong" else f"count characters, not {found}")
                )
        raise UserError(
            problem
            or f"{origin}: the answer {shortened(answers[0])} does not occur in {name}; correct it"
        )

    def _context(self, lengths: Mapping[str, int]) -> str:
        """Return the name of the text with the answers, from the length of each text."""
        if self.context:
            return self.context
        lower = {name.lower(): name for name in lengths}
        usual = next((lower[name] for name in CONTEXTS if name in lower), None)
        return usual or max(lengths, key=lengths.__getitem__, default="")

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Choose the text, and decide whether the question is in the same sequence.

        Raises:
            UserError: If there is no such text, or no other input.
        """
        texts = {name: adapter for name, adapter in adapters.items() if adapter.reader.words}
        self.context = self._context({name: self.lengths[name] for name in texts})
        if self.context not in texts:
            names = ", ".join(texts) or "none"
            raise UserError(
                f"head.context: must be the name of an input that is a text, got "
                f"{self.context or 'no text'}; the texts are {names}, and data.text=NAME reads a "
                "column as a text"
            )
        if len(adapters) < 2:
            raise UserError(
                f"head=span: needs a question, got only {self.context}; add another input"
            )
        adapter = texts[self.context]
        adapter.check_columns_are_tokens("span")
        tokenizer = adapter.tokenizer
        tokenizer.is_cut = False  # long texts have several windows
        special = special_tokens(tokenizer)
        same = [name for name, other in texts.items() if other is adapter and name != self.context]
        question = same[0] if special and same else ""
        self.windows = Windows(
            self.context,
            question,
            max_len=tokenizer.max_len,
            overlap=self.overlap,
            max_question=min(self.max_question, tokenizer.max_len // 2),
            others=tuple(name for name in same if name != question),
            **special,
        )
        self.required = self.prepared_inputs = tuple(filter(None, (question, self.context)))
        # The first token, which stands for no answer, is then not one of the text.
        self.last = self.context

    def check_values(self, values: Iterable[Answers]) -> None:
        """Refuse starts of which many are wrong.

        Raises:
            UserError: If the answers of many rows are not at their starts.
        """
        values = list(values)
        counts = Counter(value.found for value in values)
        wrong = counts["wrong"] + sum(counts[name] for name in UNITS)
        if wrong < max(MIN_WRONG, MAX_WRONG * (wrong + counts["start"])):
            return
        first = next(value for value in values if value.found in ("wrong", *UNITS))
        advice = "correct them, or remove them, so that the answers are looked up in the texts"
        if not counts["wrong"]:
            names = " or ".join(name for name in UNITS if counts[name])
            advice = f"they count the units of {names}, so count characters instead"
        raise UserError(
            f"data.target: {wrong:,} of {wrong + counts['start']:,} answers are not at their "
            f"answer_start in the text, such as {shortened(first.texts[0])}, which is at "
            f"{first.start}; {advice}"
        )

    def fit(self, values: Sequence[Answers]) -> None:
        """Find out whether there are questions without an answer."""
        self.is_optional = any(not value.texts for value in values)

    def encode(self, value: Answers, sample: dict[str, Any], rand: Random | None = None) -> Tensor:
        """Return the indices (2,) of the first and last token of the answer; -1 without an answer.

        In a training, a long text is replaced by one of its windows.
        """
        windows = self.windows
        part = sample[self.context]
        coords = part["coords"][len(windows.lead) :]
        # False at special tokens, whose position is NaN.
        is_answer = (coords[:, 1] > value.start) & (coords[:, 0] < value.stop)
        at = is_answer.nonzero().flatten().tolist()
        first, last = (at[0], at[-1]) if value.start >= 0 and at else (-1, -1)
        if rand is None:
            return torch.tensor([first, last])
        count = len(coords) - windows.num_tail
        used = 0
        if windows.question in sample:
            used = int(windows.question_tokens(len(sample[windows.question]["ids"])))
        room = int(windows.room(used))
        if count <= room:
            return torch.tensor([first, last])
        start = rand.randint(0, count - room)
        if first >= 0 and last - first < room and rand.random() < WITH_ANSWER:
            start = rand.randint(max(0, last + 1 - room), min(first, count - room))
        sample[self.context] = crop(part, start, start + room, windows)
        is_inside = start <= first and last < start + room
        return torch.tensor([first - start, last - start] if is_inside else [-1, -1])

    def describe(self, values: Sequence[Answers]) -> str:
        """Return the lengths of the answers, and the number of questions without one."""
        lengths = [len(value.texts[0]) for value in values if value.texts]
        if not lengths:
            return f"{len(values):,} questions without an answer"
        line = (
            f"answers of {min(lengths):,} to {max(lengths):,} characters, median "
            f"{statistics.median(lengths):,.0f}"
        )
        without = len(values) - len(lengths)
        line += f"; {without:,} questions without an answer" if without else ""
        counts = Counter(value.found for value in values)
        if counts["several"]:
            line += (
                f"; {counts['several']:,} without a start occur several times, the first one is "
                "used"
            )
        if wrong := counts["wrong"] + sum(counts[name] for name in UNITS):
            line += f"; {wrong:,} are not at their start, but elsewhere in the text"
        return line


def read_answers(cell: Any, *, is_plain: bool = False) -> Iterator[tuple[str, int | None]]:
    """Yield the answers in a cell, each with its start, which is None if it is unknown.

    A missing or empty cell has no answers.

    Args:
        cell: The cell.
        is_plain: Whether a text is an answer, even if it looks like a list or an object.

    Raises:
        ValueError: If the cell is something else.
    """
    if cell is None:
        return
    if isinstance(cell, str) and not is_plain:
        content = parsed(cell)
        cell = cell if content is None else content
    if isinstance(cell, Mapping):
        keys = [next((k for k in names if k in cell), None) for names in (TEXTS, STARTS)]
        if keys[0] is None:
            raise ValueError(f"must have a key {' or '.join(TEXTS)}")
        texts, starts = cell[keys[0]], None if keys[1] is None else cell[keys[1]]
        texts = texts if isinstance(texts, list | tuple) else [texts]
        starts = starts if isinstance(starts, list | tuple) else [starts]
        starts = [*starts, *[None] * (len(texts) - len(starts))]
        for text, start in zip(texts, starts, strict=False):
            if text is not None and str(text).strip():
                # -1 also stands for an unknown start.
                yield str(text), None if start is None or int(start) < 0 else int(start)
    elif isinstance(cell, list | tuple):
        for item in cell:
            yield from read_answers(item, is_plain=True)
    elif isinstance(cell, str | int | float):
        if str(cell).strip():
            yield str(cell).strip(), None
    else:
        raise ValueError(f"must be a text, got {type(cell).__name__}")


class Place(NamedTuple):
    """Where a text contains an answer: its start and stop, and its start in the composed text."""

    start: int
    stop: int
    composed: int


def places_of(text: str, answer: str, start: int | None) -> Iterator[Place]:
    """Yield the places of an answer in a text: that at its start, otherwise all.

    An answer that does not occur exactly is looked for in the composed text (Unicode NFC).
    """
    if start is not None and text.startswith(answer, start):
        yield Place(start, start + len(answer), start)
        return
    at = text.find(answer)
    if at < 0 and not (text.isascii() and answer.isascii()):
        yield from _composed_places(text, answer)
    while at >= 0:
        yield Place(at, at + len(answer), at)
        at = text.find(answer, at + 1)


def _composed_places(text: str, answer: str) -> Iterator[Place]:
    # Where a character begins that is not composed with the one before it.
    starts = [i for i, char in enumerate(text) if not i or not _joins(char)]
    stops = [*starts[1:], len(text)]
    parts = [unicodedata.normalize("NFC", text[a:b]) for a, b in zip(starts, stops, strict=True)]
    composed, answer = "".join(parts), unicodedata.normalize("NFC", answer)
    owners = [i for i, part in enumerate(parts) for _ in part]
    at = composed.find(answer)
    while at >= 0:
        stop = at + len(answer)
        # Between two characters, not within one.
        is_start = not at or owners[at] != owners[at - 1]
        if is_start and (stop == len(composed) or owners[stop] != owners[stop - 1]):
            yield Place(starts[owners[at]], stops[owners[stop - 1]], at)
        at = composed.find(answer, at + 1)


def _joins(char: str) -> bool:
    """Return whether a character can be composed with the one before it."""
    # The vowels and final consonants of Korean have no combining class.
    return bool(unicodedata.combining(char)) or "\u1160" <= char <= "\u11ff"


def chosen_place(
    text: str, places: Sequence[Place], start: int | None
) -> tuple[Place | None, Found]:
    """Return the place of an answer, and how it was found. None: it is unknown which one."""
    if not places:
        return None, ""
    if start is None:
        return places[0], "once" if len(places) == 1 else "several"
    exact = [place for place in places if start in (place.start, place.composed)]
    if len(exact) == 1:
        return exact[0], "start"
    found: Found = "wrong"
    for name, (encoding, size) in UNITS.items():
        befores = (text[: place.start].encode(encoding, "replace") for place in places)
        if any(len(before) == size * start for before in befores):
            found = name
            break
    near = [place for place in places if abs(place.start - start) <= MAX_SHIFT]
    (place,) = places if len(places) == 1 else near if len(near) == 1 else (None,)
    return place, found


def parsed(text: str) -> Any:
    """Return the answers that a text contains as a list or an object, in JSON or Python.

    None: the text is an answer itself, such as "[citation]" or "[3, 4]".
    """
    value = parsed_cell(text)
    items = value if isinstance(value, list) else [value]
    return value if all(isinstance(item, str) or _is_object(item) for item in items) else None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and any(key in value for key in TEXTS)
