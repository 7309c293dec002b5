"""Files of answers that are written batch by batch, and continued after a killed command."""

import json
import signal
import subprocess
import sys

import pytest
from helpers.newcomer import TEXT, TINY, printed, read_csv, refused, texts, write_csv
from helpers.newcomer import run as exit_code

from dxn.runs.predictor import resumable

ROWS = 150
SIZE = 8
# Kills itself before it writes the sixth batch, when four batches are known to be complete.
KILLED = """
import os, sys
from dxn.cli import main
from dxn.runs.predictor import resumable
write = resumable.RowWriter.write
resumable.INTERVAL = 0
def kill(self, batch, answers):
    if batch == 5:
        os.kill(os.getpid(), 9)
    write(self, batch, answers)
resumable.RowWriter.write = kill
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table and an ensemble, whose members have a baseline."""
    folder = tmp_path_factory.mktemp("answers")
    rows = [(f"{text} {i}", i % 3) for i, text in enumerate(texts(ROWS))]
    write_csv(folder / "t.csv", ["text", "label"], rows)
    options = [f"run={folder / 'run'}", "target=label", "ensemble=2"]
    assert exit_code("train", folder / "t.csv", *options, *TEXT, *TINY) == 0
    assert (folder / "run/model/stack.json").is_file()
    return folder


@pytest.fixture
def words(place, tmp_path):
    """The words of a command that writes a file."""

    def of(name, verb="predict", *options):
        size = [] if verb == "tokenize" else [f"batch_size={SIZE}"]
        known = [f"run={place / 'run'}", f"input={place / 't.csv'}", *size, *options]
        return [verb, *known, f"output={tmp_path / name}"]

    return of


def names(folder):
    return sorted(file.name for file in folder.iterdir())


class Killed(BaseException):
    """In place of a signal, which would end the tests too."""


@pytest.fixture
def kill(monkeypatch, capsys, tmp_path):
    """Run a command that ends when it writes a batch, and leaves a half-written row."""
    write = resumable.RowWriter.write
    monkeypatch.setattr(resumable, "INTERVAL", 0)
    monkeypatch.setattr("dxn.runs.tokenize.BATCH_SIZE", SIZE)

    def of(words, last):
        def stop(self, batch, answers):
            write(self, batch, answers)
            if batch == last:
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(resumable.RowWriter, "write", stop)
            exit_code(*words)
        name = words[-1].rpartition("/")[2]
        assert not (tmp_path / name).exists()
        with (tmp_path / f"{name}.part").open("ab") as file:
            file.write(b"half a row")
        capsys.readouterr()

    return of


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("predict", "a.csv"),
        ("predict", "a.jsonl"),
        ("predict", "a.json"),
        ("predict", "a.parquet"),
        ("embed", "v.npy"),
        ("tokenize", "k.npz"),
    ],
)
def test_a_killed_command_continues_to_the_same_bytes(words, kill, capsys, tmp_path, verb, name):
    whole = printed(capsys, *words(name, verb))
    contents = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert f"{ROWS} rows" in whole and name in contents
    for file in contents:
        (tmp_path / file).unlink()
    for last in (3, 7, 7, 12):  # also without any progress
        kill(words(name, verb), last)
    again = printed(capsys, *words(name, verb))
    assert f"continuing: {tmp_path / name}.part has {12 * SIZE} rows" in again
    assert again.splitlines()[-1] == whole.splitlines()[-1]
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == contents


@pytest.mark.exhaustive
def test_a_command_that_the_system_kills_continues(words, capsys, tmp_path):
    command = [sys.executable, "-c", KILLED, *words("a.parquet")]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert names(tmp_path) == ["a.parquet.part", "a.parquet.part.json"]
    assert f"has {4 * SIZE} rows" in printed(capsys, *words("a.parquet"))
    assert names(tmp_path) == ["a.parquet"]


def test_another_input_or_option_starts_again(place, words, kill, capsys, tmp_path):
    note = "a.csv.part is not continued: the input, the model or an option has changed"
    kill(words("a.csv"), 9)
    assert note in printed(capsys, *words("a.csv", "predict", "keep=[label]"))
    assert len(read_csv(tmp_path / "a.csv")) == ROWS
    (tmp_path / "a.csv").unlink()
    kill(words("a.csv"), 9)
    table = place / "t.csv"
    before = table.read_text()
    table.write_text(before.replace(" 140", " 141"))
    assert note in printed(capsys, *words("a.csv"))
    table.write_text(before)


def test_the_file_of_another_program_is_not_overwritten(words, capsys, tmp_path):
    (tmp_path / "a.csv.part").write_text("half of a download")
    line = refused(capsys, *words("a.csv"))
    assert "a.csv.part exists, but a.csv.part.json, which describes it, does not; move" in line
    assert (tmp_path / "a.csv.part").read_text() == "half of a download"


def test_an_error_before_the_first_batch_leaves_nothing(words, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("dxn.training.predict.check_finite", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exit_code(*words("a.csv"))
    assert names(tmp_path) == []


@pytest.mark.parametrize(("verb", "name"), [("embed", "v.npy"), ("tokenize", "k.npz")])
def test_rows_without_any_answer_write_no_file(words, capsys, tmp_path, monkeypatch, verb, name):
    monkeypatch.setattr("dxn.training.predict.run_batches", lambda *_, **__: iter(()))
    monkeypatch.setattr("dxn.runs.tokenize.run_batches", lambda *_, **__: iter(()))
    line = refused(capsys, *words(name, verb))
    assert f"none of the {ROWS} rows has an answer; check the files" in line
    assert names(tmp_path) == []


def test_an_ensemble_with_baselines_has_equal_answers_for_any_batch_size(words, tmp_path):
    answers = []
    for size in (1, SIZE, ROWS):
        assert exit_code(*words("a.json", "predict", f"batch_size={size}")) == 0
        answers.append(json.loads((tmp_path / "a.json").read_text()))
    for row in zip(*answers, strict=True):
        numbers = [[value for key, value in each.items() if key[:2] == "p("] for each in row]
        assert numbers[0] == pytest.approx(numbers[1], abs=3e-6)
        assert numbers[2] == pytest.approx(numbers[1], abs=3e-6)
