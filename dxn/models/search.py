"""Which sequences a generation continues: one choice per row, or the best beams of each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dxn.models.sampling import Sampler

# Number of consecutive tokens of the vocabulary of which `best_tokens` first computes the maximum.
CHUNK = 64


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A generated sequence.

    Args:
        ids: Token ids, without the prompt and the end token.
        score: Sum of the log-probabilities of the tokens, including the end token.
    """

    ids: list[int]
    score: float

    def ranking_score(self, length_penalty: float) -> float:
        """Return the score by which beam search ranks hypotheses, see `length_normalized`."""
        # 1 for the end token, which is included in the score.
        return length_normalized(self.score, len(self.ids) + 1, length_penalty)


def length_normalized(score: float, length: int, penalty: float) -> float:
    """Return score / ((5 + length) / 6)^penalty (arXiv:1609.08144, equation 14).

    With penalty 0 the score is unchanged, which favors short sequences.
    """
    return score / _divisor(length, penalty)


def _divisor(length: int, penalty: float) -> float:
    return ((5 + length) / 6) ** penalty


class Search(Protocol):
    """The rows of a generation: `width` sequences for each of B samples.

    Args:
        width: Number K of sequences of a sample.
    """

    width: int

    @property
    def finished(self) -> Tensor:
        """(B,) bool. True at samples whose hypotheses are final."""
        ...

    def advance(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose the next tokens.

        Args:
            logits: (B K, V).

        Returns:
            The token of each row (B K,), and the index of the row that each row continues (B K,).
            None: each row continues itself.
        """
        ...

    def select(self, samples: Tensor) -> None:
        """Keep these samples (b,)."""
        ...

    def hypotheses(self, sample: int) -> list[Hypothesis]:
        """Return the final hypotheses of a sample."""
        ...


class Choice:
    """Each row is continued with the token that a sampler chooses, until the end token.

    Args:
        samples: Number B of samples.
        width: Number K of sequences of a sample.
        sampler: Function that selects each token from the log-probabilities.
        end: Id of the end token. None: there is no end token.
        max_new: Maximum number of tokens.
        device: Device of the logits.
    """

    def __init__(
        self,
        samples: int,
        width: int,
        *,
        sampler: Sampler,
        end: int | None,
        max_new: int,
        device: torch.device,
    ):
        self.width = width
        self.sampler = sampler
        self.end = end
        self.tokens = torch.zeros(samples, width, max_new, dtype=torch.long, device=device)
        self.lengths = torch.zeros(samples, width, dtype=torch.long, device=device)
        self.scores = torch.zeros(samples, width, device=device)
        self.ended = torch.zeros(samples, width, dtype=torch.bool, device=device)
        self.step = 0

    @property
    def finished(self) -> Tensor:
        """(B,) bool. True at samples of which all sequences have ended."""
        return self.ended.all(1)

    def advance(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose the next token of each row. Rows that have ended continue, but are ignored."""
        # float32, because a sum of many log-probabilities would be inaccurate in bf16.
        log_probs = logits.float().log_softmax(-1)
        chosen = self.sampler(log_probs)
        gains = log_probs.gather(1, chosen[:, None]).view_as(self.scores)
        self.scores += gains.masked_fill(self.ended, 0)
        tokens = chosen.view_as(self.ended)
        if self.end is not None:
            self.ended |= tokens == self.end
        self.tokens[:, :, self.step] = tokens
        self.lengths += ~self.ended
        self.step += 1
        return chosen, None

    def select(self, samples: Tensor) -> None:
        """Keep these samples (b,)."""
        self.tokens, self.lengths, self.scores, self.ended = (
            part[samples] for part in (self.tokens, self.lengths, self.scores, self.ended)
        )

    def hypotheses(self, sample: int) -> list[Hypothesis]:
        """Return the sequences of a sample."""
        rows = (part[sample].tolist() for part in (self.tokens, self.lengths, self.scores))
        return [Hypothesis(ids[:length], score) for ids, length, score in zip(*rows, strict=True)]


class Beams:
    """The `width` most probable sequences of each sample that have not ended (the beams).

    Hypotheses are ranked by `length_normalized`. A sample is finished when none of its beams can
    become better than its best complete hypothesis.

    Args:
        samples: Number B of samples.
        width: Number K of beams of a sample.
        end: Id of the end token.
        max_new: Maximum number of tokens. Beams of this length are hypotheses too.
        length_penalty: Exponent of the length, see `length_normalized`.
        device: Device of the logits.
    """

    def __init__(
        self,
        samples: int,
        width: int,
        *,
        end: int,
        max_new: int,
        length_penalty: float,
        device: torch.device,
    ):
        self.width = width
        self.end = end
        self.max_new = max_new
        self.length_penalty = length_penalty
        self.tokens = torch.zeros(samples, width, max_new, dtype=torch.long, device=device)
        # All beams of a prompt are equal at first, so all but one are disabled by a score of -inf.
        self.scores = torch.full((samples, width), -torch.inf, device=device)
        self.scores[:, 0] = 0
        # The best complete hypothesis of each sample.
        self.best_tokens = self.tokens[:, 0].clone()
        self.best_lengths = torch.zeros(samples, dtype=torch.long, device=device)
        self.best_scores = torch.full((samples,), -torch.inf, device=device)
        self.best_ranks = torch.full((samples,), -torch.inf, device=device)
        self.step = 0

    @property
    def finished(self) -> Tensor:
        """(B,) bool. True at samples whose best hypothesis no beam can surpass."""
        # More tokens can only reduce the score of a beam, and the length penalty favors the maximum
        # length most. Together, this gives an upper bound.
        bound = self.scores.amax(1) / _divisor(self.max_new + 1, self.length_penalty)
        return self.best_ranks >= bound

    def advance(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Replace the beams by their best continuations. See `Search.advance`."""
        k = self.width
        values, ids = best_tokens(logits.float(), 2 * k)
        # Twice as many candidates as beams: at most one for each beam ends, so at least `width` of
        # them do not end.
        total = (self.scores[..., None] + values.view(-1, k, values.shape[1])).flatten(1)
        values, index = total.topk(min(2 * k, total.shape[1]), -1)
        tokens = ids.view(total.shape).gather(1, index)
        parents = index // ids.shape[1]
        ends = tokens == self.end
        # Only the best `width` candidates can end, as only they would become beams otherwise.
        self._complete(values[:, :k].masked_fill(~ends[:, :k], -torch.inf), parents)
        # Missing beams are filled up with disabled ones.
        self.scores, kept = values.masked_fill(ends, -torch.inf).topk(k, -1)
        tokens = tokens.gather(1, kept)
        parents = parents.gather(1, kept)
        first = torch.arange(len(parents), device=parents.device)[:, None]
        self.tokens[:, :, : self.step] = self.tokens[first, parents, : self.step]
        self.tokens[:, :, self.step] = tokens
        self.step += 1
        if self.step == self.max_new:
            # Without a better complete hypothesis, the best beam is the result.
            beams = torch.arange(k, device=parents.device).expand_as(parents)
            self._complete(self.scores, beams)
        return tokens.flatten(), (parents + first * k).flatten()

    def _complete(self, scores: Tensor, parents: Tensor) -> None:
        """Remember the best of new complete hypotheses if it is better than that of before.

        Args:
            scores: (B, K). Scores. -inf: it is not complete.
            parents: (B, C). The beam whose tokens each of them has, C >= K.
        """
        length = self.step
        score, place = scores.max(1)
        rank = score / _divisor(length + 1, self.length_penalty)
        better = rank > self.best_ranks
        beam = parents.gather(1, place[:, None])[:, 0]
        rows = torch.arange(len(beam), device=beam.device)
        found = self.tokens[rows, beam, :length]
        kept = self.best_tokens[:, :length]
        self.best_tokens[:, :length] = torch.where(better[:, None], found, kept)
        self.best_lengths = torch.where(better, length, self.best_lengths)
        self.best_scores = torch.where(better, score, self.best_scores)
        self.best_ranks = torch.where(better, rank, self.best_ranks)

    def select(self, samples: Tensor) -> None:
        """Keep these samples (b,)."""
        self.tokens, self.scores = self.tokens[samples], self.scores[samples]
        self.best_tokens, self.best_lengths = self.best_tokens[samples], self.best_lengths[samples]
        self.best_scores, self.best_ranks = self.best_scores[samples], self.best_ranks[samples]

    def hypotheses(self, sample: int) -> list[Hypothesis]:
        """Return the best hypothesis of a sample."""
        ids = self.best_tokens[sample, : int(self.best_lengths[sample])].tolist()
        return [Hypothesis(ids, float(self.best_scores[sample]))]


def best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities (R, count) of the most probable tokens, and their ids.

    Args:
        logits: (R, V).
        count: Number of tokens. There are V if it is larger.
    """
    log_probs = logits.log_softmax(-1)
    count = min(count, logits.shape[1])
    whole = logits.shape[1] // CHUNK * CHUNK
    if whole < 2 * count * CHUNK:
        values, ids = log_probs.topk(count, -1)
        return values, ids
    # The best tokens are in the `count` chunks of the largest maxima. This needs a single pass over
    # the vocabulary, and sorts few numbers.
    chunks = log_probs[:, :whole].unflatten(1, (-1, CHUNK))
    best = chunks.amax(-1).topk(count, -1).indices
    inner = torch.arange(CHUNK, device=logits.device)
    ids = (best[..., None] * CHUNK + inner).flatten(1)
    rest = torch.arange(whole, logits.shape[1], device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids, rest], 1)
    values, index = log_probs.gather(1, ids).topk(count, -1)
    return values, ids.gather(1, index)
