"""The command line: commands, exit codes, and one plain sentence for a problem of the user's."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import dxn
from dxn.cli import EXAMPLES, VERBS, main

TINY = [
    "dim=16",
    "backbone.depth=1",
    "backbone.num_heads=2",
    "trainer.epochs=1",
    "trainer.precision=float32",
    "trainer.device=cpu",
]


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A table of titles, pictures and recordings with empty cells, in the current folder."""
    monkeypatch.chdir(tmp_path)
    with Path("shop.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["title", "photo", "sound", "label"])
        for i in range(41):
            pixels = np.full((11 + i % 3, 13, 3), 5 * i, np.uint8)
            Image.fromarray(pixels).save(f"{i}.png")
            soundfile.write(f"{i}.wav", np.sin(np.arange(1600) / (2 + i % 2)), 8000)
            photo = f"{i}.png" if i % 5 else ""
            sound = f"{i}.wav" if i % 7 else ""
            writer.writerow([f"thing number {i}", photo, sound, i % 2])
    return tmp_path


def table(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def failed(capsys, *arguments):
    """What a command prints to stderr that must end with exit code 2."""
    assert main(list(arguments)) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("dxn: ")
    assert "Traceback" not in printed
    return printed.removeprefix("dxn: ").rstrip("\n")


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_verb(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f"dxn {verb}" in printed for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("form", [["{}", "--help"], ["help", "{}"]])
def test_each_verb_has_help_with_examples(verb, form, capsys):
    assert main([word.format(verb) for word in form]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {example}" in printed for example in EXAMPLES[verb])


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dxn {dxn.__version__}\n"


def test_an_unknown_command_is_named_with_the_known_ones(capsys):
    commands = f"Commands: {', '.join(VERBS)}"
    assert failed(capsys, "xyzzy") == f"'xyzzy' is not a command. {commands}"
    expected = f"'trian' is not a command; did you mean train? {commands}"
    assert failed(capsys, "trian") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--lr=3"], "--lr=3: no such flag; options are written key=value"),
        (["check", "-m", "seed=1,2"], "-m: only dxn train can run a sweep, got dxn check"),
        (["train", "optimizer.lrr=1"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["train", "backbone.num_heads=3"], "backbone: dim must be a multiple of num_heads"),
        (["train", "resume=nowhere"], "nowhere: not a run folder"),
        (["evaluate", "run=nowhere"], "nowhere: not a "),
        (["predict", "run=nowhere", "input.text=x"], "nowhere: not a "),
        (["predict", "run=nowhere"], "input: needs a value, input=..."),
        (["predict", "input.text=x"], "run: "),
        (["train", "data=table", "data.path=no.csv"], "no.csv: "),
        (["train", "data=folder", "data.path=nowhere"], "nowhere: "),
        (["tokenize", "input=no.jpg"], "input.image: no.jpg: "),
        (["tokenize", "input.smell=x"], "input.smell: "),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    arguments, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    printed = failed(capsys, *arguments)
    assert printed.startswith(expected)
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_file_stops_training_before_anything_is_written(shop, capsys):
    (shop / "3.png").write_bytes(b"")
    printed = failed(capsys, "train", "data=table", "data.path=shop.csv")
    assert "row 5" in printed
    assert "empty file" in printed
    assert not (shop / "outputs").exists()


def test_check_reports_the_contents_and_lists_what_is_unreadable(shop, capsys):
    assert main(["check", "data=table", "data.path=shop.csv"]) == 0
    assert not (shop / "bad_files.csv").exists()
    (shop / "3.png").write_bytes(b"")
    (shop / "4.wav").unlink()
    capsys.readouterr()
    assert main(["check", "data=table", "data.path=shop.csv"]) == 1
    paths = {row["path"] for row in table("bad_files.csv")}
    assert {Path(path).name for path in paths} == {"3.png", "4.wav"}


def test_a_table_becomes_a_model_that_answers(shop, capsys):
    assert main(["train", "data=table", "data.path=shop.csv", *TINY, "run=run"]) == 0
    assert (shop / "run" / ".hydra" / "config.yaml").exists()

    assert main(["predict", "run=run", "input=shop.csv", "output=answers.csv"]) == 0
    assert len(table("answers.csv")) == 41

    capsys.readouterr()
    sample = ["input.text=thing, number 3", "input.image=3.png"]
    assert main(["predict", "run=run", *sample]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["prediction"] in ("0", "1")
    assert answer == dxn.load("run").predict(text="thing, number 3", image="3.png")
    assert "none.png" in failed(capsys, "predict", "run=run", "input.image=none.png")


@pytest.mark.parametrize("text", ["42", "true", "100% ${HOME} blue", "[a]"])
def test_any_text_is_an_input(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tokenize", f"input.text={text}", "dim=8", "adapters=[text]"]) == 0
    assert capsys.readouterr().out.startswith("text: 8×")


def test_tokens_of_all_inputs_are_counted_and_drawn(shop, capsys):
    inputs = ["input.text=ab cd", "input.image=3.png", "input.audio=3.wav"]
    changed = ["adapters.text.tokenizer.kind=character", "adapters.image.patch_size=4", "dim=8"]
    assert main(["tokenize", *inputs, *changed]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "text: 8×5  a | b | · | c | d"
    assert lines[1].startswith("image: 8×12  ")
    assert lines[2].startswith("audio: 8×6  ")
    assert lines[3].startswith("matrix: 8×23")
    with Image.open("tokens.png") as picture:
        assert picture.width > 500


def test_show_prints_every_value(capsys):
    assert main(["show", "experiment=trec", "data.path=x"]) == 0
    printed = capsys.readouterr().out
    assert "qk_norm: false" in printed
    assert "label_smoothing" in printed
