"""Dynamic batching: one thread owns the model, and computes samples of several requests together.

The event loop submits jobs and awaits their results. The thread takes the first job, waits a moment
for others of the same kind, and computes all of them together. Jobs of many steps, such as texts,
are computed step by step. Others join them at any step, and jobs of other kinds are computed
between two steps.

A single short job needs no thread: the event loop computes it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from dxn.serve.answers import Refusal

if TYPE_CHECKING:
    from dxn.serve.operations import WritingSteps

Result = TypeVar("Result")

# Seconds of a batch that the event loop may compute itself. Meanwhile, it reads no requests.
SHORT = 0.005


@dataclass(eq=False)
class Job:
    """The samples of one request.

    Args:
        kind: What to compute. Only jobs of the same kind share a batch.
        content: What the function of the engine needs.
        size: Number of samples.
        future: The result, in the event loop.
        is_cancelled: Whether nobody waits for the result any more.
        since: Time at which the job was submitted.
    """

    kind: Hashable
    content: Any
    size: int
    future: asyncio.Future[Any]
    is_cancelled: bool = False
    since: float = field(default_factory=time.monotonic)


class Engine:
    """The thread that computes jobs in batches.

    A job that fails does not affect the others: if a batch fails, its jobs are computed alone. If
    the thread itself ends, the jobs of its batch fail, and a new thread continues with the others.

    Args:
        compute: Function of the kind and the jobs of a batch that returns one result per job.
        batch_size: Maximum number of samples of a batch. A larger job has a batch of its own.
        max_wait: Seconds that a job waits for others.
        steps: The jobs that are computed step by step. None: there are no such jobs.
        on_batch: Function that is called with the number of samples and the seconds of each batch
            or step.
    """

    def __init__(
        self,
        compute: Callable[[Hashable, Sequence[Job]], Sequence[Any]],
        *,
        batch_size: int,
        max_wait: float,
        steps: WritingSteps | None = None,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ):
        self.compute = compute
        self.batch_size = batch_size
        self.max_wait = max_wait
        self.steps = steps
        self.on_batch = on_batch
        self.restarts = 0
        self.busy_since: float | None = None
        self._jobs: deque[Job] = deque()
        self._running: list[Job] = []  # the jobs of `steps`
        self._changed = threading.Condition()
        self._is_stopping = False
        self._is_idle = False  # the thread waits for jobs
        self._was_shared = False
        # Of the last batch, on the processor: on the clock, other programs would count.
        self._last_seconds = float("inf")
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread, whose results belong to this event loop."""
        self._loop = loop
        self._is_stopping = False
        self._start_thread()

    def stop(self, seconds: float = 10.0) -> None:
        """Let the thread finish the jobs that wait, and end it."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        # After a restart, this is another thread than before.
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def waiting(self) -> int:
        """Number of samples that wait."""
        with self._changed:
            return sum(job.size for job in self._jobs if not job.is_cancelled)

    def submit(self, kind: Hashable, content: Any, size: int) -> Job:
        """Add a job. The caller awaits its future; it runs in the event loop of the engine."""
        assert self._loop is not None
        job = Job(kind, content, size, self._loop.create_future())
        with self._changed:
            # The thread does it too, but not while it computes a long batch.
            self._drop_cancelled()
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    @property
    def is_fast(self) -> bool:
        """Whether the event loop may compute a job itself, see `compute_now`."""
        with self._changed:
            is_free = self._is_idle and not self._jobs and not self._is_stopping
        return is_free and self._last_seconds <= SHORT

    def compute_now(self, compute: Callable[[], Result]) -> Result:
        """Return the result of a function for one sample, which the event loop calls itself.

        To wake the thread, and then the event loop, takes longer than a small model. Only the event
        loop submits jobs, so the thread stays idle until this returns.
        """
        start, used = time.monotonic(), time.thread_time()
        result = compute()
        self._last_seconds = time.thread_time() - used
        self.on_batch(1, time.monotonic() - start)
        return result

    # The thread

    def _start_thread(self) -> None:
        # A daemon: the process can end although a model computes without end.
        self._thread = threading.Thread(target=self._work, name="dxn-model", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        jobs: Sequence[Job] = ()
        try:
            while (jobs := self._next_batch()) or self._running:
                if self.steps is not None and jobs and jobs[0].kind == self.steps.kind:
                    for job in jobs:
                        self._running.append(job)
                        self.steps.add(job)
                elif jobs:
                    self._run(jobs)
                jobs = ()
                if self._running:
                    self._step()
        # Whatever ends the thread: the requests must be answered, and others must be served.
        except BaseException as error:
            reason = f"the model thread ended ({type(error).__name__}); send the request again"
            self._deliver([(job, Refusal(500, reason)) for job in [*jobs, *self._running]])
            self._forget_running()
            self.busy_since = None
            self.restarts += 1
            self._start_thread()

    def _next_batch(self) -> list[Job]:
        """Return the jobs of the next batch, and wait for them if none is running.

        [] at the end, or if only running jobs are left.
        """
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._jobs:
                    break
                if self._is_stopping or self._running:
                    return []
                self._is_idle = True
                self._changed.wait()
                self._is_idle = False
            if not self._running:
                self._wait_for_more(self._jobs[0])
            batch = self._take(self._jobs[0].kind)
        self._was_shared = len(batch) > 1
        return batch

    def _drop_cancelled(self) -> None:
        """Remove the jobs that nobody waits for, and end their futures."""
        dropped = [job for job in self._jobs if job.is_cancelled]
        if dropped:
            self._jobs = deque(job for job in self._jobs if not job.is_cancelled)
            self._deliver([(job, None) for job in dropped])

    def _wait_for_more(self, first: Job) -> None:
        """Wait until the batch is full, or the first job has waited long enough."""
        # A lone client would wait in vain: it sends its next request after this answer.
        if not self._was_shared and len(self._jobs) == 1:
            return
        # Others join its steps later.
        if self.steps is not None and first.kind == self.steps.kind:
            return
        end = first.since + self.max_wait
        while not self._is_stopping:
            size = sum(job.size for job in self._jobs if job.kind == first.kind)
            left = end - time.monotonic()
            if size >= self.batch_size or left <= 0:
                return
            self._changed.wait(left)

    def _take(self, kind: Hashable) -> list[Job]:
        """Remove the first jobs of a kind, as many as fit into a batch."""
        batch: list[Job] = []
        others: deque[Job] = deque()
        size = 0
        is_full = False
        for job in self._jobs:
            # The order of jobs of a kind is kept, so that a large one is not overtaken for ever.
            is_full |= job.kind == kind and bool(batch) and size + job.size > self.batch_size
            if job.kind == kind and not is_full:
                batch.append(job)
                size += job.size
            else:
                others.append(job)
        self._jobs = others
        return batch

    def _run(self, jobs: Sequence[Job]) -> None:
        self.busy_since = time.monotonic()
        used = time.thread_time()
        try:
            results: list[Any] = list(self.compute(jobs[0].kind, jobs))
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._run([job])
                return
            results = [error]
        seconds = time.monotonic() - self.busy_since
        self.busy_since = None
        self._deliver(list(zip(jobs, results, strict=True)))
        self._last_seconds = time.thread_time() - used
        self.on_batch(sum(job.size for job in jobs), seconds)

    def _step(self) -> None:
        """Compute a step of the running jobs, and deliver those that are done."""
        assert self.steps is not None
        self.busy_since = time.monotonic()
        try:
            size = self.steps.step()
            done = [job for job in self._running if self.steps.is_done(job)]
        except Exception as error:
            jobs = self._running
            self._forget_running()
            if len(jobs) == 1:
                self._deliver([(jobs[0], error)])
            else:
                for job in jobs:
                    self._run([job])
            return
        finally:
            since, self.busy_since = self.busy_since, None
        self._running = [job for job in self._running if job not in done]
        if done:
            self._deliver([(job, job.content) for job in done])
        self.on_batch(size, time.monotonic() - since)

    def _forget_running(self) -> None:
        self._running = []
        if self.steps is not None:
            self.steps.clear()

    def _deliver(self, results: Sequence[tuple[Job, Any]]) -> None:
        """Set the results of jobs in the event loop. An exception is raised where it is awaited."""
        assert self._loop is not None
        # One call per batch: waking the event loop takes longer than setting a result. The loop is
        # closed if the server was stopped by force.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_set_results, results)


def _set_results(results: Sequence[tuple[Job, Any]]) -> None:
    for job, result in results:
        if job.future.done():  # cancelled, because the time was over
            continue
        if isinstance(result, BaseException):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
