"""Generation on tensors: batches of prompts of different lengths, beams, finished samples, caches.

The reference is a plain search of a single sample without caches, in Python.
"""

from functools import partial

import pytest
import torch
from helpers.language import model_of
from helpers.reference import backbone_of, lively
from torch._dynamo.testing import CompileCounterWithBackend

from dxn.core.tokens import Tokens
from dxn.models import Decoder, KVCache, LanguageModel, Memory, RecurrentDecoder
from dxn.models.decoding import cross_attention
from dxn.models.decoding.generation import beam_search, generate
from dxn.models.decoding.search import best_tokens, length_normalized

D, V, M, END = 12, 11, 5, 1


def decoder_of(kind="rotary", *, cross=True, seed=0):
    torch.manual_seed(seed)
    if kind in ("gru", "lstm"):
        return lively(RecurrentDecoder(D, vocab_size=V, cell=kind, max_len=20))
    if kind == "no attention":
        return lively(RecurrentDecoder(D, vocab_size=V, attention=False, max_len=20))
    backbone = backbone_of(D, depth=2, num_heads=2, causal=True, cross=cross, position=kind)
    return lively(Decoder(backbone, vocab_size=V, max_len=60))


def memory_of(lengths, seed=1):
    rand = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), M, D, generator=rand, dtype=torch.float64)
    return Memory.from_tokens(Tokens(x, torch.arange(M) < torch.tensor(lengths)[:, None]))


def prompts_of(lengths, seed=2):
    rand = torch.Generator().manual_seed(seed)
    return torch.randint(2, V, (len(lengths), max(lengths)), generator=rand)


def mask_of(lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def log_probs(decoder, ids, memory):
    mask = torch.ones(1, len(ids), dtype=torch.bool)
    return decoder(torch.tensor([ids]), mask, memory)[0, -1].float().log_softmax(-1)


def plain_beam_search(decoder, memory, prompt, *, beams, max_new, penalty):
    """Return (ids, score): each step extends every beam by every token, and keeps the best."""
    alive, complete = [([], 0.0)], []
    for _ in range(max_new):
        candidates = []
        for ids, score in alive:
            gains = log_probs(decoder, [*prompt, *ids], memory).tolist()
            candidates += [(ids, token, score + gain) for token, gain in enumerate(gains)]
        candidates.sort(key=lambda candidate: -candidate[2])
        complete += [(ids, score) for ids, token, score in candidates[:beams] if token == END]
        alive = [([*ids, t], score) for ids, t, score in candidates if t != END][:beams]
    complete += alive
    return max(complete, key=lambda h: length_normalized(h[1], len(h[0]) + 1, penalty))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("penalty", [0.0, 0.6])
@pytest.mark.parametrize("kind", ["rotary", "alibi", "none", "gru", "lstm", "no attention"])
def test_beam_search_of_a_batch_equals_the_plain_search_of_each_sample(kind, penalty, beams):
    decoder, lengths, sizes = decoder_of(kind), (5, 2, 4, 3), (1, 3, 2, 1)
    memory, prompts = memory_of(lengths), prompts_of(sizes)
    options = {"beams": beams, "max_new": 6}
    found = beam_search(
        decoder,
        memory,
        prompt=prompts,
        mask=mask_of(sizes),
        end=END,
        length_penalty=penalty,
        **options,
    )
    for i, hypothesis in enumerate(found):
        own, prompt = memory.select(torch.tensor([i])), prompts[i, : sizes[i]].tolist()
        ids, score = plain_beam_search(decoder, own, prompt, penalty=penalty, **options)
        assert hypothesis.ids == ids
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


def test_there_can_be_more_beams_than_tokens_in_the_vocabulary():
    decoder, memory = decoder_of(), memory_of((5,))
    options = {"beams": 70, "max_new": 3}
    (found,) = beam_search(decoder, memory, prompt=torch.tensor([[2]]), end=END, **options)
    ids, score = plain_beam_search(decoder, memory, [2], penalty=0, **options)
    assert found.ids == ids
    assert found.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "none", "gru"])
def test_prompts_of_different_lengths_give_the_results_of_single_prompts(kind):
    decoder, sizes = decoder_of(kind), (4, 1, 3)
    memory, prompts = memory_of((5, 2, 4)), prompts_of(sizes)
    padded = prompts.masked_fill(torch.arange(4) >= torch.tensor(sizes)[:, None], 7)
    found = generate(
        decoder, memory, prompt=padded, mask=mask_of(sizes), end=END, max_new=8
    )
    for i, size in enumerate(sizes):
        own = memory.select(torch.tensor([i]))
        single = generate(decoder, own, prompt=prompts[i : i + 1, :size], end=END, max_new=8)[0]
        assert found[i].ids == single.ids
        assert found[i].score == pytest.approx(single.score, abs=1e-5)


@pytest.mark.parametrize("has_memory", [False, True])
def test_a_compiled_step_generates_the_same_tokens(has_memory):
    """One graph for all steps, of prompts of different lengths."""
    sizes = (2, 1, 3)
    decoder, memory = LanguageModel(model_of(position="rotary")), None
    if has_memory:
        decoder, memory = decoder_of("alibi"), memory_of((5, 2, 4))
    options = {"prompt": prompts_of(sizes), "mask": mask_of(sizes), "max_new": 5}
    expected = generate(decoder, memory, end=END, **options)
    backend = CompileCounterWithBackend("aot_eager")
    compile_step = partial(torch.compile, fullgraph=True, backend=backend)
    torch._dynamo.reset()
    found = generate(decoder, memory, end=END, compile_step=compile_step, **options)
    assert [h.ids for h in found] == [h.ids for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)
    assert backend.frame_count == 1


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("beams", [None, 3])
def test_a_language_model_continues_prompts_of_different_lengths_beyond_max_len(position, beams):
    model, sizes = LanguageModel(model_of(position=position)), (6, 1, 9, 3)  # max_len is 7
    prompts = prompts_of(sizes)

    def search(prompt, mask=None):
        options = {"prompt": prompt, "mask": mask, "end": END, "max_new": 12}
        if beams is None:
            return generate(model, None, **options)
        return beam_search(model, None, beams=beams, **options)

    found = search(prompts, mask_of(sizes))
    for i, size in enumerate(sizes):
        single = search(prompts[i : i + 1, :size])[0]
        assert found[i].ids == single.ids
        assert found[i].score == pytest.approx(single.score, abs=1e-4)


def test_several_sequences_of_a_prompt_are_those_of_copies_of_the_prompt():
    def sample(log_probs):
        return log_probs.topk(2).indices[torch.arange(len(log_probs)), torch.arange(6) % 2]

    decoder, memory, prompts = decoder_of(), memory_of((5, 2, 4)), prompts_of((2, 2, 2))
    options = {"end": None, "max_new": 5, "sampler": sample}
    rows = torch.tensor([0, 0, 1, 1, 2, 2])
    copies = generate(decoder, memory.select(rows), prompt=prompts[rows], **options)
    found = generate(decoder, memory, prompt=prompts, count=2, **options)
    assert [h.ids for h in found] == [h.ids for h in copies]
    assert [h.score for h in found] == pytest.approx([h.score for h in copies], abs=1e-5)


class Script:
    """A decoder that ends the text of sample i after i + 1 tokens, and records its calls."""

    max_len = 60

    def __init__(self):
        self.rows = []

    def caches(self):
        return [self]

    def select(self, rows, samples=None):
        self.left = self.left[rows]

    def output_layer(self):
        return torch.nn.Identity()

    def next_states(self, ids, mask, memory, caches):
        self.rows.append(len(ids))
        if mask.shape[1] == ids.shape[1]:
            self.left = torch.arange(len(ids)) + 2
        self.left = self.left - 1
        token = torch.where(self.left == 0, END, 3)
        return torch.nn.functional.one_hot(token, V) * 9.0


@pytest.mark.parametrize("search", [generate, lambda *a, **k: beam_search(*a, beams=1, **k)])
def test_finished_samples_leave_the_batch_and_keep_their_results(search):
    script = Script()
    found = search(script, None, prompt=torch.full((8, 1), 2), end=END, max_new=30)
    assert [h.ids for h in found] == [[3] * (i + 1) for i in range(8)]
    assert script.rows[0] == 8
    assert script.rows[-1] < 3
    assert len(script.rows) == 9  # it stops when all samples are finished


def test_the_memory_is_not_copied_for_each_beam(monkeypatch):
    shapes, original = set(), cross_attention.attend

    def record(query, key, *args, **kwargs):
        if key.shape[2] == M:
            shapes.add((query.shape[0], query.shape[2], key.shape[0]))
        return original(query, key, *args, **kwargs)

    monkeypatch.setattr(cross_attention, "attend", record)
    memory, prompt = memory_of((5, 5)), torch.full((2, 1), 2)
    beam_search(decoder_of(), memory, prompt=prompt, end=END, max_new=2, beams=4)
    # One query per sample for the prompt, then four.
    assert shapes == {(2, 1, 2), (2, 4, 2)}


def test_a_cache_writes_each_new_token_after_the_last_one_of_its_row(monkeypatch):
    extend, calls, addresses = KVCache.extend, 0, set()

    def record(cache, key, value, group):
        nonlocal calls
        keys, values = extend(cache, key, value, group)
        if group.cells is not None:
            first, second = group.cells[1][:, 0].tolist()
            assert second == first + 2
            assert torch.equal(keys[0, :, first], key[0, :, 0])
            assert torch.equal(keys[1, :, second], key[1, :, 0])
            assert not keys[:, :, second + 1 :].any()
            calls += 1
            addresses.add(keys.data_ptr())
        return keys, values

    monkeypatch.setattr(KVCache, "extend", record)
    prompts, mask = prompts_of((1, 3)), mask_of((1, 3))
    generate(decoder_of(), memory_of((5, 2)), prompt=prompts, mask=mask, end=None, max_new=40)
    assert calls == 2 * 39
    assert len(addresses) <= 2 * 6  # few copies: the caches have room for further tokens


def test_a_batch_of_bf16_is_generated_like_its_samples():
    model = model_of(position="rotary").bfloat16()
    language, prompts = LanguageModel(model), prompts_of((3, 1))
    found = generate(
        language, None, prompt=prompts, mask=mask_of((3, 1)), end=None, max_new=4
    )
    assert [len(h.ids) for h in found] == [4, 4]


@pytest.mark.parametrize("size", [5, 64, 1000, 1283])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_best_tokens_are_those_of_a_sort(size, beams):
    rand = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(67 * beams, size, generator=rand)
    scores = torch.randn(67, beams, generator=rand)
    count = min(8, beams * size)
    values, parents, ids = best_tokens(logits, scores, count)
    total = logits.log_softmax(-1) + scores.view(-1, 1)
    expected = total.view(67, -1).sort(-1, descending=True)
    torch.testing.assert_close(values, expected.values[:, :count])
    assert torch.equal(parents * size + ids, expected.indices[:, :count])
