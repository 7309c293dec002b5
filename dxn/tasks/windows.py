"""Overlapping windows of a long text, each behind the question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dxn.core.errors import UserError

if TYPE_CHECKING:
    from dxn.tasks.space import Batch

WINDOW = "window"  # key of the `WindowTokens` of a window in the batch of the text


@dataclass(frozen=True, slots=True)
class WindowTokens:
    """Where the tokens of a window are, for each sample. Tensors (B,).

    Args:
        start: Index of its first token in the text.
        count: Number of its tokens.
        column: Column of its first token in the input of the model.
        is_new: Whether the window differs from those before it. A text that has fewer windows than
            another one of the batch repeats its last window.
    """

    start: Tensor
    count: Tensor
    column: Tensor
    is_new: Tensor


@dataclass(frozen=True)
class Windows:
    """How a text is cut into windows.

    If the tokenizer adds special tokens and the question has the same tokenizer, both texts are one
    sequence, as in BERT: [CLS] question [SEP] window [SEP]. Otherwise they are separate inputs.

    Args:
        context: Name of the input with the text.
        question: Name of the input that is in the same sequence. "": none.
        max_len: Maximum number of tokens of a sequence.
        overlap: Number of tokens that a window has in common with the next one.
        max_question: Maximum number of tokens of the question, without special tokens.
        lead: Special tokens in front.
        middle: Special tokens between question and text.
        tail: Special tokens at the end.
        num_tail: Number of special tokens at the end of a single text.
        others: Names of the other texts of the same tokenizer, which are cut to max_len.
    """

    context: str
    question: str = ""
    max_len: int = 256
    overlap: int = 128
    max_question: int = 64
    lead: tuple[int, ...] = ()
    middle: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    num_tail: int = 0
    others: tuple[str, ...] = ()

    def room(self, num_question: Any) -> Any:
        """Return the number of tokens of a window behind a question with so many tokens."""
        special = len(self.lead) + len(self.tail)
        if self.question:
            special = special + len(self.middle)
        return self.max_len - special - num_question

    def step(self, room: Any) -> Any:
        """Return the distance between windows of `room` tokens."""
        overlap = torch.as_tensor(room).clamp(min=2) // 2
        return room - overlap.clamp(max=self.overlap)

    def question_tokens(self, length: Any) -> Any:
        """Return how many tokens of a question are used, of `length` with special tokens."""
        count = torch.as_tensor(length) - len(self.lead) - self.num_tail
        return count.clamp(min=0, max=self.max_question)

    def cut(self, batch: Batch) -> list[Batch]:
        """Return the batch of each window. A batch that is a window already stays as it is."""
        part = batch[self.context]
        if WINDOW in part:
            return [batch]
        if not torch.compiler.is_exporting():
            batch = {**batch, **self._shorter(batch)}
        return [self._batch(batch, place) for place in self.places(batch)]

    def _shorter(self, batch: Batch) -> dict[str, Any]:
        """Return the other texts that are too long, with their first max_len tokens."""
        shorter: dict[str, Any] = {}
        for name in self.others:
            part = batch.get(name)
            if part is not None and part["mask"].shape[1] > self.max_len:
                shape = part["mask"].shape
                shorter[name] = {"rows": part["rows"]} | {
                    key: value[:, : self.max_len]
                    for key, value in part.items()
                    if isinstance(value, Tensor) and value.shape[:2] == shape
                }
        return shorter

    def places(self, batch: Batch) -> list[WindowTokens]:
        """Return the place of each window in a batch, which has at least one."""
        part = batch[self.context]
        mask = part["mask"]
        count = mask.sum(1) - len(self.lead) - self.num_tail
        zero = torch.zeros_like(count)
        used, longest = zero, 0
        if self._is_joined(batch):
            used = self.question_tokens(batch[self.question]["mask"].sum(1))
            longest = self._size(batch[self.question], self.max_question)
        column = zero + len(self.lead) + used + (len(self.middle) if longest else 0)
        room = self.room(used) + zero
        # A graph has one window. So has a batch without a long text, whose lengths are not read.
        if torch.compiler.is_exporting() or self._size(part) <= self.room(longest):
            return [WindowTokens(zero, torch.minimum(count, room), column, zero == 0)]
        step = self.step(room)
        rest = (count - room).clamp(min=0)
        last = (rest + step - 1) // step  # number of the last window
        places: list[WindowTokens] = []
        for number in range(int(last.max()) + 1):
            start = step * last.clamp(max=number)
            size = torch.minimum(count - start, room)
            places.append(WindowTokens(start, size, column, last >= number))
        return places

    def _size(self, part: Batch, limit: int | None = None) -> int:
        """Return the number of columns of texts without special tokens, at most `limit`."""
        size = part["mask"].shape[1] - len(self.lead) - self.num_tail
        return size if limit is None or torch.compiler.is_exporting() else min(size, limit)

    def _is_joined(self, batch: Batch) -> bool:
        # An evaluation of the text alone has no question.
        return bool(self.question) and self.question in batch

    def _batch(self, batch: Batch, place: WindowTokens) -> dict[str, Any]:
        """Return a batch with a window instead of the text, and without a question in it."""
        part = batch[self.context]
        mask = part["mask"]
        # A graph is for any sizes, and reads one window.
        is_short = torch.compiler.is_exporting() or mask.shape[1] <= self.max_len
        if not self.lead and not self.tail and is_short:
            return {**batch, self.context: {**part, WINDOW: place}}
        is_joined = self._is_joined(batch)
        width = len(self.lead) + self._size(part) + len(self.tail)
        if is_joined:
            width += self._size(batch[self.question], self.max_question) + len(self.middle)
        width = torch.sym_min(width, self.max_len)  # as min, and in a graph for any sizes
        columns = torch.arange(width, device=mask.device)[None]
        at = columns - place.column[:, None]
        index = (at + place.start[:, None] + len(self.lead)).clamp(0, mask.shape[1] - 1)
        window: dict[str, Any] = {}
        for key, value in part.items():
            if isinstance(value, Tensor) and value.shape[:2] == mask.shape and key != "mask":
                window[key] = value[
                    torch.arange(value.shape[0], device=value.device)[:, None], index
                ]
        ids = _put(window["ids"], columns, self.lead)
        if is_joined:
            asked = batch[self.question]["ids"]
            behind = place.column[:, None] - len(self.middle)
            question = asked.gather(
                1, columns.clamp(max=asked.shape[1] - 1).expand(asked.shape[0], -1)
            )
            ids = torch.where(columns < behind, question, ids)
            ids = _put(ids, columns - behind, self.middle)
        after = at - place.count[:, None]
        ids = _put(ids, after, self.tail)
        is_real = after < len(self.tail)
        window |= {"ids": ids * is_real, "mask": is_real, WINDOW: place, "rows": part["rows"]}
        result = {**batch, self.context: window}
        if is_joined:
            window["segments"] = ((at >= 0) & is_real).long()
            del result[self.question]
        return result


def _put(ids: Tensor, index: Tensor, values: tuple[int, ...]) -> Tensor:
    """Return ids (B, N) with values[i] where the index (B, N) or (1, N) is i."""
    for i, value in enumerate(values):
        ids = torch.where(index == i, value, ids)
    return ids


def pair_windows(adapters: Mapping[str, Any]) -> Windows:
    """Return how the texts of two inputs become one sequence, see `Windows`.

    Args:
        adapters: Adapters, by input name. The first text comes first.

    Raises:
        UserError: If there are not two texts, or their tokenizer does not join texts.
    """
    texts = [name for name, adapter in adapters.items() if adapter.reader.words]
    if len(texts) != 2 or len(adapters) != 2:
        raise UserError(
            f"head.pair: needs two texts and no other input, got {', '.join(adapters) or 'none'}"
        )
    first, second = (adapters[name] for name in texts)
    special = special_tokens(first.tokenizer)
    if first is not second or not special:
        raise UserError(
            "head.pair: both texts must have a tokenizer that joins two texts with special tokens, "
            "such as that of BERT; set weights=... to a model of this kind"
        )
    max_len = first.tokenizer.max_len
    return Windows(texts[1], texts[0], max_len=max_len, max_question=max_len // 2, **special)


def special_tokens(tokenizer: Any) -> dict[str, Any]:
    """Return the special tokens that a tokenizer adds to a pair of texts, as options of `Windows`.

    Args:
        tokenizer: A `TextTokenizer` with a vocabulary.
    """
    if not tokenizer.adds_special:
        return {}
    single, pair = tokenizer.vocabulary.encode("a"), tokenizer.vocabulary.encode("a", "a")
    owners = pair.sequence_ids
    first = [i for i, owner in enumerate(owners) if owner == 0]
    second = [i for i, owner in enumerate(owners) if owner == 1]
    if not first or not second:
        return {}
    num_tail = len(single.ids) - 1 - max(i for i, o in enumerate(single.sequence_ids) if o == 0)
    return {
        "lead": tuple(pair.ids[: first[0]]),
        "middle": tuple(pair.ids[first[-1] + 1 : second[0]]),
        "tail": tuple(pair.ids[second[-1] + 1 :]),
        "num_tail": num_tail,
    }


def crop(part: Mapping[str, Any], start: int, stop: int, windows: Windows) -> dict[str, Any]:
    """Return the sample of a text with its tokens start:stop and its special tokens."""
    size = len(part["ids"])
    lead = len(windows.lead)
    rows = torch.cat(
        [
            torch.arange(lead),
            torch.arange(start + lead, stop + lead),
            torch.arange(size - windows.num_tail, size),
        ]
    )
    return {
        key: value[rows] if isinstance(value, Tensor) and len(value) == size else value
        for key, value in part.items()
    }
