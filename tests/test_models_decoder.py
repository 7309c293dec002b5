"""The decoder: its cache, its memory and its searches, each against a slow way to the same answer."""

from itertools import product

import pytest
import torch
from torch import nn

from dxn.models import Backbone, Decoder
from dxn.models.attention import CrossAttention, Memory
from dxn.models.decoder import Said, beam_search, generate, greedy, lengthened, remember, sampled
from dxn.tokens import Tokens, sinusoidal

B, T, M, D, V = 3, 7, 5, 12, 11
END = 1


def lively(module, seed=0):
    """Weights that no two layers share, in float64, so that equal is equal."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module.double().eval().requires_grad_(False)


def decoder_of(*, vocab_size=V, max_len=16, cross=True, depth=2, **options):
    backbone = Backbone(D, depth=depth, num_heads=2, causal=True, cross=cross, **options)
    return lively(Decoder(backbone, vocab_size=vocab_size, max_len=max_len))


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens_of(lengths=(5, 2, 4), seed=1):
    mask = torch.arange(M) < torch.tensor(lengths)[:, None]
    return Tokens(numbers(len(lengths), M, D, seed=seed), mask)


def ids_of(*shape, seed=2):
    return torch.randint(2, V, shape, generator=torch.Generator().manual_seed(seed))


def everything(ids):
    return torch.ones_like(ids, dtype=torch.bool)


OPTIONS = [
    {},
    {"norm_first": False},
    {"position": "rotary"},
    {"position": "alibi"},
    {"window": 2},
    {"window": 2, "global_every": 2, "position": "rotary", "window_base": 100.0},
    {"mlp": "swiglu", "norm": "rms", "bias": False, "qk_norm": True, "layer_scale": 0.5},
    {"score": "additive"},
    {"score": "cosine"},
]


@pytest.mark.parametrize("cross", [True, False], ids=["memory", "alone"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pieces", [(1,) * T, (4, 1, 2)], ids=["one by one", "in pieces"])
def test_with_a_cache_each_token_is_what_it_is_without(options, cross, pieces):
    decoder, ids = decoder_of(cross=cross, **options), ids_of(B, T)
    memory = remember(tokens_of()) if cross else None
    whole, caches, found, at = decoder(ids, everything(ids), memory), decoder.caches(), [], 0
    for size in pieces:
        upto = ids[:, : at + size]
        found.append(decoder(upto[:, at:], everything(upto), memory, caches))
        at += size
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-12)


def test_a_cached_memory_is_worked_out_once():
    decoder, ids = decoder_of(), ids_of(B, 2)
    caches, memory = decoder.caches(), remember(tokens_of())
    decoder(ids[:, :1], everything(ids[:, :1]), memory, caches)
    kept = [cache.memory for cache in caches]
    decoder(ids[:, 1:], everything(ids), memory, caches)
    assert all(cache.memory is before for cache, before in zip(caches, kept, strict=True))


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_blocks_are_torchs_decoder_layers(norm_first):
    """With the weights copied: an independent implementation of the same paper."""
    ours = decoder_of(norm_first=norm_first).backbone
    theirs = nn.TransformerDecoderLayer(
        D, 2, 4 * D, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first, dtype=torch.float64
    ).eval()
    x, tokens = numbers(B, T, D, seed=3), tokens_of()
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = x
    for block in ours.blocks:
        theirs.load_state_dict(
            {
                "self_attn.in_proj_weight": block.attn.qkv.weight,
                "self_attn.in_proj_bias": block.attn.qkv.bias,
                "self_attn.out_proj.weight": block.attn.proj.weight,
                "self_attn.out_proj.bias": block.attn.proj.bias,
                "multihead_attn.in_proj_weight": torch.cat([block.cross.query.weight, block.cross.memory.weight]),
                "multihead_attn.in_proj_bias": torch.cat([block.cross.query.bias, block.cross.memory.bias]),
                "multihead_attn.out_proj.weight": block.cross.proj.weight,
                "multihead_attn.out_proj.bias": block.cross.proj.bias,
                "linear1.weight": block.mlp.up.weight,
                "linear1.bias": block.mlp.up.bias,
                "linear2.weight": block.mlp.down.weight,
                "linear2.bias": block.mlp.down.bias,
                **{
                    f"norm{i}.{kind}": getattr(norm, kind)
                    for i, norm in enumerate((block.attn_norm, block.cross_norm, block.mlp_norm), 1)
                    for kind in ("weight", "bias")
                },
            }
        )
        expected = theirs(expected, tokens.x, tgt_mask=causal, memory_key_padding_mask=~tokens.mask)
    got = ours.run(x, torch.ones(B, T, dtype=torch.bool), memory=remember(tokens))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_cross_attention_is_its_formula():
    cross = lively(CrossAttention(D, num_heads=3))
    x, tokens = numbers(B, T, D), tokens_of()
    memory = remember(tokens)
    got = cross(x, cross.remember(memory.x), memory.bias)
    for b in range(B):
        real = tokens.x[b, tokens.mask[b]]
        q, (k, v) = cross.query(x[b]), cross.memory(real).chunk(2, -1)
        heads = [slice(4 * h, 4 * h + 4) for h in range(3)]
        out = torch.cat([(q[:, h] @ k[:, h].T / 2).softmax(-1) @ v[:, h] for h in heads], -1)
        torch.testing.assert_close(got[b], cross.proj(out), rtol=0, atol=1e-12)


def test_what_comes_later_changes_nothing_before_it():
    decoder, ids = decoder_of(), ids_of(B, T)
    other = ids.clone()
    other[:, 4:] = (other[:, 4:] + 1) % V
    memory = remember(tokens_of())
    a, b = decoder(ids, everything(ids), memory), decoder(other, everything(ids), memory)
    assert torch.equal(a[:, :4], b[:, :4]) and not torch.equal(a[:, 4:], b[:, 4:])


def test_padding_of_the_memory_changes_nothing():
    decoder, ids, tokens = decoder_of(), ids_of(B, T), tokens_of()
    spoiled = tokens.with_x(torch.where(tokens.mask[..., None], tokens.x, 1000.0))
    alone = [decoder(ids[i : i + 1], everything(ids[:1]), remember(Tokens(t[None], t.new_ones(1, len(t)).bool())))
             for i, t in enumerate(tokens.x[i, tokens.mask[i]] for i in range(B))]  # fmt: skip
    got = decoder(ids, everything(ids), remember(spoiled))
    torch.testing.assert_close(got, torch.cat(alone), rtol=0, atol=1e-12)


def test_a_sample_without_memory_gives_finite_numbers():
    decoder, ids = decoder_of(), ids_of(B, T)
    assert bool(decoder(ids, everything(ids), remember(tokens_of((5, 0, 4)))).isfinite().all())


def next_log_probs(decoder, ids, memory, row):
    mine = None if memory is None else memory.select(torch.tensor([row]))
    given = torch.tensor([ids])
    return decoder(given, everything(given), mine)[0, -1].log_softmax(-1)


@pytest.mark.parametrize("cross", [True, False])
def test_greedy_is_the_most_probable_token_each_time(cross):
    decoder, prompt = decoder_of(cross=cross, depth=1), torch.full((B, 1), 2)
    memory = remember(tokens_of()) if cross else None
    found = generate(decoder, memory, prompt=prompt, end=END, max_new=6)
    for row, said in enumerate(found):
        ids, score = [2], 0.0
        while len(ids) <= 6:
            log_probs = next_log_probs(decoder, ids, memory, row)
            best = int(log_probs.argmax())
            score += float(log_probs[best])
            if best == END:
                break
            ids.append(best)
        assert said.ids == ids[1:]
        assert said.score == pytest.approx(score, abs=1e-4)


def every_answer(decoder, memory, row, vocab, max_new):
    """All that can be said, with its score: sequences that end, and those cut at max_new."""
    answers = []
    for length in range(max_new + 1):
        for words in product([v for v in range(vocab) if v != END], repeat=length):
            ids, score = [0, *words], 0.0
            for i, word in enumerate(words):
                score += float(next_log_probs(decoder, ids[: i + 1], memory, row)[word])
            if length < max_new:
                score += float(next_log_probs(decoder, ids, memory, row)[END])
            answers.append(Said(list(words), score))
    return answers


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_enough_beam_finds_the_best_of_all_answers(penalty, seed):
    vocab, max_new = 4, 3
    decoder = lively(decoder_of(vocab_size=vocab, depth=1), seed)
    memory = remember(tokens_of(seed=seed))
    prompt = torch.zeros(B, 1, dtype=torch.long)
    found = beam_search(
        decoder, memory, prompt=prompt, end=END, max_new=max_new, beams=vocab**max_new, length_penalty=penalty
    )
    for row, said in enumerate(found):
        answers = every_answer(decoder, memory, row, vocab, max_new)
        best = max(answers, key=lambda s: lengthened(s.score, len(s.ids) + 1, penalty))
        assert said.ids == best.ids
        assert said.score == pytest.approx(best.score, abs=1e-4)


def test_a_beam_of_one_is_greedy():
    decoder, prompt = decoder_of(), ids_of(B, 2)
    memory = remember(tokens_of())
    plain = generate(decoder, memory, prompt=prompt, end=END, max_new=8)
    beam = beam_search(decoder, memory, prompt=prompt, end=END, max_new=8, beams=1)
    assert [s.ids for s in beam] == [s.ids for s in plain]


def test_more_beams_find_no_worse_answers_and_samples_do_not_see_each_other():
    decoder, prompt, memory = decoder_of(), torch.full((B, 1), 2), remember(tokens_of())
    found = {k: beam_search(decoder, memory, prompt=prompt, end=END, max_new=5, beams=k) for k in (1, 40)}
    assert all(wide.score >= one.score - 1e-6 for one, wide in zip(found[1], found[40], strict=True))
    for row in range(B):
        alone = memory.select(torch.tensor([row]))
        single = beam_search(decoder, alone, prompt=prompt[:1], end=END, max_new=5, beams=40)[0]
        assert single.ids == found[40][row].ids


def test_a_length_penalty_favours_longer_answers():
    assert lengthened(-4.0, 7, 0.0) == -4.0
    assert lengthened(-4.0, 7, 1.0) == pytest.approx(-4.0 / 2)  # (5 + 7) / 6
    decoder, prompt, memory = decoder_of(), torch.full((B, 1), 2), remember(tokens_of())
    lengths = [
        sum(len(s.ids) for s in beam_search(
            decoder, memory, prompt=prompt, end=END, max_new=9, beams=6, length_penalty=penalty
        ))
        for penalty in (0.0, 3.0)
    ]  # fmt: skip
    assert lengths[1] >= lengths[0]


def test_sampling_follows_the_probabilities():
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    pick = sampled(torch.Generator().manual_seed(0))
    drawn = pick(shares.log().expand(20000, 4).clone())
    torch.testing.assert_close(torch.bincount(drawn, minlength=4) / 20000, shares, rtol=0, atol=0.02)
    cold = sampled(torch.Generator().manual_seed(0), temperature=0.05)(shares.log().expand(100, 4).clone())
    assert bool((cold == 0).all())


@pytest.mark.parametrize(
    ("options", "allowed"), [({"top_k": 2}, {1, 2}), ({"top_p": 0.45}, {1}), ({"top_p": 0.7}, {1, 2})]
)
def test_sampling_can_leave_out_the_improbable(options, allowed):
    log_probs = torch.tensor([0.05, 0.5, 0.3, 0.15]).log().expand(500, 4).clone()
    assert set(sampled(torch.Generator().manual_seed(0), **options)(log_probs).tolist()) == allowed


def test_the_same_seed_says_the_same():
    decoder, prompt, memory = decoder_of(), torch.full((B, 1), 2), remember(tokens_of())

    def said(seed):
        pick = sampled(torch.Generator().manual_seed(seed))
        return [s.ids for s in generate(decoder, memory, prompt=prompt, end=END, max_new=8, pick=pick)]

    assert said(3) == said(3)
    assert any(said(3) != said(seed) for seed in range(4, 8))


def test_eight_pairs_are_learned_by_heart():
    """Sequences turned round: what to say next stands in the memory, at another place each time."""
    torch.manual_seed(0)
    source = torch.randint(3, V, (8, 5))
    target = torch.cat([torch.full((8, 1), 2), source.flip(1), torch.full((8, 1), END)], 1)
    words, places = nn.Embedding(V, 16), nn.Parameter(torch.randn(5, 16) * 0.1)
    decoder = Decoder(Backbone(16, depth=1, num_heads=2, causal=True, cross=True, dropout=0.0), vocab_size=V, max_len=9)
    optimizer = torch.optim.Adam([*decoder.parameters(), *words.parameters(), places], lr=1e-2)
    for _ in range(120):
        memory = Memory(words(source) + places, None)
        logits = decoder(target[:, :-1], everything(target[:, :-1]), memory)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    decoder.eval()
    memory = Memory((words(source) + places).detach(), None)
    for search in (
        generate(decoder, memory, prompt=target[:, :1], end=END, max_new=8, pick=greedy),
        beam_search(decoder, memory, prompt=target[:, :1], end=END, max_new=8, beams=3),
    ):
        assert [s.ids for s in search] == source.flip(1).tolist()


def run(decoder, count, *, memory):
    ids = ids_of(1, count)
    return decoder(ids, everything(ids), remember(tokens_of((5,))) if memory else None)


def search(beams):
    return beam_search(decoder_of(), None, prompt=ids_of(1, 1), end=END, max_new=3, beams=beams)


# What is given to it


def positioned(position, **options):
    backbone = Backbone(D, depth=1, num_heads=2, causal=True)
    return lively(Decoder(backbone, vocab_size=V, max_len=T, position=position, **options))


def test_sinusoidal_places_are_those_of_the_adapters():
    assert torch.equal(positioned("sinusoidal").places.float(), sinusoidal(torch.arange(T), D))
    assert not positioned("none").places.any()


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
def test_a_repeated_token_reads_differently_by_its_place_alone(position):
    same = torch.full((1, T), 5)
    logits = positioned(position)(same, everything(same))[0]
    differs = not torch.allclose(logits[0], logits[-1], rtol=0, atol=1e-9)
    assert differs == (position != "none")


def test_tokens_that_are_not_shown_leave_their_place_alone_and_in_use_all_are_shown():
    blind, open_eyed = positioned("learned", token_dropout=1 - 1e-9), positioned("learned")
    ids, others = ids_of(1, T), ids_of(1, T, seed=3)
    assert torch.equal(blind(ids, everything(ids)), open_eyed(ids, everything(ids)))
    blind.train()
    assert torch.equal(blind(ids, everything(ids)), blind(others, everything(others)))
    assert not torch.equal(open_eyed(ids, everything(ids)), open_eyed(others, everything(others)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: positioned("rotary"), "position must be learned, sinusoidal or none, got 'rotary'"),
        (lambda: positioned("none", token_dropout=1.0), "token_dropout must be at least 0 and under 1, got 1.0"),
        (lambda: Decoder(Backbone(D, num_heads=2), vocab_size=V), "a decoder's backbone must be causal"),
        (lambda: run(decoder_of(max_len=3), 4, memory=True), "reaches 3 tokens, got 4: raise max_len"),
        (lambda: run(decoder_of(), 4, memory=False), "a memory is what blocks with cross read"),
        (lambda: run(decoder_of(cross=False), 2, memory=True), "give both or none"),
        (lambda: sampled(torch.Generator(), temperature=0), "needs temperature > 0"),
        (lambda: search(0), "beams and max_new must be at least 1"),
    ],
)
def test_what_a_decoder_cannot_do_says_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()
