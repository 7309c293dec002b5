"""One vocabulary for the tokens of all inputs that a model writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.models.decoding.rules import Rules
from dxn.tokenize.codes import CodeTokenizer

UNWRITTEN = -1  # stands for an id that is not written yet


class Writing(ABC):
    """How a value of an input is a sequence of ids, and back.

    Attributes:
        size: Number of ids.
        length: Number of ids of every value; 0 if values differ, so that an end token follows.
        max_len: Maximum number of ids of a value.
        vectors: Known vectors (size, d) of the ids. None: they have none.
    """

    size: int
    vectors: Tensor | None = None
    length: int = 0
    max_len: int

    @abstractmethod
    def ids(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the ids (n,) of a prepared value."""

    @abstractmethod
    def value(self, ids: Sequence[int]) -> Any:
        """Return the raw value of ids."""

    @abstractmethod
    def unfinished(self, ids: Sequence[int]) -> Any:
        """Return the raw value of the ids so far, UNWRITTEN among them. None: it has none."""


class Words(Writing):
    """Texts as tokens of their vocabulary.

    Args:
        tokenizer: Tokenizer of the texts.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.size = tokenizer.vocabulary.get_vocab_size()
        self.max_len = tokenizer.max_len

    def ids(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the tokens that are no special ones."""
        ids = sample["ids"]
        return ids[~torch.isin(ids, torch.tensor(list(self.tokenizer.special_ids)))]

    def value(self, ids: Sequence[int]) -> str:
        """Return the text."""
        return self.tokenizer.vocabulary.decode(list(ids), skip_special_tokens=True).strip()

    def unfinished(self, ids: Sequence[int]) -> str | None:
        """Return the text so far, if it is written from its start."""
        return None if UNWRITTEN in ids else self.value(ids)


class Codes(Writing):
    """Pictures, sounds, series and clips as the codes of a codec, stage after stage of a token.

    Args:
        codec: The codec, a `dxn.tasks.codec.stored.StoredCodec`.
    """

    def __init__(self, codec: Any):
        self.codec = codec
        self.size = codec.num_codes
        self.max_len = codec.num_tokens * codec.stages
        self.length = self.max_len if codec.has_fixed_length else 0
        self.vectors = codec.vectors(torch.arange(self.size)[:, None])

    def ids(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the codes."""
        return sample["codes"].flatten()

    def value(self, ids: Sequence[int]) -> Any:
        """Return the raw value.

        The codes of a last part that is not complete, such as a frame of a clip, are left out.
        """
        step = self.codec.step * self.codec.stages
        count = max(len(ids) // step, 1) * step
        codes = torch.tensor([*ids, *[0] * step][:count])
        return self.codec.decode(codes.view(-1, self.codec.stages))

    def unfinished(self, ids: Sequence[int]) -> Any:
        """Return a picture, with the code of the vector nearest to zero where there is none yet.

        An unfinished sound says nothing, and its phase takes long to estimate.
        """
        if not self.length or self.codec.task.target.peak is None:
            return None
        assert self.vectors is not None
        blank = int(self.vectors.square().sum(1).argmin())
        known = [*ids, *[UNWRITTEN] * (self.length - len(ids))]
        return self.value([blank if i == UNWRITTEN else i for i in known])


def writing_of(adapter: Any) -> Writing | None:
    """Return how the values of an adapter are written. None: they cannot be written."""
    if isinstance(adapter.tokenizer, CodeTokenizer):
        return Codes(adapter.tokenizer.codec)
    return Words(adapter.tokenizer) if adapter.has_vocabulary else None


@dataclass(frozen=True)
class Vocabulary:
    """The ids of all inputs one after another, before them a begin token of each, and an end token.

    Args:
        writings: How the values of each written input are ids, by input name.
        groups: Inputs whose ids are the same, because they share an adapter: for each input, the
            name of the first one with its adapter.
        parallel: Whether the last id is that of the mask token, and end tokens fill values up to
            the maximum length.
    """

    writings: Mapping[str, Writing]
    groups: Mapping[str, str]
    parallel: bool = False

    @property
    def end(self) -> int:
        """Id of the end token."""
        return len(self.writings)

    def begin(self, name: str) -> int:
        """Return the id of the token before a value of an input."""
        return list(self.writings).index(name)

    def start(self, name: str) -> int:
        """Return the first id of an input."""
        start = self.end + 1
        for each in self.kinds:
            if each == self.groups[name]:
                break
            start += self.writings[each].size
        return start

    @property
    def size(self) -> int:
        """Number of ids."""
        sizes = sum(self.writings[each].size for each in self.kinds)
        return self.end + 1 + sizes + self.parallel

    def vectors(self) -> Tensor | None:
        """Return the known vectors (V, d) of all ids, in columns of their own for each input."""
        parts: list[Tensor] = []
        for name in self.kinds:
            own, start = self.writings[name].vectors, self.start(name)
            if own is None:
                continue
            parts.append(F.pad(own, (0, 0, start, self.size - start - len(own))))
        return torch.cat(parts, 1) if parts else None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The first input of each group."""
        return tuple(dict.fromkeys(self.groups.values()))

    @property
    def mask(self) -> int:
        """Id of the mask token, if `parallel`."""
        return self.size - 1

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a sequence, with those before and after the value."""
        return max(each.max_len for each in self.writings.values()) + 2

    def encode(self, name: str, sample: Mapping[str, Any]) -> Tensor:
        """Return the tokens of a prepared value, with the begin token and end tokens."""
        writing = self.writings[name]
        ids = writing.ids(sample)[: writing.max_len] + self.start(name)
        end = [] if writing.length else [self.end]
        if self.parallel:
            end = [self.end] * (writing.max_len - len(ids))
        return torch.cat([torch.tensor([self.begin(name)]), ids, torch.tensor(end).long()])

    def decode(self, name: str, tokens: Sequence[int]) -> Any:
        """Return the raw value of generated tokens, without the begin and end tokens."""
        start = self.start(name)
        return self.writings[name].value([token - start for token in tokens])

    def unfinished(self, name: str, tokens: Sequence[int]) -> Any:
        """Return the raw value of the tokens so far, or of some of them. None: it has none."""
        writing, start = self.writings[name], self.start(name)
        own = range(start, start + writing.size)
        ids = [token - start if token in own else UNWRITTEN for token in tokens]
        return writing.unfinished(ids)

    def rules(self, name: str) -> Rules:
        """Return the rules of the tokens of an input: its own, and the end token."""
        writing, start = self.writings[name], self.start(name)
        own = range(start, start + writing.size)
        allowed = set(own) if writing.length else {*own, self.end}
        forbidden = tuple(i for i in range(self.size) if i not in allowed)
        special = ()
        if isinstance(writing, Words):
            special = tuple(start + i for i in writing.tokenizer.special_ids if i < writing.size)
        # At least one token, from which a value can be decoded.
        first = () if writing.length else (self.end,)
        return Rules(forbidden=(*forbidden, *special), forbidden_first=first)
