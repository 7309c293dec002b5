"""Generation of sequences with a decoder: greedy, by sampling, or by beam search."""

from __future__ import annotations

import torch
from torch import Tensor

from dxn.models.decoding.decoder import Memory, StepDecoder
from dxn.models.decoding.search import Beams, Choice, Hypothesis, Sampler, greedy

# An accelerator waits for a check whether sequences are finished, so it is not done at every step.
CHECK_EVERY = 8
# Finished samples are removed when they are at least this share of all samples.
MIN_FINISHED = 0.25


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

    Returns:
        `count` hypotheses per prompt, one prompt after the other.
    """
    search = Choice(
        len(prompt), count, sampler=sampler, end=end, max_new=max_new, device=prompt.device
    )
    return _run(decoder, memory, prompt, lengths, search, max_new)


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
) -> list[Hypothesis]:
    """Return the hypotheses of a search, one sample after the other."""
    batch, longest = prompt.shape
    device = prompt.device
    mask = torch.ones_like(prompt, dtype=torch.bool)
    if lengths is not None:
        # Padding remains between the prompt and the new tokens, which never attend to it.
        mask = torch.arange(longest, device=device) < lengths.to(device)[:, None]
    caches = decoder.caches()
    # The prompt is computed once for all rows of a sample.
    output = decoder.output_layer()
    logits = output(decoder.next_states(prompt, mask, memory, caches))
    mask = mask.repeat_interleave(search.width, 0)
    found: dict[int, list[Hypothesis]] = {}
    samples = list(range(batch))  # the samples that are not finished, as indices in the batch
    check_every = 1 if device.type == "cpu" else CHECK_EVERY
    for step in range(1, max_new + 1):
        ids, parents = search.advance(logits)
        if step == max_new:
            break
        if parents is not None:
            for cache in caches:
                cache.select(parents)
        if step % check_every == 0:
            finished = search.finished.tolist()
            if all(finished):
                break
            if sum(finished) >= MIN_FINISHED * len(samples):
                for i, sample in enumerate(samples):
                    if finished[i]:
                        found[sample] = search.hypotheses(i)
                kept = [i for i in range(len(samples)) if not finished[i]]
                samples = [samples[i] for i in kept]
                index = torch.tensor(kept, device=device)
                columns = torch.arange(search.width, device=device)
                rows = (index[:, None] * search.width + columns).flatten()
                for cache in caches:
                    cache.select(rows, index)
                search.select(index)
                memory = memory and memory.select(index)
                ids, mask = ids[rows], mask[rows]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        logits = output(decoder.next_states(ids[:, None], mask, memory, caches))
    for i, sample in enumerate(samples):
        found[sample] = search.hypotheses(i)
    return [hypothesis for sample in range(batch) for hypothesis in found[sample]]
