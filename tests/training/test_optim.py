"""The groups of the optimizer, the schedules, and the choice of precision."""

import itertools
import math
import re

import pytest
import torch
from torch import nn

from dxn.core.errors import UserError
from dxn.core.runtime import choose_bf16
from dxn.models import (
    Backbone,
    BlockOptions,
    BottleneckFusion,
    EarlyFusion,
    LateFusion,
    MultimodalModel,
    NormOptions,
)
from dxn.tasks import LinearHead, PreHead
from dxn.training.optim import EMBEDDING_PREFIXES, adamw, constant, cosine, sgd
from dxn.training.parallel import find_hardware

D = 10


class Adapter(nn.Module):
    """One of each kind of layer that adapters are made of."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, D)
        self.stem = nn.Conv2d(3, 5, 2)
        self.frames = nn.Conv1d(3, 5, 2)
        self.states = nn.GRU(3, 5)
        self.norm = nn.BatchNorm2d(5)
        self.pos_embed = nn.Parameter(torch.randn(11, D))


def make_model(fusion=BottleneckFusion, **options):
    return MultimodalModel(
        {"text": Adapter()},
        inputs={"front": "text", "back": "text"},
        fusion=fusion(D, inputs=("front", "back"), pool="attention"),
        backbone=Backbone(D, depth=2, num_heads=5, **options),
        head=LinearHead(PreHead(D), 3),
    )


def split_by_decay(model, **options):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = adamw(**options)(model).param_groups
    return [({names[id(p)] for p in group["params"]}, group) for group in groups]


# AdamW


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": NormOptions(kind="rms"), "block": BlockOptions(mlp="swiglu", bias=False)}],
)
def test_only_matrices_of_linear_convolutional_and_recurrent_layers_are_decayed(options):
    (decayed, first), (rest, second) = split_by_decay(make_model(**options), weight_decay=0.07)
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
        "adapters.text.pos_embed",
        "adapters.text.norm.weight",
        "adapters.text.stem.bias",
        "fusion.shared",
        "fusion.input_embedding.weight",
        "backbone.norm.weight",
        "backbone.blocks.0.attn_norm.weight",
        "head.out.bias",
    } <= rest


@pytest.mark.parametrize("fusion", [BottleneckFusion, LateFusion])
def test_every_weight_is_in_one_group(fusion):
    model = make_model(fusion)
    (decayed, _), (rest, _) = split_by_decay(model)
    assert not decayed & rest
    assert decayed | rest == {name for name, _ in model.named_parameters()}


def test_frozen_weights_are_in_no_group():
    model = make_model()
    model.adapters.requires_grad_(False)
    names = set.union(*(group for group, _ in split_by_decay(model)))
    assert names == {
        name for name, _ in model.named_parameters() if not name.startswith("adapters")
    }


def test_the_options_apply_to_both_groups():
    for _, group in split_by_decay(make_model(), lr=0.03, betas=[0.8, 0.9], eps=1e-5):
        assert (group["lr"], group["betas"], group["eps"]) == (0.03, (0.8, 0.9), 1e-5)


def test_a_step_without_gradient_decays_a_matrix_and_keeps_a_bias():
    linear = nn.Linear(3, 5)
    before = {name: p.detach().clone() for name, p in linear.named_parameters()}
    optimizer = adamw(lr=0.1, weight_decay=0.5)(linear)
    for p in linear.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(linear.weight.detach(), before["weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(linear.bias.detach(), before["bias"])


def test_the_first_step_has_the_size_of_the_learning_rate_for_any_gradient():
    linear = nn.Linear(3, 5)
    before = linear.weight.detach().clone()
    optimizer = adamw(lr=0.01, weight_decay=0.0)(linear)
    (linear.weight * torch.logspace(-2, 2, 15).view(5, 3)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(
        before - linear.weight.detach(), torch.full((5, 3), 0.01), rtol=1e-4, atol=1e-7
    )


def test_layer_decay_lowers_the_rate_from_the_head_to_the_adapters():
    model = MultimodalModel(
        {"image": nn.Linear(3, 10)},
        inputs={"front": "image", "back": "image"},
        fusion=EarlyFusion(10, inputs=("front", "back"), pool="cls"),
        backbone=Backbone(10, depth=2, num_heads=5),
        head=LinearHead(PreHead(10), 3),
    )
    rates = {
        id(p): group["lr"]
        for group in adamw(lr=2.0, layer_decay=0.5)(model).param_groups
        for p in group["params"]
    }
    expected = {
        "head.": 2,
        "backbone.norm": 2,
        "backbone.blocks.1.": 1,
        "backbone.blocks.0.": 0.5,
        "adapters.": 0.25,
        "fusion.": 0.25,
    }
    for name, p in model.named_parameters():
        assert rates[id(p)] == next(v for k, v in expected.items() if name.startswith(k)), name


def test_weights_without_a_checkpoint_have_a_rate_of_their_own():
    model = MultimodalModel(
        {"image": nn.Linear(3, 10)},
        inputs={"image": "image"},
        fusion=EarlyFusion(10, inputs=("image",), pool="cls"),
        backbone=Backbone(10, depth=1, num_heads=5),
        head=LinearHead(PreHead(10), 3),
    )
    model.loaded = frozenset(n for n, _ in model.named_parameters() if not n.startswith("head."))
    for make in (adamw, sgd):
        groups = make(lr=2.0, layer_decay=0.5, new_lr=8.0)(model).param_groups
        rates = {id(p): group["lr"] for group in groups for p in group["params"]}
        assert {rates[id(p)] for p in model.head.parameters()} == {8}
        assert {rates[id(p)] for p in model.backbone.blocks.parameters()} == {1}
        assert {rates[id(p)] for p in model.adapters.parameters()} == {0.5}
    # Without a checkpoint, all weights are new.
    model.loaded = frozenset()
    assert max(group["lr"] for group in adamw(lr=2.0, new_lr=8.0)(model).param_groups) == 2


def test_every_prefix_of_an_embedding_names_a_parameter():
    """A renamed parameter would silently get the rate of the head."""
    names = [name for name, _ in make_model().named_parameters()]
    names += [f"fusion.{n}" for n, _ in EarlyFusion(D, pool="cls").named_parameters()]
    for prefix in EMBEDDING_PREFIXES:
        assert any(name.startswith(prefix) for name in names), prefix


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (adamw, {"lr": -1.0}, "lr must be at least 0, got -1.0"),
        (adamw, {"lr": math.nan}, "lr must be a finite number, got nan"),
        (adamw, {"weight_decay": -0.5}, "weight_decay must be at least 0, got -0.5"),
        (adamw, {"eps": -1e-8}, "eps must be at least 0, got -1e-08"),
        (adamw, {"betas": [0.9, 1.0]}, "betas must be two numbers from 0 to below 1, got [0.9, 1."),
        (adamw, {"betas": [0.9]}, "betas must be two numbers from 0 to below 1, got [0.9]"),
        (adamw, {"layer_decay": 0.0}, "layer_decay must be greater than 0, got 0.0"),
        (adamw, {"layer_decay": -0.5}, "layer_decay must be greater than 0, got -0.5"),
        (sgd, {"layer_decay": 1.1}, "layer_decay must be at most 1, got 1.1"),
        (sgd, {"lr": -1.0}, "lr must be at least 0, got -1.0"),
        (sgd, {"weight_decay": -0.5}, "weight_decay must be at least 0, got -0.5"),
        (sgd, {"momentum": 1.5}, "momentum must be below 1, got 1.5"),
        (sgd, {"momentum": 0.0}, "nesterov needs a momentum above 0, got momentum=0"),
    ],
)
def test_an_option_out_of_range_is_refused_without_a_model(make, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make(**options)


def test_a_model_without_trainable_weights_is_refused():
    message = "^optimizer: no parameter is trainable, because all weights are frozen; set "
    with pytest.raises(UserError, match=message):
        adamw()(nn.Linear(3, 5).requires_grad_(False))


# SGD


def test_sgd_has_the_groups_of_adamw():
    names = [
        [(sorted(id(p) for p in group["params"]), group["lr"]) for group in each.param_groups]
        for model in [make_model()]
        for each in (make(lr=2.0, layer_decay=0.5)(model) for make in (adamw, sgd))
    ]
    assert names[0] == names[1]


def test_sgd_takes_the_steps_of_its_formula():
    linear = nn.Linear(3, 5)
    weight = linear.weight.detach().clone()
    momentum = torch.zeros_like(weight)
    optimizer = sgd(lr=0.1, weight_decay=0.5, momentum=0.8, nesterov=False)(linear)
    for _ in range(3):
        gradient = torch.randn_like(weight)
        linear.weight.grad = gradient.clone()
        optimizer.step()
        momentum = 0.8 * momentum + gradient + 0.5 * weight
        weight = weight - 0.1 * momentum
        torch.testing.assert_close(linear.weight.detach(), weight)


# Schedules


@pytest.mark.parametrize(("warmup", "final"), [(0.1, 0.0), (0.25, 0.1), (0.0, 0.0), (0.9, 0.5)])
def test_a_cosine_rises_to_one_at_the_end_of_the_warmup_and_falls_to_its_final_value(warmup, final):
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


@pytest.mark.parametrize("schedule", [cosine, constant])
@pytest.mark.parametrize("warmup", [1.0, 1.5, -0.1])
def test_a_warmup_out_of_range_is_refused(schedule, warmup):
    limit = "at least 0" if warmup < 0 else "below 1"
    with pytest.raises(ValueError, match=f"^warmup must be {limit}, got {warmup}$"):
        schedule(warmup=warmup)


@pytest.mark.parametrize("final", [-0.1, 1.1, math.nan])
def test_a_final_multiplier_out_of_range_is_refused(final):
    with pytest.raises(ValueError, match=f"^final must be .*, got {final}$"):
        cosine(final=final)


def test_a_constant_rate_stays_at_one():
    assert [constant()(progress) for progress in (0.0, 0.5, 1.0)] == [1, 1, 1]


def test_a_constant_rate_warms_up_too():
    factors = [constant(warmup=0.2)(progress) for progress in (0.0, 0.05, 0.2, 0.7, 1.0)]
    assert factors == pytest.approx([0, 0.25, 1, 1, 1])


def test_adamw_takes_the_steps_of_torch():
    models = [nn.Linear(3, 5), nn.Linear(3, 5)]
    models[1].load_state_dict(models[0].state_dict())
    ours = adamw(lr=0.1, weight_decay=0.0)(models[0])
    theirs = torch.optim.AdamW(
        models[1].parameters(), lr=0.1, weight_decay=0.0, betas=(0.9, 0.98), fused=True
    )
    for _ in range(3):
        x = torch.randn(7, 3)
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert torch.equal(models[0].weight, models[1].weight)


# Precision


@pytest.mark.parametrize("kind", ["fp16", "bf16", "float32"])
def test_a_configured_precision_is_used(kind):
    hardware = find_hardware("cpu", kind)
    assert hardware.precision == kind
    assert hardware.precision_note == f"{kind}, as configured"


def test_tf32_needs_a_gpu_that_has_it():
    with pytest.raises(ValueError, match=r"^precision: tf32 needs .*got device=cpu"):
        find_hardware("cpu", "tf32")


@pytest.mark.parametrize("has", [True, False])
def test_otherwise_the_instructions_of_the_device_decide(has, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    for device in ("cpu", "cuda"):
        bf16, note = choose_bf16(torch.device(device))
        assert bf16 == has
        assert note.startswith("bf16: the device has i" if has else "float32: the device has no i")
        assert ("trainer.precision=fp16" in note) == (device == "cuda" and not has)
