"""Faults of faults.py: a training that is killed at random moments."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

from fault_compare import checkpoint_step, compare, reference, sha256
from fault_process import TINY, Fault, Process, Seen, run, start, wait_until

# Checkpoints also within epochs, at times that differ from one attempt to the next. The training
# is small, because it is started more than a hundred times.
OPTIONS = (
    *("adapters=[text]", "data.num_train=300", "data.num_validation=20", "data.num_test=20"),
    *("trainer.checkpoint_minutes=0.001", "trainer.patience=0"),
)
STEPS = 45  # of this training


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the only fault of this group."""

    def inject(folder: Path) -> Seen:
        return _kill_often(folder, options.count, random.Random(options.seed))

    name = f"kill -9 at {options.count} random moments, each resumed with 0 or 2 workers"
    return [Fault(name, "each training ends with the SHA-256 of an undisturbed one", inject)]


def _kill_often(folder: Path, count: int, rand: random.Random) -> Seen:
    expected = reference(*OPTIONS)
    seconds = _duration(folder)
    kills = 0
    moments: Counter[str] = Counter()
    finished: list[str] = []
    failures: list[str] = []
    path = folder / "run"
    while kills < count and not failures:
        process = _start(path, rand.choice((0, 2)))
        delay = rand.uniform(0, 1.2 * seconds)
        wait_until(process.poll, delay)
        if process.code is None:
            process.kill(signal.SIGKILL)
            kills += 1
            moments[_moment(path)] += 1
            continue
        if process.code:
            failures.append(f"after {kills} kills: code {process.code}: {process.said}")
            continue
        seen = compare(path, expected)
        finished.append(seen.text)
        if not seen.passed:
            failures.append(f"after {kills} kills: {seen.text}")
        shutil.rmtree(path)
    if not failures and path.exists():
        process = _start(path, 0).wait()
        seen = compare(path, expected) if process.code == 0 else Seen(False, process.said)
        finished.append(seen.text)
        failures += [] if seen.passed else [seen.text]
    where = ", ".join(f"{number} {name}" for name, number in moments.most_common())
    digest = sha256(expected)[:16]
    text = f"{kills} kills ({where}); {len(finished)} trainings, all {digest}"
    return Seen(not failures, text if not failures else "; ".join(failures))


def _duration(folder: Path) -> float:
    """Return the seconds that an undisturbed training takes on this machine now."""
    started = time.monotonic()
    run("train", *TINY, *OPTIONS, f"run={folder / 'timed'}")
    return time.monotonic() - started


def _start(path: Path, workers: int) -> Process:
    """Start the training, or resume it if it has a checkpoint."""
    more = [f"loader.num_workers={workers}"]
    if checkpoint_step(path) is not None:
        return start("train", f"resume={path}", *more)
    return start("train", *TINY, *OPTIONS, *more, f"run={path}")


def _moment(path: Path) -> str:
    """Say in which part of the training it was killed."""
    step = checkpoint_step(path)
    if step is None:
        return "before the first checkpoint"
    if step == STEPS:
        return "after the last step"
    return "between two steps"
