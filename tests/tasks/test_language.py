"""Language models: the loss by hand, and generation with a cache."""

import math

import pytest
import torch
from helpers.tasks import adapters_stub, build_model, make_batch
from tokenizers import Tokenizer, models, processors
from torch import nn

from dxn.core.errors import UserError
from dxn.models import Backbone, LanguageModel, NormOptions, PositionOptions
from dxn.models.decoding.generation import beam_search, generate
from dxn.tasks import IGNORED, Language, Window
from dxn.tokenize import (
    EmbeddingNormOptions,
    EmbeddingOptions,
    ImageAdapter,
    TextAdapter,
    TokenizerOptions,
)

B, D, V = 3, 12, 13
END = 4
WORDS = ["one red ball", "two blue birds sing", "a cat", "the dog and the red bird", "two cats"]
WORD = TokenizerOptions(kind="word")


def scaled(module, seed=0):
    """Float64 weights of a size that makes every branch matter."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5)
    return module.double().eval().requires_grad_(False)


def language_model(max_len=16, *, text=None, seed=0, smoothing=0.0, **backbone):
    torch.manual_seed(seed)
    adapter = TextAdapter(D, tokenizer=WORD, max_len=max_len, **(text or {})).fit(WORDS)
    task = Language(label_smoothing=smoothing)
    task.target.bind({"story": adapter})
    model = build_model(task, {"story": adapter}, dim=D, causal=True, **backbone)
    return task, scaled(model, seed)


def ids_of(*shape, vocab=V, seed=2):
    return torch.randint(5, vocab, shape, generator=torch.Generator().manual_seed(seed))


def batch_of(ids, targets=None, mask=None):
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    coords = torch.full((*ids.shape, 2), math.nan)
    part = {"ids": ids, "mask": mask, "coords": coords, "rows": torch.arange(len(ids))}
    batch = {"#size": len(ids), "story": part}
    return batch if targets is None else {**batch, "target": {"ids": targets}}


def logits_of(model, ids):
    """Logits of the whole text at once, as in training."""
    tokens, _ = model.encode(model.embed(batch_of(ids)))
    return tokens.x @ model.adapters["story"].embedding.weight.T


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_mean_negative_log_probability_of_all_tokens(smoothing):
    task, model = language_model(smoothing=smoothing)
    ids, targets = ids_of(B, 7), ids_of(B, 7, seed=5)
    targets[1, 3:] = targets[2, 6:] = IGNORED
    mask = torch.cat([torch.ones(B, 1, dtype=torch.bool), targets[:, :-1] >= 0], 1)
    batch = batch_of(ids, targets, mask)
    losses = []
    for row in range(B):
        count = int((targets[row] >= 0).sum())
        log_probs = logits_of(model, ids[row : row + 1, :count])[0].log_softmax(-1)
        for i in range(count):
            own = log_probs[i, targets[row, i]]
            losses.append(-(1 - smoothing) * own - smoothing * log_probs[i].mean())
    loss = task.loss(model(batch), batch)
    assert len(losses) == 7 + 3 + 6 == loss.weight
    got = loss.mean
    torch.testing.assert_close(got, torch.stack(losses).mean(), rtol=0, atol=1e-11)


def test_the_output_layer_is_the_embedding_of_the_adapter():
    _, model = language_model()
    assert model.head.output.embedding is model.adapters["story"].embedding
    names = [name for name in model.state_dict() if name.endswith("embedding.weight")]
    assert names == ["adapters.story.embedding.weight"]
    assert not list(model.head.parameters())


def test_without_targets_the_model_can_still_be_called():
    _, model = language_model()
    assert model(batch_of(ids_of(B, 7))).item() == 0


def test_windows_are_padded_and_carry_their_characters_per_token():
    task = Language()
    windows = [Window(torch.tensor([5, 6, 7]), 2.5), Window(torch.tensor([8]), 2.5)]
    target = task.target.collate([task.target.encode(window, {}) for window in windows])
    assert target["ids"].tolist() == [[5, 6, 7], [8, IGNORED, IGNORED]]
    predictions = task.predict(None, None, {"target": target})
    figures = task.metric.metrics(predictions, [], 1.5)
    assert figures == {"loss_per_char": 1.5 / 2.5, "perplexity": math.exp(1.5)}
    assert math.isfinite(task.metric.metrics(predictions, [], 1e6)["perplexity"])


def test_the_best_epoch_has_the_lowest_loss_per_character():
    task = Language()
    assert task.metric.monitored == "loss_per_char"
    assert task.metric.is_better(1.0, 2.0) and not task.metric.is_better(2.0, 1.0)
    assert not task.metric.is_better(float("nan"), None)


# What is refused


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        (
            lambda: {"a": TextAdapter(D), "b": TextAdapter(D), "photo": ImageAdapter(D)},
            r"needs exactly one text, got a, b; set data.text=b, or data.chat=\[a,b\]",
        ),
        (lambda: {"photo": ImageAdapter(D)}, "needs an input with a vocabulary, got photo"),
        (lambda: adapters_stub(), "needs an input with a vocabulary, got none"),
    ],
)
def test_other_inputs_are_refused(adapters, message):
    with pytest.raises(UserError, match=message):
        Language().target.bind(adapters())


def config(causal=True, mixup=0.0, **adapter):
    backbone = {"causal": causal}
    return {"backbone": backbone, "adapters": {"story": adapter}, "trainer": {"mixup": mixup}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"causal": False}, "set backbone.causal=true"),
        ({"conv_kernel": 3}, "adapters.story.conv_kernel: cannot be combined with head=language"),
        ({"augment": {"token_dropout": 0.1}}, "adapters.story.augment.token_dropout"),
        ({"augment": {"token_mask": 0.1}}, "adapters.story.augment.token_mask"),
        ({"augment": {"subword_dropout": 0.1}}, "adapters.story.augment.subword_dropout"),
        ({"mixup": 0.2}, "trainer.mixup: cannot be combined with head=language"),
        ({"fusion": {"_target_": "dxn.models.LateFusion"}}, "fusion: must be early"),
        ({"fusion": {"registers": 4}}, "fusion.registers: must be 0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    fusion = settings.pop("fusion", {})
    with pytest.raises(UserError, match=message):
        Language().check({**config(**settings), "fusion": fusion})


def test_possible_settings_are_not_refused():
    unset = {"conv_kernel": 0, "augment": None}
    Language().check(config(**unset))
    Language().check({"backbone": {"causal": True}})


# Generation with a cache

OPTIONS = [
    ({}, {}),
    ({"position": PositionOptions(kind="rotary")}, {"pos_embed": "none"}),
    ({"position": PositionOptions(kind="alibi")}, {"pos_embed": "none"}),
    ({"position": PositionOptions(windows=[2])}, {"pos_embed": "sinusoidal"}),
    (
        {"norm": NormOptions(place="post")},
        {"norm": EmbeddingNormOptions(), "embedding": EmbeddingOptions(scale=True)},
    ),
]


def in_pieces(model, ids, pieces):
    language = LanguageModel(model)
    caches, logits, start = language.caches(), [], 0
    for size in pieces:
        prefix = ids[:, : start + size]
        mask = torch.ones_like(prefix, dtype=torch.bool)
        logits.append(language(prefix[:, start:], mask, None, caches))
        start += size
    return torch.cat(logits, 1)


@pytest.mark.parametrize(("backbone", "text"), OPTIONS, ids=range(len(OPTIONS)))
@pytest.mark.parametrize("pieces", [(7,), (1,) * 7, (4, 1, 2)], ids=str)
def test_with_a_cache_each_token_has_the_logits_of_the_whole_text(backbone, text, pieces):
    _, model = language_model(text=text, **backbone)
    ids = ids_of(B, 7)
    torch.testing.assert_close(
        in_pieces(model, ids, pieces), logits_of(model, ids), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("max_len", [1, 2, 5, 6])
@pytest.mark.parametrize("kind", ["none", "rotary"])
def test_a_text_beyond_max_len_continues_from_its_last_half(max_len, kind):
    """The half then grows again, up to max_len."""
    _, model = language_model(max_len, position=PositionOptions(kind=kind))
    ids, kept = ids_of(B, 17), []
    logits = in_pieces(model, ids, (1,) * 17)
    for i in range(17):
        kept = [*kept, i] if len(kept) < max_len else [*kept, i][-max(max_len // 2, 1) :]
        expected = logits_of(model, ids[:, kept])[:, -1]
        torch.testing.assert_close(logits[:, i], expected, rtol=0, atol=1e-11)


def test_of_a_prompt_longer_than_max_len_the_end_is_read():
    _, model = language_model(6)
    ids, language = ids_of(B, 11), LanguageModel(model)
    caches = language.caches()
    logits = language(ids, torch.ones_like(ids, dtype=torch.bool), None, caches)
    torch.testing.assert_close(
        logits[:, -1], logits_of(model, ids[:, -3:])[:, -1], rtol=0, atol=1e-11
    )
    new = ids_of(B, 1, seed=9)
    logits = language(new, torch.ones(B, 12, dtype=torch.bool), None, caches)
    expected = logits_of(model, torch.cat([ids[:, -3:], new], 1))[:, -1]
    torch.testing.assert_close(logits[:, -1], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("max_len", [16, 4])
def test_selected_rows_continue_as_themselves(max_len):
    _, model = language_model(max_len)
    ids, language = ids_of(B, 4), LanguageModel(model)
    caches, rows = language.caches(), torch.tensor([2, 0, 0, 1, 2])
    language(ids, torch.ones_like(ids, dtype=torch.bool), None, caches)
    for cache in caches:
        cache.select(rows)
    new = ids_of(5, 1, seed=9)
    logits = language(new, torch.ones(5, 5, dtype=torch.bool), None, caches)
    whole = torch.cat([ids[rows], new], 1)
    expected = logits_of(model, whole if max_len > 4 else whole[:, -2:])[:, -1]
    torch.testing.assert_close(logits[:, -1], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_the_score_of_a_text_is_that_of_its_tokens(seed):
    _, model = language_model(seed=seed)
    prompt, language = ids_of(B, 2), LanguageModel(model)
    narrow = generate(language, None, prompt=prompt, end=END, max_new=5)
    wide = beam_search(language, None, prompt=prompt, end=END, max_new=5, beams=6)
    for hypotheses in (narrow, wide):
        for row, hypothesis in enumerate(hypotheses):
            ended = [END] if len(hypothesis.ids) < 5 else []
            ids = [*prompt[row].tolist(), *hypothesis.ids, *ended]
            log_probs = logits_of(model, torch.tensor([ids]))[0].log_softmax(-1)
            score = sum(float(log_probs[i - 1, ids[i]]) for i in range(2, len(ids)))
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
    assert all(w.score >= n.score - 1e-5 for w, n in zip(wide, narrow, strict=True))


def model_of(adapters, *, causal=True):
    task = Language()
    task.target.input = next(iter(adapters))
    adapters[task.target.input].embedding = nn.Embedding(V, D)
    return build_model(task, adapters, dim=D, causal=causal)


@pytest.mark.parametrize(
    "build",
    [
        lambda: model_of({"story": TextAdapter(D).fit(WORDS)}, causal=False),
        lambda: model_of({"story": TextAdapter(D).fit(WORDS), "photo": ImageAdapter(D)}),
    ],
)
def test_other_models_cannot_continue_a_text(build):
    with pytest.raises(ValueError, match="writes no text: that needs head=generate"):
        LanguageModel(build())


def test_a_text_is_overfitted_and_written_again():
    text = "the quick brown fox jumps"
    adapter = TextAdapter(16, tokenizer=TokenizerOptions(kind="character"), max_len=32).fit([text])
    task = Language()
    task.target.bind({"story": adapter})
    model = build_model(task, {"story": adapter}, causal=True)
    ids = adapter.tokenizer(text)["ids"][None]
    batch = batch_of(ids[:, :-1], ids[:, 1:])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = task.loss(model(batch), batch).mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.05:
            break
    language = LanguageModel(model.eval())
    prompt = ids[:, :1]
    written = generate(language, None, prompt=prompt, end=END, max_new=len(text) - 1)[0].ids
    assert adapter.tokenizer.vocabulary.decode([int(ids[0, 0]), *written]) == text
    assert isinstance(model.backbone, Backbone)


# Texts after other inputs


def marked(vocabulary, pattern):
    """A tokenizer that adds special tokens to a text."""
    names = [name for name in pattern.split() if name != "$A"]
    specials = [(name, vocabulary.token_to_id(name)) for name in names]
    vocabulary.post_processor = processors.TemplateProcessing(
        single=pattern, special_tokens=specials
    )
    return vocabulary


@pytest.mark.parametrize(
    ("pattern", "first", "max_len"),
    [
        ("$A", "[EOS]", 16),
        ("$A", "[EOS]", 2),  # a text that is cut off has no end
        ("[BOS] $A", "[BOS]", 16),
        ("[BOS] $A [EOS]", "[BOS]", 16),
        ("$A [EOS]", "[EOS]", 16),
    ],
)
def test_a_text_after_other_inputs_starts_and_ends_with_a_special_token(pattern, first, max_len):
    trained = TextAdapter(D, tokenizer=WORD).fit(WORDS).tokenizer.vocabulary
    options = TokenizerOptions(special_tokens=True)
    adapter = TextAdapter(D, tokenizer=options, max_len=max_len)
    adapter.use_vocabulary(marked(trained, pattern))
    adapters = {"story": adapter, "photo": ImageAdapter(D)}
    task = Language()
    task.target.bind(adapters)
    assert (task.target.last, task.target.prepared_inputs) == ("story", ("story",))
    batch = make_batch(task, adapters, {"story": ["two cats", "a cat"], "photo": [None, None]})
    names = [trained.id_to_token(i) for i in batch["story"]["ids"][0].tolist()]
    assert names == [first, "two", "cats"][:max_len]
    targets = [trained.id_to_token(i) for i in batch["target"]["ids"][0].tolist()]
    assert targets == ["two", "cats", "[EOS]"][: len(names)]
    sizes = {batch["story"][name].shape[1] for name in ("ids", "mask", "coords", "words")}
    assert sizes == {batch["target"]["ids"].shape[1]}
    assert batch["target"]["chars_per_token"][0] * len(targets) == pytest.approx(8)


def test_a_text_after_other_inputs_needs_an_end_token():
    vocabulary = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    adapter = TextAdapter(D)
    adapter.use_vocabulary(vocabulary)
    with pytest.raises(UserError, match="needs a tokenizer with an end token, such as"):
        Language().target.bind({"story": adapter, "photo": ImageAdapter(D)})
