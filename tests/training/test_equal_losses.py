"""One process, several processes with DDP, and several with FSDP2 have equal losses.

All trainings of two processes run in one start of these.
"""

import os
import shutil

import pytest
import torch
from helpers.ranks import run_ranks
from helpers.runs import log_of
from helpers.training import fit, make_model, make_task
from safetensors.torch import load_file
from torch import nn

from dxn.core.errors import UserError
from dxn.training.checkpoint import FILE, all_checkpoints
from dxn.training.finetune import Finetune
from dxn.training.optim import adamw, muon

EPOCHS = 5  # of four batches: 47 samples are three batches of 12, and one of 11
MORE = 2  # epochs of a resumed training
# Each case by name: options of the training, of the task, and the optimizer. The model has dropout.
CASES = {
    "plain": ({}, {}, "adamw"),
    "weights": (
        {"grad_accum_steps": 3, "epochs": 10, "ema_decay": 0.9},
        {"balance": "inverse"},
        "adamw",
    ),
    "muon": ({}, {}, "muon"),
    "lora": ({}, {}, "adamw"),
    "frozen": ({"ema_decay": 0.9}, {}, "adamw"),
}
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
sys.path.insert(0, "tests/training")
from dxn.models import compiling
from dxn.training.loop import Fit
from test_equal_losses import CASES, train

folder = Path(sys.argv[1])
for name in CASES:
    for shard in (False, True):
        train(folder / f"{name}-{shard}", name, batch_size=6, shard=shard)
# The whole model is compiled, as on a GPU, by a compiler that needs a second.
compiling.BACKEND = "eager"
Fit.compiles_model = True
for shard in (False, True):
    train(folder / f"compiled-{shard}", "plain", batch_size=6, shard=shard, compile=True)
    assert not compiling._failures
Fit.compiles_model = False
# Of one process.
train(folder / "plain-copy", "plain", batch_size=6, shard=True, resume=True)
"""


def train(folder, name, *, batch_size, resume=False, **more):
    """Train the model of a case, with its last batches smaller than the others."""
    options, task_options, optimizer = CASES[name]
    task = make_task(**task_options)
    model = make_model(task, depth=2)
    model.register_buffer("constant", torch.ones(3))  # sharding does not divide buffers
    if name == "lora":
        Finetune(lora_rank=2)(model, set())
    if name == "frozen":
        finetune = Finetune(freeze="all", base="int8", lora_rank=2, lora_targets=("all-linear",))
        finetune(model, set())
    if os.environ.get("RANK", "0") != "0":
        # Only the first process has fitted the statistics of the inputs.
        nn.init.normal_(model.adapter("series").norm.weight)
    # A learning rate as of a real training: AdamW amplifies rounding errors at first.
    settings = {"epochs": EPOCHS, "log_every": 1, "lr": 1e-3, "task": task, "model": model}
    settings |= {"optimizer": {"adamw": adamw, "muon": muon}[optimizer], **options}
    settings["epochs"] += MORE * resume
    return fit(folder, batch_size=batch_size, resume=resume, **settings, **more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("equal")
    for name in CASES:
        train(folder / name, name, batch_size=12)
    shutil.copytree(folder / "plain", folder / "plain-copy")
    _, errors = run_ranks(SCRIPT, folder)
    assert "find_unused_parameters" not in errors
    return folder


def losses_of(folder):
    """All losses of a training: of its steps, its epochs and its validation."""
    names = ("train/loss", "train/epoch_loss", "validation/loss")
    return [row[name] for row in log_of(folder) for name in names if name in row]


@pytest.mark.exhaustive
@pytest.mark.parametrize("shard", [False, True], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_losses_of_one(trained, name, shard):
    expected = losses_of(trained / name)
    assert len(expected) >= 20 + 2 * EPOCHS
    assert losses_of(trained / f"{name}-{shard}") == pytest.approx(expected, abs=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "other"), [("plain", "plain-copy"), ("weights", "weights-True")], ids=["1-2", "2-1"]
)
def test_another_number_of_processes_continues_a_sharded_training(trained, name, other):
    """A checkpoint contains whole tensors, so that any number of processes can resume."""
    if name == "weights":
        files = []
        for folder in (trained / name, trained / other):
            files.append(load_file(all_checkpoints(folder / "checkpoints")[0] / FILE))
        whole, own = ({n: t for n, t in each.items() if "generators" not in n} for each in files)
        assert {n: t.shape for n, t in whole.items()} == {n: t.shape for n, t in own.items()}
        train(trained / other, name, batch_size=12, resume=True)
    before = len(losses_of(trained / name))
    train(trained / name, name, batch_size=12, resume=True)
    expected = losses_of(trained / name)
    assert len(expected) > before
    assert losses_of(trained / other) == pytest.approx(expected, abs=1e-6)


def test_a_single_process_cannot_be_sharded(tmp_path):
    with pytest.raises(UserError, match=r"trainer\.shard: needs several processes"):
        train(tmp_path, "plain", batch_size=12, shard=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shard", [False, True], ids=["ddp", "fsdp2"])
def test_two_processes_compile_a_model(trained, shard):
    expected = losses_of(trained / "plain-False")
    assert losses_of(trained / f"compiled-{shard}") == pytest.approx(expected, abs=1e-5)
