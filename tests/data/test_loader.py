"""The data loader: dead and hanging workers end with one sentence, and the parts of batches."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from dxn.core.errors import UserError
from dxn.data.loader import BatchOrder, Loader

FOLDER = str(Path(__file__).parent)


class Troubled:
    """Samples of a tensor each. The trouble happens when sample 11 is prepared.

    Args:
        trouble: Function of no argument. None: no trouble.
    """

    num_workers = None
    timeout = None
    reads_files = False

    def __init__(self, trouble=None):
        self.trouble = trouble

    def __len__(self):
        return 23

    def lengths(self):
        return np.ones(23)

    def batch(self, epoch, indices, *, drop_inputs=True):
        if self.trouble is not None and 11 in indices:
            self.trouble()
        return {"#size": len(indices), "keys": torch.tensor([(epoch, i) for i in indices])}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def hang():
    time.sleep(1000)


def fail():
    raise UserError("train.csv row 12: image: 11.png was deleted")


def use_too_much_memory():
    raise MemoryError


def keys_of(batches):
    return [[tuple(key) for key in batch["keys"].tolist()] for batch in batches]


def expected(epoch=0):
    order = BatchOrder(Troubled(), 3, seed=3, shuffle=True)
    order.epoch = epoch
    return [[(epoch, i) for i in indices] for epoch, indices, *_ in order]


def loader_of(samples, num_workers=2, timeout=60.0):
    samples.timeout = timeout
    order = BatchOrder(samples, 3, seed=3, shuffle=True)
    return order, Loader(order, num_workers=num_workers)


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


def test_a_program_that_never_stops_its_loader_ends():
    code = (
        "import test_loader as t; o, loader = t.loader_of(t.Troubled()); print(len(list(loader)))"
    )
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, FOLDER])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


# Killed and hanging workers


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (die, r"was killed \(SIGKILL; often the memory of the machine is full: use fewer proce"),
        (leave, r"ended with exit code 3; loader.num_workers=0 shows its error; dxn train resu"),
    ],
)
def test_a_dead_worker_is_one_sentence_that_says_how_to_go_on(trouble, message):
    _, loader = loader_of(Troubled(trouble))
    with pytest.raises(UserError, match=message) as caught:
        list(loader)
    assert "dxn train resume=RUN continues from" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_worker_that_hangs_is_one_sentence():
    _, loader = loader_of(Troubled(lambda: time.sleep(5)), timeout=0.3)
    with pytest.raises(
        UserError, match=r"^loader.timeout: the processes that prepare .* one in 0.3 s"
    ):
        list(loader)


@pytest.mark.parametrize("epochs", [1, 3])
def test_workers_are_kept_from_epoch_to_epoch(epochs):
    order, loader = loader_of(Troubled())
    seen = set()
    for epoch in range(epochs):
        order.epoch = epoch
        assert keys_of(loader) == expected(epoch)
        seen |= {process.pid for process in multiprocessing.active_children()}
    assert len(seen) == 2
    loader.stop()


def test_without_workers_there_is_no_process_and_no_signal_handler():
    before = [signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGALRM)]
    _, loader = loader_of(Troubled(), 0)
    batches = iter(loader)
    next(batches)
    assert multiprocessing.active_children() == []
    assert [signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGALRM)] == before


# Other errors


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_a_sample_is_one_sentence(num_workers):
    _, loader = loader_of(Troubled(fail), num_workers)
    with pytest.raises(UserError, match=r"^train.csv row 12: image: 11.png was deleted$"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_lack_of_memory_reaches_the_caller_which_can_use_smaller_batches(num_workers):
    _, loader = loader_of(Troubled(use_too_much_memory), num_workers)
    with pytest.raises(MemoryError):
        list(loader)


def test_a_batch_that_cannot_be_shared_is_reported(monkeypatch):
    def share(self):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    _, loader = loader_of(Troubled())
    monkeypatch.setattr("torch.Tensor.share_memory_", share)
    with pytest.raises(UserError, match=r"^loader.num_workers: a batch cannot be passed from one"):
        list(loader)
    loader.stop()


def test_processes_that_cannot_be_started_are_reported(monkeypatch):
    def fork(self):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.Process.start", fork)
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", fork)
    _, loader = loader_of(Troubled())
    with pytest.raises(
        UserError, match=r"^loader.num_workers: 2 processes that .* cannot be started"
    ):
        list(loader)


# Signals


def test_workers_ignore_the_signals_on_which_a_training_saves_a_checkpoint():
    _, loader = loader_of(Troubled(lambda: time.sleep(0.1)))
    batches = iter(loader)
    seen = keys_of([next(batches), next(batches)])  # both workers have started
    for process in multiprocessing.active_children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(process.pid, number)
    assert seen + keys_of(batches) == expected()
    loader.stop()


# Parts


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_that_is_left_early_continues_in_smaller_parts(num_workers):
    order, loader = loader_of(Troubled(), num_workers)
    batches = iter(loader)
    seen = keys_of([next(batches), next(batches)])
    # `batches` stays open, as in a traceback.
    order.skip, order.parts = 2, 2
    parts = list(loader)
    assert len(parts) == 2 * (len(order) - 2)
    pairs = zip(keys_of(parts[::2]), keys_of(parts[1::2]), strict=True)
    whole = [first + last for first, last in pairs]
    # The last batch has two samples.
    assert seen + whole == expected()
    assert ["#filler" in part for part in parts] == [False] * len(parts)
    order.skip, order.parts = 7, 3
    assert ["#filler" in part for part in loader] == [False, False, True]
    loader.stop()
