"""The recurrent peers of backbone and decoder: each cell by hand, the cache, the laws of padding and order."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.models.attention import Memory
from dxn.models.decoder import Said, beam_search, generate, greedy, lengthened, remember
from dxn.models.fusion import BottleneckFusion, EarlyFusion
from dxn.models.recurrent import Recurrent, RecurrentDecoder, both_ends
from dxn.tokens import Span, Tokens

B, T, M, D, V = 3, 7, 5, 12, 11
END = 1
CELLS = ["gru", "lstm"]
KINDS = {"attention": {}, "gate": {"gate": True}, "one vector": {"attention": False}}
SCORES = ["additive", "bilinear", "dot", "scaled_dot", "cosine"]


def lively(module, seed=0):
    """Weights that no two layers share, in float64, so that equal is equal."""
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


def everything(ids):
    return torch.ones_like(ids, dtype=torch.bool)


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def by_hand(block, x, state, suffix=""):
    """One step of one sample: x (E,) and the state before to the state after, both (h,) or (h, c)."""
    part = {name: getattr(block, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    of_x, of_h = part["weight_ih"] @ x + part["bias_ih"], part["weight_hh"] @ state[0] + part["bias_hh"]
    if isinstance(block, nn.LSTM):
        i, f, g, o = (of_x + of_h).chunk(4)
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell
    (rx, zx, nx), (rh, zh, nh) = of_x.chunk(3), of_h.chunk(3)
    z = torch.sigmoid(zx + zh)
    return (z * state[0] + (1 - z) * torch.tanh(nx + torch.sigmoid(rx + rh) * nh),)


def pass_by_hand(block, x, suffix=""):
    """x (N, E) of one sample to its states (N, h), from zero on."""
    width = block.hidden_size
    state, states = tuple(x.new_zeros(width) for _ in range(2 if isinstance(block, nn.LSTM) else 1)), []
    for column in x:
        state = by_hand(block, column, state, suffix)
        states.append(state[0])
    return torch.stack(states)


def encoded_by_hand(encoder, x):
    for block in encoder.blocks:
        both = [pass_by_hand(block, x)]
        if block.bidirectional:
            both.append(pass_by_hand(block, x.flip(0), "_reverse").flip(0))
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
def test_the_encoder_is_its_cells_step_by_step_over_the_real_tokens(cell, bidirectional, padding):
    encoder = lively(Recurrent(D, cell=cell, depth=2, bidirectional=bidirectional))
    x, mask = numbers(B, M, D), torch.tensor(MASKS[padding]).bool()
    got = encoder(Tokens(torch.where(mask[..., None], x, 1e6), mask)).x
    for b in range(B):
        assert_same(got[b, mask[b]], encoded_by_hand(encoder, x[b, mask[b]]))
        assert not got[b, ~mask[b]].any()


@settings(max_examples=30, deadline=None)
@given(
    cell=st.sampled_from(CELLS),
    bidirectional=st.booleans(),
    real=st.lists(st.lists(st.booleans(), min_size=M, max_size=M), min_size=1, max_size=4),
)
def test_a_sample_in_a_batch_is_what_it_is_alone(cell, bidirectional, real):
    encoder = lively(Recurrent(D, cell=cell, bidirectional=bidirectional))
    mask = torch.tensor(real)
    x = numbers(len(real), M, D)
    got = encoder(Tokens(x, mask)).x
    for i, row in enumerate(mask):
        if not row.any():
            assert not got[i].any()
            continue
        own = x[i, row][None]
        alone = encoder(Tokens(own, torch.ones(own.shape[:2], dtype=torch.bool))).x[0]
        assert_same(got[i, row], alone)


def test_layers_run_apart_are_the_whole():
    encoder = lively(Recurrent(D, depth=3))
    x, mask = numbers(B, M, D), torch.tensor(MASKS["padding between"]).bool()
    assert_same(encoder.run(encoder.run(x, mask, 0, 1), mask, 1), encoder(Tokens(x, mask)).x)


@pytest.mark.parametrize(("bidirectional", "sees"), [(True, True), (False, False)])
def test_only_two_directions_see_what_comes_later(bidirectional, sees):
    encoder, tokens = lively(Recurrent(D, bidirectional=bidirectional)), tokens_of((5, 5, 5))
    other = tokens.x.clone()
    other[:, 3:] += 1
    before, after = encoder(tokens).x[:, :3], encoder(tokens.with_x(other)).x[:, :3]
    assert torch.equal(before, after) != sees
    assert encoder.causal != sees


def test_dropout_clears_what_each_layer_gives_in_training_alone():
    for mask in MASKS.values():
        encoder, tokens = lively(Recurrent(D, dropout=0.5)), Tokens(numbers(B, M, D), torch.tensor(mask).bool())
        plain, noisy = encoder(tokens).x, encoder.train()(tokens).x
        kept = noisy != 0
        assert 0.3 < kept[tokens.mask].double().mean() < 0.7
        assert_same(noisy[kept], 2 * plain[kept])


def parts_of():
    text, image = tokens_of((5, 2, 4)), tokens_of((3, 5, 1), seed=5)
    return [
        Tokens(part.x, part.mask, (Span(name, 0, M, torch.full((B, M, 1), torch.nan)),))
        for name, part in (("text", text), ("image", image))
    ]


@pytest.mark.parametrize("fusion", [EarlyFusion, BottleneckFusion])
def test_it_stands_in_the_backbones_place_in_a_fusion(fusion):
    fuse = lively(fusion(D, modalities=("text", "image")))
    encoder = lively(Recurrent(D, depth=2))
    parts = parts_of()
    encoded, vectors = fuse(parts, encoder)
    spoiled = [p.with_x(torch.where(p.mask[..., None], p.x, 7.0)) for p in parts]
    assert_same(fuse(spoiled, encoder)[1], vectors)
    for b in range(B):
        own = [Tokens(p.x[b : b + 1, p.mask[b]], p.mask[b : b + 1, p.mask[b]],
                      (Span(p.spans[0].modality, 0, int(p.mask[b].sum()), torch.zeros(1, int(p.mask[b].sum()), 1)),))
               for p in parts]  # fmt: skip
        alone, vector = fuse(own, encoder)
        assert_same(vectors[b], vector[0])
        assert_same(encoded.x[b, encoded.mask[b]], alone.x[0])


def score_by_hand(score, h, column):
    if hasattr(score, "of_key"):
        return (score.of_query.weight @ h + score.of_key.weight @ column + score.of_key.bias).tanh() @ score.weight
    left, right = score.sides(h[None], column[None])
    return left[0] @ right[0]


def decoded_by_hand(decoder, ids, columns):
    """Logits (n, V), contexts (n, D) and weights (n, M) of one sample of real columns (M, D), number by number."""
    lstm, half = isinstance(decoder.blocks[0], nn.LSTM), D // 2
    ends = torch.cat([columns[-1, :half], columns[0, half:]])
    first = (decoder.start.weight @ ends + decoder.start.bias).tanh().split(D)
    size = 2 if lstm else 1
    states = [first[size * i : size * (i + 1)] for i in range(len(decoder.blocks))]
    logits, contexts, looked = [], [], []
    for token in ids.tolist():
        embedded, context = decoder.table.weight[token] * D**0.5, ends
        if decoder.look is not None:
            h = states[0][0]
            weights = torch.stack([score_by_hand(decoder.look.score, h, c) for c in columns]).softmax(0)
            beta = 1.0
            if decoder.look.gate is not None:
                beta = torch.sigmoid(decoder.look.gate.weight[0] @ h + decoder.look.gate.bias[0])
            context = beta * sum(w * c for w, c in zip(weights, columns, strict=True))
            looked.append(weights)
        x = torch.cat([embedded, context])
        for i, block in enumerate(decoder.blocks):
            states[i] = by_hand(block, x, states[i])
            x = states[i][0]
        deep = decoder.out.weight @ torch.cat([x, embedded, context]) + decoder.out.bias
        logits.append(decoder.table.weight @ deep)
        contexts.append(context)
    return torch.stack(logits), torch.stack(contexts), torch.stack(looked) if looked else None


OPTIONS = [
    *({"cell": cell, **kind} for cell in CELLS for kind in KINDS.values()),
    *({"score": score} for score in SCORES[1:]),
    {"cell": "gru", "depth": 3, "gate": True},
    {"cell": "lstm", "depth": 2},
    {"cell": "lstm", "depth": 2, "attention": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_decoder_is_its_formulas_step_by_step(options):
    decoder, ids, tokens = decoder_of(**options), ids_of(B, T), tokens_of()
    got = decoder(ids, everything(ids), remember(tokens))
    for b in range(B):
        expected, _, weights = decoded_by_hand(decoder, ids[b], tokens.x[b, tokens.mask[b]])
        assert_same(got[b], expected)
        if weights is not None:
            looks = decoder.looks(ids, everything(ids), remember(tokens))
            assert looks.shape == (B, 1, 1, T, M)
            assert_same(looks[b, 0, 0][:, tokens.mask[b]], weights)
            assert not looks[b, 0, 0][:, ~tokens.mask[b]].any()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pieces", [(1,) * T, (4, 1, 2)], ids=["one by one", "in pieces"])
def test_with_a_cache_each_token_is_what_it_is_without(options, pieces):
    decoder, ids, memory = decoder_of(**options), ids_of(B, T), remember(tokens_of())
    whole, caches, found, at = decoder(ids, everything(ids), memory), decoder.caches(), [], 0
    for size in pieces:
        upto = ids[:, : at + size]
        found.append(decoder(upto[:, at:], everything(upto), memory, caches))
        at += size
    assert_same(torch.cat(found, 1), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_goes_on_with_the_rows_that_are_selected(kind):
    decoder, ids, memory = decoder_of(cell="lstm", depth=2, **KINDS[kind]), ids_of(B, T), remember(tokens_of())
    rows, caches = torch.tensor([2, 0, 0, 1]), decoder.caches()
    decoder(ids[:, :4], everything(ids[:, :4]), memory, caches)
    caches[0].select(rows)
    got = decoder(ids[rows, 4:], everything(ids[rows]), memory.select(rows), caches)
    assert_same(got, decoder(ids, everything(ids), memory)[rows, 4:])


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_later_changes_nothing_before_it_padding_included(kind):
    decoder, ids = decoder_of(depth=2, **KINDS[kind]), ids_of(B, T)
    other, mask = ids.clone(), everything(ids)
    other[:, 4:], mask[:, 4:] = 0, False
    memory = remember(tokens_of())
    a, b = decoder(ids, everything(ids), memory), decoder(other, mask, memory)
    assert_same(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4:], b[:, 4:], atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    real=st.lists(st.lists(st.booleans(), min_size=M, max_size=M).filter(any), min_size=1, max_size=4),
)
def test_padding_of_the_memory_changes_nothing_wherever_it_stands(kind, real):
    decoder, mask = decoder_of(**KINDS[kind]), torch.tensor(real)
    x, ids = numbers(len(real), M, D), ids_of(len(real), T)
    got = decoder(ids, everything(ids), Memory.of(torch.where(mask[..., None], x, 1000.0), mask))
    for i, row in enumerate(mask):
        assert_same(got[i], decoder(ids[i : i + 1], everything(ids[:1]), Memory(x[i, row][None], None))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_without_memory_gives_finite_numbers(kind):
    decoder, ids = decoder_of(**KINDS[kind]), ids_of(B, T)
    assert bool(decoder(ids, everything(ids), remember(tokens_of((5, 0, 4)))).isfinite().all())


def test_without_attention_only_the_two_ends_of_the_memory_count():
    tokens, half, ids = tokens_of(), D // 2, ids_of(B, T)
    other = tokens.x + 1
    for b, length in enumerate((5, 2, 4)):
        other[b, length - 1, :half] = tokens.x[b, length - 1, :half]
        other[b, 0, half:] = tokens.x[b, 0, half:]
    changed = remember(tokens.with_x(other))
    for kind, same in (("one vector", True), ("attention", False)):
        decoder = decoder_of(**KINDS[kind])
        a, b = (decoder(ids, everything(ids), memory) for memory in (remember(tokens), changed))
        assert torch.equal(a, b) == same
    decoder = decoder_of(attention=False)
    for column, part in ((0, slice(half, None)), (4, slice(half))):
        moved = tokens.x.clone()
        moved[0, column, part] += 1
        a, b = (decoder(ids, everything(ids), remember(t))[0] for t in (tokens, tokens.with_x(moved)))
        assert not torch.allclose(a, b, atol=1e-3)


def test_the_two_ends_are_the_last_states_of_an_encoders_two_directions():
    encoder, tokens = lively(Recurrent(D)), tokens_of()
    _, last = encoder.blocks[0](tokens.x[1:2, :2])
    memory = remember(encoder(tokens))
    assert_same(both_ends(memory)[1], last.flatten())
    assert_same(both_ends(Memory(memory.x[1:2, :2], None))[0], last.flatten())


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_of_encoder_and_decoder_learns(cell, kind):
    encoder = lively(Recurrent(D, cell=cell, depth=2)).requires_grad_(True)
    decoder = decoder_of(cell=cell, depth=2, **KINDS[kind]).requires_grad_(True)
    ids, tokens = ids_of(B, T), tokens_of()
    tokens.x.requires_grad_(True)
    (decoder(ids, everything(ids), remember(encoder(tokens))) * numbers(B, T, V)).sum().backward()
    for name, parameter in [*encoder.named_parameters(), *decoder.named_parameters()]:
        assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert bool(tokens.x.grad[tokens.mask].abs().amin() > 0)
    assert not tokens.x.grad[~tokens.mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_its_gradients_are_those_of_its_differences(kind):
    """Against the loop's own way of summing gradients up: each number of the memory moved by a little."""
    decoder, ids, tokens = decoder_of(**KINDS[kind]), ids_of(1, 3), tokens_of((2,))
    columns = tokens.x[:, :2].clone().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: decoder(ids, everything(ids), Memory(x, None))[0, 2, :2], columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cell", CELLS)
def test_it_also_runs_in_bf16(cell, kind):
    torch.manual_seed(0)
    encoder = Recurrent(D, cell=cell, depth=2, dropout=0.1)
    decoder = RecurrentDecoder(D, vocab_size=V, cell=cell, depth=2, dropout=0.1, **KINDS[kind])
    ids, tokens = ids_of(B, T), tokens_of()
    for mask in (tokens.mask, torch.ones_like(tokens.mask)):
        with torch.autocast("cpu", torch.bfloat16):
            logits = decoder(ids, everything(ids), remember(encoder(Tokens(tokens.x.float(), mask))))
        logits.float().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in [*encoder.parameters(), *decoder.parameters()])


def next_log_probs(decoder, ids, memory, row):
    given = torch.tensor([ids])
    return decoder(given, everything(given), memory.select(torch.tensor([row])))[0, -1].log_softmax(-1)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_most_probable_token_each_time(kind):
    decoder, prompt, memory = decoder_of(**KINDS[kind]), torch.full((B, 1), 2), remember(tokens_of())
    for row, said in enumerate(generate(decoder, memory, prompt=prompt, end=END, max_new=6)):
        ids = [2]
        while len(ids) <= 6 and (best := int(next_log_probs(decoder, ids, memory, row).argmax())) != END:
            ids.append(best)
        assert said.ids == ids[1:]


def every_answer(decoder, memory, row, vocab, max_new):
    """All that can be said, with its score: sequences that end, and those cut at max_new."""
    words = [v for v in range(vocab) if v != END]
    inner = {(): next_log_probs(decoder, [0], memory, row)}
    for length in range(1, max_new):
        for said in product(words, repeat=length):
            inner[said] = next_log_probs(decoder, [0, *said], memory, row)
    for length in range(max_new + 1):
        for said in product(words, repeat=length):
            score = sum(float(inner[said[:i]][word]) for i, word in enumerate(said))
            yield Said(list(said), score + (float(inner[said][END]) if length < max_new else 0.0))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_enough_beam_finds_the_best_of_all_answers(kind, cell):
    vocab, max_new = 4, 3
    decoder = decoder_of(vocab_size=vocab, cell=cell, seed=1, **KINDS[kind])
    memory, prompt = remember(tokens_of()), torch.zeros(B, 1, dtype=torch.long)
    for penalty in (0.0, 2.0):
        options = {"end": END, "max_new": max_new, "beams": vocab**max_new, "length_penalty": penalty}
        found = beam_search(decoder, memory, prompt=prompt, **options)
        for row, said in enumerate(found):
            answers = every_answer(decoder, memory, row, vocab, max_new)
            best = max(answers, key=lambda s: lengthened(s.score, len(s.ids) + 1, penalty))
            assert said.ids == best.ids
            assert said.score == pytest.approx(best.score, abs=1e-4)


def test_a_narrow_beam_says_what_the_decoder_itself_scores():
    """Rows change places at each step: state and memory must go with them."""
    decoder, memory = decoder_of(cell="lstm", depth=2), remember(tokens_of())
    found = beam_search(decoder, memory, prompt=torch.full((B, 1), 2), end=END, max_new=6, beams=3)
    for row, said in enumerate(found):
        told = [2, *said.ids, END] if len(said.ids) < 6 else [2, *said.ids]
        steps = [next_log_probs(decoder, told[: i + 1], memory, row)[b] for i, (_, b) in enumerate(pairwise(told))]
        score = float(sum(steps))
        assert said.score == pytest.approx(score, abs=1e-4)


def test_a_shared_table_is_not_its_own_weight():
    decoder, table = RecurrentDecoder(D, vocab_size=V), nn.Embedding(V, D)
    decoder.share(table)
    assert decoder.table is table
    assert "table.weight" not in dict(decoder.named_parameters())


@pytest.mark.parametrize("kind", ["attention", "one vector"])
def test_eight_pairs_are_learned_by_heart(kind):
    torch.manual_seed(0)
    source, answer = torch.randint(3, V, (8, 5)), torch.randint(3, V, (8, 4))
    target = torch.cat([torch.full((8, 1), 2), answer, torch.full((8, 1), END)], 1)
    words, encoder = nn.Embedding(V, 16), Recurrent(16)
    decoder = RecurrentDecoder(16, vocab_size=V, max_len=9, **KINDS[kind])
    optimizer = torch.optim.Adam([*decoder.parameters(), *encoder.parameters(), *words.parameters()], lr=4e-2)
    given = target[:, :-1]
    for _ in range(40):
        memory = remember(encoder(Tokens(words(source), everything(source))))
        logits = decoder(given, everything(given), memory)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    decoder.eval()
    memory = Memory(memory.x.detach(), None)
    for search in (
        generate(decoder, memory, prompt=target[:, :1], end=END, max_new=8, pick=greedy),
        beam_search(decoder, memory, prompt=target[:, :1], end=END, max_new=8, beams=3),
    ):
        assert [s.ids for s in search] == answer.tolist()


def run(decoder, count, *, memory):
    ids = ids_of(1, count)
    return decoder(ids, everything(ids), memory)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recurrent(7), "two directions share dim: it must be even, got 7"),
        (lambda: Recurrent(D, cell="rnn"), "cell must be gru or lstm, got 'rnn'"),
        (lambda: Recurrent(D, depth=0), "depth must be at least 1, got 0"),
        (lambda: Recurrent(D, dropout=1.0), "dropout must be at least 0 and under 1, got 1.0"),
        (lambda: decoder_of(cell="rnn"), "cell must be gru or lstm, got 'rnn'"),
        (lambda: decoder_of(depth=0), "depth must be at least 1, got 0"),
        (lambda: decoder_of(score="euclid"), "score must be one of scaled_dot, dot, cosine, additive, bilinear"),
        (lambda: decoder_of(attention=False, gate=True), "gate scales what attention reads: it needs attention=true"),
        (lambda: run(decoder_of(), 4, memory=None), "a recurrent decoder needs a memory to start from"),
        (lambda: run(decoder_of(max_len=3), 4, memory=remember(tokens_of((5,)))), "reaches 3 tokens, got 4"),
        (lambda: decoder_of(attention=False).looks(ids_of(B, T), ids_of(B, T) > 0, remember(tokens_of())), "nothing"),
    ],
)
def test_what_they_cannot_do_says_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()
