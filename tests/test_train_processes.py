"""Two processes that train one model, started as a user starts them.

Starting two processes takes longer than the trainings, so they are started once.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.runs import TINY_DIGITS, checkpoint_of, log_of, same_tensors
from helpers.training import fit, without_randomness

import dxn
from dxn.train.optim import sgd

ROOT = Path(__file__).parents[1]
ASKED = ["train", *TINY_DIGITS, "trainer.epochs=2", "trainer.log_every=1"]
SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, "tests")
from helpers.training import fit, without_randomness
from dxn.cli import main
from dxn.train.optim import sgd
from dxn.train.stepper import Stepper

folder = Path(sys.argv[1])

options = dict(epochs=2, checkpoint_every=1, ema_decay=0.9, mixup=0.5, log_every=1, batch_size=5)
fit(folder / "whole", **options)
step = Stepper.step

def interrupted(stepper, num_steps):
    losses = step(stepper, num_steps)
    if stepper.state.step == 7:  # in the middle of the second epoch
        stepper.settings.accelerator.wait_for_everyone()
        raise KeyboardInterrupt
    return losses

Stepper.step = interrupted
try:
    fit(folder / "cut", **options)
except KeyboardInterrupt:
    print("interrupted")
Stepper.step = step
fit(folder / "cut", resume=True, **options)
# One process continues this later, in the middle of the second epoch.
Stepper.step = interrupted
exact = {**options, "batch_size": 6, "mixup": 0.0, "optimizer": sgd}
try:
    fit(folder / "shared", model=without_randomness(), **exact)
except KeyboardInterrupt:
    pass
Stepper.step = step
# Last, because it ends the process group.
assert main([*json.loads(sys.argv[2]), f"run={folder / 'digits'}"]) == 0
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of the runs, and what was printed."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, str(folder / "script.py"), str(folder), json.dumps(ASKED)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[:6000]
    return folder, done.stdout


def test_the_command_line_trains_and_evaluates_one_model(trained):
    folder, output = trained
    # 47 samples are three batches of 22, of which each process gets half.
    log = log_of(folder / "digits")
    assert [row["step"] for row in log if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    assert output.count("run folder: ") == output.count("next: dxn predict ") == 1
    assert dxn.load(folder / "digits").predict(text="seven")


def test_each_process_takes_its_share_and_one_of_them_prints(trained):
    folder, output = trained
    # 47 samples are five batches of ten, of which each process gets half.
    steps = [row["step"] for row in log_of(folder / "whole") if "train/loss" in row]
    assert steps == list(range(1, 11))
    # Three trainings reach the second epoch, and the fourth one is interrupted in it.
    assert output.count("epoch 1/2") == 4
    assert output.count("epoch 2/2") == 3
    assert output.count("interrupted") == 2  # this print is the test's own, in each process


def test_an_interrupted_training_resumes_bit_for_bit(trained):
    folder, _ = trained
    whole, cut = checkpoint_of(folder / "whole"), checkpoint_of(folder / "cut")
    assert len(cut["generators/cpu"]) == 2  # one for each process
    assert same_tensors(whole, cut)
    assert log_of(folder / "whole") == log_of(folder / "cut")


def test_one_process_continues_a_training_of_two_and_loses_no_sample(trained, tmp_path):
    """The two processes had six samples each, and the last batch of an epoch has eleven."""
    folder, _ = trained
    options = {"epochs": 2, "ema_decay": 0.9, "log_every": 1, "batch_size": 12}
    # AdamW would amplify rounding errors: its first steps are almost the signs of the gradients.
    options |= {"checkpoint_every": 1, "optimizer": sgd}
    alone, _, _ = fit(tmp_path / "alone", model=without_randomness(), **options)
    shared, state, _ = fit(folder / "shared", model=without_randomness(), resume=True, **options)
    assert state.step == 8
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], tensor, rtol=0, atol=1e-5)
    left, right = (
        [row["train/loss"] for row in log_of(path) if "train/loss" in row]
        for path in (tmp_path / "alone", folder / "shared")
    )
    assert left == pytest.approx(right, abs=1e-5)
