"""The data loader: batches from this process, or from worker processes."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

from dxn.core.display import Display
from dxn.core.errors import UserError
from dxn.data.dataset import TIMEOUT
from dxn.data.order import BatchOrder
from dxn.data.preparing import Batches
from dxn.data.workers import WorkerDied, Workers, WorkersBusy


class Loader:
    """Iterates over the batches of an order, from its position at the start of each iteration.

    If a worker process dies, all of them are started again at the same position, once per epoch.

    Args:
        order: Batch sampler. Its `samples` are the data set and define how to collate.
        num_workers: Number of processes that prepare batches. 0: this process prepares them.
        timeout: Number of seconds that a sample may take. None: no limit.
    """

    def __init__(self, order: BatchOrder, num_workers: int, timeout: float | None):
        self.order = order
        self.num_workers = num_workers
        self.timeout = timeout
        self.workers: Workers | None = None
        self.is_iterating = False
        # Epoch in which the workers were started again.
        self.failed_epoch: int | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches.

        Raises:
            UserError: If a sample cannot be prepared or takes too long, or workers die repeatedly.
        """
        for batch in self._from_workers() if self.num_workers else self._from_here():
            # torch would add the traceback of the worker to the message of an exception.
            if isinstance(batch, UserError):
                raise batch
            yield batch

    def __del__(self):
        if self.workers is not None:
            self.workers.stop()

    def _from_here(self) -> Iterator[Any]:
        batches = Batches(self.order.samples, timeout=self.timeout, num_workers=0)
        for keys in copy.copy(self.order):
            yield batches.__getitems__(keys)

    def _from_workers(self) -> Iterator[Any]:
        # The workers are still busy with the batches of an iteration that was left early.
        if self.is_iterating:
            self._stop()
        self.is_iterating = True
        # A copy, because the caller may change the position while it iterates.
        order = copy.copy(self.order)
        done = 0
        while True:
            try:
                if self.workers is None:
                    self.workers = Workers(order.samples, self.num_workers, self.timeout)
                self.workers.begin(order, done)
                for batch in self.workers:
                    done += 1
                    yield batch
                break
            except WorkerDied as death:
                self._stop()
                self._note(death)
            except WorkersBusy:
                self._stop()
            except BaseException:
                self._stop()
                raise
            # The new processes must not inherit the old iterator, which the traceback of the error
            # still refers to: torch would print an error in each of them.
            gc.collect()
        self.is_iterating = False

    def _stop(self) -> None:
        if self.workers is not None:
            self.workers.stop()
            self.workers = None

    def _note(self, death: WorkerDied) -> None:
        """Print a note, or raise an error if it is the second death in this epoch."""
        if self.failed_epoch == self.order.epoch:
            raise UserError(
                f"a process that prepares batches {death}; it is the second one in this epoch; "
                "check this file, or use fewer processes (loader.num_workers)"
            )
        self.failed_epoch = self.order.epoch
        display = Display(main=True, stderr=True)
        display.line(
            f"note: a process that prepares batches {death}; all of them start again at the same "
            "position"
        )
        display.close()


def make_loader(
    order: BatchOrder, *, num_workers: int | None = None, timeout: float | None = TIMEOUT
) -> Loader:
    """Create a data loader. The content of the batches does not depend on `num_workers`.

    Args:
        order: Batch sampler. Its `samples` are the data set and define how to collate.
        num_workers: Number of processes that prepare batches. 0: the main process prepares them.
            Default: 0. If the samples read files, their own, or one per processor core.
        timeout: Number of seconds that preparing one sample may take. None: no limit.
    """
    return Loader(order, default_workers(order) if num_workers is None else num_workers, timeout)


def default_workers(order: BatchOrder) -> int:
    """Return the number of processes that read the files of the samples; 0 if they read none."""
    # A data set of a test may have only the methods of `Sized`.
    if not getattr(order.samples, "reads_files", False):
        return 0
    chosen = getattr(order.samples, "num_workers", None)
    if chosen is not None:
        return chosen
    # Without fork, each process would start with an import of torch and a copy of all samples.
    if _start_method() != "fork":
        return 0
    # torchrun starts several training processes per machine, which share its cores.
    cores = num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # A single worker would only take turns with the training process.
    return min(cores, len(order)) if cores > 1 else 0


def _start_method() -> str:
    # allow_none: otherwise the call would set the method, and the application could not choose one.
    method = multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]  # the first one is the default


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # it does not exist on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
