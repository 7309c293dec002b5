"""head=masked: a training whose task is to guess what is hidden, and the training that starts from it."""

import csv
import json
import math

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file

import dxn
from dxn.cli import main
from dxn.data.rows import Rows
from dxn.data.samples import Samples, open_rows
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Backbone, EarlyFusion, Masked, Model
from dxn.models.hiding import Hiding
from dxn.models.masked import guess_figures
from dxn.tokenize import ImageAdapter, TextAdapter
from dxn.train.evaluate import figures, predict
from dxn.train.loop import Run

SENTENCES = ["cats chase mice", "dogs chew bones"] * 6
FAST = ["trainer.precision=float32", "trainer.device=cpu", "batch_size=5", "dim=14", "backbone.num_heads=2"]
FAST += [
    "backbone.depth=1",
    "adapters.text.subwords=word",
    "adapters.image.patch_size=4",
    "adapters.image.image_size=12",
]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_curves(monkeypatch):
    """They take most of a tiny run, and are looked at elsewhere."""
    monkeypatch.setattr("dxn.train.report.draw", lambda *_: None)
    monkeypatch.setattr("dxn.train.outcome.draw_tokens", lambda *_: None)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """rows.csv of text and image, and for some a label."""
    folder = tmp_path_factory.mktemp("masked")
    random, rows = np.random.default_rng(0), []
    pictures = random.integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    for i in range(17):
        Image.fromarray(pictures[i % 2]).save(folder / f"{i}.png")
        split = ("train", "train", "validation", "test")[i % 4]
        rows.append({"text": SENTENCES[i % 2], "image": f"{i}.png", "label": "xy"[i % 2], "split": split})
    for name, columns in (("rows", ["text", "image", "split"]), ("labelled", list(rows[0]))):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
    for place, count in (("a", 3), ("b", 4)):
        (folder / "sounds" / place).mkdir(parents=True)
        for i in range(count):
            soundfile.write(folder / "sounds" / place / f"{i}.wav", random.normal(0, 0.1, 1600), 8000)
    return folder


def train(folder, run, *asked, name="rows", columns=("text", "image")):
    given = [f"data.{column}={column}" for column in columns]
    data = ["data=table", f"data.path={folder / name}.csv", *given, f"adapters=[{','.join(columns)}]"]
    assert main(["train", *data, *FAST, *asked, f"run={run}"]) == 0
    return json.loads((run / "metrics.json").read_text())


@pytest.fixture(scope="module")
def pretrained(table, tmp_path_factory):
    """A run of two epochs, and its metrics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dxn.train.report.draw", lambda *_: None)
        run = tmp_path_factory.mktemp("run") / "run"
        return run, train(table, run, "head=masked", "head.hiding.text=0.5", "trainer.epochs=2")


def test_a_table_without_a_target_is_trained_on_like_any_other(pretrained):
    run, found = pretrained
    names = {"loss", "loss_text", "loss_image", "accuracy"}
    assert {f"test/{name}" for name in names} <= set(found)
    assert {"test/loss_text[text]", "test/loss_image[image]"} <= set(found)
    assert "test/loss_image[text]" not in found
    assert found["test/loss"] == pytest.approx((found["test/loss_text"] + found["test/loss_image"]) / 2)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    validated = [line["validation/loss"] for line in lines if "validation/loss" in line]
    assert len(validated) == 2 and found["validation/best"] == min(validated)
    assert found["best_epoch"] == 1 + validated.index(min(validated))
    assert not (run / "predictions.csv").exists()
    assert all(math.isfinite(value) for key, value in found.items() if key.startswith("test/"))


def test_a_run_that_was_cut_off_goes_on_to_the_bit(table, tmp_path, pretrained, monkeypatch):
    run, _ = pretrained
    epoch = Run.epoch

    def cut_off(self):
        if self.state.epoch == 1:
            raise RuntimeError("power cut")
        epoch(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "epoch", cut_off)
        with pytest.raises(RuntimeError, match="power cut"):
            train(table, tmp_path / "cut", "head=masked", "head.hiding.text=0.5", "trainer.epochs=2")
    assert main(["train", f"resume={tmp_path / 'cut'}"]) == 0
    for name in ("model/model.safetensors", "checkpoints/last.safetensors"):
        found, whole = load_file(tmp_path / "cut" / name), load_file(run / name)
        assert found.keys() == whole.keys() and all(torch.equal(found[n], t) for n, t in whole.items())


def test_the_task_is_then_learned_from_what_was_kept(table, tmp_path, pretrained, capsys):
    run, _ = pretrained
    still = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.epochs=1", "finetune.freeze=all"]
    train(table, tmp_path / "run", f"weights={run}", "head=auto", "data.target=label", *still, name="labelled")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights:")]
    assert lines == [f"weights: {run}: the head starts at random: theirs is for masked, here it is class"]
    found, expected = (load_file(place / "model" / "model.safetensors") for place in (tmp_path / "run", run))
    kept = [name for name in found if not name.startswith("head.")]
    assert kept and all(torch.equal(found[name], expected[name]) for name in kept)


def test_guessing_goes_on_in_another_run_with_the_guessers_too(table, tmp_path, pretrained, capsys):
    run, _ = pretrained
    still = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.epochs=1"]
    again = train(table, tmp_path / "run", f"weights={run}", "head=masked", "head.hiding.text=0.5", *still)
    assert "weights:" not in capsys.readouterr().out
    assert again["test/loss"] == pytest.approx(json.loads((run / "metrics.json").read_text())["test/loss"], abs=1e-5)


def test_a_target_plays_no_part(table, tmp_path, pretrained, capsys):
    run, _ = pretrained
    train(table, tmp_path / "run", "head=masked", "head.hiding.text=0.5", "trainer.epochs=2", name="labelled")
    assert "target: label" not in capsys.readouterr().out.replace("note: target: column label", "")
    found, expected = (load_file(place / "model" / "model.safetensors") for place in (tmp_path / "run", run))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_folder_of_sounds_needs_no_classes(table, tmp_path):
    sounds = [f"data.path={table / 'sounds'}", "adapters=[audio]", "adapters.audio.sample_rate=8000"]
    asked = ["head=masked", "data=folder", *sounds, *FAST[:6], "trainer.epochs=1", f"run={tmp_path / 'run'}"]
    assert main(["train", *asked]) == 0
    assert "test/loss_audio" in json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert json.loads((tmp_path / "run" / "model" / "labels.json").read_text())["kind"] == "masked"


def test_it_embeds_but_has_no_answer(pretrained):
    model = dxn.load(pretrained[0])
    assert model.embed(text="cats chase mice").shape == (14,)
    with pytest.raises(UserError, match="only guesses what is hidden: train one that answers from it"):
        model.predict(text="cats chase mice")


# The same places


def made(*, share=0.5, image_share=0.5, augment=False, seed=0):
    torch.manual_seed(3)
    adapters = {"text": TextAdapter(14, subwords="word").fit(SENTENCES), "image": ImageAdapter(14, image_size=None)}
    pictures = [Image.fromarray(np.full((33, 47, 3), 20 * i, np.uint8)) for i in range(12)]
    rows = Rows({"text": SENTENCES, "image": pictures}, [str(i) for i in range(12)])
    prepares = {name: adapter.prepare for name, adapter in adapters.items()}
    opened = open_rows(rows, prepares, need_target=False)
    samples = Samples(opened, prepares, target=Target("masked"), seed=seed, augment=augment)
    head = Masked(14, hiding=Hiding(text=share, image=image_share))
    backbone = Backbone(14, depth=1, num_heads=2)
    fusion = EarlyFusion(14, modalities=list(adapters))
    return Model(adapters, fusion=fusion, backbone=backbone, head=head), samples


def hidden(model, samples, epoch, rows=range(7)):
    batch = samples.collate([samples[epoch, i] for i in rows])
    return {name: h.columns for name, h in model.shown(batch)["hidden"].items()}


def test_validation_hides_the_same_places_every_epoch_and_training_others():
    for augment in (False, True):
        model, samples = made(augment=augment)
        first, again, later = (hidden(model, samples, epoch) for epoch in (0, 0, 1))
        for name in ("text", "image"):
            assert torch.equal(first[name], again[name])
            assert torch.equal(first[name], later[name]) != augment


def test_the_seed_decides_the_places():
    one, other = (hidden(*made(augment=True, seed=seed), 0) for seed in (0, 1))
    assert not torch.equal(one["text"], other["text"])


def test_evaluating_twice_gives_the_same_figures_and_batches_add_up():
    model, samples = made()
    found = [
        figures(predict(model, samples, samples.target, batch_size=5, device=CPU), samples, samples.target)
        for _ in range(2)
    ]
    assert found[0] == found[1] and set(found[0]) == {"loss", "loss_text", "accuracy", "loss_image"}
    whole = predict(model, samples, samples.target, batch_size=12, device=CPU)
    batch = samples.collate([samples[0, i] for i in range(12)])
    model.eval()
    torch.testing.assert_close(whole.predicted[0], model(batch).double())


def test_the_figures_are_sums_over_counts():
    found = torch.tensor([[6.0, 4, 3], [0, 0, 0], [5, 2, 0]])
    assert guess_figures(found) == {"loss_text": 1.5, "accuracy": 0.75, "loss_audio": 2.5}
    assert float(Masked(14).loss(found)) == pytest.approx((1.5 + 2.5) / 2)


def test_a_batch_of_which_nothing_is_hidden_is_stepped_over():
    model, samples = made(share=1e-9, image_share=0)
    batch = samples.collate([samples[0, i] for i in range(3)])
    loss = model.head.loss(model(batch))
    loss.backward()
    assert float(loss.detach()) == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_what_is_not_hidden_is_seen_as_it_is_without_a_target():
    model, samples = made()
    batch = samples.collate([samples[0, i] for i in range(3)])
    plain = {name: value for name, value in batch.items() if name != "target"}
    assert model.shown(plain) == plain and "hidden" in model.shown(batch)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ["head.hiding.text=0", "head.hiding.image=0"],
            "head.hiding: nothing is hidden of text, image; raise its share",
        ),
        (["head.hiding.text=1"], "head.hiding: text must be at least 0 and under 1, got 1"),
        (["head.hiding.span=0"], "head.hiding: span must be at least 1, got 0"),
        (["trainer.mixup=1"], "trainer.mixup: what is hidden of two samples cannot be mixed"),
        (["adapters.image.token_dropout=0.5"], "adapters.image.token_dropout: not for head=masked"),
    ],
)
def test_what_cannot_be_hidden_is_refused_and_nothing_is_written(table, tmp_path, capsys, asked, said):
    given = ["data=table", f"data.path={table / 'rows.csv'}", "adapters=[text,image]", *FAST]
    assert main(["train", "head=masked", *given, *asked, f"run={tmp_path / 'run'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
