"""Generation of sequences with a decoder: greedy, by sampling, or by beam search."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dxn.models.decoding.decoder import Memory, StepDecoder
from dxn.models.decoding.search import Beams, Choice, Hypothesis, Sampler, greedy

# A step of a generation. It returns the rows that the rows continue, see `Choice.advance`.
Step = Callable[[], Tensor | None]
# An accelerator waits for a check whether sequences are finished, so it is not done at every step.
CHECK_EVERY = 8
# Finished samples are removed when they are at least this share of all samples.
MIN_FINISHED = 0.25
# Number of columns by which the caches grow on a CPU. On other devices, their number is a multiple
# of it, so that kernels can read the mask in blocks.
BLOCK = 8


@torch.inference_mode()
def generate(
    decoder: StepDecoder,
    memory: Memory | None,
    *,
    prompt: Tensor,
    lengths: Tensor | None = None,
    end: int | None,
    max_new: int,
    sampler: Sampler = greedy,
    count: int = 1,
    compile_step: Callable[[Step], Step] | None = None,
) -> list[Hypothesis]:
    """Continue each prompt token by token.

    Args:
        decoder: Model that predicts the next token.
        memory: Sequence to which the decoder attends. None: the decoder has no cross-attention.
        prompt: (B, P). Token ids. Shorter prompts have padding at the end.
        lengths: (B,). Number of tokens of each prompt. Default: all P.
        end: Id of the end token. None: generate max_new tokens.
        max_new: Maximum number of new tokens.
        sampler: Function that selects each token from the log-probabilities.
        count: Number of sequences per prompt.
        compile_step: Function that compiles a step, such as `partial(torch.compile, fullgraph=True,
            mode="reduce-overhead")` for the CUDA graphs of torch. This mode was not tested on a
            GPU. torch must be able to compile the sampler; it cannot compile a random generator.
            Default: steps are not compiled.

    Returns:
        `count` hypotheses per prompt, one prompt after the other.

    Raises:
        ValueError: If a step is compiled, but not all tokens fit in the max_len of the decoder.
    """
    longest = prompt.shape[1] + max_new - 1
    if compile_step is not None and longest > decoder.max_len:
        raise ValueError(
            f"compile_step: the prompt and all new tokens but the last one must have at most "
            f"max_len={decoder.max_len} tokens, got {longest}: reduce max_new"
        )
    search = Choice(
        len(prompt), count, sampler=sampler, end=end, max_new=max_new, device=prompt.device
    )
    return _run(decoder, memory, prompt, lengths, search, max_new, compile_step)


@torch.inference_mode()
def beam_search(
    decoder: StepDecoder,
    memory: Memory | None,
    *,
    prompt: Tensor,
    lengths: Tensor | None = None,
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
        prompt: (B, P). Token ids. Shorter prompts have padding at the end.
        lengths: (B,). Number of tokens of each prompt. Default: all P.
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
    search = Beams(
        len(prompt),
        beams,
        end=end,
        max_new=max_new,
        length_penalty=length_penalty,
        device=prompt.device,
    )
    return _run(decoder, memory, prompt, lengths, search, max_new)


def _run(
    decoder: StepDecoder,
    memory: Memory | None,
    prompt: Tensor,
    lengths: Tensor | None,
    search: Choice | Beams,
    max_new: int,
    compile_step: Callable[[Step], Step] | None = None,
) -> list[Hypothesis]:
    """Return the hypotheses of a search, one sample after the other."""
    batch, longest = prompt.shape
    device = prompt.device
    if lengths is None:
        lengths = torch.full((batch,), longest)
    lengths = lengths.to(device)
    mask = torch.arange(longest, device=device) < lengths[:, None]
    caches = decoder.caches()
    # The prompt is computed once for all rows of a sample.
    output = decoder.output_layer()
    logits = output(decoder.next_states(prompt, mask, memory, caches))
    row_lengths = lengths.repeat_interleave(search.width)
    columns = torch.arange(longest, device=device)
    ids, parents = search.advance(logits)
    ids = ids.clone()  # steps write to it, but it belongs to the sampler

    def step() -> Tensor | None:
        """Choose the next tokens. Only tensors change, in place, so this can become a graph."""
        # The next token of a row is in the column after its last one.
        row_lengths.add_(1)
        mask = columns < row_lengths[:, None]
        logits = output(decoder.next_states(ids[:, None], mask, memory, caches))
        chosen, parents = search.advance(logits)
        ids.copy_(chosen)
        return parents

    found: dict[int, list[Hypothesis]] = {}
    samples = list(range(batch))  # the samples that are not finished, as indices in the batch
    grows = device.type == "cpu" and compile_step is None
    for number in range(1, max_new):
        if parents is not None:
            for cache in caches:
                cache.select(parents)
        if number % (1 if grows else CHECK_EVERY) == 0:
            finished = search.finished.tolist()
            if all(finished):
                break
            # A compiled step has a fixed number of rows.
            if compile_step is None and sum(finished) >= MIN_FINISHED * len(samples):
                for i, sample in enumerate(samples):
                    if finished[i]:
                        found[sample] = search.hypotheses(i)
                kept = [i for i in range(len(samples)) if not finished[i]]
                samples = [samples[i] for i in kept]
                index = torch.tensor(kept, device=device)
                beams = torch.arange(search.width, device=device)
                rows = (index[:, None] * search.width + beams).flatten()
                for cache in caches:
                    cache.select(rows, index)
                search.select(index)
                memory = memory and memory.select(index)
                ids, row_lengths = ids[rows], row_lengths[rows]
        needed = longest + number
        if len(columns) < needed:
            # On a CPU, the attention computes on few columns. On other devices, all steps have the
            # same shapes.
            most = longest + max_new - 1
            wanted = needed + BLOCK if grows else most + -most % BLOCK
            columns = torch.arange(max(needed, min(wanted, decoder.max_len)), device=device)
        parents = step()
        if compile_step is not None and number == 1:
            # The caches have all of their columns after the first step.
            for part in (search, *caches):
                _fix_addresses(part)
            step = compile_step(step)
    for i, sample in enumerate(samples):
        found[sample] = search.hypotheses(i)
    return [hypothesis for sample in range(batch) for hypothesis in found[sample]]


def _fix_addresses(part: object) -> None:
    """Tell torch that the tensors of an object stay where they are, as a CUDA graph needs it."""
    for value in vars(part).values():
        for x in value if isinstance(value, tuple) else (value,):
            if isinstance(x, Tensor):
                torch._dynamo.mark_static_address(x)
