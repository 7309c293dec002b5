"""The command line: commands, exit codes, and one plain sentence for a problem of the user's."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import dxn
from dxn.cli import main
from dxn.commands import VERBS, command
from dxn.core.errors import Interrupted

TINY = [
    "dim=16",
    "backbone.depth=1",
    "backbone.num_heads=2",
    "trainer.epochs=1",
    "trainer.precision=float32",
    "trainer.device=cpu",
]


pytestmark = pytest.mark.usefixtures("stored_signatures")


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
    assert all(f"  {example}" in printed for example in command(verb).usage)


def help_of(capsys, *words):
    assert main(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_help_of_training_has_the_keys_that_everybody_needs(capsys):
    page = help_of(capsys, "train", "--help")
    for key in ("PATH", "target=", "data.text", "adapters=", "backbone=", "trainer.epochs=20"):
        assert f" {key}" in page
    for key in ("optimizer.lr=", "batch_size=", "seed=0", "output=", "run=", "resume=", "weights="):
        assert f" {key}" in page
    assert help_of(capsys, "train", "reviews.csv", "-h") == page
    # A search continues with its folder.
    search = help_of(capsys, "tune", "--help")
    assert " trials=" in search and " run=" in search and "resume" not in search


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("data=table", "data.on_bad=error What to do with a bad row: error (stop)"),
        ("trainer.patience", "trainer.patience="),
        ("patience", "trainer.patience="),
        ("trainer", "trainer=default: The training loop. trainer.epochs="),
        ("backbone=small", "backbone.depth=12 Number of blocks."),
        ("backbone", "backbone=tiny A transformer of 6 blocks, width 192."),
        (
            "backbone.norm",
            "backbone.norm.eps=1.0e-05 Constant added to the variance. Type:",
        ),
        ("adapters=[text,image]", "adapters.image.patch_size="),
        ("head.decoder.depth", "Number of layers"),
        ("head.decoder.backbone", "dxn.models.Backbone"),
        ("target", "Column to predict."),
        ("weights", "Used by: dxn train, dxn tune, dxn check, dxn show."),
        ("split", "Used by: dxn evaluate."),
        ("pretrain.epochs", "pretrain.epochs=10 number of passes over the training split"),
    ],
)
def test_a_group_an_option_and_a_key_have_help(topic, expected, capsys):
    assert expected in help_of(capsys, "help", topic)


def test_the_help_of_an_option_can_follow_a_command(capsys):
    page = help_of(capsys, "help", "data=table")
    assert help_of(capsys, "train", "data=table", "--help") == page
    assert help_of(capsys, "help", "train", "data=table") == page


def test_the_files_of_the_user_have_help(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "toy_help.py").write_text('''
class Smell:
    """Smells.

    Args:
        dim: Width of a token.
        nose: Number of noses.
    """

    def __init__(self, dim: int, nose: int = 1):
        pass
''')
    (tmp_path / "conf" / "adapters").mkdir(parents=True)
    text = "# A smell.\nsmell:\n  _target_: toy_help.Smell\n"
    (tmp_path / "conf" / "adapters" / "smell.yaml").write_text(text)
    page = help_of(capsys, "help", "adapters=smell", f"conf_dir={tmp_path / 'conf'}")
    assert "adapters.smell.nose=1 Number of noses. Type: a whole number." in page


@pytest.mark.parametrize("verb", VERBS)
def test_no_section_of_a_help_page_is_empty(verb, capsys):
    main([verb, "--help"])
    sections = capsys.readouterr().out.split("\n\n")
    assert all(len(section.splitlines()) > 1 for section in sections if section.endswith(":"))
    assert all(section.strip() for section in sections)


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
        (["tune", "optimizer.lrr=1..2"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["train", "optimizer.lrr=1"], "optimizer.lrr: no such key; did you mean optimizer.lr?"),
        (["train", "backbone.num_heads=3"], "backbone: dim must be a multiple of num_heads"),
        (["train", "resume=nowhere"], "resume: folder not found: nowhere (current directory: "),
        (["train", "resume=latest"], "resume: folder not found: outputs"),
        (["evaluate", "run=nowhere"], "run: folder not found: nowhere"),
        (["predict", "run=nowhere", "input.text=x"], "run: folder not found: nowhere"),
        (["predict", "run=.", "input.text=x"], "run: .: not a run folder, and no folder in it"),
        (["predict", "run=.", "new.csv", "batch_size=abc"], "batch_size: must be a whole number"),
        (["predict", "run=nowhere"], "input: needs a value, input=..."),
        (["predict", "input.text=x"], "run: "),
        (
            ["train", "data=table", "data.path=no.csv"],
            "data.path: file or folder not found: no.csv",
        ),
        (["train", "no.csv"], "data.path: file or folder not found: no.csv"),
        (["train", "data=folder", "data.path=nowhere"], "data.path: file or folder not found: "),
        (["train", "data.train=no.csv"], "data.train: file or folder not found: no.csv"),
        (
            ["train", "weights=nowhere"],
            "weights: file or folder not found: nowhere (current",
        ),
        (["train", "weights=./model/a"], "weights: file or folder not found: ./model/a"),
        (["train", "weights.adapters.text=x"], "weights.adapters.text: file or folder not found"),
        (["train", "trainer.device=mps"], "trainer.device: mps is not available: "),
        (["train", "output=/dev/null/x"], "output: /dev/null is a file, so /dev/null/x cannot"),
        (["help", "patiense"], "patiense: no such command, group or key; did you mean trainer.pat"),
        (["help", "data=tabel"], "data=tabel: no such option; did you mean table?"),
        (
            ["help", "zzzzzz"],
            "zzzzzz: no such command, group or key; dxn --help lists the commands",
        ),
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
    sample = ["input.title=thing, number 3", "input.photo=3.png"]
    assert main(["predict", "run=run", *sample]) == 0
    printed = capsys.readouterr().out
    answer = dxn.load("run").predict(title="thing, number 3", photo="3.png")["prediction"]
    assert answer in ("0", "1")
    assert f"prediction: {answer}\n" in printed
    assert "none.png" in failed(capsys, "predict", "run=run", "input.photo=none.png")


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


# Every command line here is answered without the packages that take seconds to import.
SLOW = ("torch", "matplotlib", "pyarrow", "torchaudio", "numpy")


SMALL_COMMANDS = [
    ["--version"],
    ["--completion", "bash"],
    ["--complete", "dxn train backbone=gr"],
    ["help"],
    ["train", "--help"],
    ["help", "data=table"],
    ["help", "trainer.patience"],
    ["show", "reviews.csv", "target=label"],
    ["train", "trainer.epoch=3"],
    ["train", "trainer.epochs=many"],
    ["train", "backbone=smal"],
    ["train", "loss=focal"],
    ["train", "nothing.csv"],
    ["train", "-m", "seed=1,2", "optimizer.lrr=1"],
    ["train", "weights=nowhere"],
    ["train", "resume=nowhere"],
    ["check", "data.path=nothing.csv", "target=x"],
    ["predict", "run=nowhere", "input.text=x"],
    ["predict", "run=x", "input.text=x", "device=gpu"],
]


def test_small_commands_import_no_large_package(tmp_path):
    code = f"""
import sys
from dxn.cli import main
for words in {SMALL_COMMANDS}:
    main(words)
    print("imported:", *(name for name in {SLOW} if name in sys.modules), "after", *words)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    imported = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert imported == [f"imported: after {' '.join(words)}" for words in SMALL_COMMANDS]


def test_a_wrong_path_of_a_checkpoint_is_not_searched_on_the_hub(shop, capsys):
    (shop / "outputs" / "label").mkdir(parents=True)
    wrong = failed(capsys, "train", "weights=outputs/lable")
    assert wrong.endswith("did you mean outputs/label?")
    wrong = failed(capsys, "embed", "weights=nowhere", "input.text=x")
    assert wrong.endswith("a model on the hub is written OWNER/NAME")


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("predict", "input: runs/one is the folder of a run; write run=runs/one to use its model"),
        ("evaluate", "input: runs/one is the folder of a run; write run=runs/one to use its model"),
        ("embed", "input: runs/one is the folder of a run; write run=runs/one to use its model"),
        ("train", "data.path: runs/one is the folder of a run; choose the path of data, or"),
    ],
)
def test_a_run_folder_without_its_key_is_recognized(verb, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in (".hydra", "model"):
        (tmp_path / "runs/one" / folder).mkdir(parents=True)
        (tmp_path / "runs/one" / folder / "config.yaml").write_text("")
    assert main([verb, "runs/one"]) == 2
    assert f"dxn: {message}" in capsys.readouterr().err


def test_the_newest_run_of_a_folder_is_used_and_named(shop, capsys):
    for name in ("first", "second"):
        options = [*TINY, "adapters=[text]", f"run=runs/{name}"]
        assert main(["train", "shop.csv", "target=label", *options]) == 0
    os.utime(shop / "runs/first/.hydra/config.yaml", (0, 0))
    capsys.readouterr()
    assert main(["predict", "run=runs", "input.title=thing"]) == 0
    assert capsys.readouterr().out.startswith("run: runs/second (newest of 2)\n")
    wrong = failed(capsys, "predict", "run=runs/frist", "input.text=x")
    assert "did you mean runs/first?" in wrong


def test_an_interruption_says_how_to_continue(monkeypatch, capsys):
    def stopped(command):
        raise Interrupted("interrupted; continue with dxn train resume=R")

    monkeypatch.setattr("dxn.commands.train.Train.execute", stopped)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "dxn: interrupted; continue with dxn train resume=R\n"


def test_a_file_that_cannot_be_written_is_one_sentence(monkeypatch, capsys):
    def fails(command):
        Path("/proc/x").mkdir()

    monkeypatch.setattr("dxn.commands.train.Train.execute", fails)
    assert failed(capsys, "train").startswith("/proc/x: No such file or directory; with DXN_DEBUG")


def test_show_prints_what_still_needs_a_value(capsys):
    assert main(["show", "data=folder"]) == 0
    assert "path: ???" in capsys.readouterr().out


def test_show_prints_every_value(capsys):
    assert main(["show", "experiment=trec", "data.path=x"]) == 0
    printed = capsys.readouterr().out
    assert "qk_norm: false" in printed
    assert "label_smoothing" in printed


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        ImportError("ft2font.so: failed to map segment from shared object"),
    ],
)
def test_short_memory_outside_of_the_training_is_one_sentence(monkeypatch, capsys, error):
    def fails(command):
        raise error

    monkeypatch.setattr("dxn.commands.train.Train.execute", fails)
    assert main(["train"]) == 2
    assert capsys.readouterr().err.startswith("dxn: out of memory; close other programs")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["baseline=always", "dim=8", "baseline=none"],
            "dxn: baseline: must be one value, got baseline=always and baseline=none; leave one of "
            "them out",
        ),
        (
            ["target=a", "data.target=b"],
            "dxn: data.target: must be one value, got target=a and data.target=b; leave one of "
            "them out",
        ),
        (
            ["data.path=0.tar", "data.path=1.tar"],
            "dxn: data.path: must be one value, got data.path=0.tar and data.path=1.tar; put a "
            "range such as {000..099} in quotes: 'data.path=...'",
        ),
    ],
)
def test_an_option_that_is_typed_twice_is_refused(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dxn", "train", *words])
    assert main() == 2
    assert capsys.readouterr().err.splitlines() == [message]


def test_a_program_may_put_its_own_options_after_others(capsys):
    assert main(["show", "dim=8", "dim=16", "backbone.num_heads=2"]) == 0
    assert "dim: 16" in capsys.readouterr().out
