"""Models that write: the loss written out by hand, the same answers however they are found, one table for two."""

import copy
import math

import pytest
import torch
from torch import nn

from dxn.models import Backbone, Decoder, EarlyFusion, Generate, Language, LanguageModel, Model, RecurrentDecoder
from dxn.models.decoder import beam_search, generate, lengthened, remember, sampled
from dxn.tokenize import AudioAdapter, ImageAdapter, TextAdapter
from dxn.tokens import Span, Tokens

B, M, D, V = 3, 5, 12, 13
BEGIN, END, IGNORED = 3, 4, -100
WORDS = ["one red ball", "two blue birds sing", "a cat", "the dog and the red bird", "two cats"]


def lively(module, seed=0):
    """Weights of a size that makes every branch count, in float64."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5)
    return module.double().eval().requires_grad_(False)


def decoder_of(kind="attention", *, vocab_size=V, max_len=11, dim=D):
    if kind == "attention":
        backbone = Backbone(dim, depth=1, num_heads=2, causal=True, cross=True)
        return Decoder(backbone, vocab_size=vocab_size, max_len=max_len)
    return RecurrentDecoder(dim, vocab_size=vocab_size, max_len=max_len)


def head_of(kind="attention", **options):
    return lively(Generate(D, decoder=decoder_of(kind), **options))


def tokens_of(lengths=(5, 2, 4), columns=M, seed=1):
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), M, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = torch.cat([x, x.new_full((len(lengths), columns - M, D), 1000.0)], 1)
    return Tokens(x, mask, (Span("text", 0, columns, torch.zeros(len(lengths), columns, 2)),))


def targets_of(lengths=(7, 2, 4), columns=7, seed=2):
    ids = torch.randint(5, V, (len(lengths), columns), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = BEGIN
    for row, length in enumerate(lengths):
        ids[row, length - 1] = END
        ids[row, length:] = IGNORED
    return ids


def loss_of(head, tokens, targets):
    return head.loss(head(tokens, tokens.x[:, 0], targets), targets)


KINDS = pytest.mark.parametrize("kind", ["attention", "recurrent"])


# Generate: the loss


@KINDS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_mean_over_all_tokens_of_the_log_of_their_share(kind, smoothing):
    head, tokens, targets = head_of(kind, label_smoothing=smoothing), tokens_of(), targets_of()
    costs = []
    for row, ids in enumerate(targets):
        ids = ids[ids >= 0]
        memory = remember(Tokens(tokens.x[row : row + 1], tokens.mask[row : row + 1]))
        for upto in range(1, len(ids)):
            given = ids[None, :upto]
            log_shares = head.decoder(given, torch.ones_like(given, dtype=torch.bool), memory)[0, -1].log_softmax(-1)
            costs.append(-(1 - smoothing) * log_shares[ids[upto]] - smoothing * log_shares.mean())
    assert len(costs) == 6 + 1 + 3
    torch.testing.assert_close(loss_of(head, tokens, targets), torch.stack(costs).mean(), rtol=0, atol=1e-11)


@KINDS
def test_padding_of_the_targets_changes_nothing(kind):
    head, tokens = head_of(kind), tokens_of()
    targets = targets_of()
    wider = torch.cat([targets, torch.full((B, 3), IGNORED)], 1)
    torch.testing.assert_close(loss_of(head, tokens, wider), loss_of(head, tokens, targets), rtol=0, atol=1e-12)


@KINDS
def test_padding_of_the_memory_changes_nothing(kind):
    head, targets = head_of(kind), targets_of()
    short, long = tokens_of(), tokens_of(columns=8)
    torch.testing.assert_close(loss_of(head, long, targets), loss_of(head, short, targets), rtol=0, atol=1e-11)


@KINDS
def test_what_is_read_counts_and_samples_do_not_see_each_other(kind):
    head, targets = head_of(kind), targets_of()
    tokens = tokens_of()
    alone = [head(Tokens(tokens.x[i : i + 1], tokens.mask[i : i + 1]), None, targets[i : i + 1]) for i in range(B)]
    together = head(tokens, None, targets)
    torch.testing.assert_close(together, sum(alone), rtol=0, atol=1e-11)
    other = tokens.with_x(tokens.x.flip(0))
    assert not torch.isclose(head(other, None, targets), together, rtol=1e-3)


def test_a_batch_without_any_target_costs_nothing():
    head, targets = head_of(), torch.full((B, 4), IGNORED)
    assert loss_of(head, tokens_of(), targets).item() == 0


# Generate: what it writes


def by_hand(head, tokens, row, max_new):
    """Greedy, the whole sequence again for each token."""
    ids, score, memory = [BEGIN], 0.0, remember(Tokens(tokens.x[row : row + 1], tokens.mask[row : row + 1]))
    while len(ids) <= max_new:
        given = torch.tensor([ids])
        log_shares = head.decoder(given, torch.ones_like(given, dtype=torch.bool), memory)[0, -1].log_softmax(-1)
        best = int(log_shares.argmax())
        score += float(log_shares[best])
        if best == END:
            break
        ids.append(best)
    return ids[1:], score


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_with_one_beam_it_writes_the_most_probable_token_each_time(kind, seed):
    head, tokens = head_of(kind), tokens_of(seed=seed)
    for row, said in enumerate(head.write(tokens, begin=BEGIN, end=END, max_new=6)):
        ids, score = by_hand(head, tokens, row, 6)
        assert said.ids == ids and said.score == pytest.approx(score, abs=1e-4)


def rescored(head, tokens, row, said, max_new):
    """The log-probability of an answer, of one teacher-forced reading."""
    ended = [END] if len(said.ids) < max_new else []
    ids = torch.tensor([[BEGIN, *said.ids, *ended]])
    one = Tokens(tokens.x[row : row + 1], tokens.mask[row : row + 1])
    return -float(head(one, one.x[:, 0], ids))


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_finds_no_worse_than_greedy_and_its_score_is_that_of_reading_it_again(kind, seed):
    head, tokens = head_of(kind, beams=7), tokens_of(seed=seed)
    wide = head.write(tokens, begin=BEGIN, end=END, max_new=4)
    one = head.write(tokens, begin=BEGIN, end=END, max_new=4, beams=1)
    assert wide == beam_search(
        head.decoder, remember(tokens), prompt=torch.full((B, 1), BEGIN), end=END, max_new=4, beams=7
    )
    for row in range(B):
        assert wide[row].score == pytest.approx(rescored(head, tokens, row, wide[row], 4), abs=1e-4)
        assert one[row].score == pytest.approx(rescored(head, tokens, row, one[row], 4), abs=1e-4)
        assert wide[row].score >= one[row].score - 1e-5


def test_its_length_penalty_ranks_the_answers_of_its_beam():
    head, tokens = head_of(beams=9), tokens_of()
    plain = head.write(tokens, begin=BEGIN, end=END, max_new=6)
    head.length_penalty = 3.0
    long = head.write(tokens, begin=BEGIN, end=END, max_new=6)
    assert plain != long
    for short, said in zip(plain, long, strict=True):
        lengths = [len(s.ids) + (len(s.ids) < 6) for s in (said, short)]
        assert lengthened(said.score, lengths[0], 3.0) >= lengthened(short.score, lengths[1], 3.0) - 1e-5


def test_a_way_to_choose_takes_the_place_of_a_search():
    head, tokens = head_of(beams=4), tokens_of()

    def said(seed):
        pick = sampled(torch.Generator().manual_seed(seed))
        return [one.ids for one in head.write(tokens, begin=BEGIN, end=END, pick=pick)]

    assert said(3) == said(3)
    assert any(said(3) != said(seed) for seed in range(4, 8))
    first = head.write(tokens, begin=BEGIN, end=END, pick=lambda log_shares: torch.tensor([7, 8, 9]), max_new=3)
    assert [one.ids for one in first] == [[7] * 3, [8] * 3, [9] * 3]


@KINDS
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("asked", "most"), [(None, 10), (99, 10), (4, 4)])
def test_it_never_writes_beyond_what_its_decoder_reaches(kind, beams, asked, most):
    head = head_of(kind)  # reaches 11 tokens, the beginning's included
    unending = V - 1 + 10_000
    found = head.write(tokens_of(), begin=BEGIN, end=unending if beams == 1 else END, beams=beams, max_new=asked)
    assert all(len(one.ids) <= most for one in found)
    if beams == 1:
        assert [len(one.ids) for one in found] == [most] * B


# One table for what is read and what is written


def text_adapter(max_len=16, **options):
    return TextAdapter(dim=D, subwords="word", max_len=max_len, **options).fit(WORDS)


def sharing(kind="attention"):
    adapter = text_adapter()
    head = Generate(D, decoder=decoder_of(kind, vocab_size=adapter.table.num_embeddings), shares=True)
    return Model({"text": adapter}, fusion=EarlyFusion(D), backbone=Backbone(D, depth=1, num_heads=2), head=head)


def batch_of(adapter, texts, **more):
    prepare = adapter.prepare
    part = prepare.collate([prepare(prepare.read(t)) for t in texts])
    return {"size": len(texts), adapter.modality: part | {"rows": torch.arange(len(texts))}, **more}


@KINDS
def test_a_shared_table_is_there_once_and_belongs_to_the_text_adapter(kind):
    model = sharing(kind)
    table = model.adapters["text"].table
    assert model.head.decoder.table is table
    tables = [n for n, p in model.named_parameters(remove_duplicate=False) if p.shape == table.weight.shape]
    kept = [n for n, t in model.state_dict().items() if t.shape == table.weight.shape]
    assert tables == kept == ["adapters.text.table.weight"]


@KINDS
def test_a_table_of_its_own_is_its_own(kind):
    assert "table.weight" in decoder_of(kind).state_dict()


@KINDS
def test_a_shared_table_learns_from_both_its_uses(kind):
    model = sharing(kind)
    table = model.adapters["text"].table.weight
    targets = targets_of()
    batch = batch_of(model.adapters["text"], WORDS[:3], target=targets)
    model(batch).backward()
    whole = table.grad.clone()
    parts = model.encode(model.embed(batch))
    encoded = Tokens(parts[0].x.detach(), parts[0].mask, parts[0].spans)
    table.grad = None
    model.head(encoded, None, targets).backward()
    written = table.grad.clone()
    table.grad = None
    given = parts[0].x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model.head(Tokens(given, parts[0].mask), None, targets), given)
    parts[0].x.backward(slope)
    assert written.any() and table.grad.any()
    torch.testing.assert_close(written + table.grad, whole, rtol=1e-4, atol=1e-4)


@KINDS
def test_weights_that_were_saved_write_the_same_in_another_model(kind):
    torch.manual_seed(0)
    model = sharing(kind).eval()
    other = sharing(kind).eval()
    batch = batch_of(model.adapters["text"], WORDS[:3])

    def written(model):
        with torch.inference_mode():
            encoded, _ = model.encode(model.embed(batch))
            return model.head.write(encoded, begin=BEGIN, end=END, beams=3, max_new=5)

    before = written(model)
    assert written(other) != before
    other.load_state_dict(model.state_dict())
    assert written(other) == before


@KINDS
def test_a_copy_shares_its_own_table(kind):
    copied = copy.deepcopy(sharing(kind))
    assert copied.head.decoder.table is copied.adapters["text"].table


# What it writes of: anything that there is an adapter for


def picture(i):
    return (torch.randint(0, 256, (8, 8, 3), generator=torch.Generator().manual_seed(i))).to(torch.uint8).numpy()


def sound(i):
    return torch.sin(torch.arange(1600) * (0.05 + 0.05 * i)).numpy(), 8000


def adapter_and_raws(modality, dim=16):
    if modality == "text":
        return TextAdapter(dim=dim, subwords="word"), [f"word{i} word{i * 5 % 8}" for i in range(8)]
    if modality == "image":
        return ImageAdapter(dim=dim, patch_size=4, image_size=8), [picture(i) for i in range(8)]
    return AudioAdapter(dim=dim, sample_rate=8000, n_mels=16), [sound(i) for i in range(8)]


@pytest.mark.parametrize("modality", ["text", "image", "audio"])
@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_eight_pairs_are_learned_by_heart_whatever_is_read(modality, kind):
    torch.manual_seed(0)
    adapter, raws = adapter_and_raws(modality)
    raws = [adapter.prepare.read(raw) for raw in raws]
    adapter.fit(raws)
    model = Model(
        {modality: adapter},
        fusion=EarlyFusion(16),
        backbone=Backbone(16, depth=1, num_heads=2),
        head=Generate(16, decoder=decoder_of(kind, dim=16)),
    )
    part = adapter.prepare.collate([adapter.prepare(raw) for raw in raws])
    targets = targets_of((7, 3, 5, 4, 2, 6, 3, 7))
    batch = {"size": 8, modality: part | {"rows": torch.arange(8)}, "target": targets}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(400):
        loss = model.head.loss(model(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.05:
            break
    model.eval()
    expected = [[i for i in row.tolist() if i not in (BEGIN, END, IGNORED)] for row in targets]
    with torch.inference_mode():
        encoded, _ = model.encode(model.embed(batch))
        for beams in (1, 3):
            said = model.head.write(encoded, begin=BEGIN, end=END, beams=beams)
            assert [one.ids for one in said] == expected


# Language: the next token of the text itself


def language_model(max_len=16, *, text=None, seed=0, **options):
    torch.manual_seed(seed)
    adapter = text_adapter(max_len, **(text or {}))
    backbone = Backbone(D, depth=2, num_heads=2, causal=True, **options)
    return lively(
        Model({"text": adapter}, fusion=EarlyFusion(D), backbone=backbone, head=Language(D, label_smoothing=0.0)), seed
    )


def ids_of(*shape, vocab=V, seed=2):
    return torch.randint(5, vocab, shape, generator=torch.Generator().manual_seed(seed))


def text_batch(ids, mask=None):
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    places = torch.full((*ids.shape, 2), math.nan)
    return {"size": len(ids), "text": {"ids": ids, "mask": mask, "places": places, "rows": torch.arange(len(ids))}}


def logits_of(model, ids):
    """Of the whole text at once, as in training."""
    tokens, _ = model.encode(model.embed(text_batch(ids)))
    return tokens.x @ model.adapters["text"].table.weight.T


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_language_is_the_mean_over_the_tokens_that_follow(smoothing):
    model, ids = language_model(), ids_of(B, 7)
    model.head.label_smoothing = smoothing
    targets = ids_of(B, 7, seed=5)
    targets[1, 3:] = targets[2, 6:] = IGNORED
    mask = torch.cat([torch.ones(B, 1, dtype=torch.bool), targets[:, :-1] >= 0], 1)
    found = model.head.loss(model(text_batch(ids, mask) | {"target": targets}), targets)
    costs = []
    for row in range(B):
        count = int((targets[row] >= 0).sum())
        log_shares = logits_of(model, ids[row : row + 1, :count])[0].log_softmax(-1)
        for at in range(count):
            costs.append(-(1 - smoothing) * log_shares[at, targets[row, at]] - smoothing * log_shares[at].mean())
    assert len(costs) == 7 + 3 + 6
    torch.testing.assert_close(found, torch.stack(costs).mean(), rtol=0, atol=1e-11)


def test_a_language_has_no_table_but_the_text_adapters():
    model = language_model()
    assert model.head.table is model.adapters["text"].table
    assert [n for n in model.state_dict() if n.endswith("table.weight")] == ["adapters.text.table.weight"]
    assert not list(model.head.parameters())


OPTIONS = [
    ({}, {}),
    ({"position": "rotary"}, {"position": "none"}),
    ({"position": "alibi"}, {"position": "none"}),
    ({"window": 2}, {"position": "sinusoidal"}),
    ({"norm_first": False}, {"norm": True, "scale": True}),
    ({}, {"ngrams": [2, 3], "ngram_buckets": 101}),
]


def in_pieces(model, ids, pieces):
    language = LanguageModel(model)
    caches, found, at = language.caches(), [], 0
    for size in pieces:
        upto = ids[:, : at + size]
        found.append(language(upto[:, at:], torch.ones_like(upto, dtype=torch.bool), None, caches))
        at += size
    return torch.cat(found, 1)


@pytest.mark.parametrize(("backbone", "text"), OPTIONS, ids=str)
@pytest.mark.parametrize("pieces", [(7,), (1,) * 7, (4, 1, 2)], ids=["at once", "one by one", "in pieces"])
def test_with_a_cache_each_token_is_what_it_is_in_the_whole_text(backbone, text, pieces):
    model, ids = language_model(text=text, **backbone), ids_of(B, 7)
    torch.testing.assert_close(in_pieces(model, ids, pieces), logits_of(model, ids), rtol=0, atol=1e-11)


@pytest.mark.parametrize("max_len", [1, 2, 5, 6])
@pytest.mark.parametrize("position", ["none", "rotary"])
def test_beyond_max_len_a_text_is_read_from_its_last_half_of_that_on(max_len, position):
    """Which then grows again, up to max_len."""
    model, ids = language_model(max_len, position=position), ids_of(B, 17)
    found, kept = in_pieces(model, ids, (1,) * 17), []
    for at in range(17):
        kept = [*kept, at] if len(kept) < max_len else [*kept, at][-max(max_len // 2, 1) :]
        expected = logits_of(model, ids[:, kept])[:, -1]
        torch.testing.assert_close(found[:, at], expected, rtol=0, atol=1e-11)


def test_a_prompt_longer_than_max_len_is_read_from_its_end():
    model, ids = language_model(6), ids_of(B, 11)
    language = LanguageModel(model)
    caches = language.caches()
    found = language(ids, torch.ones_like(ids, dtype=torch.bool), None, caches)
    torch.testing.assert_close(found[:, -1], logits_of(model, ids[:, -3:])[:, -1], rtol=0, atol=1e-11)
    new = ids_of(B, 1, seed=9)
    found = language(new, torch.ones(B, 12, dtype=torch.bool), None, caches)
    expected = logits_of(model, torch.cat([ids[:, -3:], new], 1))[:, -1]
    torch.testing.assert_close(found[:, -1], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("max_len", [16, 4])
def test_rows_that_are_chosen_go_on_as_themselves(max_len):
    model, ids = language_model(max_len), ids_of(B, 4)
    language = LanguageModel(model)
    caches, rows = language.caches(), torch.tensor([2, 0, 0, 1, 2])
    language(ids, torch.ones_like(ids, dtype=torch.bool), None, caches)
    for cache in caches:
        cache.select(rows)
    new = ids_of(5, 1, seed=9)
    found = language(new, torch.ones(5, 5, dtype=torch.bool), None, caches)
    whole = torch.cat([ids[rows], new], 1)
    expected = logits_of(model, whole if max_len > 4 else whole[:, -2:])[:, -1]
    torch.testing.assert_close(found[:, -1], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_a_beam_through_a_language_scores_as_reading_it_again(seed):
    model, prompt = language_model(seed=seed), ids_of(B, 2)
    one = generate(LanguageModel(model), None, prompt=prompt, end=END, max_new=5)
    wide = beam_search(LanguageModel(model), None, prompt=prompt, end=END, max_new=5, beams=6)
    for found in (one, wide):
        for row, said in enumerate(found):
            ids = [*prompt[row].tolist(), *said.ids, *([END] if len(said.ids) < 5 else [])]
            log_shares = logits_of(model, torch.tensor([ids]))[0].log_softmax(-1)
            score = sum(float(log_shares[at - 1, ids[at]]) for at in range(2, len(ids)))
            assert said.score == pytest.approx(score, abs=1e-4)
    assert all(w.score >= o.score - 1e-5 for w, o in zip(wide, one, strict=True))


def test_a_language_learns_a_text_by_heart():
    torch.manual_seed(0)
    adapter = TextAdapter(dim=16, subwords="character", max_len=32).fit([whole := "the quick brown fox jumps"])
    model = Model(
        {"text": adapter},
        fusion=EarlyFusion(16),
        backbone=Backbone(16, depth=1, num_heads=2, causal=True),
        head=Language(16),
    )
    ids = adapter.prepare(whole)["ids"][None]
    batch = text_batch(ids[:, :-1]) | {"target": ids[:, 1:]}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = model.head.loss(model(batch), batch["target"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.05:
            break
    said = generate(LanguageModel(model.eval()), None, prompt=ids[:, :1], end=END, max_new=len(whole) - 1)
    assert adapter.prepare.tokenizer.decode([int(ids[0, 0]), *said[0].ids]) == whole


def built(adapters, *, causal):
    return Model(adapters, fusion=EarlyFusion(D), backbone=Backbone(D, depth=1, num_heads=2, causal=causal),
                 head=head_of())  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: head_of(beams=0), "needs beams >= 1 and length_penalty >= 0, got 0 and 0.0"),
        (lambda: head_of(length_penalty=-1.0), "needs beams >= 1 and length_penalty >= 0, got 1 and -1.0"),
        (lambda: LanguageModel(built({"text": text_adapter()}, causal=False)), "only a model of text alone"),
        (lambda: LanguageModel(built({"image": ImageAdapter(dim=D)}, causal=True)), "only a model of text alone"),
        (
            lambda: LanguageModel(built({"text": text_adapter(), "image": ImageAdapter(dim=D)}, causal=True)),
            "whose backbone is causal, can go on with a text",
        ),
    ],
)
def test_what_cannot_write_says_why(make, message):
    with pytest.raises(ValueError, match=message):
        make()
