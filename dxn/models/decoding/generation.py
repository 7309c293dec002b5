"""Generation of sequences with a decoder: greedy, by sampling, or by beam search.

`Decoder`, `RecurrentDecoder` and `LanguageModel` have the same interface, so all three use it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from textwrap import shorten
from typing import TypeAlias

import torch
from torch import Tensor

from dxn.core.display import print_line
from dxn.models.decoding.decoder import Memory, StepDecoder
from dxn.models.decoding.rules import Rules, RunningRules
from dxn.models.decoding.search import Beams, Hypothesis, Sampler, SampleSearch, greedy

# A step of a generation, which only changes tensors in place.
Step = Callable[[], None]
# Called with the new token ids of hypotheses, by their index in the result.
OnTokens: TypeAlias = Callable[[dict[int, list[int]]], None]
# An accelerator waits for a check whether sequences are finished, so it is not done at every step.
CHECK_EVERY = 8
# Finished samples are removed when they are at least this share of all samples.
MIN_FINISHED = 0.25
# Number of columns by which the caches grow on a CPU.
GROWTH = 8
# On other devices, the number of columns is a multiple of this one. So kernels can read the mask in
# blocks, and steps that are compiled have few different shapes.
MULTIPLE = 64
HAS_GRAPHS = "cuda"  # type of the devices that have graphs
# A step is captured as a CUDA graph if there are at least so many new tokens. Capturing takes about
# as long as a step without a graph. It was not measured on a GPU.
MIN_CAPTURED = 16
# Steps before the capture: the first one allocates all columns of the caches.
WARM_UP = 2
MAX_REASON = 200  # characters


@torch.inference_mode()
def generate(
    decoder: StepDecoder,
    memory: Memory | None,
    *,
    prompt: Tensor,
    mask: Tensor | None = None,
    end: int | Sequence[int] | None,
    max_new: int,
    sampler: Sampler = greedy,
    count: int = 1,
    rules: Rules = Rules(),
    on_tokens: OnTokens | None = None,
    compile_step: Callable[[Step], Step] | None = None,
) -> list[Hypothesis]:
    """Continue each prompt token by token.

    On an NVIDIA GPU, greedy decoding and samplers that are a `RandomSampler`, or one per sample,
    capture a step as a CUDA graph, see `capture`. This was not tested or measured on a GPU. A step
    that cannot be captured is computed without a graph.

    Args:
        decoder: Model that predicts the next token.
        memory: Sequence to which the decoder attends. None: the decoder has no cross-attention.
        prompt: (B, P). Token ids.
        mask: (B, P) bool. True at the tokens of the prompts, False at padding, which can be at the
            start or at the end. Default: there is no padding.
        end: Id of the end token, or several ids, each of which ends a sequence. None: generate
            max_new tokens.
        max_new: Maximum number of new tokens.
        sampler: Function that selects each token from the log-probabilities.
        count: Number of sequences per prompt.
        rules: Rules about the tokens.
        on_tokens: Function that is called with the new token ids of the sequences that have some,
            by their index in the result, without end tokens. On a CPU, it is called after each
            token; on other devices, after the first one and then after every `CHECK_EVERY` tokens.
            An exception in it stops the generation.
        compile_step: Function that compiles a step, such as `partial(torch.compile,
            fullgraph=True)`. It is compiled again for other sizes of the batch and of the caches.
            torch must be able to compile the sampler; it cannot compile a random generator. This
            was not tested on a GPU. Default: steps are not compiled.

    Returns:
        `count` hypotheses per prompt, one prompt after the other.

    Raises:
        ValueError: If count, max_new or rules.forbidden is out of range, if a prompt has no token,
            or if a step is compiled, but not all tokens fit in the max_len of the decoder.
    """
    if count < 1 or max_new < 1:
        raise ValueError(f"count and max_new must be at least 1, got {count} and {max_new}")
    if not len(prompt):
        return []
    limit = rules.limit(max_new)
    search = SampleSearch(
        len(prompt),
        count,
        sampler=sampler,
        ends=_ids(end),
        max_new=limit,
        device=prompt.device,
    )
    return Generation(
        decoder, memory, search, prompt, mask, rules=rules, compile_step=compile_step
    ).run(on_tokens)


@torch.inference_mode()
def beam_search(
    decoder: StepDecoder,
    memory: Memory | None,
    *,
    prompt: Tensor,
    mask: Tensor | None = None,
    end: int | Sequence[int],
    max_new: int,
    beams: int,
    length_penalty: float = 0.0,
    rules: Rules = Rules(),
    on_tokens: OnTokens | None = None,
    compile_step: Callable[[Step], Step] | None = None,
) -> list[Hypothesis]:
    """Return the best hypothesis for each prompt, found by beam search.

    Each step keeps the `beams` most probable sequences that have not ended (the beams). Hypotheses
    are ranked by `length_normalized`. The search stops when no beam can become better than the best
    complete hypothesis, or after max_new tokens. In the latter case, the beams are hypotheses too.
    On an NVIDIA GPU, the step is captured as a CUDA graph, see `generate`.

    Args:
        decoder: Model that predicts the next token.
        memory: Sequence to which the decoder attends. None: the decoder has no cross-attention.
        prompt: (B, P). Token ids.
        mask: (B, P) bool. See `generate`.
        end: Id of the end token, or several ids, each of which ends a sequence.
        max_new: Maximum number of new tokens.
        beams: Number of beams per prompt.
        length_penalty: Exponent of the length, see `length_normalized`.
        rules: Rules about the tokens.
        on_tokens: Function that is called as by `generate`, but with {}, because all tokens can
            still change. An exception in it stops the search.
        compile_step: See `generate`.

    Raises:
        ValueError: If an argument or rules.forbidden is out of range,
            if a prompt has no token, or if a step is compiled, but not all tokens fit in the
            max_len of the decoder.
    """
    if beams < 1 or max_new < 1 or length_penalty < 0:
        raise ValueError(
            "beams and max_new must be at least 1, and length_penalty at least 0, got "
            f"{beams}, {max_new} and {length_penalty}"
        )
    if not len(prompt):
        return []
    limit = rules.limit(max_new)
    search = Beams(
        len(prompt),
        beams,
        ends=_ids(end),
        max_new=limit,
        length_penalty=length_penalty,
        rules=rules,
        device=prompt.device,
    )
    return Generation(
        decoder, memory, search, prompt, mask, rules=rules, compile_step=compile_step
    ).run(on_tokens)


class Generation:
    """Samples that are continued together, token by token. Others can `join` between two steps.

    The prompts are computed, and their next tokens chosen, when the object is created.

    Attributes:
        samples: Numbers of the samples that were not removed, from 0 in the order in which they
            were added.

    Args:
        decoder: Model that predicts the next token.
        memory: Sequence to which the decoder attends.
        search: The search that chooses tokens.
        prompt: (B, P). Token ids.
        mask: (B, P) bool. See `generate`.
        rules: Rules about the tokens.
        compile_step: See `generate`.

    Raises:
        ValueError: If rules.forbidden is out of range, if a prompt has no token, or if a step is
            compiled, but not all tokens fit in the max_len of the decoder.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        memory: Memory | None,
        search: SampleSearch | Beams,
        prompt: Tensor,
        mask: Tensor | None = None,
        *,
        rules: Rules = Rules(),
        compile_step: Callable[[Step], Step] | None = None,
    ):
        self.decoder = decoder
        self.memory = memory
        self.search = search
        self.compile_step = compile_step
        self.caches = decoder.caches()
        self.output = decoder.output_layer()
        self.samples = list(range(len(prompt)))
        self.num_added = len(prompt)
        self.device = prompt.device
        self.is_on_cpu = self.device.type == "cpu"
        # Columns of the longest row, and those that the rows need at most: the last token is no
        # input.
        self.longest = prompt.shape[1]
        self.most = self.longest + search.max_new - 1
        if compile_step is not None and self.most > decoder.max_len:
            raise ValueError(
                f"compile_step: the prompt and all new tokens but the last one must have at most "
                f"max_len={decoder.max_len} tokens, got {self.most}: reduce max_new"
            )
        self.can_capture = True  # no capture has failed
        self._start(prompt, mask, rules)
        self._restart()

    def _start(self, prompt: Tensor, mask: Tensor | None, rules: Rules) -> None:
        """Compute the prompts, and choose their next tokens."""
        prompt, mask, lengths = _aligned(prompt, mask)
        # A prompt is computed once for all rows of a sample.
        states = self.decoder.next_states(prompt, mask, self.memory, self.caches)
        logits = self.output(states)
        self.running: RunningRules | None = None
        if rules.change_logits:
            self.running = RunningRules(
                rules,
                prompt=prompt,
                lengths=lengths,
                ends=self.search.ends,
                max_new=self.search.max_new,
                vocab_size=logits.shape[1],
            )
        chosen, self.parents = self._choose(logits)
        self.ids = chosen.clone()  # steps write to it, but it belongs to the sampler
        self.lengths = lengths.repeat_interleave(self.search.width)
        self.columns = torch.arange(self.longest, device=self.device)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Choose the next token of each row. See `SampleSearch.advance`."""
        chosen, parents = self.search.advance(logits, self.running)
        if self.running is not None:
            self.running.append(chosen, parents)
        return chosen, parents

    def _restart(self) -> None:
        """Compute the next steps without a graph, because the rows are others than before."""
        self.num_steps = 0
        self.static: Step | None = None  # the step with a fixed number of rows

    @property
    def check_every(self) -> int:
        """Number of steps after which it is checked whether samples are finished."""
        return 1 if self.is_on_cpu and self.compile_step is None else CHECK_EVERY

    def run(self, on_tokens: OnTokens | None = None) -> list[Hypothesis]:
        """Continue until all samples have ended, and return the hypotheses of one after another.

        Args:
            on_tokens: See `generate`.
        """
        hypotheses_of: dict[int, list[Hypothesis]] = {}

        def keep(done: Sequence[int]) -> None:
            for i, hypotheses in zip(done, self.search.hypotheses(done), strict=True):
                hypotheses_of[self.samples[i]] = hypotheses

        for number in range(1, self.search.max_new):
            if number % self.check_every == 0 or (number == 1 and on_tokens is not None):
                if on_tokens is not None:
                    self._report(on_tokens)
                finished = self.search.finished.tolist()
                if all(finished):
                    break
                if self.removes(finished):
                    keep([i for i, is_finished in enumerate(finished) if is_finished])
                    self.remove(finished)
            self.step()
        if on_tokens is not None:
            self._report(on_tokens)
        keep(range(len(self.samples)))
        return [
            hypothesis for sample in range(self.num_added) for hypothesis in hypotheses_of[sample]
        ]

    def step(self) -> None:
        """Choose the next token of each row."""
        needed = self.longest + 1
        if len(self.columns) < needed:
            self._set_columns(needed)
        self.num_steps += 1
        if self.static is not None:
            self.static()
        else:
            self._step()
            if self.num_steps == 1 and self.compile_step is not None:
                self.static = self.compile_step(self._step)
            generators = self.search.generators if self.num_steps == WARM_UP else None
            if generators is not None and self._captures:
                self.static = capture(self._step, self.device, generators)
                self.can_capture = self.static is not None
        self.longest = needed

    @property
    def _captures(self) -> bool:
        return (
            self.device.type == HAS_GRAPHS
            and self.can_capture
            and self.decoder.static_steps
            and self.most <= self.decoder.max_len
            and self.search.max_new >= MIN_CAPTURED
        )

    def _set_columns(self, needed: int) -> None:
        # On a CPU, the attention computes on few columns. On other devices, all steps have the same
        # shapes.
        grows = self.is_on_cpu and self.compile_step is None
        wanted = needed + GROWTH if grows else self.most + -self.most % MULTIPLE
        count = max(needed, min(wanted, self.decoder.max_len))
        self.columns = torch.arange(count, device=self.device)

    def _step(self) -> None:
        """Only change tensors, in place, so that this can become a graph."""
        self._settle()
        # The next token of a row is in the column after its last one.
        self.lengths += 1
        mask = self.columns < self.lengths[:, None]
        states = self.decoder.next_states(self.ids[:, None], mask, self.memory, self.caches)
        chosen, parents = self._choose(self.output(states))
        self.ids.copy_(chosen)
        if self.parents is None or parents is None:
            self.parents = parents
        else:
            self.parents.copy_(parents)

    def _settle(self) -> None:
        """Bring the rows of the caches in the order after the last choice."""
        if self.parents is not None:
            for cache in self.caches:
                cache.select(self.parents)

    def join(self, other: Generation) -> None:
        """Continue the samples of another generation together with those that are not finished.

        Both have the same decoder, which is a `LanguageModel`, search by `SampleSearch`, and have
        no rules that change logits. The other generation cannot be used any more.
        """
        assert isinstance(self.search, SampleSearch) and isinstance(other.search, SampleSearch)
        assert self.running is None and other.running is None
        self.remove(self.search.finished.tolist())
        for generation in (self, other):
            generation._settle()
            generation.parents = None
        # A language model keeps what is before its text in the caches.
        self.memory = None
        for cache, new in zip(self.caches, other.caches, strict=True):
            cache.join(new)
        self.search.join(other.search)
        self.ids = torch.cat([self.ids, other.ids])
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.samples += [self.num_added + sample for sample in other.samples]
        self.num_added += other.num_added
        self.longest = max(self.longest, other.longest)
        self.most = max(self.most, other.most)
        self._set_columns(self.longest + 1)
        self._restart()

    def removes(self, finished: Sequence[bool]) -> bool:
        """Return whether so many samples are finished that steps without them are faster."""
        # A step that was compiled or captured has a fixed number of rows.
        return self.static is None and sum(finished) >= MIN_FINISHED * len(finished)

    def remove(self, finished: Sequence[bool]) -> None:
        """Remove the samples that are finished."""
        if not any(finished):
            return
        remaining = [i for i, is_finished in enumerate(finished) if not is_finished]
        self.samples = [self.samples[i] for i in remaining]
        index = torch.tensor(remaining, dtype=torch.long, device=self.device)
        beams = torch.arange(self.search.width, device=self.device)
        rows = (index[:, None] * self.search.width + beams).flatten()
        # The caches have the order of the rows before the last choice.
        before = rows if self.parents is None else self.parents[rows]
        for cache in self.caches:
            cache.select(index if self.decoder.joint_rows else before, index)
        self.parents = None
        self.search.select(index)
        if self.running is not None:
            self.running.select(rows)
        self.memory = self.memory and self.memory.select(index)
        self.ids, self.lengths = self.ids[rows], self.lengths[rows]
        if self.is_on_cpu and remaining:
            self.longest = int(self.lengths.max())
            if len(self.columns) > self.longest + 1 + GROWTH:
                self._set_columns(self.longest + 1)
        self._restart()

    def new_tokens(self) -> dict[int, list[int]]:
        """Return the tokens since the last call, by the numbers of the rows that have some."""
        assert isinstance(self.search, SampleSearch)
        width = self.search.width
        new: dict[int, list[int]] = {}
        for sample, rows in zip(self.samples, self.search.new_tokens(), strict=True):
            for row, ids in enumerate(rows):
                if ids:
                    new[sample * width + row] = ids
        return new

    def _report(self, on_tokens: OnTokens) -> None:
        """Pass on the tokens since the last report, or {} if the search can change all."""
        if isinstance(self.search, Beams):
            on_tokens({})
        elif new := self.new_tokens():
            on_tokens(new)


def _ids(end: int | Sequence[int] | None) -> tuple[int, ...]:
    if end is None:
        return ()
    return (end,) if isinstance(end, int) else tuple(end)


def _aligned(prompt: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return prompts (B, P) with their padding at the end, their mask, and their lengths (B,)."""
    if prompt.shape[1] == 0 or (mask is not None and not mask.any(1).all()):
        raise ValueError(
            "prompt: each prompt must have at least one token, got one without a token in the "
            f"shape {tuple(prompt.shape)}"
        )
    device = prompt.device
    mask = None if mask is None else mask.bool()  # ~ of whole numbers is no negation
    if mask is None:
        lengths = torch.full((len(prompt),), prompt.shape[1], device=device)
        return prompt, torch.ones_like(prompt, dtype=torch.bool), lengths
    order = mask.int().argsort(dim=1, descending=True, stable=True).to(device)
    mask = mask.to(device)
    return prompt.gather(1, order), mask.gather(1, order), mask.sum(1)


def capture(
    step: Step, device: torch.device, generators: Sequence[torch.Generator] = ()
) -> Step | None:
    """Capture a step as a CUDA graph, which starts all of its kernels at once.

    The graph reads and writes the tensors that the step uses now. Capturing changes none of them.
    Each time, random numbers of these generators are new ones.

    Returns:
        A function that computes the step. None: it cannot be captured.
    """
    try:
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        # If a capture fails, the outer context returns to the present stream. Other threads may
        # allocate memory meanwhile.
        with (
            torch.cuda.device(device),
            torch.cuda.stream(torch.cuda.current_stream(device)),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):
            step()
    except RuntimeError as error:
        # Nothing was computed, so the generation continues with the same step.
        _tell(shorten(str(error).strip(), MAX_REASON))
        return None
    return graph.replay


@functools.cache  # once for each reason
def _tell(reason: str) -> None:
    print_line(f"note: this text is generated without a CUDA graph: {reason}", stderr=True)
