"""Two processes that train one model.

Starting two processes takes longer than the trainings, so they are started once.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers.newcomer import write_csv
from helpers.ranks import run_ranks, start_ranks
from helpers.runs import TINY_DIGITS, checkpoint_of, log_of, metrics_of, same_tensors
from helpers.training import fit, without_randomness
from safetensors.torch import load_file, save_file

import dxn
from dxn.cli import main
from dxn.models.losses import gather, softmax_loss, unit
from dxn.training.checkpoint import all_checkpoints
from dxn.training.optim import sgd

ROOT = Path(__file__).parents[2]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ASKED = ["train", *TINY_DIGITS, "trainer.epochs=2", "trainer.log_every=1", "trainer.device=cpu"]
ASKED += ["report=false"]
SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, "tests")
sys.path.insert(0, "tests/training")
from test_processes import gather_vectors
from torch import distributed as dist
from helpers.training import fit, without_randomness
from dxn.cli import main
from dxn.runs.evaluation import evaluate
from dxn.training.optim import sgd
from dxn.training.loop import Fit

evaluate.draw_tokens = lambda *_, **__: None
folder = Path(sys.argv[1])

options = dict(epochs=2, checkpoint_every=1, ema_decay=0.9, mixup=0.5, log_every=1, batch_size=5)
fit(folder / "whole", **options)
gather_vectors(dist.get_rank(), folder)
step = Fit.train_step

def interrupted(trainer, parts):
    step(trainer, parts)
    if trainer.state.step == 7:  # in the middle of the second epoch
        dist.barrier()
        raise KeyboardInterrupt

Fit.train_step = interrupted
try:
    fit(folder / "cut", **options)
except KeyboardInterrupt:
    print("interrupted")
Fit.train_step = step
fit(folder / "cut", resume=True, **options)
# One process continues this later, in the middle of the second epoch.
Fit.train_step = interrupted
exact = {**options, "batch_size": 6, "mixup": 0.0, "optimizer": sgd}
try:
    fit(folder / "shared", model=without_randomness(), **exact)
except KeyboardInterrupt:
    pass
Fit.train_step = step
for shard in (False, True):
    fit(folder / f"dropout-{shard}", epochs=1, batch_size=6, optimizer=sgd, shard=shard)
assert main([*json.loads(sys.argv[2]), f"output={folder}", "name=digits"]) == 0
run = next((folder / "digits").iterdir())
options = [f"run={run}", "batch_size=3", "device=cpu"]
assert main(["evaluate", *options, f"output={folder}/evaluated"]) == 0

# Only the first process may fit a tokenizer, and train a baseline. At first, each process gets a
# table of its own.
import os
from dxn.stacking import train
from dxn.tokenize import TextAdapter

rank = os.environ["RANK"]
options = ["target=label", "dim=8", "backbone.depth=1", "backbone.num_heads=2", "trainer.epochs=1"]
options += ["trainer.device=cpu", "report=false"]


def refuse(adapter, texts):
    assert adapter.tokenizer.vocabulary is not None  # the second member has that of the first one

if rank != "0":
    TextAdapter.fit, train.train_stack = refuse, None
assert main(["train", f"{folder}/{rank}.csv", *options, f"run={folder}/apart"]) == 2
assert main(["train", f"{folder}/0.csv", *options, "ensemble=2", f"run={folder}/same"]) == 0
options = [f"run={folder}/same", f"{folder}/0.csv", "batch_size=5", "device=cpu"]
assert main(["predict", *options, f"output={folder}/two.jsonl"]) == 0
"""
# A long training of slow steps, which writes the process id of each rank.
ORPHAN = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from helpers.training import fit
from dxn.core.errors import Interrupted
from dxn.training import parallel
from dxn.training.loop import Fit

folder = Path(sys.argv[1])
parallel.INTERVAL, parallel.GRACE = 0.1, float(sys.argv[2])
step = Fit.train_step

def slow(trainer, parts):
    step(trainer, parts)
    (folder / f"rank-{trainer.hardware.rank}").write_text(str(os.getpid()))
    time.sleep(0.05)

Fit.train_step = slow
try:
    fit(folder / "run", epochs=1000, patience=0)
except Interrupted as error:
    (folder / f"code-{os.environ['RANK']}").write_text(str(error.code))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of the runs, and what was printed."""
    folder = tmp_path_factory.mktemp("processes")
    rows = [[f"{'good' if i % 2 else 'bad'} film {i}", "yes" if i % 2 else "no"] for i in range(24)]
    for number in range(2):
        write_csv(folder / f"{number}.csv", ["text", "label"], rows)
        rows[0][0] = "another text"
    modules = "pytest dxn.cli dxn.runs.train dxn.runs.evaluation.evaluate dxn.stacking.train"
    modules += " dxn.datasets.digits torch.distributed.fsdp sklearn.svm scipy.optimize"
    output, errors = run_ranks(SCRIPT, folder, json.dumps(ASKED), modules=modules)
    return folder, output, errors


def test_the_command_line_trains_and_evaluates_one_model(trained):
    folder, output, _ = trained
    # Each process has another time, and that of the first one names the folder.
    (run,) = (folder / "digits").iterdir()
    # 47 samples are three batches of 22, of which each process gets half.
    log = log_of(run)
    assert [row["step"] for row in log if "train/loss" in row] == [1, 2, 3, 4, 5, 6]
    printed = (f"run folder: {run}\n", f"next: dxn predict run={run} ")
    assert [output.count(each) for each in printed] == [1, 1]
    assert dxn.load(run).predict(text="seven")


@pytest.mark.exhaustive
def test_torchrun_starts_the_same_training(trained, tmp_path):
    folder, *_ = trained
    (run,) = (folder / "digits").iterdir()
    command = [*LAUNCH, "-m", "dxn", *ASKED, f"run={tmp_path / 'run'}"]
    subprocess.run(command, cwd=ROOT, timeout=300, check=True)
    assert log_of(tmp_path / "run") == log_of(run)


def test_two_processes_share_the_rows_of_an_evaluation(trained, tmp_path):
    folder, *_ = trained
    (run,) = (folder / "digits").iterdir()
    options = [f"run={run}", "batch_size=3", "device=cpu"]
    assert main(["evaluate", *options, f"output={tmp_path}/evaluated"]) == 0
    for name in ("metrics.json", "predictions.csv"):
        left, right = (path / "evaluated" / name for path in (folder, tmp_path))
        assert left.read_bytes() == right.read_bytes(), name


def test_each_process_takes_its_share_and_one_of_them_prints(trained):
    folder, output, _ = trained
    # 47 samples are five batches of ten, of which each process gets half.
    steps = [row["step"] for row in log_of(folder / "whole") if "train/loss" in row]
    assert steps == list(range(1, 11))
    # Three trainings reach the second epoch, and the fourth one is interrupted in it.
    assert output.count("epoch 1/2") == 4
    assert output.count("epoch 2/2") == 3
    assert output.count("interrupted") == 2  # this print is the test's own, in each process


def test_the_first_process_fits_tokenizers_and_baselines_and_different_tables_are_refused(
    trained, tmp_path
):
    folder, output, errors = trained
    assert (folder / "same" / "model").is_dir() and not (folder / "apart").exists()
    figures = metrics_of(folder / "same")
    assert {name for name in figures if name.endswith("accuracy[baseline alone]")}
    # The processes have shared the rows of the prediction.
    options = [f"run={folder}/same", f"{folder}/0.csv", "batch_size=5", "device=cpu"]
    assert main(["predict", *options, f"output={tmp_path}/one.jsonl"]) == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()
    expected = "process 1: reads other data than process 0: the "
    assert expected in errors + output


def test_an_interrupted_training_resumes_bit_for_bit(trained):
    folder, *_ = trained
    whole, cut = checkpoint_of(folder / "whole"), checkpoint_of(folder / "cut")
    assert len(cut["generators/cpu"]) == 2  # one for each process
    assert same_tensors(whole, cut)
    assert log_of(folder / "whole") == log_of(folder / "cut")


def test_one_process_continues_a_training_of_two_and_loses_no_sample(trained, tmp_path):
    """The two processes had six samples each, and the last batch of an epoch has eleven."""
    folder, *_ = trained
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


@pytest.mark.parametrize("shard", [False, True], ids=["ddp", "fsdp2"])
def test_two_processes_take_the_steps_of_one_with_dropout(trained, tmp_path, shard):
    folder, *_ = trained
    fit(tmp_path / "alone", epochs=1, batch_size=12, optimizer=sgd)
    alone, shared = checkpoint_of(tmp_path / "alone"), checkpoint_of(folder / f"dropout-{shard}")
    weights = [name for name in alone if name.startswith("model/")]
    assert len(weights) > 10
    for name in weights:
        torch.testing.assert_close(shared[name], alone[name], rtol=0, atol=1e-5)


SLOW = """
import time
from datetime import timedelta
from torch import distributed as dist
from dxn.core.processes import from_first

dist.init_process_group("gloo", timeout=timedelta(seconds=1))


def compute():
    time.sleep(2)
    return "vectors"

assert [from_first(compute), from_first(lambda: 3)] == ["vectors", 3]
"""


def test_processes_wait_for_the_first_one_longer_than_for_a_call_of_all(tmp_path):
    run_ranks(SLOW, tmp_path, modules="dxn.core.processes")


SIZES = (3, 5)  # samples per process; the last batches of an epoch can differ


def contrastive_vectors():
    torch.manual_seed(0)
    return torch.randn(sum(SIZES), 2, 7, dtype=torch.double)


def contrastive_loss(x, others, at):
    """The mean loss of the samples x, compared with all others that are not zero."""
    present = others.abs().sum((1, 2)) > 0
    ignored = ~present.expand(len(x), -1)
    return softmax_loss(unit(x[:, 0]) @ F.normalize(others[:, 1], dim=-1).T, at, ignored).mean()


def gather_vectors(rank, folder):
    """Write the gradients of the vectors of a process, which are compared with those of all."""
    start = sum(SIZES[:rank])
    x = contrastive_vectors()[start : start + SIZES[rank]].requires_grad_()
    keys = torch.arange(start + 1, start + SIZES[rank] + 1)[:, None].expand(-1, 2)
    (others, other_keys), first = gather((x, keys))
    assert first == rank * max(SIZES)
    assert other_keys.shape == others.shape[:2] == (len(SIZES) * max(SIZES), 2)
    assert torch.equal(other_keys[first : first + len(x)], keys)
    loss = contrastive_loss(x, others, first + torch.arange(len(x)))
    (loss * SIZES[rank]).backward()
    save_file({"grad": x.grad}, folder / f"grad-{rank}.safetensors")


def test_gathered_vectors_have_the_gradients_of_one_large_batch(trained):
    folder, *_ = trained
    x = contrastive_vectors().requires_grad_()
    (contrastive_loss(x, x, torch.arange(len(x))) * len(x)).backward()
    parts = [load_file(folder / f"grad-{rank}.safetensors")["grad"] for rank in (0, 1)]
    torch.testing.assert_close(torch.cat(parts), x.grad)


@pytest.fixture
def orphans(tmp_path, request):
    """A process as torchrun with two processes that train, and their process ids.

    The parameter is the number of seconds that they have to save a checkpoint.
    """
    with (tmp_path / "log.txt").open("w") as log:
        launcher = start_ranks(ORPHAN, tmp_path, str(request.param), stdout=log, stderr=log)
    files = [tmp_path / f"rank-{rank}" for rank in range(2)]

    def is_training():
        return all(path.exists() and path.read_text() for path in files)

    wait_until(lambda: is_training() or launcher.poll() is not None, 120)
    assert is_training(), (tmp_path / "log.txt").read_text()[:6000]
    ranks = [int(path.read_text()) for path in files]
    yield launcher, ranks
    launcher.kill()
    launcher.wait()
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("orphans", [60], indirect=True)
def test_processes_save_a_checkpoint_and_end_when_torchrun_was_killed(orphans, tmp_path):
    launcher, ranks = orphans
    launcher.kill()
    assert wait_until(lambda: not any(map(is_running, ranks)), 60)
    codes = [(tmp_path / f"code-{rank}").read_text() for rank in range(2)]
    assert codes == [str(128 + signal.SIGTERM)] * 2
    # There is no log if the processes ended before its first line.
    is_logged = (tmp_path / "run" / "metrics.jsonl").exists()
    log = log_of(tmp_path / "run") if is_logged else []
    steps = [row["step"] for row in log if "train/loss" in row]
    checkpoints = all_checkpoints(tmp_path / "run" / "checkpoints")
    assert int(checkpoints[0].name.removeprefix("step-")) >= max(steps, default=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("orphans", [1], indirect=True)
def test_a_process_that_waits_for_another_one_ends_when_torchrun_was_killed(orphans):
    launcher, ranks = orphans
    os.kill(ranks[1], signal.SIGSTOP)
    launcher.kill()
    assert wait_until(lambda: not is_running(ranks[0]), 60)
    os.kill(ranks[1], signal.SIGCONT)
    assert wait_until(lambda: not is_running(ranks[1]), 60)


def is_running(pid):
    """Whether a process has not ended. A zombie has ended."""
    path = Path(f"/proc/{pid}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds):
    """Wait until a condition holds; False after a time limit."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
