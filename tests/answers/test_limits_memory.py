"""A command that has too little memory ends with exit code 2 and one sentence."""

import errno
import resource
import subprocess
import sys

import pytest
from helpers.data import write_table
from PIL import Image

from dxn.cli import main
from dxn.tokenize import NumberAdapter


@pytest.fixture
def table(tmp_path):
    rows = [{"n": i / 7, "label": "ab"[i % 2]} for i in range(40)]
    return str(write_table(tmp_path / "rows.csv", rows))


def fail(error):
    def function(*_, **__):
        raise error

    return function


def error_of(capsys, arguments):
    capsys.readouterr()
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_limit_in_which_torch_cannot_be_imported_is_named(table):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))

    command = [sys.executable, "-m", "dxn", "check", table, "target=label"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr == (
        "dxn: out of memory: the limit of the address space (ulimit -v) is 1.0 GB, in which "
        "PyTorch cannot be imported; raise it, or remove it with ulimit -v unlimited\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        SystemError("error return without exception set"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_too_little_memory_for_a_part_of_the_model_is_no_wrong_option(
    error, table, monkeypatch, capsys
):
    monkeypatch.setattr(NumberAdapter, "fit", fail(error))
    line = error_of(capsys, ["check", table, "target=label"])
    assert line.startswith("dxn: out of memory; close other programs")


@pytest.mark.parametrize(
    "error", [MemoryError(), SystemError("error return without exception set")]
)
def test_too_little_memory_to_build_a_part_is_no_wrong_option(error, table, monkeypatch, capsys):
    monkeypatch.setattr("torch.nn.init.uniform_", fail(error))
    line = error_of(capsys, ["check", table, "target=label"])
    assert line.startswith("dxn: out of memory; close other programs")


def test_a_picture_for_which_the_memory_is_too_small_is_not_left_out_as_damaged(
    tmp_path, monkeypatch, capsys
):
    for i in range(12):
        (tmp_path / "pictures" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "pictures" / "ab"[i % 2] / f"{i}.png")
    monkeypatch.setattr("dxn.tokenize.image.reader.ImageReader._decode", fail(MemoryError()))
    options = ["data.on_bad=skip", f"run={tmp_path / 'run'}"]
    line = error_of(capsys, ["train", str(tmp_path / "pictures"), *options])
    assert line.startswith("dxn: out of memory; close other programs")
