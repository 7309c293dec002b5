"""One vocabulary for the tokens of all inputs that a model writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dxn.models.decoding.rules import Rules
from dxn.tasks.target import IGNORED
from dxn.tokenize.base import BadMedia
from dxn.tokenize.code_adapters import CodeAdapter

UNWRITTEN = -1  # stands for an id that is not written yet


class Writing(ABC):
    """How a value of an input is a sequence of tokens of R ids each, and back.

    Attributes:
        size: Number of ids of a stage.
        stages: Number R of ids of a token, each of which is one of a stage of its own.
        length: Number of tokens of every value; 0 if values differ, so that an end token follows.
        max_len: Maximum number of tokens of a value.
        row: Number of tokens of a row of a picture; 0 for other values.
        vectors: Known vectors (size, d) of the ids of a stage. None: they have none.
    """

    size: int
    stages: int = 1
    vectors: Tensor | None = None
    length: int = 0
    max_len: int
    row: int = 0

    @abstractmethod
    def ids(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the ids (n, R) of a prepared value."""

    @abstractmethod
    def value(self, ids: Tensor) -> Any:
        """Return the raw value of ids (n, R)."""

    @abstractmethod
    def unfinished(self, ids: Tensor) -> Any:
        """Return the raw value of ids (n, R) so far, some of them UNWRITTEN. None: it has none."""


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
        return ids[~torch.isin(ids, torch.tensor(list(self.tokenizer.special_ids))), None]

    def value(self, ids: Tensor) -> str:
        """Return the text."""
        return self.tokenizer.decode(ids[:, 0].tolist())

    def unfinished(self, ids: Tensor) -> str | None:
        """Return the text so far, if it is written from its start."""
        return None if UNWRITTEN in ids else self.value(ids)


class Codes(Writing):
    """Pictures, sounds, series and clips as the codes of a codec.

    Args:
        codec: The codec, a `dxn.tasks.codec.stored.StoredCodec`.
        flat: Each code is a token, with the same ids in all stages.
    """

    def __init__(self, codec: Any, *, flat: bool = False):
        self.codec = codec
        self.per_token = codec.scalars.stages
        self.size = codec.scalars.num_codes
        self.stages = 1 if flat else self.per_token
        self.max_len = codec.num_tokens * self.per_token // self.stages
        self.length = self.max_len if codec.has_fixed_length else 0
        self.row = codec.row * self.per_token // self.stages
        self.vectors = codec.scalars.vectors(torch.arange(self.size)[:, None])

    def ids(self, sample: Mapping[str, Any]) -> Tensor:
        """Return the codes.

        Raises:
            BadMedia: If there are too few or too many.
        """
        codes = sample["codes"] if "codes" in sample else self.codec.codes(sample)
        if self.length and len(codes) != self.codec.num_tokens:
            raise BadMedia(
                f"{self.codec.input} has another size than the codec needs: {len(codes)} tokens "
                f"instead of {self.codec.num_tokens}; train the codec with resize.mode=stretch"
            )
        return codes.reshape(-1, self.stages)

    def value(self, ids: Tensor) -> Any:
        """Return the raw value.

        The codes of a last part that is not complete, such as a frame of a clip, are left out.
        """
        step = self.codec.step * self.per_token
        count = max(ids.numel() // step, 1) * step
        codes = F.pad(ids.flatten(), (0, step))[:count]
        return self.codec.decode(codes.view(-1, self.per_token))

    def unfinished(self, ids: Tensor) -> Any:
        """Return a picture, with the code of the vector nearest to zero where there is none yet.

        An unfinished sound says nothing, and its phase takes long to estimate.
        """
        if not self.length or self.codec.task.target.peak is None:
            return None
        assert self.vectors is not None
        blank = int(self.vectors.square().sum(1).argmin())
        padded = F.pad(ids, (0, 0, 0, self.length - len(ids)), value=UNWRITTEN)
        return self.value(padded.masked_fill(padded == UNWRITTEN, blank))


def writing_of(adapter: Any, *, parallel: bool = False) -> Writing | None:
    """Return how the values of an adapter are written. None: they cannot be written."""
    if isinstance(adapter, CodeAdapter):
        # In parallel, all codes are written at once, so a delay would save nothing.
        return Codes(adapter.codec, flat=parallel)
    return Words(adapter.tokenizer) if adapter.has_vocabulary else None


@dataclass(frozen=True)
class Vocabulary:
    """The ids of all inputs: a begin token of each, an end token, and those of their stages.

    The first stages of all inputs are before the second ones, and so on, so that the output layer
    of a stage is a part of the output matrix.

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

    @cached_property
    def parts(self) -> dict[tuple[str, int], range]:
        """The ids of each stage of the first input of each group."""
        kinds = dict.fromkeys(self.groups.values())
        most = max((writing.stages for writing in self.writings.values()), default=1)
        parts: dict[tuple[str, int], range] = {}
        start = self.end + 1
        for stage in range(most):
            for name in kinds:
                if stage < self.writings[name].stages:
                    parts[name, stage] = range(start, start + self.writings[name].size)
                    start += self.writings[name].size
        return parts

    def ids(self, name: str) -> list[range]:
        """Return the ids of each stage of an input."""
        return [ids for (kind, _), ids in self.parts.items() if kind == self.groups[name]]

    @property
    def size(self) -> int:
        """Number of ids."""
        return sum(map(len, self.parts.values())) + self.end + 1 + self.parallel

    @cached_property
    def stages(self) -> list[range]:
        """The ids of each stage of all inputs. Those of the first one include all other tokens."""
        starts = [0]
        for (_, stage), ids in self.parts.items():
            if stage == len(starts):
                starts.append(ids.start)
        return [range(*pair) for pair in pairwise([*starts, self.size])]

    def vectors(self) -> Tensor | None:
        """Return the known vectors (V, d) of all ids, in columns of their own for each stage."""
        columns: list[Tensor] = []
        for (name, _), ids in self.parts.items():
            vectors = self.writings[name].vectors
            if vectors is not None:
                columns.append(F.pad(vectors, (0, 0, ids.start, self.size - ids.stop)))
        return torch.cat(columns, 1) if columns else None

    @property
    def row(self) -> int:
        """Number of tokens of a row of the first pictures; 0 if there are none."""
        return next((writing.row for writing in self.writings.values() if writing.row), 0)

    @property
    def mask(self) -> int:
        """Id of the mask token, if `parallel`."""
        return self.size - 1

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a sequence, with those before and after the value."""
        return max(writing.max_len + writing.stages - 1 for writing in self.writings.values()) + 2

    def encode(self, name: str, sample: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the tokens (n, R) of a prepared value, and their labels (n, R).

        After the begin tokens, code r of token i is in row i + r. The codes of a stage are between
        begin and end tokens. Stages that the input does not have are IGNORED. A label is the index
        of a token among those of its stage. Tokens that follow from others have none.
        """
        writing = self.writings[name]
        values = writing.ids(sample)[: writing.max_len]
        count = len(values)
        # As in `TargetTokenizer.encode`, a value that is cut, or just fits, has no end token.
        ends = 0 if writing.length or count == writing.max_len else 1
        if self.parallel:
            ends = writing.max_len - count
        length = 1 + count + max(writing.stages - 1, ends)
        tokens = torch.full((length, len(self.stages)), IGNORED)
        labels = tokens.clone()
        for stage, ids in enumerate(self.ids(name)):
            part = slice(1 + stage, 1 + stage + count)
            tokens[: part.start, stage] = self.begin(name)
            tokens[part, stage] = values[:, stage] + ids.start
            tokens[part.stop :, stage] = self.end
            labels[part, stage] = tokens[part, stage] - self.stages[stage].start
        labels[1 + count : 1 + count + ends, 0] = self.end
        return tokens, labels

    def decode(self, name: str, tokens: Sequence[Sequence[int]]) -> Any:
        """Return the raw value of the generated tokens of each stage, without end tokens."""
        return self.writings[name].value(self._values(name, tokens))

    def unfinished(self, name: str, tokens: Sequence[Sequence[int]]) -> Any:
        """Return the raw value of the tokens of each stage so far. None: it has none."""
        return self.writings[name].unfinished(self._values(name, tokens))

    def _values(self, name: str, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Undo the delay of the tokens of each stage: return (n, R), or UNWRITTEN for others."""
        columns: list[Tensor] = []
        for stage, (ids, row) in enumerate(zip(self.ids(name), tokens, strict=True)):
            column = torch.tensor(row[stage:], dtype=torch.long) - ids.start
            is_other = (column < 0) | (column >= len(ids))
            columns.append(column.masked_fill(is_other, UNWRITTEN))
        return pad_sequence(columns, padding_value=UNWRITTEN)

    def allowed(self, name: str) -> Tensor:
        """Return the tokens (R, V) that each stage of an input can have, without begin tokens."""
        writing, parts = self.writings[name], self.ids(name)
        allowed = torch.zeros(len(parts), self.size, dtype=torch.bool)
        for row, ids in zip(allowed, parts, strict=True):
            row[ids.start : ids.stop] = True
        if isinstance(writing, Words):
            special = [i for i in writing.tokenizer.special_ids if i < writing.size]
            allowed[0, [parts[0].start + i for i in special]] = False
        allowed[0, self.end] = not writing.length
        return allowed

    def rules(self, name: str) -> Rules:
        """Return the rules of the tokens of an input: its own, and the end token."""
        writing = self.writings[name]
        # At least one token, from which a value can be decoded.
        first = () if writing.length else (self.end,)
        if writing.stages > 1:  # each stage has rules of its own, see `allowed`
            return Rules(forbidden_first=first)
        forbidden = (~self.allowed(name)[0]).nonzero()[:, 0].tolist()
        return Rules(forbidden=forbidden, forbidden_first=first)
