"""Faults of faults.py: processes that prepare batches."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as multiprocessing
from fault_compare import compare, reference
from fault_process import (
    TINY,
    Fault,
    Seen,
    after_step,
    kill_at,
    refused,
    resumed,
    start,
    train,
    wait_until,
)
from torch.utils.data import get_worker_info

WORKERS = "loader.num_workers=2"
NUM_BEFORE = 77  # samples that a worker prepares before the fault


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    return [
        Fault("a worker killed", "code 2, no traceback; a resume is equal", _killed),
        Fault("a worker hangs in a sample", "code 2 after the time limit", _hangs),
        Fault("a sample raises MemoryError in a worker", "code 2, no traceback", _memory),
        Fault("the training killed with 2 workers", "no process left after 12 s", _orphans),
    ]


def _killed(folder: Path) -> Seen:
    def kill_worker(step: int) -> None:
        if step == 5:
            for child in multiprocessing.active_children()[:1]:
                os.kill(child.pid or 0, signal.SIGKILL)

    seen = refused(
        train(folder / "run", WORKERS, before=lambda: after_step(kill_worker)),
        "was killed (SIGKILL",
    )
    if not seen.passed:
        return seen
    ended = resumed(folder / "run")
    equal = compare(folder / "run", reference())
    return Seen(ended.code == 0 and equal.passed, f"{seen.text}; resumed: {equal.text}")


def _in_sample(action: Callable[[], object]) -> None:
    """Call a function in a worker, when it prepares its sample with the number NUM_BEFORE."""
    target = importlib.import_module("dxn.tasks.classify").Class
    encode, numbers = target.encode, itertools.count()

    def encode_or_fail(*arguments: Any, **options: Any) -> Any:
        if get_worker_info() is not None and next(numbers) == NUM_BEFORE:
            action()
        return encode(*arguments, **options)

    target.encode = encode_or_fail


def _hangs(folder: Path) -> Seen:
    arguments = ("train", *TINY, WORKERS, "loader.timeout=3", f"run={folder / 'run'}")
    process = start(*arguments, before=lambda: _in_sample(lambda: time.sleep(1000)))
    seen = refused(process.wait(60), "have not delivered one in 3 s")
    return Seen(seen.passed, f"after {process.seconds:.0f} s: {seen.text}")


def _memory(folder: Path) -> Seen:
    def fail() -> None:
        raise MemoryError

    return refused(train(folder / "run", WORKERS, before=lambda: _in_sample(fail)))


def _orphans(folder: Path) -> Seen:
    arguments = ("train", *TINY, WORKERS, f"run={folder / 'run'}")
    process = start(*arguments, before=lambda: kill_at(25)).wait()
    gone = wait_until(lambda: not _group(process.pid), 12)
    return Seen(gone and process.code == -9, f"code {process.code}; left: {_group(process.pid)}")


def _group(group: int) -> list[int]:
    """Return the processes of a process group that have not ended."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found
