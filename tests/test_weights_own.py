"""A model that dxn trained as the start of another training: what is taken, what is new, and what is refused."""

import csv
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.config import compose
from dxn.errors import UserError
from dxn.train.start import read_start, with_weights
from dxn.weights import read_public

WORDS = ("ant", "bee", "cat", "dog", "eel")
FAST = ["trainer.epochs=1", "batch_size=7", "trainer.precision=float32", "trainer.device=cpu", "scheduler=constant"]
SHAPE = ["dim=14", "backbone.num_heads=2", "backbone.depth=3", "backbone.dropout=0.2", "fusion.pool=max"]
STILL = ["optimizer.lr=1e-30", "optimizer.weight_decay=0"]  # a run that changes nothing


@pytest.fixture(scope="module", autouse=True)
def _no_pictures():
    """They take most of a tiny run, and are looked at elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dxn.train.report.draw", lambda *_: None)
        patch.setattr("dxn.train.outcome.draw_tokens", lambda *_: None)
        yield


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def train(table, run, *asked, adapters="text,image", target="label"):
    where = ["data=table", f"data.path={table}", f"data.target={target}", f"adapters=[{adapters}]"]
    assert main(["train", *where, *FAST, *asked, f"run={run}"]) == 0
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """data.csv of text, image and targets; runs both, of text and image, and gru, of text alone."""
    folder = tmp_path_factory.mktemp("own")
    random, rows = np.random.default_rng(0), []
    for i in range(15):
        Image.fromarray(random.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{i}.png")
        rows.append(
            {
                "text": " ".join(random.choice(WORDS, 1 + i % 4)),
                "image": f"{i}.png",
                "label": "xyz"[i % 3],
                "other": "uvw"[i % 3],
                "size": i / 7,
                "split": ("train", "validation", "test")[i % 3 if i % 5 else 0],
            }
        )
    write(folder / "data.csv", rows)
    write(folder / "more.csv", [{**row, "text": f"gnu {row['text']} hen"} for row in rows])
    text = ["adapters.text.subwords=word", "adapters.text.conv_kernel=3", "data.text=text"]
    image = ["adapters.image.patch_size=8", "adapters.image.image_size=16", "data.image=image"]
    train(folder / "data.csv", folder / "both", *SHAPE, *text, *image)
    small = ["backbone=gru", "dim=14", "fusion=late", "data.text=text"]
    train(folder / "data.csv", folder / "gru", *small, adapters="text")
    return folder


def asked(folder, *more, table="more.csv", columns=("text", "image")):
    return folder / table, [*(f"data.{name}={name}" for name in columns), *more]


def same(found, expected, names):
    assert names
    for name in names:
        assert torch.equal(found[name], expected[name]), name


def state(folder, name):
    return load_file(folder / name / "model" / "model.safetensors")


def test_adapters_fusion_backbone_and_tokenizer_are_taken_and_the_head_of_the_same_classes(made, tmp_path, capsys):
    table, more = asked(made, f"weights={made / 'both'}", *STILL, "finetune.freeze=all")
    run = train(table, tmp_path / "run", *more)
    expected = state(made, "both")
    assert run.keys() == expected.keys() and any("fusion.embedding" in name for name in run)
    assert any(name.startswith("adapters.text.conv") for name in run)
    same(run, expected, [n for n in run if not n.startswith("head.")])  # of the pixels mean and deviation too
    for name in ("head.out.weight", "head.out.bias"):
        torch.testing.assert_close(run[name], expected[name], rtol=0, atol=1e-20)
    assert "weights:" not in capsys.readouterr().out
    model = dxn.load(tmp_path / "run").model
    assert model.adapters["text"].prepare.tokenizer.token_to_id("gnu") is None  # only the new table has gnus
    assert (len(model.backbone.blocks), model.fusion.pool.kind) == (3, "max")


def test_a_model_folder_and_its_file_are_as_good_as_the_run(made):
    for place in (made / "both", made / "both" / "model", made / "both" / "model" / "model.safetensors"):
        assert read_public(str(place)).parts.labels == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("target", "reason"), [("other", "theirs knows other names"), ("size", "theirs is for class, here it is number")]
)
def test_a_head_of_another_kind_or_other_classes_is_new_and_said_so_in_a_line(made, tmp_path, capsys, target, reason):
    table, more = asked(made, f"weights={made / 'both'}", *STILL, "finetune.freeze=all")
    run = train(table, tmp_path / "run", *more, "seed=7", target=target)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights:")]
    assert lines == [f"weights: {made / 'both'}: the head starts at random: {reason}"]
    expected = state(made, "both")
    same(run, expected, [n for n in run if not n.startswith("head.")])
    assert run["head.out.weight"].shape != expected["head.out.weight"].shape or not torch.allclose(
        run["head.out.weight"], expected["head.out.weight"], atol=0.01
    )


def test_of_two_modalities_one_is_enough(made, tmp_path, capsys):
    table, more = asked(made, f"weights={made / 'both'}", *STILL, "finetune.freeze=all", columns=["image"])
    run = train(table, tmp_path / "run", *more, adapters="image")
    same(run, state(made, "both"), [n for n in run if n.startswith(("adapters.", "backbone."))])
    assert {n.split(".")[1] for n in run if n.startswith("adapters.")} == {"image"}
    assert "weights:" not in capsys.readouterr().out


def test_what_is_new_is_named_in_one_line(made, tmp_path, capsys):
    table, more = asked(made, f"weights={made / 'gru'}", *STILL)
    run = train(table, tmp_path / "run", *more, "adapters.image.image_size=16", "adapters.image.patch_size=8")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights:")]
    vectors = "fusion.embedding.vectors.image, fusion.embedding.vectors.text"
    new = f"adapters.image, {vectors}, fusion.mix.image.weight, fusion.mix.image.bias"
    expected = state(made, "gru")
    assert lines[0] == f"weights: {made / 'gru'} lacks {new}: these start at random"
    same(run, expected, [n for n in run if n.startswith(("backbone.", "adapters.text."))])


def test_a_recurrent_backbone_and_another_fusion_come_along_unasked(made):
    c = composed(f"weights={made / 'gru'}", "adapters=[text]")
    assert (c["backbone"]["_target_"], c["fusion"]["_target_"]) == ("dxn.models.Recurrent", "dxn.models.LateFusion")
    assert c["head"]["dim"] == c["backbone"]["dim"] == 14


def test_each_adapter_may_come_from_a_run_of_its_own(made, tmp_path):
    both = [f"weights.image={made / 'both'}", f"weights.text={made / 'gru'}"]
    small = ["backbone.depth=1", "backbone.num_heads=2", "finetune.freeze=all"]
    table, more = asked(made, *both, *small)
    run = train(table, tmp_path / "run", *more)
    for modality, name in (("image", "both"), ("text", "gru")):
        same(run, state(made, name), [n for n in run if n.startswith(f"adapters.{modality}.")])
    assert not any(name.startswith("adapters.text.conv") for name in run)


def test_low_rank_changes_and_slower_blocks_work_as_with_public_weights(made, tmp_path):
    more = ["finetune.freeze=all", "finetune.lora_rank=2", "optimizer.layer_decay=0.5", "optimizer.lr=0.1"]
    table, more = asked(made, f"weights={made / 'both'}", *more)
    run, expected = train(table, tmp_path / "run", *more), state(made, "both")
    changed = {name for name in run if not torch.equal(run[name], expected[name])}
    assert {name for name in changed if not name.startswith("head.")} == {
        f"backbone.blocks.{i}.attn.qkv.weight" for i in range(3)
    }


# A user's own settings


def composed(*asked):
    config = compose("train", ["data=table", "data.path=any", *asked])
    default = compose("train", ["data=table", "data.path=any"]).plain()
    return with_weights(config.plain(), read_start(config.plain()), default, config.asked())


def test_what_the_weights_do_not_decide_is_the_users_and_else_the_runs(made):
    own = ["fusion.pool=mean", "adapters.text.max_len=32", "backbone.drop_path=0.1", "head.dropout=0.4"]
    c = composed(f"weights={made / 'both'}", "adapters=[text,image]", *own)
    assert (c["fusion"]["pool"], c["adapters"]["text"]["max_len"]) == ("mean", 32)
    assert (c["backbone"]["drop_path"], c["backbone"]["dropout"], c["backbone"]["depth"]) == (0.1, 0.2, 3)
    assert (c["head"]["dropout"], c["dim"], c["adapters"]["image"]["patch_size"]) == (0.4, 14, 8)
    assert composed(f"weights={made / 'both'}", "fusion=late")["fusion"]["_target_"] == "dxn.models.LateFusion"


@pytest.mark.parametrize(
    ("run", "asked", "said"),
    [
        ("both", "backbone.depth=2", "backbone.depth: the weights have 3, got 2; leave it out"),
        ("both", "dim=16", "dim: the weights have 14, got 16; leave it out"),
        ("both", "adapters.text.subwords=bpe", "adapters.text.subwords: the weights have word, got bpe; leave it out"),
        ("both", "adapters.text.conv_kernel=5", "adapters.text.conv_kernel: the weights have 3, got 5; leave it out"),
        ("both", "adapters.image.mean=[0,0,0]", "adapters.image.mean: the weights have None, got [0, 0, 0]"),
        ("both", "backbone=gru", "backbone: the weights have Backbone, got Recurrent; leave it out"),
        ("gru", "backbone=tiny", "backbone: the weights have Recurrent, got Backbone; leave it out"),
    ],
)
def test_no_setting_turns_the_weights_into_another_function_unsaid(made, run, asked, said):
    with pytest.raises(UserError, match=re.escape(said)):
        composed(f"weights={made / run}", asked)


# What is no model


@pytest.mark.parametrize("name", ["model.safetensors", "config.yaml", "tokenizer.json", "labels.json"])
def test_a_changed_file_is_refused(made, tmp_path, name):
    shutil.copytree(made / "both" / "model", tmp_path / "model")
    path = tmp_path / "model" / name
    data = bytearray(path.read_bytes())
    data[-1:] = bytes([data[-1] ^ 1]) if name == "model.safetensors" else b"\n\n"
    path.write_bytes(data)
    with pytest.raises(UserError, match=re.escape(f"{path}: changed since it was saved")):
        read_public(str(tmp_path / "model"))


def test_a_missing_file_is_named(made, tmp_path):
    shutil.copytree(made / "both" / "model", tmp_path / "model")
    (tmp_path / "model" / "labels.json").unlink()
    with pytest.raises(UserError, match=r"labels\.json: missing, though SHA256SUMS lists it"):
        read_public(str(tmp_path / "model"))
    (tmp_path / "model" / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match=r"not a model folder, it has no labels\.json"):
        read_public(str(tmp_path / "model"))


def test_a_folder_that_is_no_model_and_a_run_without_one_are_told_apart(tmp_path):
    with pytest.raises(UserError, match=re.escape(f"weights: {tmp_path}: none of model.safetensors")):
        read_public(str(tmp_path))
    (tmp_path / ".hydra").mkdir()
    with pytest.raises(UserError, match="this run has kept no model yet"):
        read_public(str(tmp_path))


def test_a_config_that_is_no_yaml_is_one_sentence(made, tmp_path):
    shutil.copytree(made / "both" / "model", tmp_path / "model")
    (tmp_path / "model" / "config.yaml").write_text("adapters: [")
    with pytest.raises(UserError, match=r"config\.yaml: not YAML"):
        read_public(str(tmp_path / "model"))


def test_a_public_model_is_not_what_it_is_taken_for(made, capsys):
    assert main(["predict", f"weights={made / 'both'}", "input.text=ant"]) == 2
    assert f"weights: {made / 'both'}: dxn trained this model; use it by run=" in capsys.readouterr().err
