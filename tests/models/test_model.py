"""The complete model: named inputs that share adapters, rows without an input, mixup, counting."""

import itertools

import pytest
import torch
from helpers.reference import FUSIONS, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.core.tokens import Span, Tokens
from dxn.core.windows import encode_windows
from dxn.models import Backbone, MultimodalModel, count_parameters, module_key
from dxn.models.model import mix

D, H, K = 10, 5, 3
RAW = {"text": 7, "image": 3}  # numbers per column, by adapter
TWO = {"text": "text", "image": "image"}
# Three inputs share one adapter. Their names hold dots and spaces; ModuleDict refuses one of them.
SHARED = {"front.photo v1.0": "image", "title": "text", "keys": "image", "back photo": "image"}


class Adapter(nn.Module):
    """A linear layer over rows of numbers."""

    def __init__(self, modality):
        super().__init__()
        self.modality = modality
        self.proj = nn.Linear(RAW[modality], D)

    def forward(self, batch):
        x, mask = batch["x"], batch["mask"]
        coords = torch.zeros(*x.shape[:2], 2)
        span = Span(self.modality, self.modality, 0, x.shape[1], coords)
        return Tokens(self.proj(x), mask, (span,))


class Head(nn.Module):
    """One linear layer over the pooled vector."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(D, K)

    def forward(self, tokens, pooled, batch):
        return self.out(pooled)


def make(fusion="early", inputs=TWO, **options):
    model = MultimodalModel(
        {key: Adapter(key) for key in dict.fromkeys(inputs.values())},
        inputs=inputs,
        fusion=FUSIONS[fusion](D, inputs=tuple(inputs), **options),
        backbone=Backbone(D, depth=2, num_heads=H),
        head=Head(),
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def collate(samples):
    """A batch of samples, each a dict of the (n, numbers) rows of the inputs that it has."""
    batch = {"#size": len(samples)}
    for name in dict.fromkeys(itertools.chain.from_iterable(samples)):
        rows = [i for i, sample in enumerate(samples) if name in sample]
        values = [samples[i][name] for i in rows]
        lengths = torch.tensor([len(x) for x in values])
        batch[name] = {
            "x": nn.utils.rnn.pad_sequence(values, batch_first=True),
            "mask": torch.arange(int(lengths.max())) < lengths[:, None],
            "rows": torch.tensor(rows),
        }
    return batch


def sample_of(lengths, inputs=TWO):
    return {
        name: torch.randn(n, RAW[inputs[name]], dtype=torch.float64)
        for name, n in lengths.items()
        if n
    }


SAMPLES = [
    {"text": 5, "image": 2},
    {"text": 3},
    {"image": 4},
    {"text": 1, "image": 1},
    {"text": 7},
]


def test_a_row_without_an_input_has_no_real_column_of_it():
    text, image = make().embed(collate([sample_of(s) for s in SAMPLES]))
    assert text.mask.sum(1).tolist() == [5, 3, 0, 1, 7]
    assert image.mask.sum(1).tolist() == [2, 0, 4, 1, 0]
    assert [p.spans[0].name for p in (text, image)] == ["text", "image"]


def test_the_columns_of_each_row_come_from_its_own_sample():
    model, samples = make(), [sample_of(s) for s in SAMPLES]
    for name, part in zip(("text", "image"), model.embed(collate(samples)), strict=True):
        for i, sample in enumerate(samples):
            if name in sample:
                assert_same(part[i].T, model.adapter(name).proj(sample[name]))


def test_an_input_that_no_sample_has_is_omitted():
    parts = make().embed(collate([sample_of({"text": 3}), sample_of({"text": 5})]))
    assert [p.spans[0].name for p in parts] == ["text"]


def test_the_parts_are_in_the_order_of_the_inputs():
    model = make(inputs={"image": "image", "text": "text"})
    parts = model.embed(collate([sample_of({"text": 3, "image": 2})]))
    assert [p.spans[0].name for p in parts] == ["image", "text"]


def test_inputs_of_one_adapter_share_its_weights_and_keep_their_names():
    model = make(inputs=SHARED)
    assert len(model.adapters) == 2
    assert model.adapter("keys") is model.adapter("back photo") is model.adapter("front.photo v1.0")
    same = torch.randn(2, RAW["image"], dtype=torch.float64)
    parts = model.embed(collate([{name: same for name in SHARED if name != "title"}]))
    spans = [part.spans[0] for part in parts]
    assert [span.name for span in spans] == ["front.photo v1.0", "keys", "back photo"]
    assert [span.modality for span in spans] == ["image"] * 3
    assert torch.equal(parts[0].x, parts[1].x) and torch.equal(parts[0].x, parts[2].x)


def test_each_input_may_have_its_own_adapter_under_any_name():
    names = ["front.photo v1.0", "keys", "", "a%2Eb", "a.b", "type"]
    model = MultimodalModel(
        {name: Adapter("image") for name in names},
        inputs={f"input {i}": name for i, name in enumerate(names)},
        fusion=FUSIONS["early"](D),
        backbone=Backbone(D, depth=1, num_heads=H),
        head=Head(),
    )
    adapters = [model.adapter(name) for name in model.inputs]
    assert len({id(adapter) for adapter in adapters}) == len(names)
    assert len({key.split(".")[1] for key in model.state_dict() if "adapters" in key}) == len(names)


def test_module_keys_are_unchanged_for_ordinary_names():
    assert [module_key(name) for name in ("text", "back photo", "Ä-1")] == [
        "text",
        "back photo",
        "Ä-1",
    ]


@given(st.lists(st.text(alphabet="a.% k", max_size=5), unique=True, max_size=20))
def test_different_names_have_different_module_keys(names):
    modules = nn.ModuleDict({module_key(name): nn.Identity() for name in [*names, "keys", "pop"]})
    assert len(modules) == len(names) + 2


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("pool", ["mean", "max", "cls"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_batch_gives_each_sample_the_output_that_it_gets_alone(fusion, pool, data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = make(fusion, pool=pool)
    kinds = data.draw(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=5))
    samples = [sample_of(kind) for kind in kinds]
    logits = model(collate(samples))
    assert logits.shape == (len(samples), K)
    assert_same(logits, torch.cat([model(collate([sample])) for sample in samples]))


@pytest.mark.parametrize("fusion", FUSIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_inputs_may_be_missing_in_any_row_of_a_model_with_shared_adapters(fusion, data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = make(fusion, inputs=SHARED)
    lengths = st.fixed_dictionaries({name: st.integers(0, 3) for name in SHARED})
    rows = data.draw(
        st.lists(lengths.filter(lambda row: any(row.values())), min_size=1, max_size=4)
    )
    samples = [sample_of(row, SHARED) for row in rows]
    logits = model(collate(samples))
    assert_same(logits, torch.cat([model(collate([sample])) for sample in samples]))


def test_forward_is_the_head_of_the_encoded_parts():
    model, batch = make(), collate([sample_of(s) for s in SAMPLES])
    encoded, pooled = model.encode(model.embed(batch))
    assert encoded.x.shape == (5, 7 + 4, D) and pooled.shape == (5, D)
    assert torch.equal(model(batch), model.head(encoded, pooled, batch))


def test_the_head_gets_tokens_pooled_vector_and_batch():
    model, batch = make(), collate([sample_of({"text": 3, "image": 2})])
    model.head = nn.Identity()
    model.head.forward = lambda tokens, pooled, received: (tokens, pooled, received)
    tokens, pooled, received = model(batch)
    assert received is batch and pooled.shape == (1, D)
    assert [span.name for span in tokens.spans] == ["text", "image"]


def test_the_embedding_is_the_pooled_vector_after_the_pre_of_the_head():
    model, pooled = make(), torch.randn(2, D, dtype=torch.float64)
    assert torch.equal(model.embedding(pooled), pooled)
    model.head.pre = nn.Linear(D, 2).double()
    assert torch.equal(model.embedding(pooled), model.head.pre(pooled))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "a model needs at least one input"),
        ({"title": "sound"}, "unknown adapter sound: the adapters are text, image"),
        ({"title": "text"}, "no input uses the adapter image: remove it"),
        (
            {"#bad": "text", "b": "image"},
            "must not be named #size or #index or #filler or #bad or target, got #bad",
        ),
    ],
)
def test_inputs_that_do_not_fit_the_adapters_raise_a_clear_error(inputs, message):
    with pytest.raises(ValueError, match=message):
        MultimodalModel(
            {key: Adapter(key) for key in RAW},
            inputs=inputs,
            fusion=FUSIONS["early"](D),
            backbone=Backbone(D, depth=1, num_heads=H),
            head=Head(),
        )


# Mixup


def part_of(lengths):
    n = max(lengths)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), n, D, dtype=torch.float64)
    return Tokens(x, mask, (Span("text", "text", 0, n, torch.zeros(len(lengths), n, 2)),))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(0, 7), min_size=2, max_size=5).filter(any),
    share=st.floats(0, 1),
)
def test_mixing_adds_a_share_of_each_sample_and_the_rest_of_another(seed, lengths, share):
    torch.manual_seed(seed)
    part, order = part_of(lengths), torch.randperm(len(lengths))
    mixed = mix(part, order, share)
    for i, j in enumerate(order.tolist()):
        for n in range(max(lengths[i], lengths[j])):
            first = part.x[i, n] if n < lengths[i] else 0  # padding adds nothing
            second = part.x[j, n] if n < lengths[j] else 0
            assert_same(mixed.x[i, n], share * first + (1 - share) * second)
        assert mixed.mask[i].sum() == max(lengths[i], lengths[j])
    assert mixed.spans is part.spans


def test_mixing_with_a_share_of_one_or_with_itself_changes_no_output():
    model = make()
    samples = [sample_of({"text": 5, "image": 2}) for _ in range(3)]
    batch, order = collate(samples), torch.tensor([2, 0, 1])
    plain = model(batch)
    assert_same(model(batch, (order, 1.0)), plain)
    assert_same(model(batch, (torch.arange(3), 0.3)), plain)
    assert_same(model(batch, (order, 0.0)), plain[order])
    assert not torch.allclose(model(batch, (order, 0.5)), plain, atol=1e-3)


def test_mixing_with_a_sample_of_another_input_gives_both_inputs():
    batch = collate([sample_of({"text": 5}), sample_of({"image": 2})])
    parts = [mix(p, torch.tensor([1, 0]), 0.7) for p in make().embed(batch)]
    assert [p.mask.sum(1).tolist() for p in parts] == [[5, 5], [2, 2]]
    assert_same(parts[0].x[0] * 3, parts[0].x[1] * 7)


# Counting


def test_frozen_parameters_do_not_count_as_trained():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7, bias=False))
    assert count_parameters(model) == 3 * 5 + 5 + 5 * 7
    model[0].weight.requires_grad_(False)
    assert count_parameters(model, trained=True) == 5 + 5 * 7


def test_the_parameters_of_all_parts_count_once():
    model = make(inputs={"title": "text", "body": "text"})
    linears = (D * 3 * D + 3 * D) + (D * D + D) + (4 * D * D + 4 * D) + (4 * D * D + D)
    block = linears + 2 * 2 * D
    adapter, input_embedding, head = 7 * D + D, 2 * D, K * D + K
    assert count_parameters(model) == adapter + input_embedding + 2 * block + 2 * D + head


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("options", [{}, {"pool": "cls"}, {"registers": 2}], ids=str)
def test_each_window_is_encoded_alone_whatever_is_in_front_of_it(fusion, options):
    model = make(fusion, {"text": "text"}, **options)
    x = torch.randn(2, 7, D, dtype=torch.double)
    mask = torch.arange(7) < torch.tensor([[7], [2]])

    def tokens(start, stop, rows=slice(None)):
        span = Span("text", "text", 0, stop - start, torch.zeros(len(x[rows]), stop - start, 2))
        return Tokens(x[rows, start:stop], mask[rows, start:stop], (span,))

    encoded, vectors = encode_windows(tokens(0, 7), model.fusion, model.backbone, 4)
    first, of_first = model.fusion([tokens(0, 4)], model.backbone)
    second, of_second = model.fusion([tokens(4, 7, slice(1))], model.backbone)
    assert_same(vectors[0], (of_first[0] + of_second[0]) / 2)
    assert_same(vectors[1], of_first[1])
    expected = torch.cat([first.select("text").x[:1], second.select("text").x], 1)
    assert_same(encoded.select("text").x[:1], expected)
