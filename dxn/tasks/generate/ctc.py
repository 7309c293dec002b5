"""Transcription by connectionist temporal classification (CTC, Graves et al., ICML 2006)."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from dxn.core.dropout import Rate
from dxn.core.errors import UserError
from dxn.core.schema import Strict
from dxn.tasks.generate.texts import ErrorRates, describe_texts
from dxn.tasks.heads import LinearHead, PreHead
from dxn.tasks.space import Batch, LossSum, Space
from dxn.tasks.target import Target
from dxn.tasks.task import Task

BLANK = ""  # the text of the output that separates equal characters, and of silence


class TranscriptsState(Strict):
    """The vocabulary in a model folder, which may come from an untrusted source."""

    labels: Annotated[list[str], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> TranscriptsState:
        if self.labels.count(BLANK) != 1:
            raise ValueError('labels must contain the blank, an empty text "", exactly once')
        return self


class Transcripts(Target):
    """One text per row, whose characters are in the order of the tokens of an input.

    Attributes:
        index: Index of each character of the vocabulary.
        input: Name of the input. There is only one, the first with a known number of tokens.
    """

    State: ClassVar[type[Strict]] = TranscriptsState
    needs_inputs = True
    is_text = True

    def __init__(self):
        self.labels = ()
        self.input = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The text of each output: the blank "", and single characters."""
        return self._labels

    @labels.setter
    def labels(self, names: Sequence[str]) -> None:
        self._labels = tuple(names)
        self.index = {name: i for i, name in enumerate(names)}

    @property
    def blank(self) -> int:
        """Index of the blank."""
        return self.index[BLANK]

    def normalize(self, text: str) -> str:
        """Return a text in the letter case of the vocabulary, if it has only one."""
        cases = ((char, char.upper(), char.lower()) for char in text)
        return "".join(
            next((char for char in spellings if char in self.index), spellings[0])
            for spellings in cases
        )

    def read(self, cell: Any, origin: str, raws: Mapping[str, Any]) -> str:
        """Return the text, with single spaces between words.

        Raises:
            UserError: If its input has too few tokens to write it.
        """
        # A letter with an accent can be one or two characters, which look the same.
        text = " ".join(unicodedata.normalize("NFC", str(cell)).split())
        name = self.input or _input_of(self.tokenizers)
        raw = raws.get(name)
        if raw is not None:
            count = self.tokenizers[name].count(raw)
            needed = _tokens_needed(text)
            if needed > count:
                raise UserError(
                    f"{origin}: the target needs at least {needed} tokens, one per character and "
                    f"one between two equal ones, but {name} has {count}; use shorter tokens, or "
                    "correct the target"
                )
        return text

    def bind(self, adapters: Mapping[str, Any]) -> None:
        """Choose the first input with a known number of tokens.

        Raises:
            UserError: If there is none.
        """
        self.tokenizers = {name: adapter.tokenizer for name, adapter in adapters.items()}
        self.input = _input_of(self.tokenizers)
        if not self.input:
            raise UserError(
                "head=ctc: needs an input whose tokens are in the order of the text, such as "
                f"audio, got {', '.join(adapters)}"
            )
        self.required = self.prepared_inputs = (self.input,)

    def start_from(self, labels: Sequence[str]) -> None:
        """Use the vocabulary of a checkpoint, if it has all characters of the training split."""
        self.labels = labels

    def fit(self, values: Sequence[str]) -> None:
        """Collect the characters, unless the vocabulary of a checkpoint has them."""
        chars = set("".join(map(self.normalize, values)))
        if not self.labels or not chars <= self.index.keys():
            self.labels = (BLANK, *sorted(set("".join(values))))

    def encode(self, value: str, sample: dict[str, Any], rand: Random | None = None) -> Any:
        """Return the indices (n,) of the characters, and the number of tokens of the input.

        Characters that the vocabulary does not have are left out.
        """
        ids = [self.index[char] for char in self.normalize(value) if char in self.index]
        part = {k: v[None] for k, v in sample[self.input].items() if isinstance(v, Tensor)}
        count_columns = self.tokenizers[self.input].count_columns
        assert count_columns is not None
        return torch.tensor(ids, dtype=torch.long), int(count_columns(part))

    def collate(self, targets: Sequence[Any]) -> dict[str, Any]:
        """Return ids (B, n) padded with 0, their lengths and the numbers of tokens, as lists."""
        ids = [ids for ids, _ in targets]
        return {
            "ids": nn.utils.rnn.pad_sequence(ids, True),
            "lengths": [len(row) for row in ids],
            "counts": [count for _, count in targets],
        }

    def describe(self, values: Sequence[str]) -> str:
        """Return the range and the median of the text lengths in characters."""
        return describe_texts(values)


class CharacterSpace(Space):
    """Logits (B, N, V) of the characters at each token; targets are those of `Transcripts`.

    Args:
        target: The texts.
    """

    mixes = False

    def __init__(self, target: Transcripts):
        self.target = target

    def loss(self, output: Tensor, batch: Batch) -> LossSum:
        """Return the CTC loss (torch.nn.functional.ctc_loss), summed over characters.

        A clip that augmentation has made too short for its text adds no loss.
        """
        target = batch["target"]
        losses = F.ctc_loss(
            output.float().log_softmax(-1).transpose(0, 1),
            target["ids"],
            # On the CPU, where the function needs them.
            torch.tensor(target["counts"]),
            torch.tensor(target["lengths"]),
            blank=self.target.blank,
            reduction="sum",
            zero_infinity=True,
        )
        # An empty text has a loss too.
        num_chars = sum(max(length, 1) for length in target["lengths"])
        return LossSum(losses, losses.new_tensor(float(num_chars)))

    def decode(self, output: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the probabilities (B, N, V) of the characters at each token, 0 at padding."""
        return {"probabilities": output.float().softmax(-1) * self._mask(output, batch)[..., None]}

    def mean(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return the logarithm of the mean of the probabilities."""
        log_probabilities = torch.stack(list(outputs)).float().log_softmax(-1)
        return log_probabilities.logsumexp(0) - math.log(len(outputs))

    def _mask(self, output: Tensor, batch: Batch) -> Tensor:
        """Return a mask (B, N), True at the tokens of the input."""
        part = batch[self.target.input]
        count_columns = self.target.tokenizers[self.target.input].count_columns
        assert count_columns is not None
        # The rows of a batch are on the device of the model, and the output can be on the CPU.
        counts = count_columns(part).to(output.device)[:, None]
        real = torch.arange(output.shape[1], device=output.device) < counts
        rows = part["rows"].to(output.device)
        return real.new_zeros(output.shape[:2]).index_copy(0, rows, real)


@dataclass(kw_only=True, eq=False)
class Ctc(Task[Transcripts]):
    """Write a text along the tokens of a sound: one character, or nothing, per token.

    The characters are predicted independently of each other, and must be in the order of the
    tokens.

    Args:
        dropout: Dropout probability of the encoded tokens.
    """

    name = "ctc"

    dropout: Rate = 0.1

    def __post_init__(self):
        self.target = Transcripts()
        self.space = CharacterSpace(self.target)
        self.metric = ErrorRates(self.target.normalize)

    def make_head(self, dim: int, pooled_dim: int, adapters: Mapping[str, Any]) -> nn.Module:
        """Build a linear layer that maps each token of the input to logits."""
        pre = PreHead(dim, dropout=self.dropout)
        return LinearHead(pre, len(self.target.labels), input=self.target.input)

    def predict(
        self, head: nn.Module, output: Tensor, batch: Batch, *, draft: bool = False
    ) -> list[str]:
        """Return the text of each sample: the most probable characters, without repetitions."""
        assert self.space is not None
        best = self.space.decode(output, batch)["probabilities"].max(-1)
        ids = best.indices.masked_fill(best.values == 0, self.target.blank).cpu()
        labels = self.target.labels
        return [
            "".join(labels[i] for i in row.unique_consecutive().tolist()).strip() for row in ids
        ]


def _input_of(tokenizers: Mapping[str, Any]) -> str:
    """Return the name of the first input with a known number of tokens, "" if there is none."""
    names = (name for name, tokenizer in tokenizers.items() if tokenizer.count_columns is not None)
    return next(names, "")


def _tokens_needed(text: str) -> int:
    """Return the minimum number of tokens: equal neighbors have a blank between them."""
    return len(text) + sum(first == second for first, second in pairwise(text))
