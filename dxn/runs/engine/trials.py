"""Trials of a search on Ray: each one is a task on a machine of the cluster."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna.exceptions import TrialPruned

from dxn.config.settings import Settings
from dxn.core.display import silence
from dxn.core.errors import Interrupted
from dxn.core.results import Results
from dxn.runs.engine.cluster import explained, replicas_on, start
from dxn.runs.folder import continued, has_checkpoint
from dxn.runs.train import train_one
from dxn.training.distributed import stop_signals

if TYPE_CHECKING:
    from dxn.commands.options import RayOptions

# Number of each epoch, number of all epochs, and monitored metric, see `train_one`.
OnEpoch = Callable[[int, int, float], None]
# Function that trains a model, and returns its results.
RunTrial = Callable[[Settings, OnEpoch], Results | None]

RESTARTS = 3  # of a trial whose process or machine is lost
POLL_SECONDS = 1.0  # in which a signal is noticed
STOP_SECONDS = 60.0  # in which an interrupted trial saves a checkpoint


def run_here(settings: Settings, on_epoch: OnEpoch) -> Results | None:
    """Run a trial in this process. Its log is in its run folder."""
    with silence():
        return train_one(settings, on_epoch=on_epoch).results


@contextmanager
def on_ray(options: RayOptions) -> Iterator[tuple[RunTrial, int]]:
    """Connect to a cluster, or start Ray in this process.

    Yields:
        A function that runs a trial on the cluster, and the number of trials that run at a time.
        Threads can call it. It raises Interrupted after a signal.
    """
    ray = start(options.address)
    size, num_gpus, num_cpus = replicas_on(ray, options.replicas)
    # Ray divides a processor, but accepts only whole numbers above 1.
    resources = {"num_cpus": int(num_cpus) or num_cpus, "num_gpus": num_gpus}
    task = ray.remote(max_retries=RESTARTS, **resources)(_run)
    # On this machine, so that the search survives the loss of another one.
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    node = ray.get_runtime_context().get_node_id()
    here = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    mail = ray.remote(num_cpus=0, scheduling_strategy=here)(Mail).remote()
    with stop_signals() as received:

        def run(settings: Settings, on_epoch: OnEpoch) -> Results | None:
            folder = settings.values["run"]
            work = task.remote(settings, folder, str(Path.cwd()), mail)
            report = mail.read.remote(folder)
            pruned: TrialPruned | None = None
            while True:
                ready, _ = ray.wait([work, report], timeout=POLL_SECONDS)
                if received:
                    ray.cancel(work)
                    ray.wait([work], timeout=STOP_SECONDS)
                    raise Interrupted(code=128 + received[0])
                if report in ready:
                    try:
                        on_epoch(*ray.get(report))
                    except TrialPruned as error:
                        pruned = error
                    mail.answer.remote(folder, pruned and str(pruned))
                    report = mail.read.remote(folder)
                elif pruned and ready:
                    raise pruned
                elif ready:
                    try:
                        return ray.get(work)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from error
                    except ray.exceptions.RayError as error:
                        raise explained(error) from error

        try:
            yield run, size
        finally:
            ray.shutdown()


class Mail:
    """The reports of trials after their epochs, and the answers of the search.

    An actor of Ray, because a task cannot call the process that has started it.
    """

    def __init__(self):
        self.reports: defaultdict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self.answers: defaultdict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)

    async def report(self, trial: str, *figures: float) -> str | None:
        """Send the figures of an epoch. Return why the trial must stop; None if it goes on."""
        await self.reports[trial].put(figures)
        return await self.answers[trial].get()

    async def read(self, trial: str) -> tuple[int, int, float]:
        """Wait for the next report of a trial."""
        return await self.reports[trial].get()

    async def answer(self, trial: str, reason: str | None) -> None:
        """Answer a report."""
        await self.answers[trial].put(reason)


def _run(settings: Settings, run: str, directory: str, mail: Any) -> Results | None:
    """Run a trial: a task of Ray."""
    ray = importlib.import_module("ray")
    os.chdir(directory)  # paths of the data can be relative
    folder = Path(run)
    # Of a process that was lost.
    if has_checkpoint(folder):
        settings = continued(folder, settings)
    else:
        shutil.rmtree(folder, ignore_errors=True)

    def on_epoch(*figures: float) -> None:
        if reason := ray.get(mail.report.remote(run, *figures)):
            raise TrialPruned(reason)

    try:
        return run_here(settings, on_epoch)
    except TrialPruned:
        return None  # the search knows it
