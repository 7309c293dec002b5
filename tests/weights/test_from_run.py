"""A model that dxn trained as the start of another training: what is loaded, new, or refused."""

import csv
import re

import numpy as np
import pytest
import torch
from helpers.runs import PLAIN
from PIL import Image
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.commands.train import Train
from dxn.config.compose import compose
from dxn.core.errors import UserError
from dxn.runs.weights import read_initial_weights, with_weights

WORDS = ("ant", "bee", "cat", "dog", "eel")
FAST = [
    "trainer.epochs=1",
    "batch_size=7",
    "trainer.precision=float32",
    "trainer.device=cpu",
    "scheduler=constant",
]
SHAPE = [
    "dim=14",
    "backbone.num_heads=2",
    "backbone.depth=3",
    "backbone.dropout=0.2",
    "fusion.pool=max",
]
# A training that changes nothing.
STILL = ["optimizer.lr=1e-30", "optimizer.weight_decay=0"]


def write_table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def train(table, run, *overrides, adapters="text,image", target="label"):
    """Train a run, and return the tensors of its model."""
    data = ["data=table", f"data.path={table}", f"data.target={target}"]
    arguments = [*data, f"adapters=[{adapters}]", *FAST, *PLAIN, *overrides, f"run={run}"]
    assert main(["train", *arguments]) == 0
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """data.csv and more.csv; the runs "both" (text and image) and "gru" (text only)."""
    folder = tmp_path_factory.mktemp("own")
    rand = np.random.default_rng(0)
    rows = []
    for i in range(15):
        pixels = rand.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
        rows.append(
            {
                "text": " ".join(rand.choice(WORDS, 1 + i % 4)),
                "image": f"{i}.png",
                "label": "xyz"[i % 3],
                "other": "uvw"[i % 3],
                "size": i / 7,
                "split": ("train", "validation", "test")[i % 3 if i % 5 else 0],
            }
        )
    write_table(folder / "data.csv", rows)
    # Words that the vocabulary of the first training does not have.
    more = [{**row, "text": f"gnu {row['text']} hen"} for row in rows]
    write_table(folder / "more.csv", more)
    text = [
        "adapters.text.tokenizer.kind=word",
        "adapters.text.conv_kernel=3",
        "data.text=text",
    ]
    image = [
        "adapters.image.patch_size=8",
        "adapters.image.image_size=16",
        "data.image=image",
    ]
    train(folder / "data.csv", folder / "both", *SHAPE, *text, *image)
    gru = ["backbone=gru", "dim=14", "fusion=late", "data.text=text"]
    train(folder / "data.csv", folder / "gru", *gru, adapters="text")
    return folder


def again(folder, run, *overrides, columns=("text", "image"), **options):
    """Train on the other table, and return the tensors."""
    named = [f"data.{name}={name}" for name in columns]
    return train(folder / "more.csv", run, *named, *overrides, **options)


def state_of(folder, name):
    return load_file(folder / name / "model" / "model.safetensors")


def assert_equal(state, expected, names):
    assert names
    for name in names:
        assert torch.equal(state[name], expected[name]), name


def notices(capsys):
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("weights:")]


def test_everything_is_loaded_for_the_same_classes(runs, tmp_path, capsys):
    weights = f"weights={runs / 'both'}"
    state = again(runs, tmp_path / "run", weights, *STILL, "finetune.freeze=all")
    expected = state_of(runs, "both")
    assert state.keys() == expected.keys()
    assert any("fusion.input_embedding" in name for name in state)
    assert any(name.startswith("adapters.text.conv") for name in state)
    # Mean and standard deviation of the pixels as well.
    assert_equal(state, expected, [n for n in state if not n.startswith("head.")])
    for name in ("head.out.weight", "head.out.bias"):
        torch.testing.assert_close(state[name], expected[name], rtol=0, atol=1e-20)
    assert not notices(capsys)
    model = dxn.load(tmp_path / "run").model
    tokenizer = model.adapters["text"].tokenizer.vocabulary
    assert tokenizer.token_to_id("gnu") is None  # only the other table has gnus
    assert len(model.backbone.blocks) == 3
    assert model.fusion.pool.kind == "max"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("other", "its classes or its vocabulary are different"),
        ("size", "its task is classify, the task of this training is regress"),
    ],
)
def test_a_head_for_another_task_or_other_classes_is_new(runs, tmp_path, capsys, target, reason):
    overrides = [f"weights={runs / 'both'}", *STILL, "finetune.freeze=all", "seed=7"]
    state = again(runs, tmp_path / "run", *overrides, target=target)
    expected = state_of(runs, "both")
    assert notices(capsys) == [f"weights: {runs / 'both'}: the head is not used: {reason}"]
    assert_equal(state, expected, [n for n in state if not n.startswith("head.")])
    head = state["head.out.weight"]
    old_head = expected["head.out.weight"]
    assert head.shape != old_head.shape or not torch.allclose(head, old_head, atol=0.01)


def test_one_of_two_modalities_is_enough(runs, tmp_path, capsys):
    overrides = [f"weights={runs / 'both'}", *STILL, "finetune.freeze=all"]
    state = again(runs, tmp_path / "run", *overrides, columns=["image"], adapters="image")
    names = [n for n in state if n.startswith(("adapters.", "backbone."))]
    assert_equal(state, state_of(runs, "both"), names)
    assert {n.split(".")[1] for n in state if n.startswith("adapters.")} == {"image"}
    # A single input needs no vector that tells it apart, and nothing of it is missing.
    assert not notices(capsys)


def test_new_tensors_are_named_in_one_line(runs, tmp_path, capsys):
    overrides = [f"weights={runs / 'gru'}", *STILL]
    image = ["adapters.image.image_size=16", "adapters.image.patch_size=8"]
    state = again(runs, tmp_path / "run", *overrides, *image)
    line = notices(capsys)[0]
    assert line.startswith(f"weights: {runs / 'gru'} has no adapters.image, ")
    for name in ("fusion.input_embedding.weight", "fusion.mix.1.weight", "fusion.mix.1.bias"):
        assert name in line
    assert "fusion.mix.0" not in line  # the layer of the text
    names = [n for n in state if n.startswith(("backbone.", "adapters.text."))]
    assert_equal(state, state_of(runs, "gru"), names)


def test_each_adapter_may_come_from_another_run(runs, tmp_path):
    overrides = [
        f"weights.adapters.image={runs / 'both'}",
        f"weights.adapters.text={runs / 'gru'}",
        "backbone.depth=1",
        "backbone.num_heads=2",
        "finetune.freeze=all",
    ]
    state = again(runs, tmp_path / "run", *overrides)
    for key, name in (("image", "both"), ("text", "gru")):
        names = [n for n in state if n.startswith(f"adapters.{key}.")]
        assert_equal(state, state_of(runs, name), names)
    assert not any(name.startswith("adapters.text.conv") for name in state)


def test_low_rank_updates_and_layer_decay_work_as_with_public_weights(runs, tmp_path):
    overrides = [
        f"weights={runs / 'both'}",
        "finetune.freeze=all",
        "finetune.lora_rank=2",
        "optimizer.layer_decay=0.5",
        "optimizer.lr=0.1",
    ]
    state = again(runs, tmp_path / "run", *overrides)
    expected = state_of(runs, "both")
    changed = {name for name in state if not torch.equal(state[name], expected[name])}
    assert {name for name in changed if not name.startswith("head.")} == {
        f"backbone.blocks.{i}.attn.qkv.weight" for i in range(3)
    }


# The user's settings


def composed(*overrides):
    settings = compose(Train, ["data=table", "data.path=any", *overrides])
    return with_weights(settings, read_initial_weights(settings))


def test_a_recurrent_backbone_and_its_fusion_are_taken_from_the_run(runs):
    values = composed(f"weights={runs / 'gru'}", "adapters=[text]")
    assert values["backbone"]["_target_"] == "dxn.models.Recurrent"
    assert values["fusion"]["_target_"] == "dxn.models.LateFusion"
    assert values["backbone"]["dim"] == values["fusion"]["dim"] == 14


def test_options_that_the_weights_do_not_decide_are_the_users_or_else_the_runs(runs):
    chosen = [
        "fusion.pool=mean",
        "adapters.text.max_len=32",
        "backbone.drop_path=0.1",
        "head.dropout=0.4",
    ]
    values = composed(f"weights={runs / 'both'}", "adapters=[text,image]", *chosen)
    assert values["fusion"]["pool"] == "mean"
    assert values["adapters"]["text"]["max_len"] == 32
    assert values["backbone"]["drop_path"] == 0.1
    assert values["head"]["dropout"] == 0.4
    assert values["backbone"]["dropout"] == 0.2
    assert values["backbone"]["depth"] == 3
    assert values["dim"] == 14
    assert values["adapters"]["image"]["patch_size"] == 8
    late = composed(f"weights={runs / 'both'}", "fusion=late")
    assert late["fusion"]["_target_"] == "dxn.models.LateFusion"


@pytest.mark.parametrize(
    ("run", "override", "message"),
    [
        ("both", "backbone.depth=2", "backbone.depth: the weights have 3, got 2; leave it out"),
        ("both", "dim=16", "dim: the weights have 14, got 16; leave it out"),
        (
            "both",
            "adapters.text.tokenizer.kind=bpe",
            "adapters.text.tokenizer.kind: the weights have word, got bpe; leave it out",
        ),
        (
            "both",
            "adapters.text.conv_kernel=5",
            "adapters.text.conv_kernel: the weights have 3, got 5; leave it out",
        ),
        (
            "both",
            "adapters.image.normalize.mean=[0,0,0] adapters.image.normalize.std=[1,1,1]",
            "adapters.image.normalize.mean: the weights have None, got [0, 0, 0]",
        ),
        (
            "both",
            "backbone=gru",
            "backbone: the weights have Backbone, got Recurrent; leave it out",
        ),
        (
            "gru",
            "backbone=tiny",
            "backbone: the weights have Recurrent, got Backbone; leave it out",
        ),
    ],
)
def test_a_setting_that_would_change_the_function_is_refused(runs, run, override, message):
    with pytest.raises(UserError, match=re.escape(message)):
        composed(f"weights={runs / run}", *override.split(" "))


def test_a_run_is_not_used_as_public_weights(runs, capsys):
    assert main(["predict", f"weights={runs / 'both'}", "input.text=ant"]) == 2
    message = f"weights: {runs / 'both'}: this model was trained with dxn; load it with run"
    assert message in capsys.readouterr().err
