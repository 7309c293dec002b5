"""Wrong arguments end a command before torch is imported: one sentence, exit code 2."""

import os
import subprocess
import sys

import pytest
from helpers.data import write_table

from dxn.cli import main

pytestmark = pytest.mark.usefixtures("stored_signatures")
ROWS = [{"text": f"some words {i}", "label": "xy"[i % 2]} for i in range(20)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "t.csv", ROWS)
    (tmp_path / "folder.csv").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train t.csv batch_size=0", "batch_size: must be at least 1, got 0"),
        ("train t.csv batch_size=-7", "batch_size: must be at least 1, got -7"),
        ("train t.csv batch_size=abc", "batch_size: must be a whole number, got 'abc'"),
        ("train t.csv dim=0", "dim: must be at least 1, got 0"),
        ("train t.csv trainer.epochs=0", "trainer.epochs: must be at least 1, got 0"),
        ("train t.csv loader.num_workers=-1", "loader.num_workers: must be at least 0, got -1"),
        ("train t.csv seed=9223372036854775808", "seed: must be at most 9223372036854775807"),
        ("train t.csv data.on_bad=whatever", "data.on_bad: must be one of error, skip, missing"),
        ("train t.csv trainer.device=tpu", "trainer.device: must be one of auto, cpu, cuda, mps"),
        ("train t.csv run=t.csv", "run: t.csv is a file, so t.csv cannot be written"),
        ("train t.csv run=t.csv/x", "t.csv is a file, so t.csv/x cannot be written"),
        ("train t.csv output=t.csv", "output: t.csv is a file"),
        ("train t.csv run=", "run: must be a path, got an empty text; leave it out"),
        (
            "check t.csv output=folder.csv",
            "output: folder.csv is a folder that exists; choose another",
        ),
        ("check t.csv output=t.csv/bad.csv", "t.csv is a file, so t.csv/bad.csv cannot be written"),
        (f"check t.csv output={'x' * 5000}", "cannot be written (File name too long)"),
        ("train t.csv head.label_smoothing=2", "head.label_smoothing: must be at most 1, got 2"),
        ("train t.csv head=classify head.label_smoothing=-1", "must be at least 0, got -1"),
        (
            "train t.csv head=multilabel head.threshold=3",
            "head.threshold: must be at most 1, got 3",
        ),
        ("train t.csv head.dropout=1.5", "head.dropout: must be less than 1, got 1.5"),
        ("train t.csv head.norm_eps=0", "head.norm_eps: must be greater than 0, got 0"),
        ("train t.csv backbone.mlp_ratio=0", "backbone.mlp_ratio: must be greater than 0, got 0"),
        ("train t.csv backbone.block.attn_dropout=1", "must be less than 1, got 1"),
        ("train t.csv fusion=bottleneck fusion.start=4", "(backbone.depth=4), got 4; lower it, or"),
        ("train t.csv finetune.lora_alpha=0", "finetune.lora_alpha: must be greater than 0, got 0"),
        ("show t.csv data.confine=maybe", "data.confine: must be true or false, got 'maybe'"),
    ],
)
def test_a_wrong_argument_is_one_sentence(capsys, folder, arguments, message):
    before = sorted(folder.rglob("*"))
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("dxn: ")
    assert error.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux has this folder")  # noqa: PTH112
def test_a_folder_that_nobody_can_write_to_is_found_before_the_work(capsys):
    # root may write everywhere, so permissions alone would not tell.
    assert main(["check", "t.csv", "output=/proc/bad.csv"]) == 2
    assert "output: /proc cannot be written to" in capsys.readouterr().err


def test_torch_is_not_imported_for_it():
    code = (
        "import sys; from dxn.cli import main; "
        "code = main(['train', 't.csv', 'batch_size=0']); "
        "sys.exit(code if 'torch' not in sys.modules else 70)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
