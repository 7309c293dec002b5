"""The decoder: its cache, its memory and generation, compared with slow reference forms."""

from itertools import product

import pytest
import torch
from helpers.reference import backbone_of, run_padded
from torch import nn

from dxn.core.tokens import Tokens, sinusoidal
from dxn.models import Decoder
from dxn.models.blocks import RopeScaling
from dxn.models.cross_attention import CrossAttention
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.generation import beam_search, generate
from dxn.models.decoding.search import Hypothesis, RandomSampler, greedy, length_normalized

B, T, M, D, V = 3, 7, 5, 12, 11
END = 1


def lively(module, seed=0):
    """In float64, with other weights in each layer."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module.double().eval().requires_grad_(False)


def decoder_of(*, vocab_size=V, max_len=16, cross=True, depth=2, **options):
    backbone = backbone_of(D, depth=depth, num_heads=2, causal=True, cross=cross, **options)
    return lively(Decoder(backbone, vocab_size=vocab_size, max_len=max_len))


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens_of(lengths=(5, 2, 4), seed=1):
    mask = torch.arange(M) < torch.tensor(lengths)[:, None]
    return Tokens(numbers(len(lengths), M, D, seed=seed), mask)


def ids_of(*shape, seed=2):
    return torch.randint(2, V, shape, generator=torch.Generator().manual_seed(seed))


def all_real(ids):
    return torch.ones_like(ids, dtype=torch.bool)


OPTIONS = [
    {},
    {"pre_norm": False},
    {"position": "rotary"},
    {"position": "alibi"},
    {"windows": [2]},
    {"windows": [None, 2], "position": "rotary", "window_rope_theta": 100.0},
    {"mlp": "swiglu", "norm": "rms", "bias": False, "qk_norm": True, "layer_scale": 0.5},
    {"score": "additive"},
    {"score": "cosine"},
    {"num_kv_heads": 1, "head_dim": 4, "position": "rotary"},
    {"num_kv_heads": 1, "position": "alibi", "qkv_bias": False},
    {"norm_place": "both", "layer_scale": 0.5},
    {"norm_place": "out", "norm": "rms", "qk_norm": "all", "position": "rotary"},
    {"position": "rotary", "rope_share": 0.7, "rope_blocks": [True, False]},
    {"position": "rotary", "rope_scaling": RopeScaling("yarn", 4.0, original_len=32)},
    {"position": "buckets", "num_buckets": 8, "max_distance": 5, "score_scale": 1.0},
    {"score_softcap": 0.7, "num_kv_heads": 1, "windows": [2, None]},
]


@pytest.mark.parametrize("cross", [True, False], ids=["memory", "alone"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pieces", [(1,) * T, (4, 1, 2)], ids=["one by one", "in pieces"])
def test_logits_with_a_cache_equal_those_without(options, cross, pieces):
    decoder, ids = decoder_of(cross=cross, **options), ids_of(B, T)
    memory = Memory.from_tokens(tokens_of()) if cross else None
    whole, caches, parts, offset = decoder(ids, all_real(ids), memory), decoder.caches(), [], 0
    for size in pieces:
        prefix = ids[:, : offset + size]
        parts.append(decoder(prefix[:, offset:], all_real(prefix), memory, caches))
        offset += size
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{}, {"position": "rotary"}, {"position": "alibi"}, {"windows": [2]}]
)
def test_new_tokens_are_the_last_real_ones_of_rows_with_other_lengths(options):
    decoder = decoder_of(cross=False, **options)
    ids = ids_of(2, 6)
    new = ids[:, 3:5]
    expected = [
        decoder(row[None], all_real(row[None]))[0, -2:]
        for row in (ids[0, :5], torch.cat([ids[1, :2], new[1]]))
    ]
    caches = decoder.caches()
    decoder(ids[:, :3], torch.arange(3) < torch.tensor([[3], [2]]), None, caches)
    logits = decoder(new, torch.arange(8) < torch.tensor([[5], [4]]), None, caches)
    torch.testing.assert_close(logits, torch.stack(expected))


def test_keys_and_values_of_the_memory_are_computed_once():
    decoder, ids = decoder_of(), ids_of(B, 2)
    caches, memory = decoder.caches(), Memory.from_tokens(tokens_of())
    decoder(ids[:, :1], all_real(ids[:, :1]), memory, caches)
    kept = [cache.memory for cache in caches]
    decoder(ids[:, 1:], all_real(ids), memory, caches)
    assert all(cache.memory is before for cache, before in zip(caches, kept, strict=True))


@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_blocks_equal_torchs_decoder_layers(pre_norm):
    ours = decoder_of(pre_norm=pre_norm).backbone
    theirs = nn.TransformerDecoderLayer(
        D,
        2,
        4 * D,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=pre_norm,
        dtype=torch.float64,
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
                "multihead_attn.in_proj_weight": torch.cat(
                    [block.cross.query.weight, block.cross.memory.weight]
                ),
                "multihead_attn.in_proj_bias": torch.cat(
                    [block.cross.query.bias, block.cross.memory.bias]
                ),
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
    actual = ours.run(x, torch.ones(B, T, dtype=torch.bool), memory=Memory.from_tokens(tokens))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_cross_attention_equals_its_formula():
    cross = lively(CrossAttention(D, num_heads=3))
    x, tokens = numbers(B, T, D), tokens_of()
    memory = Memory.from_tokens(tokens)
    actual = run_padded(cross, x, cross.keys_and_values(memory.x), memory.attn_mask)
    for b in range(B):
        real = tokens.x[b, tokens.mask[b]]
        q, (k, v) = cross.query(x[b]), cross.memory(real).chunk(2, -1)
        heads = [slice(4 * h, 4 * h + 4) for h in range(3)]
        out = torch.cat([(q[:, h] @ k[:, h].T / 2).softmax(-1) @ v[:, h] for h in heads], -1)
        torch.testing.assert_close(actual[b], cross.proj(out), rtol=0, atol=1e-12)


def test_later_tokens_do_not_change_earlier_logits():
    decoder, ids = decoder_of(), ids_of(B, T)
    other = ids.clone()
    other[:, 4:] = (other[:, 4:] + 1) % V
    memory = Memory.from_tokens(tokens_of())
    a, b = decoder(ids, all_real(ids), memory), decoder(other, all_real(ids), memory)
    assert torch.equal(a[:, :4], b[:, :4]) and not torch.equal(a[:, 4:], b[:, 4:])


def test_padding_of_the_memory_changes_nothing():
    decoder, ids, tokens = decoder_of(), ids_of(B, T), tokens_of()
    corrupted = tokens.with_x(torch.where(tokens.mask[..., None], tokens.x, 1000.0))
    alone = []
    for i in range(B):
        memory = Memory(tokens.x[i, tokens.mask[i]][None], None)
        alone.append(decoder(ids[i : i + 1], all_real(ids[:1]), memory))
    actual = decoder(ids, all_real(ids), Memory.from_tokens(corrupted))
    torch.testing.assert_close(actual, torch.cat(alone), rtol=0, atol=1e-12)


def test_a_sample_without_a_real_memory_token_gives_finite_logits():
    decoder, ids = decoder_of(), ids_of(B, T)
    assert bool(
        decoder(ids, all_real(ids), Memory.from_tokens(tokens_of((5, 0, 4)))).isfinite().all()
    )


def next_log_probs(decoder, ids, memory, row):
    own_memory = None if memory is None else memory.select(torch.tensor([row]))
    sequence = torch.tensor([ids])
    return decoder(sequence, all_real(sequence), own_memory)[0, -1].log_softmax(-1)


@pytest.mark.parametrize("cross", [True, False])
def test_greedy_generation_chooses_the_most_probable_token_at_each_step(cross):
    decoder, prompt = decoder_of(cross=cross, depth=1), torch.full((B, 1), 2)
    memory = Memory.from_tokens(tokens_of()) if cross else None
    hypotheses = generate(decoder, memory, prompt=prompt, end=END, max_new=6)
    for row, hypothesis in enumerate(hypotheses):
        ids, score = [2], 0.0
        while len(ids) <= 6:
            log_probs = next_log_probs(decoder, ids, memory, row)
            best = int(log_probs.argmax())
            score += float(log_probs[best])
            if best == END:
                break
            ids.append(best)
        assert hypothesis.ids == ids[1:]
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


def all_hypotheses(decoder, memory, row, vocab, max_new):
    """All hypotheses with their scores: sequences that end, and those of max_new tokens."""
    answers = []
    for length in range(max_new + 1):
        for words in product([v for v in range(vocab) if v != END], repeat=length):
            ids, score = [0, *words], 0.0
            for i, word in enumerate(words):
                score += float(next_log_probs(decoder, ids[: i + 1], memory, row)[word])
            if length < max_new:
                score += float(next_log_probs(decoder, ids, memory, row)[END])
            answers.append(Hypothesis(list(words), score))
    return answers


@pytest.mark.parametrize(("seed", "penalty"), [(0, 0.0), (1, 0.6), (2, 2.0)])
def test_a_sufficiently_wide_beam_search_finds_the_best_of_all_hypotheses(penalty, seed):
    vocab, max_new = 4, 3
    decoder = lively(decoder_of(vocab_size=vocab, depth=1), seed)
    memory = Memory.from_tokens(tokens_of(seed=seed))
    prompt = torch.zeros(B, 1, dtype=torch.long)
    hypotheses = beam_search(
        decoder,
        memory,
        prompt=prompt,
        end=END,
        max_new=max_new,
        beams=vocab**max_new,
        length_penalty=penalty,
    )
    for row, hypothesis in enumerate(hypotheses):
        answers = all_hypotheses(decoder, memory, row, vocab, max_new)
        best = max(answers, key=lambda s: length_normalized(s.score, len(s.ids) + 1, penalty))
        assert hypothesis.ids == best.ids
        assert hypothesis.score == pytest.approx(best.score, abs=1e-4)


def test_beam_search_with_one_beam_is_greedy():
    decoder, prompt = decoder_of(), ids_of(B, 2)
    memory = Memory.from_tokens(tokens_of())
    plain = generate(decoder, memory, prompt=prompt, end=END, max_new=8)
    beam = beam_search(decoder, memory, prompt=prompt, end=END, max_new=8, beams=1)
    assert [s.ids for s in beam] == [s.ids for s in plain]


def test_more_beams_find_hypotheses_at_least_as_good_and_samples_are_independent():
    decoder, prompt, memory = decoder_of(), torch.full((B, 1), 2), Memory.from_tokens(tokens_of())
    hypotheses = {
        k: beam_search(decoder, memory, prompt=prompt, end=END, max_new=5, beams=k) for k in (1, 40)
    }
    assert all(
        wide.score >= one.score - 1e-6
        for one, wide in zip(hypotheses[1], hypotheses[40], strict=True)
    )
    for row in range(B):
        alone = memory.select(torch.tensor([row]))
        single = beam_search(decoder, alone, prompt=prompt[:1], end=END, max_new=5, beams=40)[0]
        assert single.ids == hypotheses[40][row].ids


def test_a_length_penalty_favours_longer_hypotheses():
    assert length_normalized(-4.0, 7, 0.0) == -4.0
    assert length_normalized(-4.0, 7, 1.0) == pytest.approx(-4.0 / 2)  # (5 + 7) / 6
    decoder, prompt, memory = decoder_of(), torch.full((B, 1), 2), Memory.from_tokens(tokens_of())
    lengths = [
        sum(len(s.ids) for s in beam_search(
            decoder, memory, prompt=prompt, end=END, max_new=9, beams=6, length_penalty=penalty
        ))
        for penalty in (0.0, 3.0)
    ]  # fmt: skip
    assert lengths[1] >= lengths[0]


def test_sampling_follows_the_probabilities():
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    sampler = RandomSampler(torch.Generator().manual_seed(0))
    drawn = sampler(shares.log().expand(20000, 4).clone())
    torch.testing.assert_close(
        torch.bincount(drawn, minlength=4) / 20000, shares, rtol=0, atol=0.02
    )
    cold = RandomSampler(torch.Generator().manual_seed(0), temperature=0.05)(
        shares.log().expand(100, 4).clone()
    )
    assert bool((cold == 0).all())


@pytest.mark.parametrize(
    ("options", "allowed"),
    [({"top_k": 2}, {1, 2}), ({"top_p": 0.45}, {1}), ({"top_p": 0.7}, {1, 2})],
)
def test_top_k_and_top_p_exclude_improbable_tokens(options, allowed):
    log_probs = torch.tensor([0.05, 0.5, 0.3, 0.15]).log().expand(500, 4).clone()
    assert (
        set(RandomSampler(torch.Generator().manual_seed(0), **options)(log_probs).tolist())
        == allowed
    )


def test_the_same_seed_gives_the_same_sequences():
    decoder, prompt, memory = decoder_of(), torch.full((B, 1), 2), Memory.from_tokens(tokens_of())

    def generated(seed):
        sampler = RandomSampler(torch.Generator().manual_seed(seed))
        return [
            s.ids
            for s in generate(decoder, memory, prompt=prompt, end=END, max_new=8, sampler=sampler)
        ]

    assert generated(3) == generated(3)
    assert any(generated(3) != generated(seed) for seed in range(4, 8))


def test_the_decoder_overfits_eight_pairs():
    """Reversed sequences: the next token is in the memory, at another position at each step."""
    torch.manual_seed(0)
    source = torch.randint(3, V, (8, 5))
    target = torch.cat([torch.full((8, 1), 2), source.flip(1), torch.full((8, 1), END)], 1)
    embedding, positions = nn.Embedding(V, 16), nn.Parameter(torch.randn(5, 16) * 0.1)
    decoder = Decoder(
        backbone_of(16, depth=1, num_heads=2, causal=True, cross=True, dropout=0.0),
        vocab_size=V,
        max_len=9,
    )
    optimizer = torch.optim.Adam(
        [*decoder.parameters(), *embedding.parameters(), positions], lr=1e-2
    )
    for _ in range(120):
        memory = Memory(embedding(source) + positions, None)
        logits = decoder(target[:, :-1], all_real(target[:, :-1]), memory)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    decoder.eval()
    memory = Memory((embedding(source) + positions).detach(), None)
    for search in (
        generate(decoder, memory, prompt=target[:, :1], end=END, max_new=8, sampler=greedy),
        beam_search(decoder, memory, prompt=target[:, :1], end=END, max_new=8, beams=3),
    ):
        assert [s.ids for s in search] == source.flip(1).tolist()


def run(decoder, count, *, memory):
    ids = ids_of(1, count)
    return decoder(ids, all_real(ids), Memory.from_tokens(tokens_of((5,))) if memory else None)


def search(beams):
    return beam_search(decoder_of(), None, prompt=ids_of(1, 1), end=END, max_new=3, beams=beams)


# Inputs of the decoder


def decoder_with(position, **options):
    backbone = backbone_of(D, depth=1, num_heads=2, causal=True)
    return lively(Decoder(backbone, vocab_size=V, max_len=T, pos_embed=position, **options))


def test_sinusoidal_positions_equal_those_of_the_adapters():
    assert torch.equal(decoder_with("sinusoidal").pos_embed.float(), sinusoidal(torch.arange(T), D))
    assert not decoder_with("none").pos_embed.any()


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
def test_the_same_token_differs_only_by_its_position(position):
    same = torch.full((1, T), 5)
    logits = decoder_with(position)(same, all_real(same))[0]
    differs = not torch.allclose(logits[0], logits[-1], rtol=0, atol=1e-9)
    assert differs == (position != "none")


def test_token_dropout_hides_tokens_but_not_their_positions_and_only_in_training():
    dropping, plain = decoder_with("learned", token_dropout=1 - 1e-9), decoder_with("learned")
    ids, others = ids_of(1, T), ids_of(1, T, seed=3)
    assert torch.equal(dropping(ids, all_real(ids)), plain(ids, all_real(ids)))
    dropping.train()
    assert torch.equal(dropping(ids, all_real(ids)), dropping(others, all_real(others)))
    assert not torch.equal(plain(ids, all_real(ids)), plain(others, all_real(others)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: decoder_with("rotary"),
            "pos_embed must be one of 'learned', 'sinusoidal' or 'none', got 'rotary'",
        ),
        (
            lambda: decoder_with("none", token_dropout=1.0),
            "token_dropout must be below 1, got 1.0",
        ),
        (
            lambda: Decoder(backbone_of(D, num_heads=2), vocab_size=V),
            "the backbone of a decoder must be causal",
        ),
        (
            lambda: run(decoder_of(max_len=3), 4, memory=True),
            "a sequence of 4 tokens is longer than max_len=3: raise max_len",
        ),
        (lambda: run(decoder_of(), 4, memory=False), "got cross=True and no memory"),
        (lambda: run(decoder_of(cross=False), 2, memory=True), "got cross=False and a memory"),
        (
            lambda: RandomSampler(torch.Generator(), temperature=0),
            "temperature: must be above 0 and finite, got 0",
        ),
        (lambda: search(0), "beams and max_new must be at least 1"),
    ],
)
def test_invalid_use_raises_a_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
