"""A data set for language modelling: all texts as one stream of tokens, cut into windows."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.data.dataset import Opened, Samples
from dxn.data.rows import TARGET
from dxn.data.token_ids import TokenIds, token_ids
from dxn.tasks.language import Window
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer


class TokenWindows(Samples):
    """Windows of max_len tokens. The target of each token is the next token.

    In training (`augment`), a window starts at a random position, which depends only on (seed,
    epoch, i). Otherwise windows are adjacent, so that each token except the first is predicted
    once. If the tokenizer has an EOS token, it separates the rows.

    Args:
        opened: Opened rows.
        tokenizers: Tokenizer of each input, by input name. That of the task's only required input
            must have a vocabulary.
        task: Task that encodes and collates the targets.
        seed: Seed of the random positions.
        augment: Whether windows start at random positions, as in training.
        repeats: Factor of the number of windows, if `augment` is set.

    Raises:
        UserError: If the texts have fewer than two tokens.
    """

    def __init__(
        self,
        opened: Opened,
        tokenizers: Mapping[str, Tokenizer],
        *,
        task: Task,
        seed: int = 0,
        augment: bool = False,
        repeats: int = 1,
    ):
        (self.name,) = task.target.required
        tokenizer = tokenizers[self.name]
        super().__init__(opened, {self.name: tokenizer}, task=task, seed=seed, augment=augment)
        # Samples.__init__ sets self.rows to the rows that have a text. At the end of this method it
        # becomes the list of windows, which __len__ and __getitem__ use.
        self.texts = self.rows
        texts = opened.raws[self.name].take(self.texts)
        self.tokens: TokenIds = token_ids(texts, tokenizer)
        if len(self.ids) < 2:
            raise UserError(
                f"{opened.origin[0]}: language modelling needs at least 2 tokens per split, got "
                f"{len(self.ids)}; use more text"
            )
        self.max_len = tokenizer.max_len
        num_predicted = len(self.ids) - 1
        copies = repeats if augment else 1
        self.rows = np.arange(copies * math.ceil(num_predicted / self.max_len))

    @property
    def ids(self) -> np.ndarray:
        """Token ids of the stream, uint16 or uint32."""
        return self.tokens.ids

    @property
    def chars_per_token(self) -> float:
        """Mean number of characters per token of the stream."""
        return self.tokens.num_chars / len(self.ids)

    def lengths(self) -> np.ndarray:
        """Return max_len, the length of all windows except the last one."""
        return np.full(len(self), self.max_len)

    def describe_index(self, row: int) -> str:
        """Return the name of a window for messages, such as "book.txt row 1, window 17"."""
        if self.augment:  # the position depends on the epoch
            return f"window {row + 1}, at a random position of the texts"
        text = np.searchsorted(self.tokens.starts, row * self.max_len, side="right") - 1
        return f"{self.opened.origin[int(self.texts[text])]}, window {row + 1}"

    def batch(
        self, epoch: int, indices: Sequence[int], *, drop_inputs: bool = True
    ) -> dict[str, Any]:
        return self.collate([self[epoch, i] for i in indices])

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, i = key
        assert self.target is not None
        index = int(self.rows[i])
        start = index * self.max_len
        rand = random.Random(f"{self.seed}/{epoch}/{i}") if self.augment else None
        # A random start gives each token a different context in each epoch.
        if rand is not None:
            start = rand.randrange(max(len(self.ids) - self.max_len, 1))
        # The targets of a window are its ids shifted by one.
        ids = torch.from_numpy(self.ids[start : start + self.max_len + 1].astype(np.int64))
        targets = ids[1:]
        sample: dict[str, Any] = {self.name: _text_sample(ids[:-1])}
        window = Window(targets, self.chars_per_token)
        encoded = self.target.encode(
            window, sample, random.Random("") if self.target.random else rand
        )
        if encoded is not None:
            sample[TARGET] = encoded
        return {**sample, "#index": index}


def make_samples(
    task: Task, opened: Opened, tokenizers: Mapping[str, Tokenizer], **options: Any
) -> Samples:
    """Create the data set of a task: `TokenWindows` if it needs a token stream, else `Samples`.

    The options are those of `Samples`. `TokenWindows` have a single input, so they ignore `only`
    and `input_dropout`. Each conversation is a sample, also for a task that needs a stream of
    tokens, and so is each text with other inputs.
    """
    are_chats = any(tokenizer.reader.template is not None for tokenizer in tokenizers.values())
    if task.target.source != "stream" or are_chats or len(tokenizers) > 1:
        return Samples(opened, tokenizers, task=task, **options)
    used = {name: value for name, value in options.items() if name not in ("only", "input_dropout")}
    return TokenWindows(opened, tokenizers, task=task, **used)


def _text_sample(ids: Tensor) -> dict[str, Tensor]:
    """Return a sample in the format of the text tokenizer.

    `coords` are character positions in a text, which are unknown here, so they are NaN.
    """
    count = len(ids)
    return {
        "ids": ids,
        "mask": torch.ones(count, dtype=torch.bool),
        "coords": torch.full((count, 2), torch.nan),
        # -1 marks tokens without a word, because the stream is not divided into words.
        "words": torch.full((count,), -1),
    }
