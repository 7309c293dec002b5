"""Writing a text: the loss by hand, the same text however it is found, shared embeddings."""

import copy
import json
from functools import partial

import numpy as np
import pytest
import torch
from helpers.tasks import adapters_stub, build_model, make_batch, overfit, predict
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import corpus_bleu, corpus_chrf
from torch import nn

from dxn.core.errors import UserError
from dxn.core.tokens import Span, Tokens
from dxn.models import Backbone, Decoder, Memory, RecurrentDecoder, beam_search
from dxn.models.decoding.search import RandomSampler, length_normalized
from dxn.tasks import IGNORED, Generate
from dxn.tasks.generate.head import Generated, GenerateHead
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    SpectrogramOptions,
    TextAdapter,
    TokenizerOptions,
)
from dxn.tokenize.base import NUM_REAL

B, M, D, V = 3, 5, 12, 13
BEGIN, END = 3, 4
WORDS = ["one red ball", "two blue birds sing", "a cat", "the dog and the red bird", "two cats"]
WORD = TokenizerOptions(kind="word")
KINDS = pytest.mark.parametrize("kind", ["attention", "recurrent"])
examples = settings(max_examples=40, deadline=None)


def scaled(module, seed=0):
    """Float64 weights of a size that makes every branch matter."""
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
    return scaled(GenerateHead(decoder_of(kind), **options))


def task_of(**options):
    options = {"decoder": decoder_of, "tokenizer": WORD, "max_len": 10, **options}
    return Generate(**options)


def write(head, memory, **options):
    return head.write(memory, begin=BEGIN, end=END, **options)


def tokens_of(lengths=(5, 2, 4), columns=M, seed=1):
    mask = torch.arange(columns) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), M, D, generator=generator, dtype=torch.float64)
    x = torch.cat([x, x.new_full((len(lengths), columns - M, D), 1000.0)], 1)
    span = Span("notes", "any", 0, columns, torch.zeros(len(lengths), columns, 2))
    return Tokens(x, mask, (span,))


def memory_of(tokens, row=None):
    if row is None:
        return Memory.from_tokens(tokens)
    return Memory.from_tokens(Tokens(tokens.x[row : row + 1], tokens.mask[row : row + 1]))


def targets_of(lengths=(7, 2, 4), columns=7, seed=2):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, V, (len(lengths), columns), generator=generator)
    ids[:, 0] = BEGIN
    for row, length in enumerate(lengths):
        ids[row, length - 1] = END
        ids[row, length:] = IGNORED
    return ids


def loss_of(head, tokens, targets):
    batch = {"target": {"ids": targets}}
    return task_of().loss(head(tokens, tokens.x[:, 0], batch), batch).mean


# The loss


@KINDS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_mean_negative_log_probability_of_all_tokens(kind, smoothing):
    head = head_of(kind, label_smoothing=smoothing)
    tokens, targets = tokens_of(), targets_of()
    losses = []
    for row, ids in enumerate(targets):
        ids = ids[ids >= 0]
        for upto in range(1, len(ids)):
            prefix = ids[None, :upto]
            mask = torch.ones_like(prefix, dtype=torch.bool)
            log_probs = head.decoder(prefix, mask, memory_of(tokens, row))[0, -1].log_softmax(-1)
            losses.append(-(1 - smoothing) * log_probs[ids[upto]] - smoothing * log_probs.mean())
    assert len(losses) == 6 + 1 + 3
    got = loss_of(head, tokens, targets)
    torch.testing.assert_close(got, torch.stack(losses).mean(), rtol=0, atol=1e-11)


@KINDS
def test_padding_of_the_targets_changes_nothing(kind):
    head, tokens, targets = head_of(kind), tokens_of(), targets_of()
    wider = torch.cat([targets, torch.full((B, 3), IGNORED)], 1)
    torch.testing.assert_close(
        loss_of(head, tokens, wider), loss_of(head, tokens, targets), rtol=0, atol=1e-12
    )


@KINDS
def test_padding_of_the_memory_changes_nothing(kind):
    head, targets = head_of(kind), targets_of()
    short, long = tokens_of(), tokens_of(columns=8)
    torch.testing.assert_close(
        loss_of(head, long, targets), loss_of(head, short, targets), rtol=0, atol=1e-11
    )


@KINDS
def test_the_memory_matters_and_samples_do_not_see_each_other(kind):
    head, targets, tokens = head_of(kind), targets_of(), tokens_of()
    alone = []
    for i in range(B):
        one = Tokens(tokens.x[i : i + 1], tokens.mask[i : i + 1])
        alone.append(head(one, None, {"target": {"ids": targets[i : i + 1]}}).loss_sum)
    together = head(tokens, None, {"target": {"ids": targets}}).loss_sum
    torch.testing.assert_close(together, sum(alone), rtol=0, atol=1e-11)
    other = head(tokens.with_x(tokens.x.flip(0)), None, {"target": {"ids": targets}}).loss_sum
    assert not torch.isclose(other, together, rtol=1e-3)


def test_a_batch_without_target_tokens_costs_nothing():
    assert loss_of(head_of(), tokens_of(), torch.full((B, 4), IGNORED)).item() == 0


def test_without_targets_the_output_is_the_memory_alone():
    output = head_of()(tokens_of(), None, {})
    assert isinstance(output, Generated) and output.loss_sum is None
    assert torch.equal(output.memory.x, tokens_of().x)


# Search


def greedy_by_hand(head, tokens, row, max_new):
    """Compute the whole sequence again for each token."""
    ids, score, memory = [BEGIN], 0.0, memory_of(tokens, row)
    while len(ids) <= max_new:
        prefix = torch.tensor([ids])
        mask = torch.ones_like(prefix, dtype=torch.bool)
        log_probs = head.decoder(prefix, mask, memory)[0, -1].log_softmax(-1)
        best = int(log_probs.argmax())
        score += float(log_probs[best])
        if best == END:
            break
        ids.append(best)
    return ids[1:], score


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_one_beam_writes_the_most_probable_token_each_time(kind, seed):
    head, tokens = head_of(kind), tokens_of(seed=seed)
    for row, hypothesis in enumerate(write(head, memory_of(tokens), max_new=6)):
        ids, score = greedy_by_hand(head, tokens, row, 6)
        assert hypothesis.ids == ids and hypothesis.score == pytest.approx(score, abs=1e-4)


def rescored(head, tokens, row, hypothesis, max_new):
    """The log-probability of a hypothesis, with its own tokens as the decoder's input."""
    ended = [END] if len(hypothesis.ids) < max_new else []
    ids = torch.tensor([[BEGIN, *hypothesis.ids, *ended]])
    one = Tokens(tokens.x[row : row + 1], tokens.mask[row : row + 1])
    return -float(head(one, one.x[:, 0], {"target": {"ids": ids}}).loss_sum)


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_is_no_worse_than_greedy_and_its_score_is_that_of_its_tokens(kind, seed):
    head, tokens = head_of(kind), tokens_of(seed=seed)
    memory = memory_of(tokens)
    wide = write(head, memory, max_new=4, beams=7)
    narrow = write(head, memory, max_new=4)
    prompt = torch.full((B, 1), BEGIN)
    assert wide == beam_search(head.decoder, memory, prompt=prompt, end=END, max_new=4, beams=7)
    for row in range(B):
        for hypotheses in (wide, narrow):
            score = rescored(head, tokens, row, hypotheses[row], 4)
            assert hypotheses[row].score == pytest.approx(score, abs=1e-4)
        assert wide[row].score >= narrow[row].score - 1e-5


def test_the_length_penalty_ranks_the_hypotheses_of_a_beam():
    head, memory = head_of(), memory_of(tokens_of())
    plain = write(head, memory, max_new=6, beams=9)
    long = write(head, memory, max_new=6, beams=9, length_penalty=3.0)
    assert plain != long
    for short, chosen in zip(plain, long, strict=True):
        lengths = [len(s.ids) + (len(s.ids) < 6) for s in (chosen, short)]
        best = length_normalized(chosen.score, lengths[0], 3.0)
        assert best >= length_normalized(short.score, lengths[1], 3.0) - 1e-5


def test_a_sampler_replaces_the_search():
    head, memory = head_of(), memory_of(tokens_of())

    def sampled(seed):
        sampler = RandomSampler(torch.Generator().manual_seed(seed))
        return [h.ids for h in write(head, memory, beams=4, sampler=sampler)]

    assert sampled(3) == sampled(3)
    assert any(sampled(3) != sampled(seed) for seed in range(4, 8))
    fixed = write(head, memory, sampler=lambda _: torch.tensor([7, 8, 9]), max_new=3)
    assert [h.ids for h in fixed] == [[7] * 3, [8] * 3, [9] * 3]


@KINDS
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("max_new", "most"), [(None, 10), (99, 10), (4, 4)])
def test_a_text_is_never_longer_than_the_decoder_can_reach(kind, beams, max_new, most):
    head = head_of(kind)  # reaches 11 tokens, including the one that begins the text
    unending = V - 1 + 10_000
    end = unending if beams == 1 else END
    memory = memory_of(tokens_of())
    hypotheses = head.write(memory, begin=BEGIN, end=end, beams=beams, max_new=max_new)
    assert all(len(h.ids) <= most for h in hypotheses)
    if beams == 1:
        assert [len(h.ids) for h in hypotheses] == [most] * B


def test_a_draft_is_searched_greedily():
    task = task_of(beams=5, length_penalty=2.0)
    task.target.fit(WORDS)
    head = scaled(task.make_head(D, D, {}))
    output = head(tokens_of(), None, {})
    ids = task.tokenizer
    draft = head.write(output.memory, begin=ids.begin_ids, end=ids.end_ids)
    best = head.write(
        output.memory, begin=ids.begin_ids, end=ids.end_ids, beams=5, length_penalty=2.0
    )
    decoded = [[ids.decode(h.ids) for h in hypotheses] for hypotheses in (draft, best)]
    assert task.predict(head, output, {}, draft=True) == decoded[0]
    assert task.predict(head, output, {}) == decoded[1]
    assert task.writes and task.write(head, tokens_of()) == decoded[1]


# Shared embeddings


def shared(kind="attention"):
    adapters = {"notes": TextAdapter(D, tokenizer=WORD, max_len=16).fit(WORDS)}
    task = task_of(decoder=partial(decoder_of, kind), share_tokenizer=True)
    task.target.bind(adapters)
    task.target.fit(WORDS)
    return task, adapters, build_model(task, adapters, dim=D)


@KINDS
def test_a_shared_embedding_exists_once_and_belongs_to_the_adapter(kind):
    _, adapters, model = shared(kind)
    embedding = adapters["notes"].embedding
    assert model.head.decoder.embedding is embedding
    named = model.named_parameters(remove_duplicate=False)
    owners = [n for n, p in named if p.shape == embedding.weight.shape]
    saved = [n for n, t in model.state_dict().items() if t.shape == embedding.weight.shape]
    assert owners == saved == ["adapters.notes.embedding.weight"]


@KINDS
def test_an_embedding_that_is_not_shared_is_the_decoders(kind):
    assert "decoder.embedding.weight" in head_of(kind).state_dict()


@KINDS
def test_a_shared_embedding_learns_from_both_uses(kind):
    task, adapters, model = shared(kind)
    weight = adapters["notes"].embedding.weight
    batch = make_batch(task, adapters, {"notes": WORDS[:3]}, WORDS[:3])
    model(batch).loss_sum.backward()
    whole = weight.grad.clone()
    encoded, pooled = model.encode(model.embed(batch))
    weight.grad = None
    fixed = Tokens(encoded.x.detach(), encoded.mask, encoded.spans)
    model.head(fixed, pooled, batch).loss_sum.backward()
    written = weight.grad.clone()
    weight.grad = None
    x = encoded.x.detach().requires_grad_()
    loss = model.head(Tokens(x, encoded.mask), pooled, batch).loss_sum
    (slope,) = torch.autograd.grad(loss, x)
    encoded.x.backward(slope)
    assert written.any() and weight.grad.any()
    torch.testing.assert_close(written + weight.grad, whole, rtol=1e-4, atol=1e-4)


@KINDS
def test_saved_weights_write_the_same_in_another_model(kind):
    torch.manual_seed(0)
    task, adapters, model = shared(kind)
    _, _, other = shared(kind)
    batch = make_batch(task, adapters, {"notes": WORDS[:3]})

    def written(model):
        output = model.eval()(batch)
        return task.search(model.head, output.memory, beams=3, max_new=5)

    before = written(model)
    assert written(other) != before
    other.load_state_dict(model.state_dict())
    assert written(other) == before


@KINDS
def test_a_copy_shares_its_own_embedding(kind):
    copied = copy.deepcopy(shared(kind)[2])
    assert copied.head.decoder.embedding is copied.adapters["notes"].embedding


def test_the_vocabulary_of_the_input_must_cover_the_texts():
    assert task_of(share_tokenizer=True).target.texts(WORDS) == WORDS
    assert not task_of().target.texts(WORDS)


def test_without_a_vocabulary_nothing_can_be_shared():
    with pytest.raises(UserError, match="no input has a vocabulary, got photo, sound"):
        task_of(share_tokenizer=True).target.bind(adapters_stub(photo={"words": False}, sound={}))
    task_of().target.bind(adapters_stub(photo={"words": False}))


# Learning from any input


def picture(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randint(0, 256, (8, 8, 3), generator=generator).to(torch.uint8).numpy()


def sound(i):
    return np.sin(np.arange(1600) * (0.05 + 0.05 * i)).astype(np.float32), 8000


def adapter_and_raws(modality, dim=16):
    if modality == "text":
        raws = [f"word{i} word{i * 5 % 8}" for i in range(8)]
        return TextAdapter(dim, tokenizer=WORD), raws
    if modality == "image":
        return ImageAdapter(dim, patch_size=4, image_size=8), [picture(i) for i in range(8)]
    spectrogram = SpectrogramOptions(n_mels=16)
    adapter = AudioAdapter(dim, sample_rate=8000, spectrogram=spectrogram)
    return adapter, [sound(i) for i in range(8)]


@pytest.mark.parametrize(
    ("modality", "kind"), [("text", "recurrent"), ("image", "attention"), ("audio", "attention")]
)
def test_eight_samples_are_overfitted_whatever_the_input(modality, kind):
    adapter, raws = adapter_and_raws(modality)
    raws = [adapter.tokenizer.reader.read(raw) for raw in raws]
    adapters = {"source": adapter.fit(raws)}
    texts = [f"{WORDS[i % 5]} {i}" for i in range(8)]
    task = task_of(decoder=partial(decoder_of, kind, dim=16), label_smoothing=0.0)
    task.target.bind(adapters)
    task.target.fit(texts)
    model = build_model(task, adapters)
    batch = make_batch(task, adapters, {"source": raws}, texts)
    losses = overfit(task, model, batch)
    assert losses[-1] < 0.05
    for draft in (True, False):
        assert predict(task, model, batch, draft=draft) == texts


# Targets, files, options


def test_targets_are_padded_with_ignored_and_counted_without_their_begin():
    task = task_of()
    task.target.fit(WORDS)
    targets = [task.target.encode(text, {}) for text in ("a cat", "one red ball")]
    assert [len(t) for t in targets] == [4, 5]
    target = task.target.collate(targets)
    padded = target["ids"]
    # The end of a shorter text is an input, too.
    assert target[NUM_REAL] == 8 == (padded[:, :-1] != IGNORED).sum()
    assert padded.shape == (2, 5) and padded[0, 4] == IGNORED
    assert task.target.length("a cat") == 3


def test_a_saved_task_writes_with_the_same_tokenizer(tmp_path):
    task = task_of()
    task.target.fit(WORDS)
    task.save(tmp_path)
    assert json.loads((tmp_path / "labels.json").read_text()) == {"task": "generate"}
    restored = task_of().load(tmp_path)
    assert restored.target.labels == task.target.labels
    assert len(task.target.labels) == task.tokenizer.text_tokenizer.size
    assert torch.equal(*(each.target.encode("a cat", {}) for each in (restored, task)))
    (tmp_path / "target_tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="target_tokenizer"):
        task_of().load(tmp_path)


def test_a_decoder_that_is_too_short_is_refused():
    task = task_of(max_len=12)
    task.target.fit(WORDS)
    with pytest.raises(
        UserError, match=r"head\.decoder\.max_len: must be at least .*, got 11 and 12"
    ):
        task.make_head(D, D, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be at least 1, got 0"),
        ({"length_penalty": -1.0}, "length_penalty must be at least 0, got -1.0"),
        (
            {"share_tokenizer": True, "tokenizer": TokenizerOptions(path="t.json")},
            "share_tokenizer and tokenizer.path cannot be set together, got tokenizer.path=t",
        ),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        task_of(**options)


def test_a_description_gives_the_lengths():
    assert task_of().target.describe(["ab", "abcd", "a"]) == "texts of 1 to 4 characters, median 2"
    assert task_of().target.read(3, "row 1", {}) == "3"


# Metrics

WRITTEN = [
    "a man in a red hat rides a small horse",
    "two dogs play with the ball",
    "the child eats",
    "",
    "five birds sit on a roof",
]
TRUE = [
    "a man with a red hat rides a small brown horse",
    "two dogs play with the ball",
    "a child eats bread",
    "nobody is there",
    "five birds are sitting on the roof",
]
words = st.text("ab", max_size=5)
lists = st.lists(st.sampled_from(["red", "hat", "dog"]), max_size=5)


def text_metrics(written, true):
    task = task_of()
    task.target.fit(TRUE)
    return task.metric.metrics(list(written), list(true), 0.0)


def edit_distance(one, other):
    """The definition: an element is inserted, deleted, or replaced by another."""
    if not one or not other:
        return len(one) + len(other)
    replaced = edit_distance(one[:-1], other[:-1]) + (one[-1] != other[-1])
    return min(edit_distance(one[:-1], other) + 1, edit_distance(one, other[:-1]) + 1, replaced)


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(1, 2), slice(3, 4)])
def test_bleu_and_chrf_are_those_of_sacrebleu(rows):
    written, true = WRITTEN[rows], TRUE[rows]
    figures = text_metrics(written, true)
    assert figures["bleu"] == pytest.approx(corpus_bleu(written, [true]).score)
    assert figures["chrf"] == pytest.approx(corpus_chrf(written, [true]).score)


def test_perfect_texts_have_perfect_metrics():
    assert text_metrics(TRUE, TRUE) == {
        "bleu": pytest.approx(100),
        "chrf": pytest.approx(100),
        "wer": 0,
        "wer_normalized": 0,
        "cer": 0,
        "exact_match": 1,
    }


def test_error_rates_by_hand():
    figures = text_metrics(["a red cat", "two dogs", ""], ["a red hat", "two dogs", "no one"])
    assert figures["exact_match"] == 1 / 3
    assert figures["wer"] == pytest.approx((1 + 0 + 2) / (3 + 2 + 2))
    assert figures["cer"] == pytest.approx((1 + 0 + 6) / (9 + 8 + 6))


def test_empty_texts_miss_every_word_and_a_text_too_long_costs_more_than_all():
    figures = text_metrics(["", ""], ["one two three", "four"])
    rates = {"wer": 1, "wer_normalized": 1, "cer": 1}
    assert figures == {"bleu": 0, "chrf": 0, **rates, "exact_match": 0}
    assert text_metrics(["one two three"], ["one"])["wer"] == 2


@pytest.mark.parametrize(
    ("written", "true", "rates"),
    [
        ("Hello, World!", "hello world", (1, 0)),
        ("don\N{RIGHT SINGLE QUOTATION MARK}t", "don't", (1, 0)),
        ("a well-known place", "a well known place", (2 / 4, 0)),
        ("5 \N{EURO SIGN}, bitte.", "5 bitte", (2 / 2, 0)),
        ("\N{LEFT CORNER BRACKET}Ja\N{RIGHT CORNER BRACKET}", "ja nein", (2 / 2, 1 / 2)),
        ("E\N{COMBINING ACUTE ACCENT}te", "\N{LATIN SMALL LETTER E WITH ACUTE}te", (1, 0)),
        ("...", "word", (1, 1)),
        ("word", "...", (1, 1)),
    ],
)
def test_upper_case_and_punctuation_are_no_errors_of_normalized_words(written, true, rates):
    figures = text_metrics([written], [true])
    assert (figures["wer"], figures["wer_normalized"]) == pytest.approx(rates)


def test_without_true_words_the_written_ones_are_counted():
    figures = text_metrics(["", "two words"], ["", ""])
    assert (figures["wer"], figures["cer"], figures["exact_match"]) == (2, 9, 0.5)


def test_a_second_space_is_no_wrong_word_but_a_wrong_character():
    figures = text_metrics(["one  two"], ["one two"])
    assert figures["wer"] == 0 and figures["exact_match"] == 0
    assert figures["cer"] == pytest.approx(1 / 7)


@examples
@given(pairs=st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_character_errors_are_counted_over_all_rows(pairs):
    """It is not the mean of each row's rate: a long row counts for more."""
    written, true = zip(*pairs, strict=True)
    figures = text_metrics(written, true)
    edits = sum(edit_distance(w, t) for w, t in pairs)
    assert figures["cer"] == pytest.approx(edits / max(sum(map(len, true)), 1))
    assert figures["exact_match"] == sum(w == t for w, t in pairs) / len(pairs)


@examples
@given(pairs=st.lists(st.tuples(lists, lists), min_size=1, max_size=3))
def test_word_errors_are_counted_over_all_rows(pairs):
    figures = text_metrics([" ".join(w) for w, _ in pairs], [" ".join(t) for _, t in pairs])
    edits = sum(edit_distance(w, t) for w, t in pairs)
    assert figures["wer"] == pytest.approx(edits / max(sum(len(t) for _, t in pairs), 1))


def test_true_texts_are_compared_as_the_tokenizer_reads_them():
    lower = task_of(tokenizer=TokenizerOptions(kind="word", lowercase=True))
    lower.target.fit(["ein ball"])
    assert lower.metric.metrics(["ein bälle"], ["Ein Ba\u0308lle"], 0.0)["exact_match"] == 1
    plain = task_of()
    plain.target.fit(["ein ball"])
    assert plain.metric.metrics(["ein ball"], ["Ein Ball"], 0.0)["exact_match"] == 0


def test_the_best_epoch_has_the_highest_chrf():
    task = task_of()
    assert (
        task.metric.monitored == "chrf"
        and task.metric.is_better(2.0, 1.0)
        and not task.metric.is_better(1.0, 2.0)
    )


# The simple method


def test_the_simple_method_writes_the_text_of_the_most_similar_row():
    generator = torch.Generator().manual_seed(0)
    pictures = [torch.randint(256, (3, 9, 12), generator=generator).byte() for _ in range(3)]
    task = task_of()
    train = {"text": ["a red ball", "two dogs run", None], "picture": [*pictures[:2], pictures[2]]}
    asked = {"text": ["the dogs run home", None, None], "picture": [None, pictures[2], None]}
    ((_, texts),) = task.simple_methods(train, ["ball", "dogs", "cat"], asked)
    assert texts[:2] == ["dogs", "cat"]
    assert not list(task.simple_methods({"sound": [torch.ones(8)]}, ["a"], {"sound": [None]}))
    assert not list(task.simple_methods(train, ["a", "b", "c"], asked, share=0.0))
