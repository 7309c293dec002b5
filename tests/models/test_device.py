"""A model on an accelerator: the processor never waits for a value.

On the device "meta", tensors have a shape but no values. So a computation that finishes there has
asked for no value, and need not wait for a GPU either.
"""

from functools import partial
from random import Random

import numpy as np
import pytest
import torch
from helpers.tasks import build_model, make_batch

import dxn
from dxn.core.dropout import keyed
from dxn.data.loader import widened
from dxn.models import Backbone, BottleneckFusion, EarlyFusion, LateFusion, compiling
from dxn.models.blocks import BlockOptions, NormOptions, PositionOptions
from dxn.models.decoding.decoder import Decoder, KVCache
from dxn.models.decoding.generation import CHECK_EVERY, generate
from dxn.models.decoding.language_model import LanguageModel
from dxn.models.decoding.search import Beams, SampleSearch
from dxn.tasks import (
    IGNORED,
    Classify,
    Contrastive,
    Forecast,
    Generate,
    Language,
    Masked,
    Multilabel,
    Regress,
    Tag,
)
from dxn.tasks.forecast.futures import Future
from dxn.tokenize import (
    AudioAdapter,
    CategoryAdapter,
    DateAdapter,
    EmbeddingOptions,
    ImageAdapter,
    ImageAugment,
    NumberAdapter,
    SeriesAdapter,
    SpectrogramOptions,
    TextAdapter,
    TokenizerOptions,
    VideoAdapter,
)
from dxn.training import loop
from dxn.training.device import to_device

D = 16
DEVICE = torch.device("meta")
FUSIONS = {"early": EarlyFusion, "late": LateFusion, "bottleneck": BottleneckFusion}
WORD = TokenizerOptions(kind="word")


def sound(i):
    return np.sin(np.arange(1600 + 100 * i) * (0.05 + 0.05 * i)).astype(np.float32), 8000


# Values of different sizes.
VALUES = {
    "text": ["a cat", "two dogs and a cat chase it", "no", "one dog sleeps"],
    "image": [np.full((21 + 9 * i, 34, 3), 40 * i, np.uint8) for i in range(4)],
    "audio": [sound(i) for i in range(4)],
    "video": [np.full((4 + i, 16, 24, 3), 30 * i, np.uint8) for i in range(4)],
    "series": [np.arange(9 + i, dtype=np.float32)[:, None] for i in range(4)],
    "number": [1.0, 2.0, 3.0, 4.0],
    "category": ["a", "b", "a", "c"],
    "date": ["2024-01-02", "2024-02-03", "2024-05-06", "2023-01-01"],
}
MODALITIES = tuple(VALUES)


def adapter_of(name, **options):
    spectrogram = SpectrogramOptions(n_mels=8)
    options = {"dropout": 0.1, **options} if name in MODALITIES[:5] else options
    make = {
        "text": lambda: TextAdapter(D, **{"tokenizer": WORD, **options}),
        "image": lambda: ImageAdapter(D, **{"image_size": None, "patch_size": 8, **options}),
        "audio": lambda: AudioAdapter(D, sample_rate=8000, spectrogram=spectrogram, **options),
        "video": lambda: VideoAdapter(D, image_size=None, patch_size=8, **options),
        "series": lambda: SeriesAdapter(D, patch_size=2, **options),
        "number": lambda: NumberAdapter(D, **options),
        "category": lambda: CategoryAdapter(D, **options),
        "date": lambda: DateAdapter(D, **options),
    }
    return make[name]().fit(VALUES[name])


def model_of(task, names, targets=None, *, fusion="early", pool="cls_mean", **options):
    backbone = Backbone(
        D, depth=2, num_heads=2, dropout=0.1, drop_path=0.1, **options.pop("backbone", {})
    )
    inputs = {name: adapter_of(name, **options) for name in names}
    fused = FUSIONS[fusion](D, inputs=tuple(names), pool=pool)
    return dxn.Model(inputs, backbone=backbone, fusion=fused, head=task, targets=targets)


def batch_of(model, names, targets=None, *, missing=()):
    rows = [{name: VALUES[name][i] for name in names} for i in range(4)]
    for name in missing:
        rows[1][name] = None
    if targets is not None:
        rows = [{**row, "target": target} for row, target in zip(rows, targets, strict=True)]
    return to_device(model.collate(rows), DEVICE)


def train(model, batch):
    """A training step without the optimizer, then an evaluation."""
    model.to(DEVICE).train()
    with keyed(torch.tensor(batch["#index"]).to(DEVICE), 1):
        model.loss(model(batch), batch).backward()
    model.eval()
    with torch.inference_mode():
        return model(batch)


@pytest.mark.parametrize(
    ("names", "fusion"),
    [*(((name,), "early") for name in MODALITIES), *((MODALITIES, fusion) for fusion in FUSIONS)],
    ids=str,
)
def test_inputs(names, fusion):
    targets = [1.0, 2.0, 3.0, 4.0]
    model = model_of(Regress(), names, targets, fusion=fusion)
    missing = names[:1] if len(names) > 1 else ()
    train(model, batch_of(model, names, targets, missing=missing))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text", {}),
        ("category", {}),
        ("image", {}),
        ("audio", {"frame_size": 1}),
        ("video", {}),
    ],
    ids=str,
)
def test_the_processor_knows_the_number_of_real_tokens(name, options):
    adapter = adapter_of(name, **options)
    tokens = adapter.tokens(VALUES[name])
    assert tokens.num_real == tokens.mask.sum()
    assert name == "category" or not tokens.has_no_padding


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("text", {"embedding": EmbeddingOptions(pool=2)}),
        ("image", {"augment": ImageAugment(token_dropout=0.5)}),
        ("image", {"pos_embed": "sinusoidal"}),
        ("image", {"image_size": 16}),
    ],
    ids=str,
)
def test_options_of_adapters(name, options):
    model = model_of(Regress(), [name], [1.0, 2.0, 3.0, 4.0], **options)
    train(model, batch_of(model, [name], [1.0, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize(
    "options",
    [
        {"position": PositionOptions(kind="alibi")},
        {"position": PositionOptions(kind="rotary", windows=[None, 2])},
        {"causal": True},
        {"block": BlockOptions(attn_dropout=0.1, qk_norm=True, layer_scale=1e-4)},
        {"norm": NormOptions(place="post")},
        {"activation_checkpointing": True},
    ],
    ids=str,
)
def test_options_of_the_backbone(options):
    pool = "mean" if options.get("causal") else "cls_mean"
    targets = [1.0, 2.0, 3.0, 4.0]
    model = model_of(Regress(), ["text", "image"], targets, pool=pool, backbone=options)
    train(model, batch_of(model, ["text", "image"], targets, missing=["text"]))


def _losses(model, batches, call):
    """The losses of batches with the gradients of each of them."""
    model.train()
    for step, batch in enumerate(batches):
        model.zero_grad()
        with keyed(torch.tensor(batch["#index"]), step):
            args = model.task, model, batch, None, torch.device("cpu"), "float32"
            loss = call(loop._loss, *args).total
            loss.backward()
        yield loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def without_compilation(function, *args):
    return function(*args)


def compiled_losses(model, batches, monkeypatch):
    """The losses and gradients with torch.compile, and the number of graphs."""
    # Traced with its backward pass, but run without generated code, which takes long.
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    compiling._compiled.cache_clear()
    counts = torch._dynamo.utils.counters["stats"]
    before = counts["unique_graphs"]
    compiled = list(_losses(model, batches, partial(compiling.call, fullgraph=True)))
    assert not compiling._failures
    compiling._compiled.cache_clear()
    return compiled, counts["unique_graphs"] - before


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", ["regress", "generate"])
def test_a_whole_model_is_one_graph_for_batches_of_all_sizes(task, monkeypatch):
    names = ["text", "number"]
    targets = [1.0, 2.0, 3.0, 4.0]
    head = Regress()
    if task == "generate":
        names, targets = ["category"], VALUES["text"]
        head = Generate(decoder=partial(Decoder, LAYERS), max_len=9)
    model = model_of(head, names, targets)
    rows = [{name: VALUES[name][i] for name in names} | {"target": targets[i]} for i in range(4)]
    if task == "regress":
        rows[1]["text"] = None
    parts = [rows, [rows[1], rows[0], rows[3]], [*rows[2:], rows[1], *rows[2:]]]
    batches = [model.collate(part) for part in parts]
    expected = list(_losses(model, [*batches, *batches], without_compilation))
    tokenizers = {name: model.adapter(name).tokenizer for name in names}
    wider = [widened(batch, tokenizers) for batch in batches]
    compiled, num_graphs = compiled_losses(model, batches + wider, monkeypatch)
    assert num_graphs == 1
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("head", "targets"),
    [
        (Regress, [1.0, 2.0, 3.0, 4.0]),
        (lambda: Generate(decoder=partial(Decoder, LAYERS), max_len=9), VALUES["text"]),
    ],
    ids=["regress", "generate"],
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"embedding": EmbeddingOptions(pool=2)},
        {"backbone": {"position": PositionOptions(kind="alibi")}},
        {"backbone": {"position": PositionOptions(kind="rotary", windows=[None, 2])}},
        {"backbone": {"causal": True}, "pool": "mean"},
    ],
    ids=str,
)
def test_more_padding_changes_no_loss(head, targets, options):
    model = model_of(head(), ["text"], targets, **options)
    rows = [{"text": VALUES["text"][i], "target": targets[i]} for i in range(4)]
    batch = model.collate(rows)
    wider = widened(batch, {"text": model.adapter("text").tokenizer})
    assert (batch["text"]["ids"].shape[1], wider["text"]["ids"].shape[1]) == (7, 8)
    (found,) = _losses(model, [wider], without_compilation)
    (expected,) = _losses(model, [batch], without_compilation)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


LAYERS = Backbone(D, depth=1, num_heads=2, causal=True, cross=True, dropout=0.1)
TAGS = [["O"] * 2, ["A", "O", "O", "A", "O", "A", "O"], ["O"], ["O", "A", "O"]]


@pytest.mark.parametrize(
    ("make", "names", "targets"),
    [
        (Classify, ["text", "image"], ["x", "y", "x", "y"]),
        (Multilabel, ["text"], [["x"], ["x", "y"], [], ["y"]]),
        (lambda: Generate(decoder=partial(Decoder, LAYERS), max_len=9), ["image"], VALUES["text"]),
        (lambda: Contrastive(embedding_dim=8), ["text", "image"], None),
    ],
    ids=["classify", "multilabel", "generate", "contrastive"],
)
def test_tasks(make, names, targets):
    model = model_of(make(), names, targets)
    train(model, batch_of(model, names, targets))


def test_a_forecast():
    task = Forecast(dropout=0.1)
    histories = [torch.from_numpy(series) for series in VALUES["series"]]
    futures = [Future(torch.ones(3, 1), season=2, history=history) for history in histories]
    adapters = {"series": adapter_of("series")}
    task.target.bind(adapters)
    task.target.fit(futures)
    model = build_model(task, adapters, dim=D)
    batch = to_device(make_batch(task, adapters, {"series": histories}, futures), DEVICE)
    model.to(DEVICE)
    task.loss(model(batch), batch).mean.backward()


def test_tags():
    words = [text.split() for text in VALUES["text"]]
    model = model_of(Tag(), ["text"], TAGS)
    rows = [{"text": cell, "target": tags} for cell, tags in zip(words, TAGS, strict=True)]
    train(model, to_device(model.collate(rows), DEVICE))


def test_masked_inputs():
    names = ["text", "image", "audio", "series", "number", "category"]
    task = Masked()
    model = model_of(task, names)
    adapters = {name: model.adapter(name) for name in names}
    raws = {
        name: [adapter.tokenizer.reader.read(value) for value in VALUES[name]]
        for name, adapter in adapters.items()
    }
    batch = make_batch(task, adapters, raws, rand=Random(0))
    train(model, to_device(batch, DEVICE))


def test_a_language_model():
    model = model_of(Language(), ["text"], pool="mean", backbone={"causal": True})
    ids = torch.tensor([[1, 2, 3], [2, 1, IGNORED]])
    text = {"ids": ids.clamp(min=0), "mask": ids != IGNORED, "coords": torch.zeros(2, 3, 2)}
    batch = {"#size": 2, "#index": [0, 1], "text": {**text, "rows": torch.arange(2)}}
    target = {"ids": ids, "chars_per_token": [1.0, 1.0]}
    train(model, to_device({**batch, "target": target}, DEVICE))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_generation_for_samples(beams, monkeypatch):
    """Whether the sequences are complete is checked in a few of the steps only."""
    names = ["image"]
    model = model_of(
        Generate(decoder=partial(Decoder, LAYERS), max_len=9), names, VALUES["text"]
    ).to(DEVICE)
    batch = batch_of(model, names)
    # The results cannot be read on this device.
    for search in (SampleSearch, Beams):
        monkeypatch.setattr(search, "hypotheses", lambda self, samples: [[] for _ in samples])
    with torch.inference_mode():
        memory = model.eval()(batch).memory
        model.head.write(memory, begin=0, end=1, beams=beams, max_new=CHECK_EVERY)


def test_a_generation_of_a_language_model(monkeypatch):
    """All steps have the same shapes."""
    shapes, extend = set(), KVCache.extend

    def record(cache, key, value, group):
        keys, values = extend(cache, key, value, group)
        shapes.add((group.shape[1], tuple(keys.shape)))
        return keys, values

    monkeypatch.setattr(KVCache, "extend", record)
    monkeypatch.setattr(SampleSearch, "hypotheses", lambda self, samples: [[] for _ in samples])
    model = model_of(Language(), ["text"], pool="mean", backbone={"causal": True}).to(DEVICE).eval()
    prompt = torch.zeros(4, 6, dtype=torch.long, device=DEVICE)
    mask = torch.arange(6) < torch.tensor([[6], [2], [1], [4]])
    generate(LanguageModel(model), None, prompt=prompt, mask=mask, end=1, max_new=CHECK_EVERY)
    assert shapes == {(6, (4, 2, 6, D // 2)), (1, (4, 2, 64, D // 2))}
