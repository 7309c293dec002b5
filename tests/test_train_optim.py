"""The optimizer's groups, the course of the rate, and the choice of precision."""

import itertools
import math

import pytest
import torch
from torch import nn

from dxn.models import Backbone, BottleneckFusion, Classify, LateFusion, Model
from dxn.train import precision
from dxn.train.optim import adamw, constant, cosine
from dxn.train.precision import choose

D = 10
CPU = torch.device("cpu")


class Adapter(nn.Module):
    """One of each kind of layer that adapters are made of."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, D)
        self.stem = nn.Conv2d(3, 5, 2)
        self.frames = nn.Conv1d(3, 5, 2)
        self.states = nn.GRU(3, 5)
        self.norm = nn.BatchNorm2d(5)
        self.table = nn.Parameter(torch.randn(11, D))  # learned positions


def make(fusion=BottleneckFusion, **options):
    return Model(
        {"text": Adapter()},
        fusion=fusion(D, modalities=("text", "image"), pool="attention"),
        backbone=Backbone(D, depth=2, num_heads=5, **options),
        head=Classify(D, num_classes=3),
    )


def split_by_decay(model, **options):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = adamw(model, **options).param_groups
    return [({names[id(p)] for p in group["params"]}, group) for group in groups]


# AdamW


@pytest.mark.parametrize("options", [{}, {"norm": "rms", "mlp": "swiglu", "bias": False}])
def test_decay_is_on_the_matrices_of_linears_convolutions_and_recurrent_layers_alone(options):
    (decayed, first), (rest, second) = split_by_decay(make(**options), weight_decay=0.07)
    assert (first["weight_decay"], second["weight_decay"]) == (0.07, 0.0)
    matrices = ["attn.qkv", "attn.proj", "mlp.up", "mlp.down"]
    assert decayed == {
        *(f"backbone.blocks.{i}.{name}.weight" for i in range(2) for name in matrices),
        "adapters.text.stem.weight",
        "adapters.text.frames.weight",
        "adapters.text.states.weight_ih_l0",
        "adapters.text.states.weight_hh_l0",
        "fusion.pool.score.weight",
        "head.out.weight",
    }
    assert {
        "adapters.text.words.weight",
        "adapters.text.table",
        "adapters.text.norm.weight",
        "adapters.text.stem.bias",
        "fusion.shared",
        "fusion.embedding.vectors.text",
        "backbone.norm.weight",
        "backbone.blocks.0.attn_norm.weight",
        "head.out.bias",
    } <= rest


@pytest.mark.parametrize("fusion", [BottleneckFusion, LateFusion])
def test_every_weight_is_in_one_group(fusion):
    model = make(fusion)
    (decayed, _), (rest, _) = split_by_decay(model)
    assert not decayed & rest
    assert decayed | rest == {name for name, _ in model.named_parameters()}


def test_frozen_weights_are_in_no_group():
    model = make()
    model.adapters.requires_grad_(False)
    names = set.union(*(found for found, _ in split_by_decay(model)))
    assert names == {name for name, _ in model.named_parameters() if not name.startswith("adapters")}


def test_the_settings_reach_both_groups():
    for _, group in split_by_decay(make(), lr=0.03, betas=[0.8, 0.9], eps=1e-5):
        assert (group["lr"], group["betas"], group["eps"]) == (0.03, (0.8, 0.9), 1e-5)


def test_a_step_without_gradient_shrinks_a_matrix_and_leaves_a_bias():
    linear = nn.Linear(3, 5)
    before = {name: p.detach().clone() for name, p in linear.named_parameters()}
    optimizer = adamw(linear, lr=0.1, weight_decay=0.5)
    for p in linear.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(linear.weight.detach(), before["weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(linear.bias.detach(), before["bias"])


def test_the_first_step_is_of_the_rates_size_whatever_the_gradients():
    linear = nn.Linear(3, 5)
    before = linear.weight.detach().clone()
    optimizer = adamw(linear, lr=0.01, weight_decay=0.0)
    (linear.weight * torch.logspace(-2, 2, 15).view(5, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(before - linear.weight.detach(), torch.full((5, 3), 0.01), rtol=1e-4, atol=1e-7)


# Schedules


@pytest.mark.parametrize(("warmup", "final"), [(0.1, 0.0), (0.25, 0.1), (0.0, 0.0), (0.9, 0.5)])
def test_a_cosine_rises_to_one_at_the_end_of_its_warmup_and_falls_to_its_final_value(warmup, final):
    factor = cosine(warmup=warmup, final=final)
    assert factor(0.0) == (0 if warmup else 1)
    assert factor(warmup / 2) == pytest.approx(0.5 if warmup else 1)
    assert factor(warmup) == 1
    assert factor((warmup + 1) / 2) == pytest.approx((1 + final) / 2)
    assert factor(1.0) == pytest.approx(final, abs=1e-12)
    third = warmup + (1 - warmup) / 3
    assert factor(third) == pytest.approx(final + (1 - final) * 0.5 * (1 + math.cos(math.pi / 3)))


def test_a_cosine_never_jumps_and_has_one_peak():
    values = [cosine(warmup=0.3, final=0.2)(i / 1000) for i in range(1001)]
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert max(map(abs, steps)) < 0.004
    assert all(s > 0 for s in steps[:300]) and all(s < 0 for s in steps[300:])


@pytest.mark.parametrize("warmup", [1.0, 1.5, -0.1])
def test_a_warmup_that_is_no_share_of_the_run_is_refused(warmup):
    with pytest.raises(ValueError, match=f"warmup is a share of the run, at least 0 and under 1, got {warmup}"):
        cosine(warmup=warmup)


def test_a_constant_rate_stays_at_one():
    assert [constant()(share) for share in (0.0, 0.5, 1.0)] == [1, 1, 1]


def test_a_constant_rate_warms_up_too():
    factor = constant(warmup=0.2)
    assert [factor(share) for share in (0.0, 0.05, 0.2, 0.7, 1.0)] == pytest.approx([0, 0.25, 1, 1, 1])


# Precision


@pytest.mark.parametrize(
    ("asked", "bf16", "sentence"), [("bf16", True, "bf16 as asked"), ("float32", False, "float32 as asked")]
)
def test_a_precision_that_was_asked_for_is_not_measured(asked, bf16, sentence, monkeypatch):
    monkeypatch.setattr(precision, "measure", lambda device: pytest.fail("measured"))
    assert choose(asked, CPU) == (bf16, sentence)


@pytest.mark.parametrize(
    ("ratio", "bf16", "sentence"),
    [
        (2.34, True, "bf16: bf16 products measured 2.3 times as fast as float32 here"),
        (1.5, True, "bf16: bf16 products measured 1.5 times as fast as float32 here"),
        (1.42, False, "float32: bf16 products measured 1.4 times as fast as float32 here"),
        (0.26, False, "float32: bf16 products measured 0.3 times as fast as float32 here"),
    ],
)
def test_otherwise_the_measurement_decides_and_is_told(ratio, bf16, sentence, monkeypatch):
    monkeypatch.setattr(precision, "measure", lambda device: ratio)
    assert choose("auto", CPU) == (bf16, sentence)


def test_a_gpu_without_bf16_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    monkeypatch.setattr(precision, "measure", lambda device: pytest.fail("measured"))
    assert choose("auto", torch.device("cuda")) == (False, "float32: this GPU has no bf16")


def test_the_measurement_is_the_middle_of_its_ratios_and_leaves_out_the_first(monkeypatch):
    seconds = iter([100.0, 1.0, 3.0, 1.0, 8.0, 2.0, 5.0, 1.0])  # ratios 100 (warming up), 3, 4 and 5
    monkeypatch.setattr(precision, "_seconds", lambda a, b: next(seconds))
    assert precision.measure(CPU, repeats=3) == 4


def test_a_measurement_of_this_machine_is_a_positive_number():
    assert 0 < precision.measure(CPU, repeats=1) < math.inf
