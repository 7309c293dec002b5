"""Tasks that find places in an input resume bit for bit, alone and in two processes."""

import json

import pytest
from helpers.data import EXAMPLES
from helpers.ranks import run_ranks
from helpers.runs import checkpoint_of, interrupt, log_of, same_tensors, train, weights_of

from dxn.cli import main

COMMON = ["data.num_train=29", "data.num_validation=11", "data.num_test=13", "batch_size=5"]
COMMON += ["dim=16", "backbone.depth=1", "preset=plain", "trainer.epochs=2", "report=false"]
COMMON += ["trainer.device=cpu", "trainer.precision=float32", "trainer.log_every=1"]
COMMON += ["trainer.checkpoint_minutes=1e-9", "trainer.ema_decay=0.9", "loader.input_dropout=0.2"]
PICTURES = ["data=objects", "data.size=32", "adapters=[image]", "adapters.image.image_size=32"]
PICTURES += ["adapters.image.augment.flip=true", "adapters.image.augment.zoom=0.5"]
TASKS = {
    "detect": [*COMMON, *PICTURES, "head=detect"],
    "segment": [*COMMON, *PICTURES, "data.masks=true", "head=segment"],
    "span": [*COMMON, EXAMPLES, "data=questions", "adapters=[text]", "head=span"],
}
SCRIPT = """
import json, sys
from torch import distributed as dist
from dxn.cli import main
from dxn.training.loop import Fit

folder, tasks = sys.argv[1], json.loads(sys.argv[2])
step = Fit.train_step

def interrupted(trainer, parts):
    step(trainer, parts)
    if trainer.state.step == 4:  # in the middle of the second epoch
        dist.barrier()
        raise KeyboardInterrupt

for task, options in tasks.items():
    assert main(["train", *options, f"run={folder}/{task}"]) == 0
Fit.train_step = interrupted
assert main(["train", *tasks["detect"], f"run={folder}/cut"]) == 130
Fit.train_step = step
assert main(["train", f"resume={folder}/cut"]) == 0
"""


def check_equal(cut, whole):
    assert log_of(cut) == log_of(whole)
    assert same_tensors(weights_of(cut), weights_of(whole))
    assert same_tensors(checkpoint_of(cut), checkpoint_of(whole))
    assert (cut / "predictions.csv").read_bytes() == (whole / "predictions.csv").read_bytes()


@pytest.mark.parametrize(
    "task",
    [
        "detect",
        pytest.param("segment", marks=pytest.mark.exhaustive),
        pytest.param("span", marks=pytest.mark.exhaustive),
    ],
)
def test_an_interrupted_training_resumes_bit_for_bit(task, tmp_path, monkeypatch):
    train(tmp_path / "whole", *TASKS[task])
    with interrupt(monkeypatch, step=9):
        assert main(["train", *TASKS[task], f"run={tmp_path / 'cut'}"]) == 130
    assert main(["train", f"resume={tmp_path / 'cut'}", EXAMPLES]) == 0
    check_equal(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.exhaustive
def test_two_processes_resume_bit_for_bit_and_share_the_rows_of_an_evaluation(tmp_path):
    run_ranks(SCRIPT, tmp_path, json.dumps(TASKS))
    check_equal(tmp_path / "cut", tmp_path / "detect")
    for task in TASKS:
        steps = [row["step"] for row in log_of(tmp_path / task) if "train/loss" in row]
        assert steps == [1, 2, 3, 4, 5, 6]  # 29 rows are three batches of ten
        evaluated = tmp_path / "evaluated" / task
        command = ["evaluate", EXAMPLES, f"run={tmp_path / task}", f"output={evaluated}"]
        assert main(command) == 0
        own, alone = (
            json.loads((folder / "metrics.json").read_text())
            for folder in (tmp_path / task, evaluated)
        )
        # Detection divides its loss by a number of the batch.
        shared = [k for k, v in alone.items() if isinstance(v, float) and k in own]
        shared = [name for name in shared if "loss" not in name]
        assert len(shared) > 1
        for name in shared:
            assert own[name] == pytest.approx(alone[name], nan_ok=True), name
