"""Which sequences a generation continues: one choice per row, or the best beams of each sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dxn.models.decoding.rules import LENGTH_OFFSET, Rules, RunningRules

# Number of consecutive tokens of the vocabulary of which `best_tokens` first computes the maximum.
CHUNK = 64
# Rows of logits that are read together, so that they stay in the cache of a processor.
ROWS = 100
LOG2_E = math.log2(math.e)

Sampler = Callable[[Tensor], Tensor]  # from log-probabilities (B, V) to the next token ids (B,)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A generated sequence.

    Args:
        ids: Token ids, without the prompt and the end token.
        score: Sum of the log-probabilities of the tokens, including the end token.
    """

    ids: list[int]
    score: float


def length_normalized(
    score: float, length: int, penalty: float, offset: int = LENGTH_OFFSET
) -> float:
    """Return score / ((k + length) / (k + 1))^penalty for the offset k.

    The source is arXiv:1609.08144, equation 14, where k is 5. With penalty 0 the score is
    unchanged, which favors short sequences.
    """
    return score / _divisor(length, penalty, offset)


def _divisor(length: int, penalty: float, offset: int) -> float:
    return ((offset + length) / (offset + 1)) ** penalty


class SampleSearch:
    """Each row is continued with the token that a sampler chooses, until an end token.

    Args:
        samples: Number B of samples.
        width: Number K of sequences of a sample.
        sampler: Function that selects each token from the log-probabilities.
        ends: Ids of the end tokens. (): there is no end token.
        max_new: Maximum number of tokens, of all samples or of each of them.
        device: Device of the logits.
    """

    # Names of the tensors with one row per sample.
    _PARTS = ("tokens", "lengths", "limits", "scores", "ended", "returned")

    def __init__(
        self,
        samples: int,
        width: int,
        *,
        sampler: Sampler,
        ends: Sequence[int],
        max_new: int | Sequence[int],
        device: torch.device,
    ):
        limits = [max_new] * samples if isinstance(max_new, int) else max_new
        max_new = max(limits)
        self.width = width
        self.sampler = sampler
        self.ends = ends
        self.max_new = max_new
        # Tensors are changed in place, so that a step can be captured as a graph. The last column
        # is for rows that have ended.
        self.tokens = torch.zeros(samples, width, max_new + 1, dtype=torch.long, device=device)
        self.lengths = torch.zeros(samples, width, dtype=torch.long, device=device)
        self.limits = torch.tensor(limits, device=device)[:, None]
        self.scores = torch.zeros(samples, width, device=device)
        self.ended = torch.zeros(samples, width, dtype=torch.bool, device=device)
        self.returned = self.lengths.clone()  # number of tokens that `new_tokens` has returned

    @property
    def samplers(self) -> Sequence[Sampler]:
        """The sampler of each sample."""
        if isinstance(self.sampler, BatchSampler):
            return self.sampler.samplers
        return [self.sampler] * len(self.ended)

    @property
    def generators(self) -> list[torch.Generator] | None:
        """The random generators of a step that can be captured as a graph.

        None: it cannot, because other samplers can contain any Python code.
        """
        generators: dict[torch.Generator, None] = {}
        for sampler in self.samplers:
            if isinstance(sampler, RandomSampler):
                generators[sampler.generator] = None
            elif sampler is not greedy:
                return None
        return list(generators)

    @property
    def finished(self) -> Tensor:
        """(B,) bool. True at samples of which all sequences have ended."""
        return self.ended.all(1)

    def advance(
        self, logits: Tensor, rules: RunningRules | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Choose the next token of each row. Rows that have ended continue, but are ignored.

        Args:
            logits: (B K, V). In the first step, (B, V). They can be changed.
            rules: Rules about the tokens. If they forbid a token, the probabilities of the others
                do not change.

        Returns:
            The token of each row (B K,), and the index of the row that each row continues (B K,).
            None: each row continues itself.
        """
        if rules is not None:
            rules.penalize(logits)
        # float32, because a sum of many log-probabilities would be inaccurate in bf16.
        log_probs = logits.float().log_softmax(-1)
        if rules is not None:
            rules.forbid(log_probs)
        parents = None
        if len(logits) < self.ended.numel():
            parents = torch.arange(len(logits), device=logits.device)
            parents = parents.repeat_interleave(self.width)
            log_probs = log_probs[parents]
        chosen = self.sampler(log_probs)
        gains = log_probs.gather(1, chosen[:, None]).view_as(self.scores)
        # If the rules forbid every token, the sequence is at its end.
        self.ended |= gains.isneginf()
        self.scores += gains.masked_fill(self.ended, 0)
        self._append(chosen)
        return chosen, parents

    def _append(self, chosen: Tensor) -> None:
        """Write the next token of each row (B K,)."""
        tokens = chosen.view_as(self.ended)
        self.ended |= is_end(tokens, self.ends)
        self.tokens.scatter_(2, self.lengths[..., None], tokens[..., None])
        self.lengths += ~self.ended
        self.ended |= self.lengths >= self.limits

    def select(self, samples: Tensor) -> None:
        """Keep these samples (b,)."""
        for name in self._PARTS:
            setattr(self, name, getattr(self, name)[samples])
        if isinstance(self.sampler, BatchSampler):
            self.sampler = self.sampler.of(samples.tolist())

    def join(self, other: SampleSearch) -> None:
        """Add the samples of another search, whose end tokens and width are the same."""
        if self.sampler is not other.sampler:
            self.sampler = BatchSampler([*self.samplers, *other.samplers])
        self.max_new = max(self.max_new, other.max_new)
        self.tokens, other.tokens = (
            F.pad(search.tokens, (0, self.max_new + 1 - search.tokens.shape[2]))
            for search in (self, other)
        )
        for name in self._PARTS:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    def end(self, samples: Sequence[int]) -> None:
        """End these samples, whose other tokens nobody needs."""
        self.ended[samples] = True

    def hypotheses(self, samples: Sequence[int]) -> list[list[Hypothesis]]:
        """Return the sequences of each of these samples."""
        tokens, lengths, scores = (
            part.tolist() for part in (self.tokens, self.lengths, self.scores)
        )
        hypotheses: list[list[Hypothesis]] = []
        for i in samples:
            rows = zip(tokens[i], lengths[i], scores[i], strict=True)
            hypotheses.append([Hypothesis(ids[:length], score) for ids, length, score in rows])
        return hypotheses

    def new_tokens(self) -> list[list[list[int]]]:
        """Return the tokens since the last call of each sample and sequence, without end tokens."""
        counts = self.lengths - self.returned
        columns = torch.arange(max(int(counts.max()), 1), device=counts.device)
        index = (self.returned[..., None] + columns).clamp(max=self.max_new)
        tokens = self.tokens.gather(2, index).tolist()
        self.returned.copy_(self.lengths)
        return [
            [ids[:count] for ids, count in zip(*rows, strict=True)]
            for rows in zip(tokens, counts.tolist(), strict=True)
        ]


class Beams:
    """The `width` most probable sequences of each sample that have not ended (the beams).

    Hypotheses are ranked by `length_normalized`. A sample is finished when none of its beams can
    become better than its best complete hypothesis.

    Args:
        samples: Number B of samples.
        width: Number K of beams of a sample.
        ends: Ids of the end tokens.
        max_new: Maximum number of tokens. Beams of this length are hypotheses too.
        rules: Rules, of which `length_offset` and `forced_end` are used.
        length_penalty: Exponent of the length, see `length_normalized`.
        device: Device of the logits.
    """

    def __init__(
        self,
        samples: int,
        width: int,
        *,
        ends: Sequence[int],
        max_new: int,
        length_penalty: float,
        rules: Rules = Rules(),
        device: torch.device,
    ):
        self.width = width
        self.max_new = max_new
        # Beams of the maximum length are followed by an end token of probability 1.
        self.forced_end = rules.forced_end
        self.generators: list[torch.Generator] = []
        self.ends = ends
        # Tensors are changed in place, so that a step can be captured as a graph.
        shape = samples, width, max_new
        # The token that each step added to each beam, and the beam of the step before that it
        # continued. The ids of a sequence are read backwards at the end, so no step moves them.
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.parents = torch.zeros(shape, dtype=torch.long, device=device)
        self.scores = torch.zeros(samples, width, device=device)
        # The best complete hypothesis of each sample: the beam that it ended, and its length.
        self.best_beams = torch.zeros(samples, dtype=torch.long, device=device)
        self.best_lengths = torch.zeros(samples, dtype=torch.long, device=device)
        self.best_scores = torch.full((samples,), -torch.inf, device=device)
        self.best_ranks = torch.full((samples,), -torch.inf, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        # The length of a complete hypothesis includes its end token.
        lengths = range(1, max_new + rules.forced_end + 1)
        divisors = [_divisor(length, length_penalty, rules.length_offset) for length in lengths]
        self.divisors = torch.tensor(divisors, device=device)

    @property
    def finished(self) -> Tensor:
        """(B,) bool. True at samples whose best hypothesis no beam can surpass."""
        # More tokens can only reduce the score of a beam, and the length penalty favors the maximum
        # length most. Together, this gives an upper bound.
        return self.best_ranks >= self.scores.amax(1) / self.divisors[-1]

    def advance(self, logits: Tensor, rules: RunningRules | None = None) -> tuple[Tensor, Tensor]:
        """Replace the beams by their best continuations. See `SampleSearch.advance`."""
        k = self.width
        # All beams of a prompt would be equal at first, so there is only one.
        before = len(logits) // len(self.scores)
        # At most one candidate per beam and end token ends, so at least `width` of these do not.
        count = k * (1 + len(self.ends))
        values, parents, tokens = best_tokens(logits, self.scores[:, :before], count, rules)
        ends = is_end(tokens, self.ends)
        # Only the best `width` candidates can end, as only they would become beams otherwise.
        score, place = values[:, :k].masked_fill(~ends[:, :k], -torch.inf).max(1)
        beam = parents.gather(1, place[:, None])[:, 0]
        # If the rules forbid every token, the best beam is at its end.
        is_stuck = values[:, 0].isneginf()
        last_score, last_beam = self.scores.max(1)
        score = torch.where(is_stuck, last_score, score)
        beam = torch.where(is_stuck, last_beam, beam)
        rank = score / self.divisors.index_select(0, self.step)
        better = rank > self.best_ranks
        for best, new in (
            (self.best_beams, beam),
            (self.best_lengths, self.step),
            (self.best_scores, score),
            (self.best_ranks, rank),
        ):
            best.copy_(torch.where(better, new, best))
        # Missing beams are filled up with disabled ones.
        scores, places = values.masked_fill(ends, -torch.inf).topk(k, -1)
        tokens = tokens.gather(1, places)
        parents = parents.gather(1, places)
        self.scores.copy_(scores)
        self.tokens.index_copy_(2, self.step, tokens[..., None])
        self.parents.index_copy_(2, self.step, parents[..., None])
        self.step += 1
        first = before * torch.arange(len(parents), device=parents.device)[:, None]
        return tokens.flatten(), (parents + first).flatten()

    def select(self, samples: Tensor) -> None:
        """Keep these samples (b,)."""
        self.tokens, self.parents = self.tokens[samples], self.parents[samples]
        self.scores, self.best_beams = self.scores[samples], self.best_beams[samples]
        self.best_lengths, self.best_scores = self.best_lengths[samples], self.best_scores[samples]
        self.best_ranks = self.best_ranks[samples]

    def hypotheses(self, samples: Sequence[int]) -> list[list[Hypothesis]]:
        """Return the best hypothesis of each of these samples, which are finished or complete."""
        # Without a better complete hypothesis, the best beam of maximum length is the result. If a
        # sample is finished, no beam is better.
        scores, beams = self.scores.max(1)
        divisor = self.divisors[self.step + self.forced_end - 1]
        better = ~(scores / divisor <= self.best_ranks)  # NaN remains NaN
        beams = torch.where(better, beams, self.best_beams).tolist()
        lengths = torch.where(better, self.step, self.best_lengths).tolist()
        scores = torch.where(better, scores, self.best_scores).tolist()
        tokens, parents = self.tokens.tolist(), self.parents.tolist()
        hypotheses: list[list[Hypothesis]] = []
        for i in samples:
            ids: list[int] = []
            beam = beams[i]
            for step in reversed(range(lengths[i])):
                ids.append(tokens[i][beam][step])
                beam = parents[i][beam][step]
            hypotheses.append([Hypothesis(ids[::-1], scores[i])])
        return hypotheses


def is_end(tokens: Tensor, ends: Sequence[int]) -> Tensor:
    """Return whether each of the tokens is one of the end tokens."""
    if not ends:
        return torch.zeros_like(tokens, dtype=torch.bool)
    is_any = tokens == ends[0]
    for end in ends[1:]:
        is_any |= tokens == end
    return is_any


def best_tokens(
    logits: Tensor, scores: Tensor, count: int, rules: RunningRules | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations of the beams of each sample by one token.

    Args:
        logits: (B K, V).
        scores: (B, K). Sum of the log-probabilities of each beam.
        count: Number of continuations.
        rules: Rules about the tokens. They can change the logits.

    Returns:
        (B, count) each, in descending order: the scores, the beams, and the tokens. If there are
        fewer continuations, the rest has the score -inf.
    """
    vocab_size = logits.shape[1]
    parts = [_maxima_and_sums(part) for part in logits.split(ROWS)]
    maxima, log_sums = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    if rules is not None:
        # After the sums, so that the probabilities of the other tokens do not change.
        rules.penalize(logits, log_sums)
        rules.forbid(logits)
        if rules.columns is None:
            maxima = torch.cat([_chunk_maxima(part) for part in logits.split(ROWS)])
        else:
            chunks = rules.columns // CHUNK
            columns = chunks[:, None] * CHUNK + torch.arange(CHUNK, device=logits.device)
            maxima[:, chunks] = logits[:, columns.clamp(max=vocab_size - 1)].float().amax(-1)
    # Subtracted from a few candidates instead of all logits.
    offsets = scores - log_sums.view_as(scores)
    # The best tokens are in the `count` chunks of the largest maxima, so few numbers are sorted.
    maxima = maxima.view(*scores.shape, -1)
    num_chunks = maxima.shape[2]
    totals = (maxima + offsets[..., None]).flatten(1)
    best = totals.topk(min(count, totals.shape[1]), -1).indices
    beams = best // num_chunks
    first = best % num_chunks * CHUNK
    tokens = first[..., None] + torch.arange(CHUNK, device=logits.device)
    missing = (tokens >= vocab_size).flatten(1)  # the last chunk can be shorter
    tokens = tokens.clamp(max=vocab_size - 1)
    candidates = (beams[..., None] * vocab_size + tokens).flatten(1)
    values = logits.view(len(scores), -1).gather(1, candidates).float()
    values = values + offsets.gather(1, beams).repeat_interleave(CHUNK, 1)
    values = values.masked_fill(missing, -torch.inf)
    # More columns if the vocabulary is very small.
    values = F.pad(values, (0, max(0, count - values.shape[1])), value=-torch.inf)
    values, index = values.topk(count, -1)
    index = index.clamp(max=candidates.shape[1] - 1)
    return values, beams.gather(1, index // CHUNK), tokens.flatten(1).gather(1, index)


def _maxima_and_sums(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima of the chunks (R, C), and the logarithms (R, 1) of the sums of exp(logits).

    Args:
        logits: (R, V).
    """
    # float32, because sums in bf16 would be inaccurate, and maxima in bf16 are slow on a CPU.
    logits = logits.float()
    maxima = _chunk_maxima(logits)
    most = maxima.amax(-1, keepdim=True)
    # On a CPU, exp2 is about three times as fast as exp, and half a log_softmax.
    powers = torch.add(-LOG2_E * most, logits, alpha=LOG2_E).exp2_()
    return maxima, most + powers.sum(-1, keepdim=True).log()


def _chunk_maxima(logits: Tensor) -> Tensor:
    """Return the maxima (R, C) of the chunks of logits (R, V), in float32."""
    logits = logits.float()
    rows, vocab_size = logits.shape
    whole = vocab_size // CHUNK
    maxima = logits[:, : whole * CHUNK].view(rows, whole, CHUNK).amax(-1)
    if vocab_size % CHUNK:
        maxima = torch.cat([maxima, logits[:, whole * CHUNK :].amax(-1, keepdim=True)], 1)
    return maxima


def greedy(log_probs: Tensor) -> Tensor:
    """Return the most probable token of each row of log_probs (B, V)."""
    return log_probs.argmax(-1)


@dataclass(frozen=True, slots=True)
class RandomSampler:
    """Draws tokens according to their probability.

    Args:
        generator: Random generator.
        temperature: Divisor of the log-probabilities. Values below 1 favor probable tokens.
        top_k: Sample only from the top_k most probable tokens. Default: no limit.
        top_p: Sample only from the smallest set of most probable tokens whose total probability
            reaches top_p (arXiv:1904.09751, section 3.1). Default: no limit.

    Raises:
        ValueError: If an argument is out of range.
    """

    generator: torch.Generator
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self):
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature: must be above 0 and finite, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: must be above 0 and at most 1, got {self.top_p}")

    def __call__(self, log_probs: Tensor) -> Tensor:
        """Return the next token (B,) for log_probs (B, V)."""
        # Without the maximum, a temperature close to 0 would divide all of them to -infinity. A
        # smaller temperature than 1e-30 is 0 in float32.
        centered = log_probs - log_probs.amax(-1, keepdim=True)
        probs = (centered / max(self.temperature, 1e-30)).softmax(-1)
        order = None
        # A sort of the whole vocabulary can take longer than the model.
        if self.top_k is not None:
            probs, order = probs.topk(min(self.top_k, probs.shape[1]))
        elif self.top_p is not None:
            probs, order = probs.sort(-1, descending=True)
        if self.top_p is not None:
            # The sum before each token is compared, so that the most probable token always remains.
            probs = probs.masked_fill(probs.cumsum(-1) - probs >= self.top_p, 0)
        # The same draw as that of torch.multinomial, which asks a GPU whether probabilities are
        # valid. A graph cannot contain such a question.
        draws = torch.empty_like(probs).exponential_(1, generator=self.generator)
        choice = probs.div_(draws).argmax(-1, keepdim=True)
        return (choice if order is None else order.gather(1, choice)).squeeze(1)


class BatchSampler:
    """The sampler of a batch of texts that have one each, for the same number of rows of each text.

    Args:
        samplers: The sampler of each text.
    """

    def __init__(self, samplers: Sequence[Sampler]):
        self.samplers = list(samplers)

    def of(self, indices: Sequence[int]) -> BatchSampler:
        """Return the sampler of some of the texts."""
        return BatchSampler([self.samplers[i] for i in indices])

    def __call__(self, log_probs: Tensor) -> Tensor:
        """Return the next token (B K,) of each row."""
        assert len(log_probs) % len(self.samplers) == 0
        parts = zip(self.samplers, log_probs.chunk(len(self.samplers)), strict=True)
        return torch.cat([sampler(part) for sampler, part in parts])


def make_sampler(
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Sampler:
    """Return `greedy` if temperature is 0, otherwise a `RandomSampler` with this seed."""
    if temperature == 0:
        return greedy
    generator = torch.Generator(device).manual_seed(seed)
    return RandomSampler(generator, temperature=temperature, top_k=top_k, top_p=top_p)
