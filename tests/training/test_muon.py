"""Muon: orthogonal updates, the layers it updates, and AdamW for the rest."""

import copy
import math
import re

import pytest
import torch
from torch import nn

from dxn.models import Attention, Backbone, CrossAttention, EarlyFusion, Mlp, MultimodalModel
from dxn.tasks import LinearHead, PreHead
from dxn.training.optim import adamw, muon, orthogonalized


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """Compute in float32 also on a device that has instructions for bf16."""
    monkeypatch.setattr("dxn.training.optim.choose_bf16", lambda device: (False, ""))


def matrix(*singular_values, rows, columns):
    """Return a matrix (R, C) with these singular values."""
    size = len(singular_values)
    left = torch.linalg.qr(torch.randn(rows, size)).Q
    right = torch.linalg.qr(torch.randn(columns, size)).Q
    return left @ torch.diag(torch.tensor(singular_values)) @ right.T


def gradients(model):
    for p in model.parameters():
        p.grad = torch.randn_like(p)


class Adapter(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words = nn.Embedding(50, dim)
        self.first = nn.Conv2d(3, 40, 3)
        self.second = nn.Conv2d(40, 48, 3)
        self.frames = nn.Conv1d(48, 32, 3)
        self.proj = nn.Linear(32, dim)
        self.score = nn.Linear(dim, 1)
        self.states = nn.GRU(dim, dim)


def make_model(dim=32):
    return MultimodalModel(
        {"image": Adapter(dim)},
        inputs={"image": "image"},
        fusion=EarlyFusion(dim, inputs=("image",), pool="cls"),
        backbone=Backbone(dim, depth=1, num_heads=4),
        head=LinearHead(PreHead(dim), 40),
    )


@pytest.mark.parametrize(("rows", "columns"), [(9, 9), (5, 12), (12, 5)])
def test_singular_values_become_about_one_and_the_directions_stay(rows, columns):
    x = torch.stack([matrix(3.0, 1.0, 0.4, rows=rows, columns=columns) for _ in range(2)])
    y = orthogonalized(x)
    assert y.shape == x.shape
    for before, after in zip(x, y, strict=True):
        left, values, right = torch.linalg.svd(before)
        found = left.T @ after @ right.T
        diagonal = found.diagonal()[:3]
        assert ((diagonal > 0.65) & (diagonal < 1.25)).all(), diagonal
        found.diagonal()[:3] = 0
        torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-4, rtol=0)
        assert values[2] < 0.5


def test_the_scale_of_a_gradient_does_not_matter_and_zeros_stay():
    x = torch.randn(2, 4, 7)
    torch.testing.assert_close(orthogonalized(1000 * x), orthogonalized(x))
    assert not orthogonalized(torch.zeros(2, 4, 7)).any()


def test_a_device_with_instructions_for_bf16_computes_updates_in_bf16(monkeypatch):
    x = torch.randn(3, 17, 29)
    exact = orthogonalized(x)
    monkeypatch.setattr("dxn.training.optim.choose_bf16", lambda device: (True, ""))
    rounded = orthogonalized(x)
    assert rounded.dtype == x.dtype and not torch.equal(rounded, exact)
    assert (rounded - exact).norm() < 0.05 * exact.norm()


def test_muon_updates_wide_linear_and_convolutional_layers_outside_the_head():
    model = make_model()
    names = {id(p): name for name, p in model.named_parameters()}
    optimizer = muon()(model)
    chosen = {
        names[id(p)]
        for group in optimizer.param_groups
        for p in group["params"]
        if group["num_matrices"]
    }
    assert chosen == {
        "adapters.image.second.weight",
        "adapters.image.frames.weight",
        "adapters.image.proj.weight",
        *(f"backbone.blocks.0.{n}.weight" for n in ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")),
    }
    every = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(every) == sorted(names)


def test_other_parameters_take_the_steps_of_adamw():
    torch.manual_seed(0)
    models = [make_model(), make_model()]
    models[1].load_state_dict(models[0].state_dict())
    ours, theirs = muon(lr=0.01)(models[0]), adamw(lr=0.01)(models[1])
    for seed in range(3):
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            torch.manual_seed(seed)
            gradients(model)
            optimizer.step()
    pairs = zip(models[0].named_parameters(), models[1].parameters(), strict=True)
    equal = {name for (name, a), b in pairs if torch.equal(a, b)}
    different = {name for name, _ in models[0].named_parameters()} - equal
    muons = {id(p) for group in ours.param_groups if group["num_matrices"] for p in group["params"]}
    assert different == {name for name, p in models[0].named_parameters() if id(p) in muons}


def test_an_update_has_the_size_of_one_of_adamw_times_the_scale():
    layer = nn.Linear(60, 40, bias=False)
    before = layer.weight.detach().clone()
    gradients(layer)
    muon(lr=0.1, scale=3.0, weight_decay=0)(layer).step()
    update = layer.weight.detach() - before
    # The singular values are near 1, and 40 of them form 60 × 40 entries.
    expected = 0.1 * 3 * 0.2 * math.sqrt(60) * math.sqrt(40 / (60 * 40))
    assert update.square().mean().sqrt().item() == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        (Attention(32, num_heads=2), "qkv", 3),
        (CrossAttention(32, num_heads=2), "memory", 2),
        (Mlp(32, mlp="swiglu", mlp_ratio=6), "up", 2),  # (4 * 32, 32): the value, and its gate
        (Mlp(32), "up", 1),  # (4 * 32, 32) is one matrix, although it consists of squares
        (nn.Sequential(nn.Conv2d(8, 144, 3)), "0", 1),
    ],
    ids=["qkv", "keys and values", "swiglu", "mlp", "convolution"],
)
def test_only_matrices_that_are_one_parameter_by_chance_are_updated_separately(
    module, name, number
):
    weight = module.get_submodule(name).weight
    before = weight.detach().clone()
    gradients(module)
    # Its size hides the others in a joint update.
    weight.grad[: len(weight) // number] *= 1000
    parts = weight.grad.flatten(1).unflatten(0, (number, -1))
    rate = 0.1 * 0.2 * math.sqrt(max(parts.shape[1:]))
    expected = (rate * orthogonalized(parts)).reshape(weight.shape)
    muon(lr=0.1, scale=1.0, weight_decay=0)(module).step()
    torch.testing.assert_close(before - weight.detach(), expected, atol=1e-4, rtol=0)


def test_the_gradients_are_averaged_and_the_weights_decay():
    layer = nn.Linear(33, 32, bias=False)
    weight = layer.weight.detach().clone()
    average = torch.zeros_like(weight)
    optimizer = muon(lr=0.1, weight_decay=0.5, momentum=0.8, scale=1.0)(layer)
    for _ in range(3):
        gradients(layer)
        average = 0.8 * average + 0.2 * layer.weight.grad
        ahead = 0.2 * layer.weight.grad + 0.8 * average
        optimizer.step()
        update = orthogonalized(ahead[None])[0]
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * 0.2 * math.sqrt(33) * update
        torch.testing.assert_close(layer.weight.detach(), weight)


def test_a_weight_without_gradient_is_not_updated():
    layer = nn.Linear(32, 32)
    before = layer.weight.detach().clone()
    optimizer = muon(lr=0.1)(layer)
    layer.bias.grad = torch.ones(32)
    optimizer.step()
    assert torch.equal(layer.weight, before)
    assert layer.weight not in optimizer.state


def test_a_saved_state_continues_the_same_steps():
    torch.manual_seed(0)
    first, second = nn.Linear(40, 32), nn.Linear(40, 32)
    optimizer = muon()(first)
    gradients(first)
    optimizer.step()
    second.load_state_dict(first.state_dict())
    other = muon()(second)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for layer, each in ((first, optimizer), (second, other)):
        torch.manual_seed(1)
        gradients(layer)
        each.step()
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0, got -1.0"),
        ({"momentum": 1.0}, "momentum must be below 1, got 1.0"),
        ({"scale": -1.0}, "scale must be at least 0, got -1.0"),
        ({"betas": [0.9]}, "betas must be two numbers from 0 to below 1, got [0.9]"),
    ],
)
def test_an_option_out_of_range_is_refused_without_a_model(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        muon(**options)
