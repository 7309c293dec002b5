"""Dynamic batching of dxn serve: which jobs share a batch, and what happens if one fails."""

import asyncio
import threading
import time

import pytest

from dxn.serve.answers import Refusal
from dxn.serve.engine import Engine


class Recorder:
    """A function for the engine that doubles numbers, and notes the batches."""

    def __init__(self):
        self.batches = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def __call__(self, kind, jobs):
        self.entered.set()
        assert self.open.wait(10)
        self.batches.append((kind, [job.content for job in jobs]))
        for job in jobs:
            if isinstance(job.content, BaseException):
                raise job.content
        return [2 * job.content for job in jobs]


class Countdown:
    """Jobs whose content is their number of steps."""

    kind = "steps"

    def __init__(self):
        self.left = {}
        self.sizes = []

    def add(self, job):
        self.left[job] = job.content

    def step(self):
        time.sleep(0.005)
        self.sizes.append(len(self.left))
        for job in self.left:
            self.left[job] -= 1
            if isinstance(job.content, float) and len(self.left) > 1:
                raise ValueError("broken")
        return len(self.left)

    def is_done(self, job):
        is_done = job.is_cancelled or self.left[job] <= 0
        if is_done:
            del self.left[job]
        return is_done

    def clear(self):
        self.left = {}


def run(scenario, **options):
    """Run a scenario with an engine, and return what it returns and the batches."""
    compute = Recorder()
    engine = Engine(compute, **{"batch_size": 4, "max_wait": 0.2, **options})

    async def main():
        engine.start(asyncio.get_running_loop())
        try:
            return await scenario(engine, compute)
        finally:
            compute.open.set()
            await asyncio.to_thread(engine.stop)

    return asyncio.run(main()), compute.batches


async def block(engine, compute):
    """Let the thread compute a first job that does not end, so that other jobs have to wait."""
    compute.open.clear()
    first = engine.submit("first", 0, 1)
    await asyncio.to_thread(compute.entered.wait, 10)
    return first


def test_jobs_that_wait_share_a_batch_up_to_its_size():
    async def scenario(engine, compute):
        first = await block(engine, compute)
        jobs = [engine.submit("a", i, 1) for i in range(6)]
        compute.open.set()
        return [await job.future for job in (first, *jobs)]

    results, batches = run(scenario)
    assert results == [0, 0, 2, 4, 6, 8, 10]
    assert batches == [("first", [0]), ("a", [0, 1, 2, 3]), ("a", [4, 5])]


def test_only_jobs_of_the_same_kind_share_a_batch():
    async def scenario(engine, compute):
        await block(engine, compute)
        jobs = [engine.submit("ab"[i % 2], i, 1) for i in range(5)]
        compute.open.set()
        return [await job.future for job in jobs]

    results, batches = run(scenario, max_wait=0)
    assert results == [0, 2, 4, 6, 8]
    assert batches[1:] == [("a", [0, 2, 4]), ("b", [1, 3])]


def test_a_job_that_is_larger_than_a_batch_has_one_of_its_own_and_is_not_overtaken():
    async def scenario(engine, compute):
        await block(engine, compute)
        jobs = [engine.submit("a", content, size) for content, size in ((1, 3), (2, 9), (3, 1))]
        compute.open.set()
        return [await job.future for job in jobs]

    results, batches = run(scenario, max_wait=0)
    assert results == [2, 4, 6]
    assert batches[1:] == [("a", [1]), ("a", [2]), ("a", [3])]


def test_a_job_that_fails_does_not_affect_the_others_of_its_batch():
    async def scenario(engine, compute):
        await block(engine, compute)
        jobs = [engine.submit("a", content, 1) for content in (1, ValueError("broken"), 3)]
        compute.open.set()
        return await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)

    (one, error, three), _ = run(scenario)
    assert (one, three) == (2, 6)
    assert isinstance(error, ValueError)


def test_if_the_thread_ends_its_jobs_fail_and_a_new_thread_computes_the_others():
    async def scenario(engine, compute):
        await block(engine, compute)
        killed = engine.submit("a", SystemExit("killed"), 1)
        other = engine.submit("b", 5, 1)
        compute.open.set()
        with pytest.raises(Refusal, match="the model thread ended") as refused:
            await killed.future
        return refused.value.status, await other.future, engine.restarts

    result, _ = run(scenario)
    assert result == (500, 10, 1)


def test_a_job_that_nobody_waits_for_is_not_computed():
    async def scenario(engine, compute):
        await block(engine, compute)
        job = engine.submit("a", 1, 1)
        job.is_cancelled = True
        other = engine.submit("b", 2, 1)
        assert engine.waiting == 1
        dropped = await job.future  # although the thread is busy
        compute.open.set()
        return dropped, await other.future

    results, batches = run(scenario)
    assert results == (None, 4)
    assert [kind for kind, _ in batches] == ["first", "b"]


def test_a_stop_finishes_the_jobs_that_wait():
    async def scenario(engine, compute):
        first = await block(engine, compute)
        job = engine.submit("a", 1, 1)
        threading.Timer(0.05, compute.open.set).start()
        await asyncio.to_thread(engine.stop)
        return await first.future, await job.future

    results, _ = run(scenario)
    assert results == (0, 2)


def test_a_job_of_several_steps_lets_others_join_and_other_kinds_pass():
    order = []

    async def scenario(engine, compute):
        def submit(name, kind, content):
            job = engine.submit(kind, content, 1)
            job.future.add_done_callback(lambda _: order.append(name))
            return job

        long = submit("long", "steps", 60)
        while not engine.steps.sizes:
            await asyncio.sleep(0.001)
        jobs = [long, submit("short", "steps", 3), submit("other", "a", 4)]
        left = submit("left", "steps", 10**9)
        left.is_cancelled = True
        return [await job.future for job in jobs]

    steps = Countdown()
    results, batches = run(scenario, steps=steps)
    assert results == [60, 3, 8]
    assert order[-1] == "long"
    assert batches == [("a", [4])]
    assert max(steps.sizes) == 2


def test_if_a_step_fails_its_jobs_are_computed_alone():
    async def scenario(engine, compute):
        jobs = [engine.submit("steps", content, 1) for content in (50, 2.0)]
        later = engine.submit("steps", 3, 1)
        results = [await job.future for job in (*jobs, later)]
        return results, await engine.submit("steps", 1, 1).future

    (results, last), batches = run(scenario, steps=Countdown())
    assert last == 1
    assert [content for _, contents in batches for content in contents] == [50, 2.0, 3]
    assert results == [100, 4.0, 6]


def test_if_the_thread_ends_in_a_step_its_jobs_fail():
    class Killed(Countdown):
        def step(self):
            if not self.sizes:
                self.sizes.append(1)
                raise SystemExit("killed")
            return super().step()

    async def scenario(engine, compute):
        with pytest.raises(Refusal, match="the model thread ended"):
            await engine.submit("steps", 5, 1).future
        return await engine.submit("steps", 2, 1).future

    assert run(scenario, steps=Killed())[0] == 2
