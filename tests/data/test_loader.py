"""The data loader when worker processes are killed or hang, and the parts of batches."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dxn.core.errors import UserError
from dxn.data.loader import make_loader
from dxn.data.order import BatchOrder
from dxn.data.workers import Workers

MAIN = os.getpid()
ROOT = Path(__file__).parents[2]


class Troubled:
    """Samples of a tensor each. The trouble happens when sample `at` is prepared.

    Args:
        trouble: Function of no argument. None: no trouble.
        at: The sample.
        times: Folder that limits how often it happens, to the number of `times`.
    """

    def __init__(self, trouble=None, *, at=11, folder=None, times=1):
        self.trouble = trouble
        self.at = at
        self.folder = folder
        self.times = times

    def __len__(self):
        return 23

    def num_tokens(self, i):
        return 1.0

    def describe(self, i):
        return f"train.csv row {i + 1} ({i}.png)"

    def __getitem__(self, key):
        if self.trouble is not None and key[1] == self.at and self._is_left():
            self.trouble()
        return torch.tensor(key)

    def collate(self, samples):
        return {"#size": len(samples), "keys": torch.stack(samples)}

    def _is_left(self):
        if self.folder is None:
            return True
        count = len(list(self.folder.iterdir()))
        (self.folder / str(count)).touch()
        return count < self.times


class Slow(Troubled):
    """The trouble happens with the first samples of an epoch."""

    def __init__(self, trouble):
        super().__init__(trouble)
        self.first = [i for batch in expected()[:2] for _, i in batch]

    def __getitem__(self, key):
        if key[1] in self.first:
            self.trouble()
        return torch.tensor(key)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


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
    return [list(keys) for keys in order]


def loader_of(samples, num_workers=2, timeout=60.0):
    order = BatchOrder(samples, 3, seed=3, shuffle=True)
    return order, make_loader(order, num_workers=num_workers, timeout=timeout)


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


# Killed workers


def test_a_killed_worker_is_replaced_once_and_no_batch_is_lost(tmp_path, capsys):
    _, loader = loader_of(Troubled(die, folder=tmp_path))
    assert keys_of(loader) == expected()
    assert capsys.readouterr().err == (
        "note: a process that prepares batches was killed (SIGKILL; often the memory of the "
        "machine is full) while it was preparing train.csv row 12 (11.png); all of them start "
        "again at the same position\n"
    )
    del loader


def test_the_second_killed_worker_of_an_epoch_is_an_error(tmp_path):
    _, loader = loader_of(Troubled(die, folder=tmp_path, times=2))
    with pytest.raises(UserError) as caught:
        list(loader)
    assert str(caught.value) == (
        "a process that prepares batches was killed (SIGKILL; often the memory of the machine is "
        "full) while it was preparing train.csv row 12 (11.png); it is the second one in this "
        "epoch; check this file, or use fewer processes (loader.num_workers)"
    )


def test_a_worker_may_die_in_each_epoch_also_while_nobody_waits_for_it(capsys):
    order, loader = loader_of(Troubled())
    for epoch in range(3):
        order.epoch = epoch
        seen = []
        for batch in loader:
            seen += keys_of([batch])
            if len(seen) == 4 and epoch < 2:
                multiprocessing.active_children()[0].kill()
                # A training step would be interrupted here by the signal handler of torch.
                time.sleep(0.05)
        assert seen == expected(epoch)
        if epoch == 1:
            multiprocessing.active_children()[0].kill()
    assert capsys.readouterr().err.count("note: ") == 3
    del loader


def test_workers_that_do_not_answer_before_an_epoch_are_replaced():
    order, loader = loader_of(Troubled())
    assert keys_of(loader) == expected()
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGSTOP)
    loader.workers.iterator._timeout = 0.1  # instead of a second, to save time
    order.epoch = 1
    assert keys_of(loader) == expected(1)
    del loader


class Unpicklable(Troubled):
    """The queue of torch drops such batches, and prints an error."""

    def collate(self, samples):
        return {"#size": len(samples), "function": lambda: None}


def test_workers_that_lose_batches_are_replaced_once(monkeypatch, capfd):
    monkeypatch.setattr("dxn.data.preparing.MAX_SILENCE", 0.1)
    _, loader = loader_of(Unpicklable(), timeout=0.2)
    with pytest.raises(UserError, match=r"^a process that prepares batches has lost a batch; it"):
        list(loader)
    assert "note: a process that prepares batches has lost a batch; all" in capfd.readouterr().err


def test_a_batch_that_cannot_be_shared_is_reported(monkeypatch):
    def share(self):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    order, loader = loader_of(Troubled())
    loader.workers = Workers(order.samples, 2, 60.0)  # its own table is shared before the trouble
    monkeypatch.setattr("torch.Tensor.share_memory_", share)
    with pytest.raises(UserError, match=r"^loader.num_workers: a batch cannot be passed from one"):
        list(loader)


# Hanging samples


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_takes_too_long_is_named(num_workers):
    _, loader = loader_of(Troubled(hang), num_workers, timeout=0.3)
    with pytest.raises(UserError) as caught:
        list(loader)
    assert str(caught.value) == (
        "train.csv row 12 (11.png): preparing this sample takes longer than 0.3 s; check the file "
        "and the disk, leave the row out, or raise loader.timeout"
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_slow_samples_may_take_longer_together(num_workers):
    def pause():
        time.sleep(0.15)

    _, loader = loader_of(Slow(pause), num_workers, timeout=0.4)
    assert keys_of(loader) == expected()
    del loader


def test_time_in_which_the_process_is_suspended_does_not_count():
    def suspended():
        # As for a stopped process, the signals of this time arrive as one.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(0.5)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})

    _, loader = loader_of(Troubled(suspended), 0, timeout=0.3)
    assert keys_of(loader) == expected()


def test_the_timer_of_an_application_is_left_alone():
    calls = []
    previous = signal.signal(signal.SIGALRM, lambda *_: calls.append(1))
    try:
        _, loader = loader_of(Troubled(lambda: time.sleep(0.05)), 0, timeout=0.01)
        assert keys_of(loader) == expected()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert calls == []


def test_the_timer_is_off_after_each_batch():
    _, loader = loader_of(Troubled(), 0, timeout=0.05)
    for _ in loader:
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


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


def test_processes_that_cannot_be_started_are_reported(monkeypatch):
    def fork(self):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.Process.start", fork)
    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", fork)
    _, loader = loader_of(Troubled())
    with pytest.raises(UserError, match="2 processes that prepare batches cannot be started"):
        list(loader)


# Signals and the end of the training process


def test_workers_ignore_the_signals_on_which_a_training_saves_a_checkpoint():
    _, loader = loader_of(Troubled(lambda: time.sleep(0.1)))
    batches = iter(loader)
    seen = keys_of([next(batches)])
    for process in multiprocessing.active_children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(process.pid, number)
    assert seen + keys_of(batches) == expected()
    del batches, loader


KILLED = """
import os, signal, sys
sys.path.insert(0, "tests/data")
import test_loader as t

order, loader = t.loader_of(t.Troubled(t.hang), timeout=None)
batches = iter(loader)
next(batches)
print(*[process.pid for process in t.multiprocessing.active_children()], flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # a process that nobody has waited for


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Linux ends the workers")
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_hanging_worker_ends_with_the_training_process(end):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, end], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == (-signal.SIGKILL if end == "kill" else 0), done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, pids))


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
    assert [part.get("#filler", False) for part in parts] == [False] * len(parts)
    order.skip, order.parts = 7, 3
    assert [part.get("#filler", False) for part in loader] == [False, False, True]
    del batches, loader
