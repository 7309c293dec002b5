"""Generation on tensors: batches of prompts of different lengths, beams, finished samples, caches.

The reference is a plain search of a single sample without caches, in Python.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest
import torch
from helpers.language import model_of
from helpers.reference import backbone_of, lively
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dxn.core.tokens import Tokens
from dxn.models import (
    Decoder,
    KVCache,
    LanguageModel,
    Memory,
    RecurrentDecoder,
    backbone,
    cross_attention,
)
from dxn.models.decoding import decoder as decoder_module
from dxn.models.decoding import generation, language_model
from dxn.models.decoding.code_writing import NOISE, Filling, Guided, num_masked
from dxn.models.decoding.generation import Generation, beam_search, capture, generate
from dxn.models.decoding.rules import Rules
from dxn.models.decoding.search import (
    BatchSampler,
    best_tokens,
    greedy,
    length_normalized,
    make_sampler,
)

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
    # The length of a complete text includes its end token.
    ranked = [(ids, score, len(ids) + 1) for ids, score in complete]
    ranked += [(ids, score, len(ids)) for ids, score in alive]
    return max(ranked, key=lambda h: length_normalized(h[1], h[2], penalty))[:2]


@pytest.mark.parametrize(
    ("kind", "penalty", "beams"),
    [
        *product(["rotary", "gru"], [0.0, 0.6], [1, 3]),
        *((kind, 0.6, 3) for kind in ("alibi", "none", "lstm", "no attention")),
    ],
)
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
    found = generate(decoder, memory, prompt=padded, mask=mask_of(sizes), end=END, max_new=8)
    for i, size in enumerate(sizes):
        own = memory.select(torch.tensor([i]))
        single = generate(decoder, own, prompt=prompts[i : i + 1, :size], end=END, max_new=8)[0]
        assert found[i].ids == single.ids
        assert found[i].score == pytest.approx(single.score, abs=1e-5)


def search_of(decoder, memory, sizes, *, beams=None, **options):
    options = {"prompt": prompts_of(sizes), "mask": mask_of(sizes), "end": END, **options}
    if beams is not None:
        return beam_search(decoder, memory, beams=beams, **options)
    return generate(decoder, memory, **options)


def assert_equal(found, expected):
    assert [h.ids for h in found] == [h.ids for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("beams", [None, 1, 3])
@pytest.mark.parametrize("has_memory", [False, True])
def test_a_compiled_step_generates_the_same_tokens(has_memory, beams):
    """One graph for all steps, of prompts of different lengths."""
    sizes = (2, 1, 3)
    decoder, memory = LanguageModel(model_of(position="rotary")), None
    if has_memory:
        decoder, memory = decoder_of("alibi"), memory_of((5, 2, 4))
    expected = search_of(decoder, memory, sizes, beams=beams, max_new=5)
    backend = CompileCounterWithBackend("aot_eager")
    compile_step = partial(torch.compile, fullgraph=True, backend=backend)
    torch._dynamo.reset()
    found = search_of(decoder, memory, sizes, beams=beams, max_new=5, compile_step=compile_step)
    assert_equal(found, expected)
    assert backend.frame_count == 1


class Recorded(TorchDispatchMode):
    """A stand-in for a CUDA graph: it repeats operators on the same tensors, without Python."""

    def __init__(self, step):
        self.calls = []
        with self:
            step()
        self.is_computed = True  # unlike a CUDA graph, the first recording has computed the step

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        if self.is_computed:
            self.is_computed = False
            return
        for func, args, kwargs, before in self.calls:
            result = func(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(result), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


RULES = Rules(forbidden=[4], forbidden_first=[5], min_new=3, no_repeat_ngram=2)


@pytest.mark.parametrize(
    ("kind", "beams", "repetition_penalty"),
    [
        ("language", None, 1.0),
        ("language", 3, 1.5),
        ("rotary", 1, 1.5),
        ("rotary", 3, 1.0),
        ("alibi", None, 1.5),
        ("alibi", 1, 1.0),
    ],
)
def test_a_captured_step_generates_the_same_tokens(kind, beams, repetition_penalty, monkeypatch):
    """All that changes between the steps is in tensors that stay where they are."""
    rules = replace(RULES, repetition_penalty=repetition_penalty)
    sizes, options, memory = (2, 1, 3), {"max_new": 5, "rules": rules}, None
    if kind == "language":
        decoder = LanguageModel(model_of(position="rotary"))
    else:
        decoder, memory = decoder_of(kind), memory_of((5, 2, 4))
        options["max_new"] = 12
    expected = search_of(decoder, memory, sizes, beams=beams, **options)
    for module in (backbone, decoder_module, language_model):
        monkeypatch.setattr(module, "can_read", lambda x: False)
    recorded = []

    def compile_step(step):
        recorded.append(Recorded(step))
        return recorded[0].replay

    found = search_of(decoder, memory, sizes, beams=beams, compile_step=compile_step, **options)
    assert_equal(found, expected)
    assert recorded[0].calls


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", ["greedy", "sampled", "one generator each", "beams"])
def test_a_device_with_graphs_captures_long_generations_by_itself(mode, fails, monkeypatch):
    sizes, decoder, memory = (2, 1, 3), decoder_of(), memory_of((5, 2, 4))
    graphs = []

    def search(decoder, max_new=16, sampler=None):
        graphs.clear()
        # Without an end token, so that all rows draw random numbers in all steps.
        options = {"max_new": max_new, "end": (), "beams": 3 if mode == "beams" else None}
        if mode == "sampled":
            options["sampler"] = make_sampler(0.9, top_k=5, seed=3)
        if mode == "one generator each":
            samplers = [make_sampler(0.9, top_k=5, seed=seed) for seed in (3, 4)]
            options["sampler"] = BatchSampler([*samplers, greedy])
        if sampler is not None:
            options["sampler"] = sampler
        return search_of(decoder, memory, sizes, **options)

    def record(step, device, generators):
        assert len(generators) == {"sampled": 1, "one generator each": 2}.get(mode, 0)
        graphs.append(None if fails else Recorded(step))
        return None if fails else graphs[0].replay

    expected = search(decoder)
    for module in (backbone, decoder_module, language_model):
        monkeypatch.setattr(module, "can_read", lambda x: False)
    monkeypatch.setattr(generation, "HAS_GRAPHS", "cpu")
    monkeypatch.setattr(generation, "GROWTH", 64)
    monkeypatch.setattr(generation, "capture", record)
    assert_equal(search(decoder), expected)
    assert len(graphs) == 1
    # Neither short ones, nor those of a decoder or a sampler that can contain any Python code.
    for options in ({"max_new": 15}, {"decoder": decoder_of("gru")}):
        search(**{"decoder": decoder, **options})
        assert not graphs
    if mode == "greedy":
        for sampler in (lambda x: x.argmax(-1), BatchSampler([lambda x: x.argmax(-1)] * 3)):
            search(decoder, sampler=sampler)
            assert not graphs


def parallel_decoder():
    torch.manual_seed(0)
    backbone = backbone_of(D, depth=2, num_heads=2, causal=False, cross=True, position="none")
    return lively(Decoder(backbone, vocab_size=V, max_len=60, parallel=True))


def filled(decoder, memory, samplers, *, length, steps, on_tokens=None):
    """Return the tokens of each sequence. The last id is that of the mask token."""
    ids = torch.full((len(samplers), 1 + length), V - 1)
    ids[:, 0] = 0
    rules = Rules(forbidden=[0, V - 1], forbidden_first=[END])
    search = Filling(BatchSampler(samplers), ids, mask_id=V - 1, steps=steps, rules=rules)
    found = Generation(decoder, memory, search, ids.view(-1, 1)).run(on_tokens)
    rows = [hypothesis.ids[-1] for hypothesis in found]
    starts = range(0, len(rows), 1 + length)
    return [rows[start + 1 : start + 1 + length] for start in starts]


def plain_filling(decoder, memory, *, length, steps, seed, temperature):
    """MaskGIT of one sequence, with tensors of the present state alone."""
    sampler = make_sampler(temperature, seed=seed)
    tokens = [V - 1] * length
    for step in range(1, steps + 1):
        ids = torch.tensor([[0, *tokens]])
        logits = decoder(ids, torch.ones_like(ids, dtype=torch.bool), memory)[0, 1:].float()
        logits[:, [0, V - 1]] = -torch.inf
        logits[0, END] = -torch.inf
        log_probs = logits.log_softmax(-1)
        chosen = sampler(log_probs).tolist()
        noise = -torch.empty(length).exponential_(generator=sampler.generator).log() * temperature
        confidence = [
            (float(log_probs[i, chosen[i]] + NOISE * (1 - step / steps) * noise[i]), i)
            for i in range(length)
            if tokens[i] == V - 1
        ]
        count = min(num_masked(step / steps, length), len(confidence) - 1)
        for _, i in sorted(confidence)[count:]:
            tokens[i] = chosen[i]
    return tokens


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("steps", [1, 3, 17, 40])
@torch.inference_mode()
def test_parallel_decoding_of_a_batch_is_that_of_each_sequence(steps, guidance):
    decoder, memory, length = Guided(parallel_decoder(), guidance), memory_of((5, 2, 4)), 17
    samplers = [make_sampler(0.7, seed=seed) for seed in (3, 4, 5)]
    new = []
    found = filled(decoder, memory, samplers, length=length, steps=steps, on_tokens=new.append)
    assert len(new) == min(steps, length)
    for row, tokens in enumerate(found):
        own = memory.select(torch.tensor([row]))
        options = {"length": length, "steps": min(steps, length), "seed": 3 + row}
        if guidance == 1:
            expected = plain_filling(decoder.decoder, own, temperature=0.7, **options)
        else:
            del options["seed"]
            (expected,) = filled(decoder, own, [make_sampler(0.7, seed=3 + row)], **options)
        assert tokens == expected
        assert not {0, V - 1} & set(tokens) and tokens[0] != END


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@torch.inference_mode()
def test_parallel_decoding_captures_its_step(guidance, monkeypatch):
    def search(steps):
        samplers = [make_sampler(0.7, seed=3), greedy, make_sampler(0.7, seed=4)]
        decoder = Guided(parallel_decoder(), guidance)
        return filled(decoder, memory_of((5, 2, 4)), samplers, length=17, steps=steps)

    graphs = []

    def record(step, device, generators):
        assert len(generators) == 2
        graphs.append(Recorded(step))
        return graphs[-1].replay

    expected = search(16)
    for module in (backbone, decoder_module):
        monkeypatch.setattr(module, "can_read", lambda x: False)
    monkeypatch.setattr(generation, "HAS_GRAPHS", "cpu")
    monkeypatch.setattr(generation, "capture", record)
    assert search(16) == expected
    assert len(graphs) == 1
    search(15)
    assert len(graphs) == 1


def test_a_step_that_cannot_be_captured_is_computed_as_it_is(monkeypatch, capsys):
    @contextmanager
    def graph(*args, **kwargs):
        yield
        raise torch.AcceleratorError("operation not permitted")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    for name in ("current_stream", "stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda x: nullcontext())
    for _ in range(2):
        assert capture(lambda: None, torch.device("cuda")) is None
    expected = "note: this text is generated without a CUDA graph: operation not permitted\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("beams", [None, 1, 3])
@pytest.mark.parametrize("kind", ["rotary", "gru"])
def test_the_first_of_several_end_tokens_ends_a_sequence(kind, beams):
    sizes = (2, 1, 3)
    decoder, memory = decoder_of(kind), memory_of((5, 2, 4))
    free = search_of(
        decoder, memory, sizes, beams=beams, max_new=8, end=V - 1, rules=Rules(forbidden=[V - 1])
    )
    ends = [END, free[0].ids[2], free[1].ids[1]]
    found = search_of(decoder, memory, sizes, beams=beams, max_new=8, end=ends)
    assert not {i for h in found for i in h.ids} & set(ends)
    if beams is None:
        for hypothesis, whole in zip(found, free, strict=True):
            stops = [i for i, token in enumerate(whole.ids) if token in ends]
            assert hypothesis.ids == whole.ids[: min(stops, default=8)]


def test_beam_search_with_several_end_tokens_equals_the_search_with_their_sum():
    """With all tokens as end tokens, the most probable token ends each sequence at once."""
    decoder, memory = decoder_of(), memory_of((5, 2))
    options = {"max_new": 4, "end": list(range(V))}
    found = search_of(decoder, memory, (2, 1), beams=3, **options)
    greedy = search_of(decoder, memory, (2, 1), **options)
    assert [h.ids for h in found] == [[], []]
    assert_equal(found, greedy)


@pytest.mark.parametrize("beams", [None, 3])
def test_forbidden_tokens_are_not_generated_and_change_no_probability(beams):
    decoder, memory, sizes = decoder_of(), memory_of((5, 2, 4)), (2, 1, 3)
    free = search_of(decoder, memory, sizes, beams=beams, max_new=6, end=END)
    forbidden = sorted({h.ids[0] for h in free if h.ids} | {END})
    found = search_of(
        decoder, memory, sizes, beams=beams, max_new=6, rules=Rules(forbidden=forbidden)
    )
    assert all(len(h.ids) == 6 and not set(h.ids) & set(forbidden) for h in found)
    prompt = prompts_of(sizes)[0, :2].tolist()
    own = memory.select(torch.tensor([0]))
    expected = 0.0
    for i, token in enumerate(found[0].ids):
        gains = log_probs(decoder, [*prompt, *found[0].ids[:i]], own)
        expected += gains[token].item()
    assert found[0].score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("beams", [None, 3])
def test_a_token_that_is_not_the_first_one_can_be_a_later_one(beams):
    decoder, memory, sizes = decoder_of(), memory_of((5, 2, 4)), (2, 1, 3)
    options = {"beams": beams, "max_new": 6, "end": END}
    free = search_of(decoder, memory, sizes, rules=Rules(forbidden=[END]), **options)
    first = sorted({h.ids[0] for h in free})
    rules = Rules(forbidden=[END], forbidden_first=first)
    found = search_of(decoder, memory, sizes, rules=rules, **options)
    assert not {h.ids[0] for h in found} & set(first)
    assert {i for h in found for i in h.ids[1:]} & set(first)
    assert END not in {i for h in found for i in h.ids}


@pytest.mark.parametrize("beams", [None, 1, 3])
@pytest.mark.parametrize("kind", ["rotary", "gru"])
def test_rules_hold_for_prompts_of_different_lengths(kind, beams):
    decoder, memory, sizes = decoder_of(kind), memory_of((5, 2, 4)), (4, 1, 3)
    options = {"beams": beams, "max_new": 9, "rules": replace(RULES, max_new=8, forced_end=True)}
    found = search_of(decoder, memory, sizes, **options)
    free = search_of(decoder, memory, sizes, beams=beams, max_new=9)
    assert [h.ids for h in found] != [h.ids for h in free]
    for i, (size, hypothesis) in enumerate(zip(sizes, found, strict=True)):
        assert 3 <= len(hypothesis.ids) <= 7
        text = prompts_of(sizes)[i, :size].tolist() + hypothesis.ids
        # The prompt itself can repeat tokens.
        new = [(a, b) for a, b in pairwise(text)][size - 1 :]
        assert len(set(new)) == len(new)
        own = memory.select(torch.tensor([i]))
        single = {**options, "prompt": prompts_of(sizes)[i : i + 1, :size], "mask": None}
        assert search_of(decoder, own, sizes, **single)[0].ids == hypothesis.ids


@pytest.mark.parametrize("beams", [None, 3])
def test_a_sequence_ends_where_the_rules_forbid_every_token(beams):
    decoder = decoder_of(cross=False)
    rules = Rules(no_repeat_ngram=1, min_new=V)
    for hypothesis in search_of(decoder, None, [2, 2], beams=beams, max_new=18, rules=rules):
        # Neither the end token nor the tokens of the prompt are possible.
        assert V - 3 <= len(set(hypothesis.ids)) == len(hypothesis.ids) < V
        assert END not in hypothesis.ids
        assert hypothesis.score > -1000


@pytest.mark.parametrize("beams", [None, 3])
def test_no_prompts_have_no_results_and_a_mask_can_have_numbers(beams):
    decoder = decoder_of(cross=False)
    found = search_of(decoder, None, [2, 1], beams=beams, max_new=5)
    numbers = mask_of([2, 1]).long()
    assert_equal(search_of(decoder, None, [2, 1], beams=beams, max_new=5, mask=numbers), found)
    nothing = {"prompt": torch.zeros(0, 2).long(), "mask": None}
    assert search_of(decoder, None, [2], beams=beams, max_new=5, **nothing) == []


def test_several_sequences_of_a_prompt_obey_the_rules():
    decoder, memory = decoder_of(), memory_of((5, 2))
    options = {"count": 6, "max_new": 8, "sampler": make_sampler(2.0, seed=1)}
    rules = Rules(no_repeat_ngram=1, min_new=7)
    found = search_of(decoder, memory, (2, 1), rules=rules, **options)
    assert len({tuple(h.ids) for h in found}) > 6
    for i, hypothesis in enumerate(found):
        text = prompts_of((2, 1))[i // 6, : 2 - i // 6].tolist() + hypothesis.ids
        assert len(hypothesis.ids) >= 7 and len(set(hypothesis.ids)) == len(hypothesis.ids)
        assert set(text[: 2 - i // 6]).isdisjoint(hypothesis.ids)


@pytest.mark.parametrize("beams", [None, 3])
@pytest.mark.parametrize("kind", ["rotary", "alibi", "none", "gru", "language"])
def test_padding_of_prompts_can_be_at_the_start(kind, beams):
    sizes, memory = (4, 1, 3), None
    if kind == "language":
        decoder = LanguageModel(model_of(position="rotary"))
    else:
        decoder, memory = decoder_of(kind), memory_of((5, 2, 4))
    expected = search_of(decoder, memory, sizes, beams=beams, max_new=6)
    left = torch.full((3, 4), 7)
    for i, size in enumerate(sizes):
        left[i, 4 - size :] = prompts_of(sizes)[i, :size]
    mask = mask_of(sizes).flip(1)
    found = search_of(decoder, memory, sizes, beams=beams, max_new=6, prompt=left, mask=mask)
    assert_equal(found, expected)


@pytest.mark.parametrize("count", [1, 2])
def test_the_tokens_of_all_steps_are_passed_on_while_they_are_generated(count):
    def sample(log_probs):
        return log_probs.topk(2).indices[
            torch.arange(len(log_probs)), torch.arange(len(log_probs)) % 2
        ]

    calls = []
    options = {"end": [END, 3, 4], "max_new": 9, "count": count, "sampler": sample}
    if count == 1:
        options["sampler"] = lambda log_probs: log_probs.argmax(-1)
    decoder, memory = decoder_of(), memory_of((5, 2, 4, 1))
    sizes = (2, 1, 3, 2)
    found = search_of(decoder, memory, sizes, on_tokens=calls.append, **options)
    joined = {i: [] for i in range(4 * count)}
    for new in calls:
        for i, ids in new.items():
            assert len(ids) == 1  # after each token on a CPU
            joined[i] += ids
    assert [joined[i] for i in range(4 * count)] == [h.ids for h in found]
    assert any(h.ids for h in found)


def test_an_exception_in_the_callback_stops_the_generation():
    def stop(new):
        raise KeyError("stop")

    script = Script()
    with pytest.raises(KeyError):
        generate(script, None, prompt=torch.tensor([[2]]), end=END, max_new=30, on_tokens=stop)
    assert len(script.rows) == 1


def test_all_sequences_can_end_with_their_first_token():
    decoder, memory = decoder_of(), memory_of((5, 2, 4))
    for beams in (None, 2):
        found = search_of(decoder, memory, (2, 1, 3), beams=beams, max_new=6, end=range(V))
        assert [h.ids for h in found] == [[], [], []]


@pytest.mark.parametrize("beams", [None, 1, 3])
def test_a_vocabulary_can_have_one_token(beams):
    backbone_ = backbone_of(D, depth=1, num_heads=2, causal=True, position="rotary")
    decoder = lively(Decoder(backbone_, vocab_size=1, max_len=60))
    options = {"prompt": torch.zeros(2, 1, dtype=torch.long), "mask": None, "max_new": 3}
    (found, _) = search_of(decoder, None, (1, 1), beams=beams, end=0, **options)
    assert (found.ids, found.score) == ([], 0)
    (found, _) = search_of(decoder, None, (1, 1), beams=beams, end=(), **options)
    assert (found.ids, found.score) == ([0, 0, 0], 0)


def test_an_end_token_in_a_prompt_does_not_end_the_sequence():
    decoder, memory = decoder_of(), memory_of((5,))
    prompt = torch.tensor([[2, END, 3]])
    for beams in (None, 2):
        options = {"prompt": prompt, "mask": None, "max_new": 4, "rules": Rules(forbidden=[END])}
        (found,) = search_of(decoder, memory, (3,), beams=beams, **options)
        assert len(found.ids) == 4


@pytest.mark.parametrize("beams", [None, 3])
def test_nan_as_logits_gives_nan_as_score(beams):
    decoder, memory = decoder_of(), memory_of((5,))
    torch.nn.init.constant_(decoder.embedding.weight, torch.nan)
    (found,) = search_of(decoder, memory, (2,), beams=beams, max_new=4)
    assert found.score != found.score


@pytest.mark.parametrize("beams", [None, 3])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new": 0}, "max_new must be at least 1"),
        ({"prompt": torch.zeros(2, 0, dtype=torch.long), "mask": None}, "at least one token"),
        ({"mask": torch.tensor([[True, True], [False, False]])}, "at least one token"),
        ({"rules": Rules(forbidden=[2, V])}, f"ids from 0 to {V - 1}, but not all, got {V}"),
        ({"rules": Rules(forbidden=[*range(V)])}, "but not all, got all"),
        ({"max_new": 70}, "longer than max_len=60: raise max_len"),
        ({"max_new": 70, "compile_step": lambda step: step}, "max_len=60 tokens, got 71: reduce"),
    ],
)
def test_an_error_says_what_is_wrong_with_the_input(options, message, beams):
    decoder, memory = decoder_of(), memory_of((5, 4))
    options = {"max_new": 3, "end": (), **options}
    with pytest.raises(ValueError, match=message):
        search_of(decoder, memory, (2, 2), beams=beams, **options)


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
    joint_rows = False

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
    found = generate(language, None, prompt=prompts, mask=mask_of((3, 1)), end=None, max_new=4)
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
