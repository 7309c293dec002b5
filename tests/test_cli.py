"""The command line: verbs, exit codes, one plain sentence for what the user can mend."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import dxn
from dxn.cli import VERBS, main

TINY = ["dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.epochs=1", "trainer.precision=float32"]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A table of titles, pictures and sounds with some cells empty, in the current folder."""
    monkeypatch.chdir(tmp_path)
    with Path("shop.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "photo", "sound", "label"])
        for i in range(41):
            Image.fromarray(np.full((11 + i % 3, 13, 3), 5 * i, np.uint8)).save(f"{i}.png")
            soundfile.write(f"{i}.wav", np.sin(np.arange(1600) / (2 + i % 2)), 8000)
            writer.writerow([f"thing number {i}", f"{i}.png" if i % 5 else "", f"{i}.wav" if i % 7 else "", i % 2])
    return tmp_path


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def failed(capsys, *arguments):
    """The sentence on stderr of a command that must end with exit code 2."""
    assert main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert said.startswith("dxn: ") and "Traceback" not in said
    return said.removeprefix("dxn: ").rstrip("\n")


@pytest.mark.parametrize("asked", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_verb(asked, capsys):
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert all(f"dxn {verb}" in shown for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_with_an_example(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"  dxn {verb}" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dxn {dxn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "trian: no such verb; did you mean train? verbs: train, evaluate"),
        (["train", "--lr=3"], "--lr=3: no such flag; options are key=value"),
        (["check", "-m", "seed=1,2"], "-m sweeps over trainings only"),
        (["train", "optimizer.lrr=1"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["train", "data=table", "data.path=no.csv"], "no.csv: no such file"),
        (["train", "data=folder", "data.path=nowhere"], "nowhere: no such folder or archive"),
        (["train", "head=regress"], "head: Regress predicts number, but the target is class"),
        (["train", "backbone.num_heads=3"], "backbone: dim must be a multiple of num_heads"),
        (
            ["train", "fusion.pool=cls", "backbone.causal=true"],
            "backbone.causal: the class and the",
        ),
        (["train", "resume=nowhere"], "nowhere: not a run folder"),
        (["evaluate", "run=nowhere"], "nowhere: not a model folder"),
        (["predict", "run=nowhere", "input.text=x"], "nowhere: not a model folder"),
        (["predict", "input.text=x"], "run: give either run=RUN, a trained model, or weights=..., a public checkpoint"),
        (["tokenize", "input=no.jpg"], "input.image: no.jpg: file not found"),
        (["tokenize", "input.smell=x"], "input.smell: no such modality"),
        (["tokenize", "adapters=[text]", "input=no.wav"], "adapters: text chosen, but the data has audio"),
    ],
)
def test_a_mistake_is_one_plain_sentence_and_leaves_nothing_behind(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = failed(capsys, *arguments)
    assert said.startswith(message)
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_bad_file_stops_training_before_anything_is_written(shop, capsys):
    (shop / "3.png").write_bytes(b"")
    said = failed(capsys, "train", "data=table", "data.path=shop.csv")
    assert "row 5: image: " in said and "empty file" in said
    assert not (shop / "outputs").exists()


def test_check_says_what_is_there_and_lists_what_is_bad(shop, capsys):
    assert main(["check", "data=table", "data.path=shop.csv"]) == 0
    assert not (shop / "bad_files.csv").exists()
    (shop / "3.png").write_bytes(b"")
    (shop / "4.wav").unlink()
    capsys.readouterr()
    assert main(["check", "data=table", "data.path=shop.csv"]) == 1
    shown = capsys.readouterr().out
    assert "bad: 1 × image empty file" in shown and "bad: 1 × audio file not found" in shown
    rows = table("bad_files.csv")
    assert {(row["row"], row["modality"], row["path"]) for row in rows} == {
        ("shop.csv row 5", "image", "3.png"),
        ("shop.csv row 6", "audio", "4.wav"),
    }


def test_from_a_table_to_answers(shop, capsys):
    assert main(["train", "data=table", "data.path=shop.csv", *TINY, "run=run"]) == 0
    missing = json.loads((shop / "run" / "metrics.json").read_text())["missing"]
    assert sum(split["image"] for split in missing.values()) == 9
    assert sum(split["audio"] for split in missing.values()) == 6

    assert main(["predict", "run=run", "input=shop.csv", "output=answers.csv"]) == 0
    rows = table("answers.csv")
    assert [row["row"] for row in rows] == [f"shop.csv row {i + 2}" for i in range(41)]
    assert all(float(row["p(0)"]) + float(row["p(1)"]) == pytest.approx(1, abs=1e-5) for row in rows)

    capsys.readouterr()
    assert main(["predict", "run=run", "input.text=thing, number 3", "input.image=3.png"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prediction"] in ("0", "1")
    assert answer == dxn.load("run").predict(text="thing, number 3", image="3.png")
    assert "none.png file not found" in failed(capsys, "predict", "run=run", "input.image=none.png")


def test_tokens_of_all_three_are_counted_and_drawn(shop, capsys):
    given = ["input.text=ab cd", "input.image=3.png", "input.audio=3.wav", "adapters.text.subwords=character"]
    assert main(["tokenize", *given, "dim=8", "adapters.image.patch_size=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "text: 8×5  a | b | · | c | d"
    assert lines[1] == "image: 8×12  3×4 patches of 4×4 pixels of 11×13 (height×width)"
    assert lines[2] == "audio: 8×6  6 frames of 0.04 s, 0.20 s at 16000 Hz"
    assert lines[3] == "matrix: 8×23, a column a token"
    with Image.open("tokens.png") as picture:
        assert picture.width == 990


def test_tags_are_learned_and_given_a_word_each(tmp_path, capsys):
    rows = [{"tokens": ["Ann", "met", "Bob"], "tags": ["B-per", "O", "B-per"]}] * 20
    path = tmp_path / "names.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["data=table", f"data.path={path}", "data.text=tokens", "data.target=tags", "optimizer.lr=0.01"]
    assert main(["train", *asked, *TINY, "trainer.epochs=20", "batch_size=4", f"run={tmp_path / 'run'}"]) == 0
    capsys.readouterr()
    assert main(["predict", f"run={tmp_path / 'run'}", "input.text=Bob met Ann"]) == 0
    assert json.loads(capsys.readouterr().out) == {"prediction": ["B-per", "O", "B-per"]}
