"""Prepare the batches in one process, and tell which sample takes too long."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from dxn.core.errors import UserError
from dxn.data.order import Keys

# Columns of the table in shared memory, which has a row per worker process: the index of the sample
# that the worker prepares (NOTHING: none), how many samples it has begun, and its process id.
SAMPLE, BEGUN, PROCESS = 0, 1, 2
NOTHING = -1
# Seconds. A batch that is finished arrives in a fraction of a second, unless it is lost.
MAX_SILENCE = 60.0
TICKS = 20  # signals of the timer until the time of a sample is over


class SampleTimeout(BaseException):
    """Preparing a sample takes too long.

    It is no Exception: a reader that turns any exception into the message "cannot be decoded" would
    catch it.
    """


class _SharingError(Exception):
    """A tensor cannot be moved to shared memory."""


class Batches(Dataset):
    """The collated batches by `Keys`. A UserError is returned in place of the batch that has it.

    Args:
        samples: Data set with items by key (epoch, i).
        timeout: Number of seconds that a sample may take. None: no limit.
        num_workers: Number of worker processes. 0: this process prepares the batches, and a timer
            enforces the time limit. Otherwise the main process watches the table `progress`.
    """

    def __init__(self, samples: Any, *, timeout: float | None, num_workers: int):
        self.samples = samples
        self.timeout = timeout
        self.progress = torch.zeros(max(num_workers, 1), 3, dtype=torch.int64)
        self.progress[:, SAMPLE] = NOTHING
        if num_workers:
            self.progress.share_memory_()

    def __getitems__(self, keys: Keys) -> Any:
        """Return the batch of these samples. torch calls this method, not __getitem__."""
        worker = get_worker_info()
        # A view without torch's overhead of a few microseconds per assignment.
        progress = self.progress[worker.id if worker else 0].numpy()
        timeout = None if worker else self.timeout
        try:
            with _alarm(timeout) as restart_timer:

                def begin(i: int) -> None:
                    progress[:] = i, progress[BEGUN] + 1, os.getpid()
                    restart_timer()

                batch = self._prepared(keys, begin)
            # Otherwise a thread of torch would do this later, and only print an error.
            if worker:
                _share(batch)
        except UserError as error:
            return error
        except SampleTimeout:
            return self.timeout_error(int(progress[SAMPLE]))
        except _SharingError as error:
            return sharing_error(str(error))
        finally:
            progress[SAMPLE] = NOTHING
        if keys.filler:
            batch["#filler"] = True
        return batch

    def _prepared(self, keys: Keys, begin: Callable[[int], None]) -> Any:
        """Return the collated batch, and call `begin` before each sample."""
        # A data set of a test may have only the methods of `Sized`.
        prepare = getattr(self.samples, "batch", None)
        if prepare is not None:
            return prepare(keys, begin)
        items = []
        for key in keys:
            begin(key[1])
            items.append(self.samples[key])
        return self.samples.collate(items)

    def name_of(self, i: int) -> str:
        """Return the origin and the files of sample i, such as "train.csv row 17 (17.png)"."""
        # A data set of a test may have only the methods of `Sized`.
        describe = getattr(self.samples, "describe", None)
        return f"sample {i}" if describe is None else describe(i)

    def timeout_error(self, i: int) -> UserError:
        """Return the error of a sample that takes longer than `timeout`."""
        return UserError(
            f"{self.name_of(i)}: preparing this sample takes longer than {self.timeout:g} s; check "
            "the file and the disk, leave the row out, or raise loader.timeout"
        )


def sharing_error(reason: str) -> UserError:
    """Return the error of a batch that a worker process cannot pass on."""
    return UserError(
        f"loader.num_workers: a batch cannot be passed from one process to another ({reason}); "
        "enlarge /dev/shm and the limit of open files (ulimit -n), or use loader.num_workers=0"
    )


def is_main_thread() -> bool:
    """Whether this is the main thread, which alone can handle signals."""
    return threading.current_thread() is threading.main_thread()


def unchanged(batch: Any) -> Any:
    """Collate nothing, because `Batches` has already collated the batch."""
    return batch


class Watch:
    """Tells which worker process has been preparing the same sample for too long.

    It counts the seconds in which the main process waits, not those on the clock: a suspended
    machine continues with the samples that it has begun.

    Args:
        progress: The table that the workers write (num_workers, 3).
        timeout: Number of seconds that a sample may take. None: no limit.
    """

    def __init__(self, progress: Tensor, timeout: float | None):
        self.progress = progress
        self.timeout = timeout
        self.before = progress.tolist()
        self.waited = [0.0] * len(progress)

    def add(self, seconds: float) -> None:
        """Look at the table again.

        Args:
            seconds: Number of seconds that the main process has waited since the last look.
        """
        now = self.progress.tolist()
        for worker, (new, old) in enumerate(zip(now, self.before, strict=True)):
            self.waited[worker] = self.waited[worker] + seconds if new == old else 0.0
        self.before = now

    @property
    def overdue(self) -> int | None:
        """Index of a sample that takes too long, if there is one."""
        for (sample, _, _), waited in zip(self.before, self.waited, strict=True):
            if sample != NOTHING and self.timeout is not None and waited >= self.timeout:
                return sample
        return None

    @property
    def is_silent(self) -> bool:
        """Whether no worker prepares anything, although the main process waits for a batch."""
        is_idle = all(sample == NOTHING for sample, _, _ in self.before)
        return is_idle and min(self.waited) >= MAX_SILENCE


def _share(value: Any) -> None:
    """Move all tensors of a batch to the memory that processes share."""
    if isinstance(value, Tensor):
        try:
            value.share_memory_()
        except (RuntimeError, OSError) as error:
            raise _SharingError(str(error).splitlines()[0]) from error
    elif isinstance(value, Mapping):
        for item in value.values():
            _share(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _share(item)


@contextmanager
def _alarm(seconds: float | None) -> Iterator[Callable[[], None]]:
    """Raise SampleTimeout in the block when this time has passed.

    Only the main thread can receive the signal of a timer, Windows has none, and a timer that the
    application uses is left alone. Without a timer, there is no limit. Code in C that does not
    return to Python is not interrupted. Time in which the process is suspended (Ctrl+Z) does not
    count: the signals of that time arrive as one.

    Args:
        seconds: The time limit. None: no limit.

    Yields:
        Function that starts the time again.
    """
    if seconds is None or not _can_set_timer():
        yield lambda: None
        return
    tick = seconds / TICKS
    remaining = TICKS

    def start() -> None:
        nonlocal remaining
        remaining = TICKS
        signal.setitimer(signal.ITIMER_REAL, tick, tick)

    def count(number: int, frame: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining <= 0:
            raise SampleTimeout

    previous = signal.signal(signal.SIGALRM, count)
    try:
        yield start
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _can_set_timer() -> bool:
    if not hasattr(signal, "setitimer"):
        return False
    if not is_main_thread():
        return False
    is_unused = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    return is_unused and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
