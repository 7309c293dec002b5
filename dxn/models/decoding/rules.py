"""Rules about the tokens of generated sequences, such as that no three of them occur twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from dxn.core.schema import options

LENGTH_OFFSET = 5  # that of arXiv:1609.08144
Number = Annotated[int, Ge(0)]


@options
class Rules:
    """Rules about the tokens of a generated sequence.

    Args:
        forbidden: Ids of tokens that are never generated. An option of a head can contain the
            tokens themselves.
        forbidden_first: Ids of further tokens that are not the first one generated.
        min_new: Minimum number of tokens before the end token.
        max_new: Maximum number of tokens. 0: there is none, except that of the generation.
        forced_end: Whether the last of the maximum number of tokens is the end token.
        no_repeat_ngram: Length of token sequences that do not occur twice in a text (arXiv:
            1705.04304, section 2.5). 0: there is no such rule.
        repetition_penalty: Factor that makes tokens less probable that the text already contains
            (arXiv:1909.05858, section 4.1). 1: there is no such rule.
        length_offset: Number that is added to the length of a sequence, by which beam search
            divides its score. See `length_normalized`.
    """

    forbidden: Sequence[int | str] = ()
    forbidden_first: Sequence[int | str] = ()
    min_new: Number = 0
    max_new: Number = 0
    forced_end: bool = False
    no_repeat_ngram: Number = 0
    repetition_penalty: Annotated[float, Gt(0)] = 1.0
    length_offset: Number = LENGTH_OFFSET

    @property
    def change_logits(self) -> bool:
        """Whether a rule changes logits."""
        others = {"max_new": 0, "forced_end": False, "length_offset": LENGTH_OFFSET}
        return replace(self, **others) != Rules()

    def limit(self, max_new: int) -> int:
        """Return the maximum number of tokens that are chosen, which a forced end is not."""
        return max(1, min(max_new, self.max_new or max_new) - self.forced_end)


class RunningRules:
    """The rules of a running generation.

    Only tensors change, in place, so that a step can be captured as a graph.

    Args:
        rules: The rules.
        prompt: (R, P). Token ids before the new tokens. Padding is at the end.
        lengths: (R,). Numbers of tokens of the prompts.
        ends: Ids of the end tokens.
        max_new: Maximum number of new tokens.
        vocab_size: Number of tokens.

    Raises:
        ValueError: If an id is out of range, or all are forbidden.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        prompt: Tensor,
        lengths: Tensor,
        ends: Sequence[int],
        max_new: int,
        vocab_size: int,
    ):
        device = prompt.device
        self.rules = rules
        self.ends = torch.tensor(ends, dtype=torch.long, device=device)
        self.later = _ids(rules.forbidden, vocab_size, device)
        self.forbidden = _ids([*rules.forbidden, *rules.forbidden_first], vocab_size, device)
        self.step = torch.zeros((), dtype=torch.long, device=device)
        # The texts so far, only if a rule reads them.
        self.history: Tensor | None = None
        self.lengths = lengths
        if rules.no_repeat_ngram or rules.repetition_penalty != 1:
            room = prompt.new_zeros(len(prompt), max_new)
            self.history = torch.cat([prompt, room], 1)
            self.lengths = lengths.clone()

    @property
    def columns(self) -> Tensor | None:
        """Ids of the tokens whose logits a step changes. None: they depend on the texts."""
        if self.history is not None:
            return None
        return torch.cat([self.forbidden, self.ends]) if self.rules.min_new else self.forbidden

    def penalize(self, logits: Tensor, log_sums: Tensor | float = 0.0) -> None:
        """Apply the repetition penalty to logits (R, V), or to the logarithms of probabilities.

        Args:
            logits: The logits, which are changed.
            log_sums: (R, 1). What is subtracted from logits for the logarithms of probabilities.
        """
        penalty = self.rules.repetition_penalty
        if self.history is None or penalty == 1:
            return
        # Columns after a text contain its first token again.
        columns = torch.arange(self.history.shape[1], device=logits.device)
        ids = self.history.where(columns < self.lengths[:, None], self.history[:, :1])
        values = logits.gather(1, ids) - log_sums
        values = torch.where(values < 0, values * penalty, values / penalty) + log_sums
        logits.scatter_(1, ids, values.to(logits.dtype))

    def forbid(self, logits: Tensor) -> None:
        """Set the logits (R, V) of the tokens that cannot be chosen to -inf."""
        rules = self.rules
        logits.index_fill_(1, self.forbidden, -torch.inf)
        if rules.min_new:
            values = logits.index_select(1, self.ends)
            values = values.masked_fill(self.step < rules.min_new, -torch.inf)
            logits.index_copy_(1, self.ends, values)
        if self.history is not None and rules.no_repeat_ngram:
            self._forbid_repeated(logits, self.history, rules.no_repeat_ngram)

    def _forbid_repeated(self, logits: Tensor, history: Tensor, n: int) -> None:
        """Forbid each token that would make n tokens equal to n earlier ones."""
        # For each of the first n - 1 tokens: whether it is equal to that at the end of the text.
        count = history.shape[1] - n + 1
        if count < 1:
            return
        ends = torch.arange(n - 1, n - 1 + count, device=history.device)
        equal = ends < self.lengths[:, None]
        for i in range(n - 1):
            index = (self.lengths - n + 1 + i).clamp(min=0)
            equal &= history[:, i : i + count] == history.gather(1, index[:, None])
        # One token can follow several times, so the smallest value counts.
        values = torch.full_like(equal, torch.inf, dtype=logits.dtype)
        values = values.masked_fill(equal, -torch.inf)
        logits.scatter_reduce_(1, history[:, n - 1 :], values, "amin")

    def append(self, tokens: Tensor, parents: Tensor | None) -> None:
        """Add the next token of each row (R,), which continues the row in parents (R,)."""
        self.forbidden = self.later
        self.step += 1
        if self.history is None:
            return
        if parents is not None:
            history, lengths = self.history[parents], self.lengths[parents]
            if history.shape == self.history.shape:
                self.history.copy_(history)
                self.lengths.copy_(lengths)
            else:
                self.history, self.lengths = history, lengths
        self.history.scatter_(1, self.lengths[:, None], tokens[:, None])
        self.lengths += 1

    def select(self, rows: Tensor) -> None:
        """Keep these rows (r,)."""
        if self.history is not None:
            self.history, self.lengths = self.history[rows], self.lengths[rows]


def _ids(forbidden: Sequence[int | str], vocab_size: int, device: torch.device) -> Tensor:
    """Return the ids of forbidden tokens in ascending order."""
    ids = sorted({int(i) for i in forbidden})
    outside = [i for i in ids if not 0 <= i < vocab_size]
    if outside or len(ids) == vocab_size:
        raise ValueError(
            f"forbidden: must be some of the ids from 0 to {vocab_size - 1}, but not all, got "
            f"{outside[0] if outside else 'all'}"
        )
    return torch.tensor(ids, dtype=torch.long, device=device)
