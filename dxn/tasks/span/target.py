"""The answers of a question, and where they are in a text."""

from __future__ import annotations

import ast
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.core.untrusted import shortened
from dxn.tasks.infer import CONTEXTS
from dxn.tasks.span.windows import Windows, crop, special_tokens
from dxn.tasks.target import Target
from dxn.tokenize.text.tokenizer import plain_text

TEXTS = ("text", "texts", "answer")
STARTS = ("answer_start", "start", "starts")
WITH_ANSWER = 0.5  # probability that a window of a long training text contains the answer


@dataclass(frozen=True, slots=True, repr=False)
class Answers:
    """The right answers of a question.

    Args:
        texts: The answers, of which each is right. Empty: the text does not contain an answer.
        start: Position of the first character of an answer in the text; -1 if it is unknown.
        stop: Position behind the last character of the same answer.
        is_unclear: Whether the answer occurs several times, so that the first position is used.
    """

    texts: tuple[str, ...] = ()
    start: int = -1
    stop: int = -1
    is_unclear: bool = False

    def __repr__(self) -> str:
        return " | ".join(self.texts)


class SpanState(Strict):
    """The content of labels.json."""

    context: str = ""
    is_optional: bool = False


class SpanTarget(Target):
    """The answer to a question, which is a part of a text.

    Args:
        context: Name of the input with the text. "": it has a usual name, or it is the longest.
        overlap: Number of tokens that a window of a long text has in common with the next one.
        max_question: Maximum number of tokens of a question in the same sequence.

    Attributes:
        is_optional: Whether there are questions without an answer.
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
        self.windows = Windows(context)
        # Number of characters of each text, from which the longest one is chosen.
        self.lengths: Counter[str] = Counter()

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> Answers:
        """Return the answers in a cell, and the position of one of them in the text.

        Raises:
            UserError: If the cell contains no answers, or none of them is in the text.
        """
        try:
            texts_and_starts = list(read_answers(cell))
        except (TypeError, ValueError, OverflowError):
            raise UserError(
                f"{origin}: the target must be an answer, a list of answers, or an object with the "
                f"keys text and answer_start, got {shortened(cell)}"
            ) from None
        texts = {name: plain_text(r) for name, r in raws.items() if isinstance(r, str | list)}
        self.lengths.update({name: len(text) for name, text in texts.items()})
        # The names of all rows: this one can lack the text.
        name = self._context(self.lengths)
        answers = tuple(dict.fromkeys(text for text, _ in texts_and_starts))
        if not answers or name not in texts:
            return Answers(answers)
        for text, start in texts_and_starts:
            position = nearest(texts[name], text, start)
            if position >= 0:
                is_unclear = start is None and texts[name].count(text) > 1
                return Answers(answers, position, position + len(text), is_unclear)
        raise UserError(
            f"{origin}: the answer {shortened(answers[0])} does not occur in {name}; correct it"
        )

    def _context(self, names: Mapping[str, Any]) -> str:
        """Return the name of the text with the answers, among the texts by name."""
        if self.context:
            return self.context
        lower = {name.lower(): name for name in names}
        usual = next((lower[name] for name in CONTEXTS if name in lower), None)
        return usual or max(names, key=lambda name: self.lengths[name], default="")

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Choose the text, and decide whether the question is in the same sequence.

        Raises:
            UserError: If there is no such text, or no other input.
        """
        texts = {name: adapter for name, adapter in adapters.items() if adapter.reader.words}
        self.context = self._context(texts)
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
        unclear = sum(value.is_unclear for value in values)
        several = f"; {unclear:,} without a start occur several times, the first one is used"
        return line + several if unclear else line


def read_answers(cell: Any) -> Iterator[tuple[str, int | None]]:
    """Yield the answers in a cell, each with its start, which is None if it is unknown.

    A missing or empty cell has no answers.

    Raises:
        ValueError: If the cell is something else.
    """
    if cell is None:
        return
    if isinstance(cell, str) and cell.lstrip().startswith(("{", "[")):
        cell = _parsed(cell)
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
                yield str(text), None if start is None else int(start)
    elif isinstance(cell, list | tuple):
        for item in cell:
            yield from read_answers(item)
    elif isinstance(cell, str | int | float):
        if str(cell).strip():
            yield str(cell).strip(), None
    else:
        raise ValueError(f"must be a text, got {type(cell).__name__}")


def nearest(text: str, part: str, start: int | None) -> int:
    """Return the position of a part of a text that is nearest to `start`; -1 if there is none.

    None: the first one. A given start can be wrong by a few characters, if spaces were removed.
    """
    if start is not None and text.startswith(part, start) and start >= 0:
        return start
    positions: list[int] = []
    at = text.find(part)
    while at >= 0:
        positions.append(at)
        if start is None:
            break
        at = text.find(part, at + 1)
    return min(positions, key=lambda at: abs(at - (start or 0)), default=-1)


def _parsed(text: str) -> Any:
    """Return the list or object that a text contains, in JSON or Python; else the text."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list | dict):
            return value
    return [text]
