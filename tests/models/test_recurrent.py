"""The recurrent encoder and decoder: cells by their formulas, the cache, padding and order."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.models.decoding.decoder import Memory
from dxn.models.decoding.generation import beam_search, generate
from dxn.models.decoding.recurrent_decoder import RecurrentDecoder, both_ends
from dxn.models.decoding.search import Hypothesis, greedy, length_normalized
from dxn.models.fusion import EarlyFusion
from dxn.models.late_fusion import BottleneckFusion
from dxn.models.recurrent import Recurrent

B, T, M, D, V = 3, 7, 5, 12, 11
END = 1
CELLS = ["gru", "lstm"]
KINDS = {"attention": {}, "gate": {"gate": True}, "one vector": {"attention": False}}
SCORES = ["additive", "bilinear", "dot", "scaled_dot", "cosine"]


def lively(module, seed=0):
    """In float64, with other weights in each layer."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        else:
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return module.double().eval().requires_grad_(False)


def decoder_of(*, vocab_size=V, max_len=16, seed=0, **options):
    return lively(RecurrentDecoder(D, vocab_size=vocab_size, max_len=max_len, **options), seed)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens_of(lengths=(5, 2, 4), seed=1):
    mask = torch.arange(M) < torch.tensor(lengths)[:, None]
    return Tokens(numbers(len(lengths), M, D, seed=seed), mask)


def ids_of(*shape, seed=2):
    return torch.randint(2, V, shape, generator=torch.Generator().manual_seed(seed))


def all_real(ids):
    return torch.ones_like(ids, dtype=torch.bool)


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def reference_step(block, x, state, suffix=""):
    """The next state of one sample, (h,) or (h, c), from x (E,) and the state before."""
    part = {
        name: getattr(block, f"{name}_l0{suffix}")
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    of_x, of_h = (
        part["weight_ih"] @ x + part["bias_ih"],
        part["weight_hh"] @ state[0] + part["bias_hh"],
    )
    if isinstance(block, nn.LSTM):
        i, f, g, o = (of_x + of_h).chunk(4)
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell
    (rx, zx, nx), (rh, zh, nh) = of_x.chunk(3), of_h.chunk(3)
    z = torch.sigmoid(zx + zh)
    return (z * state[0] + (1 - z) * torch.tanh(nx + torch.sigmoid(rx + rh) * nh),)


def reference_pass(block, x, suffix=""):
    """The states (N, h) of one sample x (N, E), starting at zero."""
    width = block.hidden_size
    state, states = (
        tuple(x.new_zeros(width) for _ in range(2 if isinstance(block, nn.LSTM) else 1)),
        [],
    )
    for column in x:
        state = reference_step(block, column, state, suffix)
        states.append(state[0])
    return torch.stack(states)


def reference_encoder(encoder, x):
    for block in encoder.blocks:
        both = [reference_pass(block, x)]
        if block.bidirectional:
            both.append(reference_pass(block, x.flip(0), "_reverse").flip(0))
        x = torch.cat(both, 1)
    return x


MASKS = {
    "all real": [[1] * M] * B,
    "padding on the right": [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]],
    "padding between": [[1, 0, 0, 1, 1], [0, 1, 1, 0, 1], [0, 0, 0, 1, 0]],
}


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_the_encoder_equals_its_cells_step_by_step_over_the_real_tokens(
    cell, bidirectional, padding
):
    encoder = lively(Recurrent(D, cell=cell, depth=2, bidirectional=bidirectional))
    x, mask = numbers(B, M, D), torch.tensor(MASKS[padding]).bool()
    actual = encoder(Tokens(torch.where(mask[..., None], x, 1e6), mask)).x
    for b in range(B):
        assert_same(actual[b, mask[b]], reference_encoder(encoder, x[b, mask[b]]))
        assert not actual[b, ~mask[b]].any()


@settings(max_examples=30, deadline=None)
@given(
    cell=st.sampled_from(CELLS),
    bidirectional=st.booleans(),
    real=st.lists(st.lists(st.booleans(), min_size=M, max_size=M), min_size=1, max_size=4),
)
def test_a_sample_in_a_batch_gives_the_same_output_as_alone(cell, bidirectional, real):
    encoder = lively(Recurrent(D, cell=cell, bidirectional=bidirectional))
    mask = torch.tensor(real)
    x = numbers(len(real), M, D)
    actual = encoder(Tokens(x, mask)).x
    for i, row in enumerate(mask):
        if not row.any():
            assert not actual[i].any()
            continue
        own = x[i, row][None]
        alone = encoder(Tokens(own, torch.ones(own.shape[:2], dtype=torch.bool))).x[0]
        assert_same(actual[i, row], alone)


def test_running_the_layers_in_two_parts_equals_forward():
    encoder = lively(Recurrent(D, depth=3))
    x, mask = numbers(B, M, D), torch.tensor(MASKS["padding between"]).bool()
    assert_same(encoder.run(encoder.run(x, mask, 0, 1), mask, 1), encoder(Tokens(x, mask)).x)


@pytest.mark.parametrize(("bidirectional", "sees"), [(True, True), (False, False)])
def test_only_a_bidirectional_encoder_depends_on_later_tokens(bidirectional, sees):
    encoder, tokens = lively(Recurrent(D, bidirectional=bidirectional)), tokens_of((5, 5, 5))
    other = tokens.x.clone()
    other[:, 3:] += 1
    before, after = encoder(tokens).x[:, :3], encoder(tokens.with_x(other)).x[:, :3]
    assert torch.equal(before, after) != sees
    assert encoder.causal != sees


def test_dropout_of_each_layer_has_an_effect_only_in_training():
    for mask in MASKS.values():
        encoder, tokens = (
            lively(Recurrent(D, dropout=0.5)),
            Tokens(numbers(B, M, D), torch.tensor(mask).bool()),
        )
        plain, noisy = encoder(tokens).x, encoder.train()(tokens).x
        kept = noisy != 0
        assert 0.3 < kept[tokens.mask].double().mean() < 0.7
        assert_same(noisy[kept], 2 * plain[kept])


def parts_of():
    text, image = tokens_of((5, 2, 4)), tokens_of((3, 5, 1), seed=5)
    return [
        Tokens(part.x, part.mask, (Span(name, name, 0, M, torch.full((B, M, 1), torch.nan)),))
        for name, part in (("text", text), ("image", image))
    ]


def without_padding(part, b):
    n, (span,) = int(part.mask[b].sum()), part.spans
    alone = Span(span.name, span.modality, 0, n, torch.zeros(1, n, 1))
    return Tokens(part.x[b : b + 1, part.mask[b]], part.mask[b : b + 1, part.mask[b]], (alone,))


@pytest.mark.parametrize("fusion", [EarlyFusion, BottleneckFusion])
def test_the_encoder_can_replace_the_backbone_in_a_fusion(fusion):
    fuse = lively(fusion(D, inputs=("text", "image")))
    encoder = lively(Recurrent(D, depth=2))
    parts = parts_of()
    encoded, vectors = fuse(parts, encoder)
    corrupted = [p.with_x(torch.where(p.mask[..., None], p.x, 7.0)) for p in parts]
    assert_same(fuse(corrupted, encoder)[1], vectors)
    for b in range(B):
        own = [without_padding(part, b) for part in parts]
        alone, vector = fuse(own, encoder)
        assert_same(vectors[b], vector[0])
        assert_same(encoded.x[b, encoded.mask[b]], alone.x[0])


def reference_score(score, h, column):
    if hasattr(score, "of_key"):
        return (
            score.of_query.weight @ h + score.of_key.weight @ column + score.of_key.bias
        ).tanh() @ score.weight
    left, right = score.sides(h[None], column[None])
    return left[0] @ right[0]


def reference_decoder(decoder, ids, columns):
    """Logits (n, V), contexts (n, D) and weights (n, M) of one sample with columns (M, D)."""
    lstm, half = isinstance(decoder.blocks[0], nn.LSTM), D // 2
    ends = torch.cat([columns[-1, :half], columns[0, half:]])
    first = (decoder.start.weight @ ends + decoder.start.bias).tanh().split(D)
    size = 2 if lstm else 1
    states = [first[size * i : size * (i + 1)] for i in range(len(decoder.blocks))]
    logits, contexts, all_weights = [], [], []
    for token in ids.tolist():
        embedded, context = decoder.embedding.weight[token] * D**0.5, ends
        if decoder.look is not None:
            h = states[0][0]
            weights = torch.stack(
                [reference_score(decoder.look.score, h, c) for c in columns]
            ).softmax(0)
            beta = 1.0
            if decoder.look.gate is not None:
                beta = torch.sigmoid(decoder.look.gate.weight[0] @ h + decoder.look.gate.bias[0])
            context = beta * sum(w * c for w, c in zip(weights, columns, strict=True))
            all_weights.append(weights)
        x = torch.cat([embedded, context])
        for i, block in enumerate(decoder.blocks):
            states[i] = reference_step(block, x, states[i])
            x = states[i][0]
        deep = decoder.out.weight @ torch.cat([x, embedded, context]) + decoder.out.bias
        logits.append(decoder.embedding.weight @ deep)
        contexts.append(context)
    return (
        torch.stack(logits),
        torch.stack(contexts),
        torch.stack(all_weights) if all_weights else None,
    )


OPTIONS = [
    *({"cell": cell, **kind} for cell in CELLS for kind in KINDS.values()),
    *({"score": score} for score in SCORES[1:]),
    {"cell": "gru", "depth": 3, "gate": True},
    {"cell": "lstm", "depth": 2},
    {"cell": "lstm", "depth": 2, "attention": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_decoder_equals_its_formulas_step_by_step(options):
    decoder, ids, tokens = decoder_of(**options), ids_of(B, T), tokens_of()
    actual = decoder(ids, all_real(ids), Memory.from_tokens(tokens))
    for b in range(B):
        expected, _, weights = reference_decoder(decoder, ids[b], tokens.x[b, tokens.mask[b]])
        assert_same(actual[b], expected)
        if weights is not None:
            actual_weights = decoder.cross_attention_weights(
                ids, all_real(ids), Memory.from_tokens(tokens)
            )
            assert actual_weights.shape == (B, 1, 1, T, M)
            assert_same(actual_weights[b, 0, 0][:, tokens.mask[b]], weights)
            assert not actual_weights[b, 0, 0][:, ~tokens.mask[b]].any()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pieces", [(1,) * T, (4, 1, 2)], ids=["one by one", "in pieces"])
def test_logits_with_a_cache_equal_those_without(options, pieces):
    decoder, ids, memory = decoder_of(**options), ids_of(B, T), Memory.from_tokens(tokens_of())
    whole, caches, parts, offset = decoder(ids, all_real(ids), memory), decoder.caches(), [], 0
    for size in pieces:
        prefix = ids[:, : offset + size]
        parts.append(decoder(prefix[:, offset:], all_real(prefix), memory, caches))
        offset += size
    assert_same(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_continues_with_the_selected_rows(kind):
    decoder, ids, memory = (
        decoder_of(cell="lstm", depth=2, **KINDS[kind]),
        ids_of(B, T),
        Memory.from_tokens(tokens_of()),
    )
    rows, caches = torch.tensor([2, 0, 0, 1]), decoder.caches()
    decoder(ids[:, :4], all_real(ids[:, :4]), memory, caches)
    caches[0].select(rows, rows)
    actual = decoder(ids[rows, 4:], all_real(ids[rows]), memory.select(rows), caches)
    assert_same(actual, decoder(ids, all_real(ids), memory)[rows, 4:])


@pytest.mark.parametrize("kind", KINDS)
def test_later_tokens_and_padding_do_not_change_earlier_logits(kind):
    decoder, ids = decoder_of(depth=2, **KINDS[kind]), ids_of(B, T)
    other, mask = ids.clone(), all_real(ids)
    other[:, 4:], mask[:, 4:] = 0, False
    memory = Memory.from_tokens(tokens_of())
    a, b = decoder(ids, all_real(ids), memory), decoder(other, mask, memory)
    assert_same(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:], atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    real=st.lists(
        st.lists(st.booleans(), min_size=M, max_size=M).filter(any), min_size=1, max_size=4
    ),
)
def test_padding_anywhere_in_the_memory_changes_nothing(kind, real):
    decoder, mask = decoder_of(**KINDS[kind]), torch.tensor(real)
    x, ids = numbers(len(real), M, D), ids_of(len(real), T)
    actual = decoder(
        ids,
        all_real(ids),
        Memory.from_tokens(Tokens(torch.where(mask[..., None], x, 1000.0), mask)),
    )
    for i, row in enumerate(mask):
        assert_same(
            actual[i], decoder(ids[i : i + 1], all_real(ids[:1]), Memory(x[i, row][None], None))[0]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_without_a_real_memory_token_gives_finite_logits(kind):
    decoder, ids = decoder_of(**KINDS[kind]), ids_of(B, T)
    assert bool(
        decoder(ids, all_real(ids), Memory.from_tokens(tokens_of((5, 0, 4)))).isfinite().all()
    )


def test_without_attention_only_the_two_ends_of_the_memory_have_an_effect():
    tokens, half, ids = tokens_of(), D // 2, ids_of(B, T)
    other = tokens.x + 1
    for b, length in enumerate((5, 2, 4)):
        other[b, length - 1, :half] = tokens.x[b, length - 1, :half]
        other[b, 0, half:] = tokens.x[b, 0, half:]
    changed = Memory.from_tokens(tokens.with_x(other))
    for kind, same in (("one vector", True), ("attention", False)):
        decoder = decoder_of(**KINDS[kind])
        a, b = (
            decoder(ids, all_real(ids), memory) for memory in (Memory.from_tokens(tokens), changed)
        )
        assert torch.equal(a, b) == same
    decoder = decoder_of(attention=False)
    for column, part in ((0, slice(half, None)), (4, slice(half))):
        moved = tokens.x.clone()
        moved[0, column, part] += 1
        a, b = (
            decoder(ids, all_real(ids), Memory.from_tokens(t))[0]
            for t in (tokens, tokens.with_x(moved))
        )
        assert not torch.allclose(a, b, atol=1e-3)


def test_both_ends_are_the_final_states_of_the_two_directions_of_an_encoder():
    encoder, tokens = lively(Recurrent(D)), tokens_of()
    _, last = encoder.blocks[0](tokens.x[1:2, :2])
    memory = Memory.from_tokens(encoder(tokens))
    assert_same(both_ends(memory)[1], last.flatten())
    assert_same(both_ends(Memory(memory.x[1:2, :2], None))[0], last.flatten())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_encoder_and_decoder_gets_a_gradient(cell, kind):
    encoder = lively(Recurrent(D, cell=cell, depth=2)).requires_grad_(True)
    decoder = decoder_of(cell=cell, depth=2, **KINDS[kind]).requires_grad_(True)
    ids, tokens = ids_of(B, T), tokens_of()
    tokens.x.requires_grad_(True)
    (
        decoder(ids, all_real(ids), Memory.from_tokens(encoder(tokens))) * numbers(B, T, V)
    ).sum().backward()
    for name, parameter in [*encoder.named_parameters(), *decoder.named_parameters()]:
        assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert bool(tokens.x.grad[tokens.mask].abs().amin() > 0)
    assert not tokens.x.grad[~tokens.mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_its_gradients_equal_numerical_differences(kind):
    decoder, ids, tokens = decoder_of(**KINDS[kind]), ids_of(1, 3), tokens_of((2,))
    columns = tokens.x[:, :2].clone().requires_grad_(True)
    assert torch.autograd.gradcheck(
        lambda x: decoder(ids, all_real(ids), Memory(x, None))[0, 2, :2], columns
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_it_also_runs_in_bf16(cell, kind):
    torch.manual_seed(0)
    encoder = Recurrent(D, cell=cell, depth=2, dropout=0.1)
    decoder = RecurrentDecoder(D, vocab_size=V, cell=cell, depth=2, dropout=0.1, **KINDS[kind])
    ids, tokens = ids_of(B, T), tokens_of()
    for mask in (tokens.mask, torch.ones_like(tokens.mask)):
        with torch.autocast("cpu", torch.bfloat16):
            logits = decoder(
                ids, all_real(ids), Memory.from_tokens(encoder(Tokens(tokens.x.float(), mask)))
            )
        logits.float().sum().backward()
    assert all(
        bool(p.grad.isfinite().all()) for p in [*encoder.parameters(), *decoder.parameters()]
    )


def next_log_probs(decoder, ids, memory, row):
    sequence = torch.tensor([ids])
    return decoder(sequence, all_real(sequence), memory.select(torch.tensor([row])))[
        0, -1
    ].log_softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_generation_chooses_the_most_probable_token_at_each_step(kind):
    decoder, prompt, memory = (
        decoder_of(**KINDS[kind]),
        torch.full((B, 1), 2),
        Memory.from_tokens(tokens_of()),
    )
    for row, hypothesis in enumerate(generate(decoder, memory, prompt=prompt, end=END, max_new=6)):
        ids = [2]
        while (
            len(ids) <= 6
            and (best := int(next_log_probs(decoder, ids, memory, row).argmax())) != END
        ):
            ids.append(best)
        assert hypothesis.ids == ids[1:]


def all_hypotheses(decoder, memory, row, vocab, max_new):
    """All hypotheses with their scores: sequences that end, and those of max_new tokens."""
    words = [v for v in range(vocab) if v != END]
    inner = {(): next_log_probs(decoder, [0], memory, row)}
    for length in range(1, max_new):
        for sequence in product(words, repeat=length):
            inner[sequence] = next_log_probs(decoder, [0, *sequence], memory, row)
    for length in range(max_new + 1):
        for sequence in product(words, repeat=length):
            score = sum(float(inner[sequence[:i]][word]) for i, word in enumerate(sequence))
            yield Hypothesis(
                list(sequence), score + (float(inner[sequence][END]) if length < max_new else 0.0)
            )


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sufficiently_wide_beam_search_finds_the_best_of_all_hypotheses(kind, cell):
    vocab, max_new = 4, 3
    decoder = decoder_of(vocab_size=vocab, cell=cell, seed=1, **KINDS[kind])
    memory, prompt = Memory.from_tokens(tokens_of()), torch.zeros(B, 1, dtype=torch.long)
    for penalty in (0.0, 2.0):
        options = {
            "end": END,
            "max_new": max_new,
            "beams": vocab**max_new,
            "length_penalty": penalty,
        }
        hypotheses = beam_search(decoder, memory, prompt=prompt, **options)
        for row, hypothesis in enumerate(hypotheses):
            answers = all_hypotheses(decoder, memory, row, vocab, max_new)
            best = max(answers, key=lambda s: length_normalized(s.score, len(s.ids) + 1, penalty))
            assert hypothesis.ids == best.ids
            assert hypothesis.score == pytest.approx(best.score, abs=1e-4)


def test_the_scores_of_a_narrow_beam_search_are_those_of_the_decoder():
    """The order of the rows changes at each step: state and memory must follow."""
    decoder, memory = decoder_of(cell="lstm", depth=2), Memory.from_tokens(tokens_of())
    hypotheses = beam_search(
        decoder, memory, prompt=torch.full((B, 1), 2), end=END, max_new=6, beams=3
    )
    for row, hypothesis in enumerate(hypotheses):
        sequence = [2, *hypothesis.ids, END] if len(hypothesis.ids) < 6 else [2, *hypothesis.ids]
        steps = [
            next_log_probs(decoder, sequence[: i + 1], memory, row)[b]
            for i, (_, b) in enumerate(pairwise(sequence))
        ]
        score = float(sum(steps))
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


def test_a_tied_embedding_is_no_parameter_of_the_decoder():
    decoder, embedding = RecurrentDecoder(D, vocab_size=V), nn.Embedding(V, D)
    decoder.tie(embedding)
    assert decoder.embedding is embedding
    assert "embedding.weight" not in dict(decoder.named_parameters())


@pytest.mark.parametrize("kind", ["attention", "one vector"])
def test_encoder_and_decoder_overfit_eight_pairs(kind):
    torch.manual_seed(0)
    source, answer = torch.randint(3, V, (8, 5)), torch.randint(3, V, (8, 4))
    target = torch.cat([torch.full((8, 1), 2), answer, torch.full((8, 1), END)], 1)
    embedding, encoder = nn.Embedding(V, 16), Recurrent(16)
    decoder = RecurrentDecoder(16, vocab_size=V, max_len=9, **KINDS[kind])
    optimizer = torch.optim.Adam(
        [*decoder.parameters(), *encoder.parameters(), *embedding.parameters()], lr=4e-2
    )
    prefix = target[:, :-1]
    for _ in range(40):
        memory = Memory.from_tokens(encoder(Tokens(embedding(source), all_real(source))))
        logits = decoder(prefix, all_real(prefix), memory)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    decoder.eval()
    memory = Memory(memory.x.detach(), None)
    for search in (
        generate(decoder, memory, prompt=target[:, :1], end=END, max_new=8, sampler=greedy),
        beam_search(decoder, memory, prompt=target[:, :1], end=END, max_new=8, beams=3),
    ):
        assert [s.ids for s in search] == answer.tolist()


def run(decoder, count, *, memory):
    ids = ids_of(1, count)
    return decoder(ids, all_real(ids), memory)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recurrent(7), "dim must be even for a bidirectional encoder, got 7"),
        (lambda: Recurrent(D, cell="rnn"), "cell must be one of 'gru' or 'lstm', got 'rnn'"),
        (lambda: Recurrent(D, depth=0), "depth must be at least 1, got 0"),
        (lambda: Recurrent(D, dropout=1.0), "dropout must be below 1, got 1.0"),
        (lambda: decoder_of(cell="rnn"), "cell must be one of 'gru' or 'lstm', got 'rnn'"),
        (lambda: decoder_of(depth=0), "depth must be at least 1, got 0"),
        (
            lambda: decoder_of(score="euclid"),
            "score must be one of 'scaled_dot', 'dot'",
        ),
        (
            lambda: decoder_of(attention=False, gate=True),
            "gate=true scales the context of the attention, got attention=false",
        ),
        (lambda: run(decoder_of(), 4, memory=None), "a recurrent decoder needs a memory"),
        (
            lambda: run(decoder_of(max_len=3), 4, memory=Memory.from_tokens(tokens_of((5,)))),
            "a sequence of 4 tokens is longer than max_len=3",
        ),
        (
            lambda: decoder_of(attention=False).cross_attention_weights(
                ids_of(B, T), ids_of(B, T) > 0, Memory.from_tokens(tokens_of())
            ),
            "this decoder has no attention",
        ),
    ],
)
def test_invalid_use_raises_a_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
