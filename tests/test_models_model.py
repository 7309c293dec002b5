"""The whole model: batches with rows that miss a modality, mixup, and the count of its weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dxn.models import Backbone, BottleneckFusion, Classify, EarlyFusion, LateFusion, Model, count_parameters
from dxn.models.model import mix
from dxn.tokens import Span, Tokens

D, H, K = 10, 5, 3
FUSIONS = {"early": EarlyFusion, "late": LateFusion, "bottleneck": BottleneckFusion}
RAW = {"text": 7, "image": 3}  # what the adapter projects


class Adapter(nn.Module):
    """A linear over rows of numbers, as an adapter's embed half is one."""

    def __init__(self, modality):
        super().__init__()
        self.modality, self.proj = modality, nn.Linear(RAW[modality], D)

    def forward(self, batch):
        x, mask = batch["x"], batch["mask"]
        return Tokens(self.proj(x), mask, (Span(self.modality, 0, x.shape[1], torch.zeros(*x.shape[:2], 2)),))


def make(fusion="early", names=("text", "image"), **options):
    model = Model(
        {name: Adapter(name) for name in names},
        fusion=FUSIONS[fusion](D, modalities=names, **options),
        backbone=Backbone(D, depth=2, num_heads=H),
        head=Classify(D, num_classes=K),
    ).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def collate(samples):
    """A batch of samples, each a dict of its modalities' (n, numbers) rows; one without a modality lacks its key."""
    batch = {"size": len(samples)}
    for name in RAW:
        rows = [i for i, sample in enumerate(samples) if name in sample]
        if rows:
            have = [samples[i][name] for i in rows]
            lengths = torch.tensor([len(x) for x in have])
            batch[name] = {
                "x": nn.utils.rnn.pad_sequence(have, batch_first=True),
                "mask": torch.arange(int(lengths.max())) < lengths[:, None],
                "rows": torch.tensor(rows),
            }
    return batch


def sample_of(**lengths):
    return {name: torch.randn(n, RAW[name], dtype=torch.float64) for name, n in lengths.items()}


def assert_same(got, expected, atol=1e-12):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


SAMPLES = [{"text": 5, "image": 2}, {"text": 3}, {"image": 4}, {"text": 1, "image": 1}, {"text": 7}]


def test_a_row_without_a_modality_has_no_real_column_of_it():
    model = make()
    text, image = model.embed(collate([sample_of(**s) for s in SAMPLES]))
    assert text.mask.sum(1).tolist() == [5, 3, 0, 1, 7]
    assert image.mask.sum(1).tolist() == [2, 0, 4, 1, 0]
    assert [p.spans[0].modality for p in (text, image)] == ["text", "image"]


def test_each_rows_columns_are_its_own_and_not_a_neighbours():
    model, samples = make(), [sample_of(**s) for s in SAMPLES]
    for name, part in zip(("text", "image"), model.embed(collate(samples)), strict=True):
        for i, sample in enumerate(samples):
            if name in sample:
                assert_same(part[i].T, model.adapters[name].proj(sample[name]))


def test_a_modality_that_no_sample_has_gives_no_part():
    parts = make().embed(collate([sample_of(text=3), sample_of(text=5)]))
    assert [p.spans[0].modality for p in parts] == ["text"]


def test_the_parts_stand_in_the_adapters_order():
    parts = make(names=("image", "text")).embed(collate([sample_of(text=3, image=2)]))
    assert [p.spans[0].modality for p in parts] == ["image", "text"]


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("pool", ["mean", "max", "cls"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_batch_gives_each_sample_what_it_gets_alone(fusion, pool, data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = make(fusion, pool=pool)
    kinds = data.draw(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=5))
    samples = [sample_of(**kind) for kind in kinds]
    logits = model(collate(samples))
    assert logits.shape == (len(samples), K)
    assert_same(logits, torch.cat([model(collate([sample])) for sample in samples]))


def test_forward_is_the_head_over_what_encode_gives():
    model, batch = make(), collate([sample_of(**s) for s in SAMPLES])
    encoded, pooled = model.encode(model.embed(batch))
    assert encoded.x.shape == (5, 7 + 4, D) and pooled.shape == (5, D)
    assert torch.equal(model(batch), model.head(encoded, pooled))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_batch_with_an_empty_sample_is_refused(fusion):
    with pytest.raises(ValueError, match="no tokens at all in sample 1"):
        make(fusion)(collate([sample_of(text=3), {}, sample_of(image=2)]))


# Mixup


def part_of(lengths):
    n = max(lengths)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    x = torch.randn(len(lengths), n, D, dtype=torch.float64)
    return Tokens(x, mask, (Span("text", 0, n, torch.zeros(len(lengths), n, 2)),))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 7), min_size=2, max_size=5).filter(any), st.floats(0, 1))
def test_mixing_is_a_share_of_each_sample_and_the_rest_of_its_partner(seed, lengths, share):
    torch.manual_seed(seed)
    part, order = part_of(lengths), torch.randperm(len(lengths))
    mixed = mix(part, order, share)
    for i, j in enumerate(order.tolist()):
        for n in range(part.x.shape[1]):
            mine = part.x[i, n] if n < lengths[i] else 0  # padding adds nothing
            theirs = part.x[j, n] if n < lengths[j] else 0
            if n < max(lengths[i], lengths[j]):
                assert_same(mixed.x[i, n], share * mine + (1 - share) * theirs)
        assert mixed.mask[i].sum() == max(lengths[i], lengths[j])
    assert mixed.spans is part.spans


def test_a_share_of_one_or_a_partner_of_its_own_changes_no_answer():
    model, samples = make(), [sample_of(text=5, image=2) for _ in range(3)]
    batch, order = collate(samples), torch.tensor([2, 0, 1])
    plain = model(batch)
    assert_same(model(batch, (order, 1.0)), plain)
    assert_same(model(batch, (torch.arange(3), 0.3)), plain)
    assert_same(model(batch, (order, 0.0)), plain[order])
    assert not torch.allclose(model(batch, (order, 0.5)), plain, atol=1e-3)


def test_mixing_with_a_sample_that_has_another_modality_gives_both():
    model = make()
    parts = [mix(p, torch.tensor([1, 0]), 0.7) for p in model.embed(collate([sample_of(text=5), sample_of(image=2)]))]
    assert [p.mask.sum(1).tolist() for p in parts] == [[5, 5], [2, 2]]
    assert_same(parts[0].x[0] * 3, parts[0].x[1] * 7)


# Counting


def test_parameters_that_are_frozen_do_not_count():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7, bias=False))
    assert count_parameters(model) == 3 * 5 + 5 + 5 * 7
    model[0].weight.requires_grad_(False)
    assert count_parameters(model, trained=True) == 5 + 5 * 7


def test_a_model_counts_all_of_its_parts():
    model = make(names=("text",))
    block = (D * 3 * D + 3 * D) + (D * D + D) + (4 * D * D + 4 * D) + (4 * D * D + D) + 2 * 2 * D
    assert count_parameters(model) == (7 * D + D) + 2 * block + 2 * D + (K * D + K)
