"""Generation of sequences with a decoder: greedy, by sampling, or by beam search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from einops import rearrange
from torch import Tensor

from dxn.models.attention import Memory

Sampler = Callable[[Tensor], Tensor]  # from log-probabilities (B, V) to the next token ids (B,)


class StepCache(Protocol):
    """Cached results of a decoder for the previous tokens."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows (b,) of the batch."""
        ...


class StepDecoder(Protocol):
    """A model that predicts the next token, such as Decoder, RecurrentDecoder or LanguageModel."""

    def caches(self) -> Sequence[Any]:
        """Create empty caches. Each one is a `StepCache`."""
        ...

    def __call__(self, ids: Tensor, mask: Tensor, memory: Any, caches: Any, /) -> Tensor:
        """Compute the logits (B, n, V) after the new ids (B, n) of a sequence with mask (B, N)."""
        ...


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


def greedy(log_probs: Tensor) -> Tensor:
    """Return the most probable token of each row of log_probs (B, V)."""
    return log_probs.argmax(-1)


def random_sampler(
    generator: torch.Generator,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Sampler:
    """Create a sampler that draws tokens according to their probability.

    Args:
        generator: Random generator.
        temperature: Divisor of the log-probabilities. Values below 1 favor probable tokens.
        top_k: Sample only from the top_k most probable tokens. Default: no limit.
        top_p: Sample only from the smallest set of most probable tokens whose total probability
            reaches top_p (arXiv:1904.09751, section 3.1). Default: no limit.

    Raises:
        ValueError: If an argument is out of range.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")

    def sample(log_probs: Tensor) -> Tensor:
        probs, order = (log_probs / temperature).softmax(-1).sort(-1, descending=True)
        if top_k is not None:
            probs[:, top_k:] = 0
        if top_p is not None:
            # The sum before each token is compared, so that the most probable token always remains.
            probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0)
        choice = torch.multinomial(probs, 1, generator=generator)
        return order.gather(1, choice).squeeze(1)

    return sample


def make_sampler(
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Sampler:
    """Return `greedy` if temperature is 0, otherwise a `random_sampler` with this seed."""
    if temperature == 0:
        return greedy
    generator = torch.Generator(device).manual_seed(seed)
    return random_sampler(generator, temperature=temperature, top_k=top_k, top_p=top_p)


@torch.inference_mode()
def generate(
    decoder: StepDecoder,
    memory: Memory | None,
    *,
    prompt: Tensor,
    end: int | None,
    max_new: int,
    sampler: Sampler = greedy,
) -> list[Hypothesis]:
    """Continue each prompt token by token.

    Args:
        decoder: Model that predicts the next token.
        memory: Sequence to which the decoder attends. None: the decoder has no cross-attention.
        prompt: (B, P). Token ids. All prompts have the same length.
        end: Id of the end token. None: generate max_new tokens.
        max_new: Maximum number of new tokens.
        sampler: Function that selects each token from the log-probabilities.

    Returns:
        One hypothesis per prompt.
    """
    # The mask has no padding: all prompts have the same length, and sequences that have ended are
    # continued with tokens that are ignored.
    caches = decoder.caches()
    mask = torch.ones_like(prompt, dtype=torch.bool)
    sequences: list[list[int]] = [[] for _ in prompt]
    scores = prompt.new_zeros(len(prompt), dtype=torch.float32)
    active = [True] * len(prompt)
    ids = prompt
    for _ in range(max_new):
        # float32, because a sum of many log-probabilities would be inaccurate in bf16.
        log_probs = decoder(ids, mask, memory, caches)[:, -1].float().log_softmax(-1)
        chosen = sampler(log_probs)
        gains = log_probs.gather(1, chosen[:, None]).squeeze(1)
        scores = scores + gains * torch.tensor(active, device=gains.device)
        for i, token in enumerate(chosen.tolist()):
            if active[i] and token != end:
                sequences[i].append(token)
            active[i] = active[i] and token != end
        if not any(active):
            break
        ids = chosen[:, None]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return [Hypothesis(*pair) for pair in zip(sequences, scores.tolist(), strict=True)]


def length_normalized(score: float, length: int, penalty: float) -> float:
    """Return score / ((5 + length) / 6)^penalty (arXiv:1609.08144, equation 14).

    With penalty 0 the score is unchanged, which favors short sequences.
    """
    return score / ((5 + length) / 6) ** penalty


@torch.inference_mode()
def beam_search(
    decoder: StepDecoder,
    memory: Memory | None,
    *,
    prompt: Tensor,
    end: int,
    max_new: int,
    beams: int,
    length_penalty: float = 0.0,
) -> list[Hypothesis]:
    """Return the best hypothesis for each prompt, found by beam search.

    Each step keeps the `beams` most probable sequences that have not ended (the beams). Hypotheses
    are ranked by `length_normalized`. The search stops when no beam can become better than the best
    complete hypothesis, or after max_new tokens. In the latter case, the beams are hypotheses too.

    Args:
        decoder: Model that predicts the next token.
        memory: Sequence to which the decoder attends. None: the decoder has no cross-attention.
        prompt: (B, P). Token ids. All prompts have the same length.
        end: Id of the end token.
        max_new: Maximum number of new tokens.
        beams: Number of beams per prompt.
        length_penalty: Exponent of the length, see `length_normalized`.

    Raises:
        ValueError: If beams, max_new or length_penalty is out of range.
    """
    if beams < 1 or max_new < 1 or length_penalty < 0:
        raise ValueError(
            "beams and max_new must be at least 1 and length_penalty at least 0, "
            f"got {beams}, {max_new} and {length_penalty}"
        )
    batch = len(prompt)
    device = prompt.device
    rows = torch.arange(batch, device=device).repeat_interleave(beams)
    first_row = torch.arange(batch, device=device)[:, None] * beams
    caches = decoder.caches()
    ids = prompt[rows]
    mask = torch.ones_like(ids, dtype=torch.bool)
    memory = None if memory is None else memory.select(rows)
    # All beams of a prompt are equal at first, so all but one are disabled by a score of -inf.
    scores = torch.full((batch, beams), -torch.inf, device=device)
    scores[:, 0] = 0
    sequences = ids.new_zeros(batch * beams, 0)
    complete: list[list[Hypothesis]] = [[] for _ in range(batch)]
    for _ in range(max_new):
        log_probs = decoder(ids, mask, memory, caches)[:, -1].float().log_softmax(-1)
        total = scores[..., None] + rearrange(log_probs, "(b k) v -> b k v", k=beams)
        vocab_size = total.shape[-1]
        # Twice as many candidates as beams: at most `beams` of them end, one for each beam, so at
        # least `beams` of them do not end.
        num_candidates = min(2 * beams, beams * vocab_size)
        values, candidates = rearrange(total, "b k v -> b (k v)").topk(num_candidates, -1)
        kept, scores = _split_candidates(
            values, candidates, sequences, vocab_size, beams, end, complete
        )
        # rows maps each new beam to the old beam that it continues. An old beam can have several
        # continuations or none.
        rows = (kept // vocab_size + first_row).flatten()
        chosen = (kept % vocab_size).flatten()[:, None]
        sequences = torch.cat([sequences[rows], chosen], 1)
        pairs = zip(complete, scores, strict=True)
        if all(_is_decided(done, row, max_new, length_penalty) for done, row in pairs):
            break
        for cache in caches:
            cache.select(rows)
        memory = None if memory is None else memory.select(rows)
        ids = chosen
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    for i, done in enumerate(complete):
        unfinished = sequences[i * beams : (i + 1) * beams].tolist()
        for sequence, score in zip(unfinished, scores[i].tolist(), strict=True):
            # A shorter beam was not stopped by max_new: it cannot become the best hypothesis.
            if score > -torch.inf and len(sequence) == max_new:
                done.append(Hypothesis(sequence, score))
    return [max(done, key=lambda h: h.ranking_score(length_penalty)) for done in complete]


def _split_candidates(
    values: Tensor,
    candidates: Tensor,
    sequences: Tensor,
    vocab_size: int,
    beams: int,
    end: int,
    complete: list[list[Hypothesis]],
) -> tuple[Tensor, Tensor]:
    """Append the candidates that end to `complete`, and return the best of the others.

    Args:
        values: (B, C). Scores of the candidates in descending order.
        candidates: (B, C). Indices of the candidates: beam * vocab_size + token.
        sequences: (B * beams, n). Generated tokens of each beam.
        vocab_size: Vocabulary size V.
        beams: Number of beams per prompt.
        end: Id of the end token.
        complete: Complete hypotheses of each prompt.

    Returns:
        Indices (B, beams) of the best candidates that do not end, and their scores (B, beams).
    """
    kept: list[list[int]] = []
    scores: list[list[float]] = []
    for i, row in enumerate(zip(values.tolist(), candidates.tolist(), strict=True)):
        continuing: list[tuple[int, float]] = []
        for rank, (value, index) in enumerate(zip(*row, strict=True)):
            # A disabled beam: a copy of the prompt in the first step, or a filler (see below).
            if value == -torch.inf:
                continue
            if index % vocab_size != end:
                continuing.append((index, value))
            # Only the best `beams` candidates can end, as only they would become beams otherwise.
            elif rank < beams:
                ids = sequences[i * beams + index // vocab_size].tolist()
                complete[i].append(Hypothesis(ids, value))
        continuing = continuing[:beams]
        # The batch must keep its size, so missing beams are filled up with disabled ones.
        continuing += [(0, -torch.inf)] * (beams - len(continuing))
        kept.append([index for index, _ in continuing])
        scores.append([value for _, value in continuing])
    device = values.device
    return torch.tensor(kept, device=device), torch.tensor(scores, device=device)


def _is_decided(
    complete: list[Hypothesis], scores: Tensor, max_new: int, length_penalty: float
) -> bool:
    """Whether no beam can become better than the best complete hypothesis.

    Args:
        complete: Complete hypotheses of one prompt.
        scores: (beams,). Scores of its beams.
        max_new: Maximum number of new tokens.
        length_penalty: Exponent of the length.
    """
    # More tokens can only reduce the score of a beam, and the length penalty favors the maximum
    # length most. Together, this gives an upper bound.
    best = max((h.ranking_score(length_penalty) for h in complete), default=-math.inf)
    return best >= length_normalized(float(scores.max()), max_new + 1, length_penalty)
