"""Worker processes that prepare batches, and what happens when one of them dies or hangs."""

from __future__ import annotations

import atexit
import ctypes
import functools
import multiprocessing
import os
import signal
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from dxn.core.errors import UserError
from dxn.data.order import Keys
from dxn.data.preparing import (
    NOTHING,
    Batches,
    Watch,
    is_main_thread,
    sharing_error,
    unchanged,
)

POLL = 1.0  # seconds between two looks at the workers while the main process waits
# Starts of messages of torch.
TIMED_OUT = "DataLoader timed out"
TOO_MANY_FILES = "Too many open files"
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
_END = object()  # stands for the end of an epoch
# Signals on which a training saves a checkpoint, which a terminal or a batch system sends to all
# its processes. The workers are needed until the training ends.
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
ADVICE = {
    "SIGKILL": "often the memory of the machine is full",
    "SIGBUS": "often the shared memory, /dev/shm, is full",
}


class WorkerDied(Exception):
    """A worker process failed. The message says how, and what it was preparing."""


class WorkersBusy(Exception):
    """The worker processes did not answer at the beginning of an epoch."""


class _Remaining(Sampler):
    """The order without the batches that the main process already has."""

    def __init__(self):
        self.order: Iterable[Keys] = ()
        self.done = 0

    def __iter__(self) -> Iterator[Keys]:
        keys = iter(self.order)
        for _ in range(self.done):
            next(keys, None)
        yield from keys


class Workers:
    """Worker processes that prepare batches.

    Args:
        samples: Data set with items by key (epoch, i).
        num_workers: Number of processes.
        timeout: Number of seconds that a sample may take. None: no limit.
    """

    def __init__(self, samples: Any, num_workers: int, timeout: float | None):
        self.batches = Batches(samples, timeout=timeout, num_workers=num_workers)
        self.timeout = timeout
        self.poll = POLL if timeout is None else min(POLL, timeout / 2)
        self.remaining = _Remaining()
        parent = os.getpid() if is_main_thread() else None
        self.loader = DataLoader(
            self.batches,
            batch_sampler=self.remaining,
            collate_fn=unchanged,
            num_workers=num_workers,
            persistent_workers=True,
            worker_init_fn=functools.partial(_start_worker, parent=parent),
            # Return to the main process regularly, so that it can look for hanging workers.
            timeout=self.poll,
            # A DataLoader draws a base seed for its workers. With the global generator, this draw
            # would change the dropout of a resumed run.
            generator=torch.Generator(),
        )
        self.processes: list[Any] = []
        self.iterator: Any = None

    def begin(self, order: Iterable[Keys], done: int) -> None:
        """Begin an epoch.

        Args:
            order: Order of the batches.
            done: Number of batches at the start of the order that are not needed.

        Raises:
            UserError: If a process cannot be started.
            WorkerDied: If a process that has waited for this epoch is not alive.
            WorkersBusy: If a process that should wait for this epoch does not answer.
        """
        self.remaining.order = order
        self.remaining.done = done
        before = set(multiprocessing.active_children())
        try:
            with self._noticing_deaths():
                self.iterator = iter(self.loader)
        except OSError as error:
            raise UserError(
                f"loader.num_workers: {self.loader.num_workers} processes that prepare batches "
                f"cannot be started ({error}); use fewer, or loader.num_workers=0"
            ) from error
        except RuntimeError as error:
            if not str(error).startswith(TIMED_OUT):
                raise
            raise WorkersBusy from error
        finally:
            started = set(multiprocessing.active_children()) - before
            self.processes += started
            if started:
                _RUNNING.add(self)
                # At the exit of Python, the last function that was registered runs first. Both
                # torch and multiprocessing would wait for a worker that hangs.
                atexit.unregister(_stop_all)
                atexit.register(_stop_all)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch. A UserError stands for a batch with a bad sample.

        Raises:
            UserError: If preparing a sample takes too long.
            WorkerDied: If a process died, or does not deliver a batch.
        """
        while (batch := self._next_batch()) is not _END:
            yield batch

    def _next_batch(self) -> Any:
        watch = Watch(self.batches.progress, self.timeout)
        while True:
            try:
                with self._noticing_deaths():
                    return next(self.iterator, _END)
            except RuntimeError as error:
                if str(error).startswith(TOO_MANY_FILES):
                    raise sharing_error("too many open files") from error
                if not str(error).startswith(TIMED_OUT):
                    raise
            watch.add(self.poll)
            if watch.overdue is not None:
                raise self.batches.timeout_error(watch.overdue)
            if watch.is_silent:
                raise WorkerDied("has lost a batch")

    def stop(self) -> None:
        """Kill the processes. They own nothing that needs a better end, and may hang."""
        # Nothing to do at the end of Python, when the modules that are used here are already gone.
        if not self.processes:
            return
        with _without_child_signal():
            for process in self.processes:
                process.kill()
            for process in self.processes:
                # A process that waits for a broken disk cannot even be killed.
                process.join(POLL)
        self.processes = []
        self.iterator = None
        _RUNNING.discard(self)

    @contextmanager
    def _noticing_deaths(self) -> Iterator[None]:
        """Raise WorkerDied if a process is dead, or dies in this block.

        torch looks for dead workers at least every `poll` seconds, but not while it waits for the
        rest of a message that will never come. The handler that torch installs would raise an error
        anywhere in a training step, so it is replaced.
        """
        # Other threads cannot receive signals, and Windows has none for the end of a process.
        if not hasattr(signal, "SIGCHLD") or not is_main_thread():
            with self._explaining_errors():
                yield
            return
        previous = signal.getsignal(signal.SIGCHLD)

        def handle(number: int, frame: FrameType | None) -> None:
            if callable(previous):
                previous(number, frame)
            if is_listening and _is_reading(frame):
                self._check_alive()

        is_listening = True
        signal.signal(signal.SIGCHLD, handle)
        # The flag has a block of its own: the handler may raise while a `finally` block runs.
        try:
            try:
                with self._explaining_errors():
                    yield
            finally:
                is_listening = False
        finally:
            signal.signal(signal.SIGCHLD, previous)

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        self._check_alive()
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            # A broken connection is noticed a moment before the end of the process.
            self._check_alive(0 if str(error).startswith(TIMED_OUT) else POLL)
            raise

    def _check_alive(self, seconds: float = 0) -> None:
        ended = wait([process.sentinel for process in self.processes], seconds)
        for process in self.processes:
            if process.sentinel in ended:
                process.join()
                raise WorkerDied(self._cause_of(process))

    def _cause_of(self, process: Any) -> str:
        code = process.exitcode
        cause = "ended"
        if code is not None and code >= 0:
            cause = f"ended with exit code {code}"
        elif code is not None:
            name = signal.Signals(-code).name
            advice = f"; {ADVICE[name]}" if name in ADVICE else ""
            cause = f"was killed ({name}{advice})"
        for sample, _, number in self.batches.progress.tolist():
            if number == process.pid and sample != NOTHING:
                return f"{cause} while it was preparing {self.batches.name_of(sample)}"
        return cause


# Workers that must be stopped before Python exits.
_RUNNING: weakref.WeakSet[Workers] = weakref.WeakSet()


def _stop_all() -> None:
    for workers in list(_RUNNING):
        workers.stop()


@contextmanager
def _without_child_signal() -> Iterator[None]:
    """Ignore the end of child processes, for which the handler of torch would raise an error."""
    if not hasattr(signal, "SIGCHLD") or not is_main_thread():
        yield
        return
    previous = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, previous)


def _is_reading(frame: FrameType | None) -> bool:
    """Whether code is inside of a read from a pipe, which an exception does not harm."""
    while frame is not None:
        if frame.f_code is Connection.recv_bytes.__code__:
            return True
        frame = frame.f_back
    return False


def _start_worker(worker_id: int, parent: int | None) -> None:
    """Prepare a new worker process for signals and for the end of its parent.

    Args:
        worker_id: Number of the worker, which torch passes.
        parent: Process that must not end before the worker. None: unknown, because another thread
            than the main one has started the worker, and Linux means the end of this thread.
    """
    for name in IGNORED:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if parent is None:
        return
    # torch looks for its parent only between two batches, which a hanging worker never reaches.
    with suppress(OSError, AttributeError, TypeError):  # Linux only
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)
