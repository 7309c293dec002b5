"""Rows of text as one long line of tokens, cut into windows: what a language model learns from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dxn.data.samples import Opened, Samples
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.tokenize.target import ENDS, token_of


class Stream(Samples):
    """Item (epoch, i) is a window of max_len tokens, its target the token that follows each of them.

    In training (augment) a window begins anywhere, a pure function of (seed, epoch, i); otherwise windows lie side by
    side, so that each token but the first is guessed once. Between rows stands the end token, if there is one.
    """

    def __init__(
        self,
        opened: Opened,
        prepares: Mapping[str, Any],
        *,
        target: Target | None = None,
        seed: int = 0,
        augment: bool = False,
        modality_dropout: float = 0.0,
        only: Sequence[str] | None = None,
    ):
        super().__init__(opened, {"text": prepares["text"]}, target=target, seed=seed, augment=augment)
        prepare = prepares["text"]
        end = token_of(prepare.tokenizer, ENDS)
        ids: list[int] = []
        for raw in (opened.raws["text"][row] for row in self.rows):
            encoding = prepare.tokenizer.encode(raw, is_pretokenized=isinstance(raw, list), add_special_tokens=False)
            ids += ([end] if ids and end is not None else []) + encoding.ids
        if len(ids) < 2:
            raise UserError(
                f"{opened.origin[0]}: to guess a next token takes at least 2, got {len(ids)}; give more text"
            )
        self.ids, self.length = torch.tensor(ids), prepare.max_len
        self.chars = sum(len(" ".join(raw) if isinstance(raw, list) else raw) for raw in opened.raws["text"] if raw)
        self.rows = list(range(max(-(-(len(ids) - 1) // self.length), 1)))

    @property
    def chars_per_token(self) -> float:
        """Characters that a token stands for, in the mean."""
        return self.chars / len(self.ids)

    def size(self, i: int) -> float:
        """All windows are alike."""
        return self.length

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """index, text and target of a window."""
        epoch, i = key
        start = self.rows[i] * self.length
        if self.augment:
            start = random.Random(f"{self.seed}/{epoch}/{i}").randrange(max(len(self.ids) - self.length, 1))
        window = self.ids[start : start + self.length + 1]
        count = len(window) - 1
        text = {
            "ids": window[:-1],
            "places": torch.full((count, 2), torch.nan),
            "words": torch.full((count,), -1),
            "cut": torch.tensor(0),
        }
        return {"text": text, "index": self.rows[i], "target": window[1:]}


def samples_of(target: Target) -> type[Samples]:
    """How rows become samples for such a target."""
    return Stream if target.kind == "next" else Samples
