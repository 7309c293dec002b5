"""What a killed command leaves behind, and arguments that are not text."""

import signal
import subprocess
import sys

import pytest
from helpers.newcomer import refused

from dxn.core.files import atomic_file, replace_folder, write_text

# Starts to write a file or a folder, and is killed.
KILLED = """
import os, sys
from pathlib import Path
from dxn.core.files import {function}
with {function}(Path(sys.argv[1])) as partial:
    (partial if partial.suffix else partial / "part").write_text("half")
    os.kill(os.getpid(), 9)
"""


def kill_while_writing(path, function):
    command = [sys.executable, "-c", KILLED.format(function=function), str(path)]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_the_next_prediction_removes_the_file_of_a_killed_one(tmp_path):
    path = tmp_path / "predictions.csv"
    other = tmp_path / "other.csv"
    for each in (path, path, other):
        kill_while_writing(each, "atomic_file")
    assert len(list(tmp_path.iterdir())) == 2  # the second call removed that of the first
    write_text(path, "whole")
    # The unfinished file of another path is left to the next command that writes this path.
    left = [file.name for file in tmp_path.iterdir()]
    assert len(left) == 2 and "predictions.csv" in left and path.read_text() == "whole"
    write_text(other, "whole")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.csv", "predictions.csv"]


def test_the_next_folder_replaces_that_of_a_killed_process(tmp_path):
    kill_while_writing(tmp_path / "model", "replace_folder")
    with replace_folder(tmp_path / "model") as folder:
        (folder / "part").write_text("whole")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_the_file_of_a_running_process_is_kept(tmp_path):
    path = tmp_path / "predictions.csv"
    with atomic_file(path) as first:
        first.write_text("first")
        write_text(path, "second")
        assert first.exists() and path.read_text() == "second"
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["predictions.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "caf\udce9.csv"],
        ["predict", "run=x", "input=\udcff"],
        ["\udcff"],
        ["help", "\udcff"],
    ],
)
def test_an_argument_that_is_not_valid_utf_8_is_named(capsys, arguments):
    error = refused(capsys, *arguments)
    assert "must be valid UTF-8" in error and r"\udc" in error
