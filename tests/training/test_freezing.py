"""Frozen weights and low-rank changes: what is trained, and what is saved in the end."""

from functools import partial

import pytest
import torch
from helpers.runs import checkpoint_of, interrupt, same_tensors
from helpers.training import D, fit, make_model, make_samples, make_task
from safetensors.torch import load_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dxn.core.errors import UserError
from dxn.models.model import count_parameters
from dxn.training.average import Average
from dxn.training.checkpoint import FILE, FROZEN, all_checkpoints
from dxn.training.finetune import Finetune, FrozenLinear, LowRank, merged
from dxn.training.optim import sgd
from dxn.training.predict import predict

DEPTH = 3
CPU = torch.device("cpu")


def make(**options):
    return make_model(make_task(), depth=DEPTH, **options)


def trainable(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def starting_with(model, *starts):
    return {name for name, _ in model.named_parameters() if name.startswith(starts)}


def pretrained(model):
    """Names of the tensors that a checkpoint with another head has."""
    return {name for name in model.state_dict() if not name.startswith("head.")}


def changed(after, before):
    """Names of the tensors that are not bit for bit the same."""
    assert after.keys() == before.keys()
    return {name for name in after if not torch.equal(after[name], before[name])}


def copy_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


# Frozen weights


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        (None, ()),
        (0, ("adapters.",)),
        (2, ("adapters.", "backbone.blocks.0.", "backbone.blocks.1.")),
        ("all", ("adapters.", "backbone.", "fusion.")),
    ],
)
def test_only_the_chosen_weights_are_frozen(freeze, frozen):
    model = make()
    Finetune(freeze=freeze)(model, pretrained(model))
    every = {name for name, _ in model.named_parameters()}
    assert trainable(model) == every - (starting_with(model, *frozen) if frozen else set())


def test_weights_that_were_not_loaded_are_trained_although_all_are_frozen():
    model = make()
    loaded = starting_with(model, "backbone.")
    Finetune(freeze="all")(model, loaded)
    assert trainable(model) == {name for name, _ in model.named_parameters()} - loaded


def test_without_loaded_weights_all_but_the_head_are_frozen():
    model = make()
    Finetune(freeze="all")(model, set())
    assert trainable(model) == starting_with(model, "head.")


def test_frozen_weights_are_bit_for_bit_the_same_after_a_training(tmp_path):
    model = make()
    Finetune(freeze=2)(model, set())
    before = copy_of(model)
    fit(tmp_path / "run", model=model, epochs=1)
    frozen = starting_with(model, "adapters.", "backbone.blocks.0.", "backbone.blocks.1.")
    statistics = {name for name in before if "running_" in name or "num_batches" in name}
    assert changed(model.state_dict(), before) - statistics == trainable(model)
    assert not frozen & trainable(model)


def test_checkpoints_share_a_file_of_the_frozen_weights(tmp_path):
    model = make()
    Finetune(freeze="all", lora_rank=2)(model, pretrained(model))
    fit(tmp_path / "run", model=model, epochs=3, ema_decay=0.5)
    new, old = all_checkpoints(tmp_path / "run" / "checkpoints")
    assert (new / FROZEN).samefile(old / FROZEN)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert set(load_file(new / FROZEN)) == {f"model/{name}" for name in frozen}
    names = set(load_file(new / FILE))
    trained = {f"{group}{n}" for n in trainable(model) for group in ("model/", "ema/")}
    assert {n for n in names if n.startswith(("model/", "ema/"))} == trained
    states = {n.split("/")[1] for n in names if n.startswith("optimizer/")}
    assert len(states) == len(trainable(model))


@pytest.mark.parametrize("base", ["int8", "nf4"])
def test_a_checkpoint_has_the_scales_of_quantized_weights_once(tmp_path, base):
    model = make()
    Finetune(freeze="all", lora_rank=2, base=base)(model, pretrained(model))
    fit(tmp_path / "run", model=model, epochs=2, ema_decay=0.5)
    new, old = all_checkpoints(tmp_path / "run" / "checkpoints")
    assert (new / FROZEN).samefile(old / FROZEN)
    scales = {f"model/{name}" for name in model.state_dict() if name.endswith("weight_scale")}
    assert len(scales) == 4 * DEPTH and scales <= set(load_file(new / FROZEN))
    assert not any("weight_scale" in name for name in load_file(new / FILE))


def test_other_frozen_weights_are_written_again(tmp_path):
    model = make()
    # It has no state, which would not fit.
    options = {"model": model, "optimizer": partial(sgd, momentum=0, nesterov=False)}
    Finetune(freeze=1)(model, pretrained(model))
    fit(tmp_path / "run", epochs=1, **options)
    Finetune(freeze=2)(model, pretrained(model))
    fit(tmp_path / "run", epochs=2, resume=True, **options)
    new, old = all_checkpoints(tmp_path / "run" / "checkpoints")
    assert not (new / FROZEN).samefile(old / FROZEN)
    assert any("blocks.1." in name for name in load_file(new / FROZEN))


def test_the_average_of_frozen_weights_needs_no_memory():
    model = make()
    Finetune(freeze="all", lora_rank=2)(model, pretrained(model))
    average = Average(model, 0.5)
    assert average.tensors.keys() == trainable(model)
    before = copy_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    average.update(1)
    trained = {name: before[name] for name in average.tensors}
    assert changed(average.tensors, trained) == trainable(model)
    now = copy_of(model)
    with average.in_use():
        assert changed(model.state_dict(), now) == trainable(model)
    assert not changed(model.state_dict(), now)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"freeze": -1}, "freeze must be all, null or at least 0, got -1"),
        ({"lora_rank": -1}, "lora_rank must be at least 0, got -1"),
        ({"lora_dropout": 1.0}, r"lora_dropout must be below 1, got 1\.0"),
        (
            {"lora_rank": 2, "lora_targets": ()},
            "lora_targets must name at least one linear layer if lora_rank is set",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Finetune(**options)


def test_more_blocks_than_there_are_cannot_be_frozen():
    with pytest.raises(UserError, match=r"^finetune\.freeze: the backbone has 3 blocks, got 4$"):
        Finetune(freeze=4)(make(), set())


def test_a_target_that_matches_no_linear_is_refused_with_the_names_there_are():
    message = (
        r"^finetune\.lora_targets: no name of a linear layer ends in 'attn.query'; "
        r"the first linear layers of this model are "
        r"adapters\.series\.proj, backbone\.blocks\.0\.attn\.qkv, .*"
    )
    with pytest.raises(UserError, match=message):
        Finetune(lora_rank=2, lora_targets=("attn.qkv", "attn.query"))(make(), set())


# The layers with a low-rank change


@pytest.mark.parametrize(
    ("targets", "matched"),
    [
        (["qkv"], ["attn.qkv"]),
        (["attn.*"], ["attn.qkv", "attn.proj"]),
        (["*.blocks.*.mlp.up", "attn.proj"], ["mlp.up", "attn.proj"]),
        (["all-linear"], ["attn.qkv", "attn.proj", "mlp.up", "mlp.down"]),
    ],
)
def test_targets_are_ends_of_names_or_patterns(targets, matched):
    model = make()
    model.head.add_module("xqkv", nn.Linear(5, 5))  # another name
    Finetune(lora_rank=2, lora_targets=targets)(model, set())
    found = {n.removesuffix(".lora") for n, m in model.named_modules() if isinstance(m, LowRank)}
    assert found == {f"backbone.blocks.{i}.{name}" for i in range(DEPTH) for name in matched}


def test_one_block_can_be_the_target():
    model = make()
    Finetune(lora_rank=2, lora_targets=["*.blocks.1.*"])(model, set())
    found = {n for n, m in model.named_modules() if isinstance(m, LowRank)}
    assert len(found) == 4 and all(".blocks.1." in name for name in found)


def test_a_rank_above_a_side_of_a_matrix_is_refused():
    message = (
        r"^finetune\.lora_rank: must be at most 2 for head\.out with 2 x 12 weights, got 3; "
        r"choose other layers with finetune\.lora_targets$"
    )
    with pytest.raises(UserError, match=message):
        Finetune(lora_rank=3, lora_targets=("head.out",))(make(), set())


# Frozen layers of few bits


@pytest.mark.parametrize("base", ["int8", "nf4"])
def test_the_frozen_layers_of_the_blocks_are_quantized(base, tmp_path):
    model = make()
    number = count_parameters(model)
    options = {"freeze": "all", "base": base, "lora_rank": 2, "lora_targets": ("attn.*",)}
    Finetune(**options)(model, pretrained(model))
    layers = ("attn.qkv", "attn.proj", "mlp.up", "mlp.down")
    names = {f"backbone.blocks.{i}.{name}" for i in range(DEPTH) for name in layers}
    assert {n for n, m in model.named_modules() if isinstance(m, FrozenLinear)} == names
    if base == "int8":  # the matrices of this model are narrower than a block of 64 numbers
        updates = sum(p.numel() for n, p in model.named_parameters() if ".lora." in n)
        assert count_parameters(model) == number + updates
    before = {n: t.clone() for n, t in merged(model).items()}
    fit(tmp_path / "run", model=model, lr=0.1)
    after = merged(model)
    assert after.keys() == make().state_dict().keys()
    statistics = {name for name in before if "running_" in name or "num_batches" in name}
    matrices = {f"{name}.weight" for name in names if ".attn." in name}
    trained = {*matrices, "head.out.weight", "head.out.bias"}
    assert changed(after, before) - statistics == trained
    fresh = make()
    fresh.load_state_dict(after)
    torch.testing.assert_close(predictions(fresh), predictions(model), rtol=0, atol=1e-5)


def test_only_frozen_layers_can_be_quantized():
    message = (
        r"^finetune\.base: no linear layer of the blocks is frozen, so none can be nf4; set "
        r"finetune\.freeze=all or finetune\.lora_rank$"
    )
    with pytest.raises(UserError, match=message):
        Finetune(base="nf4")(make(), set())
    model = make()
    Finetune(base="int8", lora_rank=2)(model, set())
    found = [n for n, m in model.named_modules() if isinstance(m, FrozenLinear)]
    assert found == [f"backbone.blocks.{i}.attn.qkv" for i in range(DEPTH)]
    assert all(p.requires_grad for n, p in model.named_parameters() if n.endswith("qkv.bias"))


# Low-rank changes


def predictions(model):
    task = make_task()
    found = predict(model, task, make_samples(13, task), batch_size=5, device=CPU)
    return torch.stack(list(found.predicted))


def test_a_change_starts_at_zero_and_is_all_that_is_trained_of_a_frozen_model():
    model = make()
    before = predictions(model)
    loaded = pretrained(model)
    Finetune(freeze="all", lora_rank=3, lora_targets=("attn.qkv", "mlp.up"))(model, loaded)
    assert torch.equal(predictions(model), before)
    changes = {
        f"backbone.blocks.{i}.{linear}.lora.{part}"
        for i in range(DEPTH)
        for linear in ("attn.qkv", "mlp.up")
        for part in ("up", "down")
    }
    assert trainable(model) == {"head.out.weight", "head.out.bias"} | changes


def test_a_training_changes_its_targets_by_at_most_the_rank(tmp_path):
    model = make()
    before = copy_of(model)
    targets = ("attn.qkv", "mlp.down")
    Finetune(freeze="all", lora_rank=2, lora_targets=targets)(model, pretrained(model))
    fit(tmp_path / "run", model=model, lr=0.1)
    after = merged(model)
    matrices = {f"backbone.blocks.{i}.{name}.weight" for i in range(DEPTH) for name in targets}
    statistics = {name for name in before if "running_" in name or "num_batches" in name}
    assert changed(after, before) - statistics == {*matrices, "head.out.weight", "head.out.bias"}
    for name in matrices:
        values = torch.linalg.svdvals((after[name] - before[name]).double())
        assert values[1] > 1e-3 * values[0] and values[2] < 1e-5 * values[0]


def test_a_change_is_scaled_by_alpha_over_the_rank():
    torch.manual_seed(0)
    for alpha, scale in ((None, 2.0), (3.0, 0.6)):
        assert Finetune(lora_rank=5, lora_alpha=alpha).scale == pytest.approx(scale)
    change = LowRank(7, 11, 5, 0.6).double()
    nn.init.normal_(change.up)
    weight = torch.randn(7, 11, dtype=torch.float64)
    expected = weight + 0.6 * change.up @ change.down
    torch.testing.assert_close(change.added_to(weight), expected)
    x = torch.randn(5, 3, 11, dtype=torch.float64)
    torch.testing.assert_close(x @ weight.T + change(x), x @ expected.T)


def test_the_stabilized_scale_is_alpha_over_the_root_of_the_rank():
    for rank in (4, 64):
        found = Finetune(lora_rank=rank, lora_rank_stabilized=True).scale
        assert found == pytest.approx(16 / rank**0.5)
    found = Finetune(lora_rank=9, lora_alpha=6.0, lora_rank_stabilized=True).scale
    assert found == pytest.approx(2)


@torch.no_grad()
def test_dropout_is_applied_to_the_input_of_an_update_in_training_only():
    torch.manual_seed(0)
    change = LowRank(7, 11, 3, 0.6, dropout=0.25).double()
    nn.init.normal_(change.up)
    x = torch.randn(11, dtype=torch.float64)
    exact = 0.6 * change.up @ (change.down @ x)
    draws = change(x.expand(20_000, -1))
    # Each input is 0 with probability 0.25, and otherwise divided by 0.75.
    torch.testing.assert_close(
        draws.mean(0), exact, rtol=0, atol=5 * float(draws.std(0).max()) / 141
    )
    matrix = 0.6 * change.up @ change.down * x
    expected = (matrix.square() * (0.25 / 0.75)).sum(1).sqrt()
    torch.testing.assert_close(draws.std(0), expected, rtol=0.03, atol=0)
    torch.testing.assert_close(change.eval()(x), exact)


@torch.no_grad()
def test_dropout_of_the_updates_keeps_the_input_of_the_frozen_matrix():
    model = make(dropout=0.0).train()
    layer = model.backbone.blocks[0].attn.qkv
    x = torch.randn(5, D)
    before = layer(x)
    Finetune(lora_rank=2, lora_dropout=0.5)(model, set())
    assert torch.equal(layer(x), before)  # updates are zero at first
    nn.init.normal_(layer.lora.up)
    assert not torch.equal(layer(x), layer(x))
    update = layer.lora.scale * layer.lora.up @ layer.lora.down
    torch.testing.assert_close(model.eval() and layer(x), before + x @ update.T)


def test_without_dropout_nothing_is_drawn():
    change = LowRank(7, 11, 3, 0.6)
    generator = torch.get_rng_state()
    with FlopCounterMode(display=False) as counter:
        change(torch.randn(5, 11, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), generator)
    assert counter.get_total_flops() == 2 * 5 * 3 * (11 + 7)


def test_a_weight_in_bf16_is_rounded_once_when_its_change_is_added():
    torch.manual_seed(0)
    change = LowRank(31, 37, 5, 0.7).bfloat16()
    nn.init.normal_(change.up)
    weight = torch.randn(31, 37).bfloat16()
    exact = weight.double() + 0.7 * change.up.double() @ change.down.double()
    assert torch.equal(change.added_to(weight), exact.float().bfloat16())
    assert change.added_to(weight.float()).dtype == torch.float32


def test_a_layer_with_two_names_is_merged_under_both():
    model = make()
    layer = model.backbone.blocks[0].mlp.up
    model.backbone.blocks[1].mlp.up = layer
    Finetune(lora_rank=2, lora_targets=("mlp.up",))(model, set())
    nn.init.normal_(layer.lora.up)
    state = merged(model)
    first, second = (state[f"backbone.blocks.{i}.mlp.up.weight"] for i in (0, 1))
    assert torch.equal(first, second) and not torch.equal(first, layer.weight)
    assert not any(".lora." in name for name in state)


def test_a_step_of_low_rank_changes_computes_no_gradient_of_the_frozen_matrices():
    """Per token, a frozen matrix costs 2 products (4 RC), and a change of rank r 6 r (R + C)."""
    model = make()
    Finetune(freeze="all", lora_rank=2)(model, set())
    layer = model.backbone.blocks[0].attn.qkv
    rows, columns = layer.weight.shape
    x = torch.randn(7, columns, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 7 * (4 * rows * columns + 6 * 2 * (rows + columns))


def test_the_merged_weights_predict_as_the_changed_model():
    model = make()
    before = predictions(model)
    plain = set(model.state_dict())
    Finetune(lora_rank=2, lora_targets=("attn.qkv", "series.proj", "head.out"))(model, set())
    for module in model.modules():
        if isinstance(module, LowRank):
            nn.init.normal_(module.up, std=0.3)
    changed_predictions = predictions(model)
    assert set(merged(model)) == plain
    fresh = make()
    fresh.load_state_dict(merged(model))
    torch.testing.assert_close(predictions(fresh), changed_predictions, rtol=0, atol=1e-6)
    assert not torch.allclose(changed_predictions, before, atol=1e-2)


@pytest.mark.parametrize("base", [None, "nf4"])
def test_a_training_of_low_rank_changes_is_resumed_bit_for_bit(tmp_path, monkeypatch, base):
    options = {"epochs": 2, "checkpoint_every": 1, "ema_decay": 0.5}

    def train(folder, **more):
        model = make()
        Finetune(freeze=1, base=base, lora_rank=2, lora_dropout=0.3)(model, set())
        return fit(folder, model=model, **options, **more)[0]

    whole = train(tmp_path / "whole")
    with interrupt(monkeypatch, step=7), pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut")
    resumed = train(tmp_path / "cut", resume=True)
    assert not changed(resumed.state_dict(), whole.state_dict())
    assert same_tensors(*(checkpoint_of(tmp_path / name) for name in ("cut", "whole")))
