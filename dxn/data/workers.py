"""Processes that prepare batches: torch's DataLoader, whose errors become sentences."""

from __future__ import annotations

import atexit
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from dxn.core.errors import UserError

if TYPE_CHECKING:
    from dxn.data.loader import BatchKey, BatchOrder

# Signals on which a training saves a checkpoint, which a terminal or a batch system sends to all
# its processes. The workers are needed until the training ends.
IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
ADVICE = {
    "SIGKILL": "often the memory of the machine is full: use fewer processes",
    "SIGBUS": "often the shared memory, /dev/shm, is full: enlarge it",
}
# Texts of torch's errors about its workers.
WORKER_DIED = "DataLoader worker (pid"
TIMED_OUT = "DataLoader timed out"
CANNOT_SHARE = ("shared memory", "Too many open files", "No space left on device")
POLL = 1.0  # seconds between two looks at the workers while the main process waits for a batch
SECONDS = 1.0  # to wait for a killed process; one that waits for a broken disk cannot be killed


class Workers(DataLoader):
    """Iterates over the batches of an order, which several processes prepare.

    Args:
        order: Batch sampler. Its `samples` are the data set.
        count: Number of processes.
        pin_memory: Whether to copy batches to page-locked memory, which a GPU reads faster.
    """

    def __init__(self, order: BatchOrder, count: int, pin_memory: bool):
        self.samples = order.samples
        super().__init__(
            _Batches(order),
            # torch needs no more of it than an iterator.
            batch_sampler=order,  # pyright: ignore[reportArgumentType]
            collate_fn=_unchanged,
            num_workers=count,
            persistent_workers=True,
            pin_memory=pin_memory,
            # torch looks for dead workers each time that it has waited this long.
            timeout=min(POLL, order.samples.timeout or POLL),
            worker_init_fn=_ignore_signals,
            # A DataLoader draws a base seed for its workers. With the global generator, this draw
            # would change the dropout of a resumed run.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Yield the batches.

        Raises:
            UserError: If a sample cannot be prepared, or the workers cannot be used.
        """
        try:
            iterator = self._start()
            while (batch := self._next(iterator)) is not None:
                # torch would add the traceback of the worker to the message of an exception.
                if isinstance(batch, UserError):
                    raise batch
                yield batch
        except Exception as error:
            user_error = self._as_user_error(error)
            self.stop()
            if user_error is None:
                raise
            raise user_error from error

    def _start(self) -> Any:
        """Start the iterator of torch, without its handler of SIGCHLD.

        The handler raises the error of a dead worker wherever the main thread is at that moment.
        torch also looks for dead workers while it waits for a batch, where the error is expected.
        """
        RUNNING.add(self)
        before = None if sys.platform == "win32" else signal.getsignal(signal.SIGCHLD)
        try:
            iterator = super().__iter__()
        except RuntimeError as error:
            if not str(error).startswith(TIMED_OUT):
                raise
            # The workers are still busy with the batches of an iteration that was left early.
            self.stop()
            iterator = super().__iter__()
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, before)
        return iterator

    def _next(self, iterator: Any) -> Any:
        """Return the next batch; None at the end."""
        waited = 0.0
        while True:
            try:
                return next(iterator, None)
            except RuntimeError as error:
                waited += self.timeout
                limit = self.samples.timeout
                is_over = limit is not None and waited >= limit
                if is_over or not str(error).startswith(TIMED_OUT):
                    raise

    def stop(self) -> None:
        """End the workers. The next iteration would start new ones."""
        iterator: Any = self._iterator
        if iterator is None:
            return
        self._iterator = None
        # torch waits some seconds, and then sends SIGTERM, which the workers ignore.
        iterator._shutdown_workers()
        for process in iterator._workers:
            process.kill()
            process.join(SECONDS)

    def _as_user_error(self, error: Exception) -> UserError | None:
        """Return an error of torch about the workers as one sentence; None for other errors."""
        text = str(error).partition("\n")[0]
        # A worker may die after torch has received a batch, and before the memory of its tensors.
        if isinstance(error, ConnectionError | EOFError) or text.startswith(WORKER_DIED):
            return UserError(
                f"loader.num_workers: a process that prepares batches {self._end_of_worker()}; "
                "dxn train resume=RUN continues from the last checkpoint"
            )
        if text.startswith(TIMED_OUT):
            return UserError(
                "loader.timeout: the processes that prepare batches have not delivered one in "
                f"{self.samples.timeout:g} s; check the files and the disk, or raise loader.timeout"
            )
        if any(part in text for part in CANNOT_SHARE):
            return _sharing_error(error)
        if isinstance(error, BlockingIOError):  # the limit of processes
            return UserError(
                f"loader.num_workers: {self.num_workers} processes that prepare batches cannot be "
                f"started ({error}); use fewer, or loader.num_workers=0"
            )
        return None

    def _end_of_worker(self) -> str:
        """Return how a worker ended, such as "was killed (SIGKILL; ...)"."""
        iterator: Any = self._iterator
        # A process that is being killed has no exit code yet, even when its sentinel is ready.
        ended = connection.wait([process.sentinel for process in iterator._workers], timeout=POLL)
        for process in iterator._workers:
            if process.sentinel in ended:
                process.join(POLL)
        codes = [process.exitcode for process in iterator._workers]
        code = next((code for code in codes if code), None)
        if code is None or code > 0:
            return f"ended with exit code {code}; loader.num_workers=0 shows its error"
        name = signal.Signals(-code).name
        return f"was killed ({name}{'; ' * (name in ADVICE)}{ADVICE.get(name, '')})"


RUNNING: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    # At its end, Python would wait without limit for processes that ignore its SIGTERM.
    for workers in list(RUNNING):
        workers.stop()


class _Batches(Dataset):
    """The collated batches. A UserError is returned in place of the batch that has it."""

    def __init__(self, order: BatchOrder):
        self.order = order

    def __getitems__(self, key: BatchKey) -> dict[str, Any] | UserError:
        """Return a batch. torch calls this method, not __getitem__."""
        try:
            batch = self.order.prepare(key)
            # Otherwise a thread of torch would do this later, and only print an error.
            tree_map_only(Tensor, Tensor.share_memory_, batch)
        except UserError as error:
            return error
        except (RuntimeError, OSError) as error:
            if not any(text in str(error) for text in CANNOT_SHARE):
                raise
            return _sharing_error(error)
        return batch


def _sharing_error(error: Exception) -> UserError:
    return UserError(
        "loader.num_workers: a batch cannot be passed from one process to another "
        f"({str(error).splitlines()[0]}); enlarge /dev/shm and the limit of open files (ulimit "
        "-n), or use loader.num_workers=0"
    )


def _unchanged(batch: Any) -> Any:
    # `Samples.batch` has already collated the batch.
    return batch


def _ignore_signals(worker: int) -> None:
    for name in IGNORED:
        if name in signal.Signals.__members__:  # not all systems have all of them
            signal.signal(signal.Signals[name], signal.SIG_IGN)
