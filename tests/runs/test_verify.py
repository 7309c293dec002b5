"""`dxn verify` names everything that is wrong with a run folder, and changes nothing."""

import json
import math
import os
import shutil

import pytest
import yaml
from helpers.runs import TINY_DIGITS, interrupt, refused, train
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dxn.cli import main
from dxn.core.files import sha256, write_sums
from dxn.training.checkpoint import FILE, all_checkpoints


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with pretraining."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    options = ["trainer.epochs=1", "pretrain=masked", "pretrain.epochs=1", "trainer.log_every=1"]
    train(folder, *TINY_DIGITS, "adapters=[text]", *options)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished, tmp_path / "run")


def verified(capsys, folder):
    """The lines that the command prints about an intact run."""
    capsys.readouterr()
    assert main(["verify", f"run={folder}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop() == "no problems found"
    return lines


def test_everything_that_was_checked_is_printed(finished, capsys):
    sums = {path: sha256(path) for path in finished.rglob("*") if path.is_file()}
    lines = verified(capsys, finished)
    assert all(line.startswith(f"intact: {finished}") for line in lines)
    # The folder of the start, and model, checkpoints and metrics of both trainings.
    assert len(lines) == 7
    assert f"{finished}/checkpoints: 1 checkpoint (step 5)" in "\n".join(lines)
    assert sums == {path: sha256(path) for path in finished.rglob("*") if path.is_file()}


def test_what_is_not_there_yet_is_no_problem(tmp_path, monkeypatch, capsys):
    with interrupt(monkeypatch, step=2):
        main(["train", *TINY_DIGITS, "adapters=[text]", f"run={tmp_path / 'run'}"])
    (tmp_path / "run" / "checkpoints" / ".unfinished-0123abcd-step-000000003").mkdir()
    notes = [line for line in verified(capsys, tmp_path / "run") if line.startswith("note: ")]
    assert len(notes) == 5
    assert "no epoch has finished" in notes[0]
    assert ".unfinished-0123abcd-step-000000003" in notes[-1]


def test_a_model_with_merged_lora_weights_fits_its_checkpoints(run, capsys):
    folder = run.parent / "lora"
    more = [f"weights={run}", "finetune.lora_rank=2", "finetune.freeze=all", "trainer.epochs=1"]
    train(folder, *TINY_DIGITS, "adapters=[text]", *more)
    assert len(verified(capsys, folder)) == 4


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x40
    path.write_bytes(content)


def spoil(path):
    """Make a weight NaN, with checksums that match."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    name = next(name for name, t in tensors.items() if t.is_floating_point() and "weight" in name)
    tensors[name].view(-1)[0] = math.nan
    save_file(tensors, path, metadata)
    write_sums(path.parent)


def edit(path, old, new):
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


def newest(run):
    return all_checkpoints(run / "checkpoints")[0]


def change_metrics(run):
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "test/loss": math.inf}))


def change_config(run):
    path = run / ".hydra" / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "seed": 7}))


PROBLEMS = {
    "a bit of the model": (
        lambda run: flip(run / "model/model.safetensors"),
        "model/model.safetensors: the file changed after it was saved",
    ),
    "a weight of the model": (
        lambda run: spoil(run / "model/model.safetensors"),
        "model/model.safetensors: ",
    ),
    "labels.json": (lambda run: (run / "model/labels.json").unlink(), "labels.json"),
    "the model folder": (lambda run: shutil.rmtree(run / "model"), "model: folder not found"),
    "the checksums of the model": (
        lambda run: (run / "model/SHA256SUMS").unlink(),
        "model/SHA256SUMS: ",
    ),
    "a bit of a checkpoint": (lambda run: flip(newest(run) / FILE), "training.safetensors: the"),
    "a weight of a checkpoint": (lambda run: spoil(newest(run) / FILE), "training.safetensors: "),
    "an empty checkpoint": (
        lambda run: (newest(run) / FILE).unlink(),
        "training.safetensors",
    ),
    "all checkpoints": (
        lambda run: [shutil.rmtree(path) for path in all_checkpoints(run / "checkpoints")],
        "checkpoints: no checkpoint, so this run cannot be resumed",
    ),
    "a bit of a checkpoint of pretraining": (
        lambda run: flip(newest(run / "pretrain") / FILE),
        "pretrain/checkpoints/step-000000005/training.safetensors: the file changed",
    ),
    "the fingerprint": (
        lambda run: (run / "checkpoints/start/plan.json").unlink(),
        "start/plan.json: file not found, although SHA256SUMS lists it",
    ),
    "the start": (
        lambda run: shutil.rmtree(run / "checkpoints/start"),
        "checkpoints/start is missing, without which a run cannot continue; copy",
    ),
    "the configuration": (change_config, ".hydra/config.yaml: differs from "),
    "half of the configuration": (
        lambda run: edit(run / ".hydra/config.yaml", "seed: 0", "seed: ["),
        ".hydra/config.yaml: not valid YAML",
    ),
    "a class in the configuration": (
        lambda run: edit(run / ".hydra/config.yaml", "dxn.models.Backbone", "os.system"),
        ".hydra/config.yaml: ",
    ),
    "a figure of the log": (
        lambda run: edit(run / "metrics.jsonl", '"lr": ', '"lr": NaN, "x": '),
        "metrics.jsonl line 1: lr must be finite, got nan",
    ),
    "a line of the log": (
        lambda run: edit(run / "metrics.jsonl", "{", "junk"),
        "metrics.jsonl line 1: not a row of a log",
    ),
    "a figure of metrics.json": (change_metrics, "metrics.json: test/loss must be finite, got inf"),
    "a pipe": (
        lambda run: ((run / "metrics.json").unlink(), os.mkfifo(run / "metrics.json")),
        "metrics.json: must be a regular file",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_named_in_one_line_and_the_exit_code_is_2(run, capsys, name):
    damage, expected = PROBLEMS[name]
    damage(run)
    (line,) = refused(capsys, ["verify", f"run={run}"])
    assert line.removeprefix("dxn: ").removeprefix("resume: ").startswith(str(run))
    assert expected in line


def test_one_problem_does_not_hide_another_one(run, capsys):
    for name in ("a bit of the model", "a bit of a checkpoint", "a figure of the log"):
        PROBLEMS[name][0](run)
    assert len(refused(capsys, ["verify", f"run={run}"])) == 3


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "run: set run=RUN to the run folder"),
        (["run=nowhere"], "run: folder not found: nowhere"),
        (["run=nowhere", "seed=1"], "seed: no such key"),
    ],
)
def test_a_wrong_option_is_named(capsys, arguments, expected):
    assert expected in refused(capsys, ["verify", *arguments])[0]


def test_a_model_folder_is_not_a_run_folder(finished, capsys):
    (line,) = refused(capsys, ["verify", f"run={finished / 'model'}"])
    assert line.endswith("not a run folder, it has no .hydra/config.yaml")
