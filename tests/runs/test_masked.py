"""head=masked and pretrain=masked: learning to predict what is hidden, and what starts from it."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from helpers.runs import (
    checkpoint_of,
    interrupt,
    log_of,
    metrics_of,
    refused,
    same_tensors,
    weights_of,
)
from PIL import Image

import dxn
from dxn.cli import main
from dxn.core.errors import UserError
from dxn.runs.folder import has_checkpoint

SENTENCES = ["cats chase mice", "dogs chew bones"]
MODEL = ["dim=14", "backbone.num_heads=2", "backbone.depth=1", "batch_size=5", "baseline=none"]
CPU = ["trainer.precision=float32", "trainer.device=cpu"]
SIZES = {
    "text": ["adapters.text.tokenizer.kind=word"],
    "image": ["adapters.image.patch_size=4", "adapters.image.image_size=12"],
    "audio": ["adapters.audio.sample_rate=4000", "adapters.audio.spectrogram.n_mels=8"],
}
MASKED = ["head=masked", "head.mask_ratio.text=0.5"]
# A training that changes nothing.
STILL = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.epochs=1"]
# log_every=1: the log is written before the first checkpoint.
PRETRAIN = ["pretrain=masked", "pretrain.epochs=2", "trainer.epochs=1", "data.target=label"]
PRETRAIN += ["trainer.log_every=1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Tables of two sentences, two pictures and two sounds that belong together, row by row."""
    folder = tmp_path_factory.mktemp("masked")
    rand = np.random.default_rng(0)
    pictures = rand.integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    sounds = rand.normal(0, 0.1, (2, 900))
    rows = []
    for i in range(24):
        Image.fromarray(pictures[i % 2]).save(folder / f"{i}.png")
        soundfile.write(folder / f"{i}.wav", sounds[i % 2], 4000)
        split = ("train", "train", "train", "train", "validation", "test")[i // 2 % 6]
        row = {"text": SENTENCES[i % 2], "image": f"{i}.png", "audio": f"{i}.wav"}
        rows.append({**row, "label": "xy"[i % 2], "split": split})
    for name, label in (("labelled", None), ("nonsense", "z"), ("plain", "")):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            columns = [c for c in rows[0] if name != "plain" or c != "label"]
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            for i, row in enumerate(rows):
                given = row["label"] if label is None else f"{label}{i // 2 % 2}"
                writer.writerow({**row, "label": given})
    for name, count in (("a", 3), ("b", 4)):
        (folder / "sounds" / name).mkdir(parents=True)
        for i in range(count):
            # Each is louder than the one before: equal sounds would stay in one split.
            louder = sounds[i % 2] * (1 + 0.1 * i + 0.05 * (name == "a"))
            soundfile.write(folder / "sounds" / name / f"{i}.wav", louder, 4000)
    return folder


def options(place, *more, table="plain", columns=("text", "image")):
    named = [f"data.{column}={column}" for column in columns]
    sizes = [option for column in columns for option in SIZES[column]]
    data = ["data=table", f"data.path={place / table}.csv", *named]
    return [*data, f"adapters=[{','.join(columns)}]", *MODEL, *CPU, *sizes, *more]


def train(place, run, *more, **rest):
    assert main(["train", *options(place, *more, **rest), f"run={run}"]) == 0
    return metrics_of(run)


@pytest.fixture(scope="module")
def masked(place):
    """A run of two epochs, and its metrics."""
    run = place / "masked"
    return run, train(place, run, *MASKED, "trainer.epochs=2")


# A training of its own


def test_a_table_without_a_target_is_trained_like_any_other(masked):
    run, found = masked
    names = {"loss", "loss_text", "loss_image", "accuracy"}
    assert {f"test/{name}" for name in names} <= set(found)
    assert {"test/loss_text[text]", "test/loss_image[image]"} <= set(found)
    assert "test/loss_image[text]" not in found
    mean = (found["test/loss_text"] + found["test/loss_image"]) / 2
    assert found["test/loss"] == pytest.approx(mean)
    losses = [row["validation/loss"] for row in log_of(run) if "validation/loss" in row]
    assert len(losses) == 2 and found["validation/best"] == min(losses)
    assert found["best_epoch"] == 1 + losses.index(min(losses))
    assert not (run / "predictions.csv").exists()
    assert all(math.isfinite(value) for key, value in found.items() if key.startswith("test/"))


def test_an_interrupted_run_resumes_bit_for_bit(place, tmp_path, masked, monkeypatch):
    asked = options(place, *MASKED, "trainer.epochs=2")
    with interrupt(monkeypatch, step=6):
        assert main(["train", *asked, f"run={tmp_path / 'cut'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    assert same_tensors(weights_of(tmp_path / "cut"), weights_of(masked[0]))
    assert same_tensors(checkpoint_of(tmp_path / "cut"), checkpoint_of(masked[0]))


def test_another_task_starts_from_what_was_learned(place, tmp_path, masked, capsys):
    run, _ = masked
    asked = [f"weights={run}", "data.target=label", *STILL, "finetune.freeze=all"]
    train(place, tmp_path / "run", *asked, table="labelled")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights:")]
    reason = "its task is masked, the task of this training is classify"
    assert lines == [f"weights: {run}: the head is not used: {reason}"]
    found, expected = weights_of(tmp_path / "run"), weights_of(run)
    kept = [name for name in found if not name.startswith("head.")]
    assert kept and all(torch.equal(found[name], expected[name]) for name in kept)


def test_masked_training_continues_with_the_same_head(place, tmp_path, masked, capsys):
    run, before = masked
    again = train(place, tmp_path / "run", f"weights={run}", *MASKED, *STILL)
    assert "weights:" not in capsys.readouterr().out
    assert again["test/loss"] == pytest.approx(before["test/loss"], abs=1e-5)


def test_evaluating_again_gives_the_metrics_of_the_run(masked, tmp_path):
    run, before = masked
    assert main(["evaluate", f"run={run}", f"output={tmp_path}"]) == 0
    keys = [key for key in before if key.startswith("test/")]
    again = metrics_of(tmp_path)
    assert {k: again[k] for k in keys} == pytest.approx({k: before[k] for k in keys})


def test_a_target_has_no_influence(place, tmp_path, masked, capsys):
    run, _ = masked
    train(place, tmp_path / "run", *MASKED, "trainer.epochs=2", table="labelled")
    assert "target: label" not in capsys.readouterr().out
    assert same_tensors(weights_of(tmp_path / "run"), weights_of(run))


def test_a_folder_of_sounds_needs_no_classes(place, tmp_path):
    data = ["data=folder", f"data.path={place / 'sounds'}", "adapters=[audio]", *SIZES["audio"]]
    asked = [*data, "head=masked", *MODEL, *CPU, "trainer.epochs=1", f"run={tmp_path / 'run'}"]
    assert main(["train", *asked]) == 0
    assert "test/loss_audio" in metrics_of(tmp_path / "run")
    labels = json.loads((tmp_path / "run" / "model" / "labels.json").read_text())
    assert labels["task"] == "masked"


def test_the_model_embeds_but_has_no_answer(masked):
    model = dxn.load(masked[0])
    assert model.embed(text="cats chase mice").shape == (14,)
    with pytest.raises(UserError, match="this model cannot predict"):
        model.predict(text="cats chase mice")


def test_what_is_hidden_is_learned_for_every_modality(place, tmp_path):
    columns = ("text", "image", "audio")
    ratios = ["head.mask_ratio.text=0.3", "head.span=3"]
    asked = ["head=masked", *ratios, "trainer.epochs=25", "optimizer.lr=0.01", "seed=1"]
    train(place, tmp_path / "run", *asked, columns=columns)
    rows = [row for row in log_of(tmp_path / "run") if "validation/loss" in row]
    for name in columns:
        # A single epoch may hide what little is left to tell.
        losses = [
            row[f"validation/loss_{name}"] for row in rows if f"validation/loss_{name}" in row
        ]
        assert sum(losses[-8:]) / 8 < 0.8 * losses[0], name


@pytest.mark.exhaustive
def test_a_picture_gives_away_a_hidden_word(place, tmp_path):
    accuracy = {}
    for columns in (("text",), ("text", "image")):
        ratios = ["head.mask_ratio.text=0.9"]
        ratios += ["head.mask_ratio.image=0"] if "image" in columns else []
        asked = ["head=masked", *ratios, "trainer.epochs=25", "optimizer.lr=0.01", "seed=1"]
        run = tmp_path / "-".join(columns)
        train(place, run, *asked, columns=columns)
        rows = [row for row in log_of(run) if "validation/accuracy" in row]
        accuracy[columns] = rows[-1]["validation/accuracy"]
    # By themselves, sentences without most of their words leave both open.
    assert accuracy["text",] < 0.85 < 0.95 < accuracy["text", "image"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["head.mask_ratio={text:0,image:0}"], "no input is masked, got the inputs text, image"),
        (["head.mask_ratio.text=1"], "head.mask_ratio: text must be less than 1, got 1"),
        (["head.span=0"], "head.span: must be at least 1, got 0"),
        (
            ["trainer.mixup=1"],
            "trainer.mixup: cannot be combined with head=masked; set trainer.mixup=0",
        ),
        (["head.mask_ratio.smell=0.5"], "head.mask_ratio.smell: there is no such input"),
    ],
)
def test_what_cannot_be_masked_is_refused_before_anything_is_written(
    place, tmp_path, capsys, asked, message
):
    run = tmp_path / "run"
    lines = refused(capsys, ["train", *options(place, "head=masked", *asked), f"run={run}"])
    assert message in "\n".join(lines)
    assert not run.exists()


# Before another task, in the same run


@pytest.fixture(scope="module")
def pretrained(place):
    """A run that is pretrained for two epochs and trained for one."""
    run = place / "pretrained"
    train(place, run, *PRETRAIN, table="labelled")
    return run


def test_a_run_is_pretrained_before_it_is_trained(place, tmp_path, capsys):
    train(place, tmp_path / "run", *PRETRAIN, table="labelled")
    shown = capsys.readouterr().out
    first, second, main_task = (
        shown.index(text)
        for text in ("pretraining epoch 1/2", "pretraining epoch 2/2", "\nepoch 1/1")
    )
    assert first < second < main_task


def test_pretraining_is_logged_checkpointed_and_saved_like_any_run(pretrained):
    folder = pretrained / "pretrain"
    losses = [r["validation/loss"] for r in log_of(folder) if "validation/loss" in r]
    assert len(losses) == 2
    assert metrics_of(folder)["validation/best"] == min(losses)
    assert has_checkpoint(folder)
    model = dxn.load(folder / "model")
    assert model.task.name == "masked" and model.embed(text="cats").shape == (14,)


@pytest.mark.parametrize("step", [5, 8], ids=["pretraining", "main task"])
def test_a_pretrained_run_resumes_bit_for_bit_from_any_step(
    place, tmp_path, pretrained, monkeypatch, step
):
    run = tmp_path / "cut"
    with interrupt(monkeypatch, step=step):
        assert main(["train", *options(place, *PRETRAIN, table="labelled"), f"run={run}"]) == 130
    assert main(["train", f"resume={run}"]) == 0
    assert same_tensors(weights_of(run), weights_of(pretrained))
    assert same_tensors(checkpoint_of(run), checkpoint_of(pretrained))
    assert log_of(run / "pretrain") == log_of(pretrained / "pretrain")


def test_a_finished_pretraining_is_not_overwritten(place, tmp_path, monkeypatch, capsys):
    command = ["train", *options(place, *PRETRAIN, table="labelled"), f"run={tmp_path / 'cut'}"]
    with interrupt(monkeypatch, step=8):
        assert main(command) == 130
    assert not has_checkpoint(tmp_path / "cut")
    (line,) = refused(capsys, command)
    assert "already contains a run; set resume=" in line


def test_the_main_task_starts_from_the_best_pretrained_weights(place, tmp_path):
    asked = [*PRETRAIN, "optimizer.lr=1e-30", "optimizer.weight_decay=0"]
    train(place, tmp_path / "run", *asked, table="labelled")
    trained = weights_of(tmp_path / "run")
    best = weights_of(tmp_path / "run" / "pretrain")
    kept = [name for name in trained if not name.startswith("head.")]
    assert kept and all(torch.equal(trained[name], best[name]) for name in kept)


def test_targets_have_no_influence_on_pretraining(place, tmp_path, pretrained):
    train(place, tmp_path / "run", *PRETRAIN, table="nonsense")
    found, expected = (weights_of(run / "pretrain") for run in (tmp_path / "run", pretrained))
    assert same_tensors(found, expected)


def test_all_parts_but_the_head_are_pretrained(place, tmp_path):
    still = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "preset=plain"]
    train(place, tmp_path / "run", *PRETRAIN, *still, table="labelled")
    # A part draws its initial weights by its name, with and without pretraining.
    train(
        place, tmp_path / "plain", "data.target=label", "trainer.epochs=1", *still, table="labelled"
    )
    initial, trained = weights_of(tmp_path / "plain"), weights_of(tmp_path / "run")
    moved = {n.split(".")[0] for n, t in trained.items() if not torch.equal(t, initial[n])}
    assert {"adapters", "fusion", "backbone"} <= moved
    heads = [name for name in trained if name.startswith("head.")]
    for name in heads:
        torch.testing.assert_close(trained[name], initial[name], rtol=0, atol=1e-20)


def test_frozen_parts_of_the_main_task_are_pretrained_all_the_same(place, tmp_path):
    train(place, tmp_path / "run", *PRETRAIN, "finetune.freeze=all", table="labelled")
    trained, best = weights_of(tmp_path / "run"), weights_of(tmp_path / "run" / "pretrain")
    kept = [name for name in trained if not name.startswith("head.")]
    assert all(torch.equal(trained[name], best[name]) for name in kept)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["pretrain.task.mask_ratio={text:0,image:0}"], "no input is masked, got the inputs text"),
        (["pretrain.task.mask_ratio.text=1"], "mask_ratio: text must be less than 1, got 1"),
        (["pretrain.epochs=0"], "pretrain.epochs: must be at least 1, got 0"),
        (["pretrain.warmup=1.0"], "pretrain.warmup: must be at least 0 and less than 1, got 1.0"),
    ],
)
def test_what_cannot_be_pretrained_is_refused_before_anything_is_written(
    place, tmp_path, capsys, asked, message
):
    run = tmp_path / "run"
    asked = options(place, *PRETRAIN, *asked, table="labelled")
    lines = refused(capsys, ["train", *asked, f"run={run}"])
    assert message in "\n".join(lines)
    assert not Path(run).exists()
