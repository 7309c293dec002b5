"""Faults of faults.py: several trainings in one run folder."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from fault_compare import compare, finished_equal, killed_at, reference, steps_of
from fault_process import TINY, Fault, Seen, kill_at, refused, slow_steps, start, train, wait_until


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    return [
        Fault("two trainings start at once", "one is refused, the other is complete", _two_new),
        Fault("two resumes at once", "one is refused, the other is equal", _two_resumes),
        Fault("resume of a training that runs", "refused; the training is equal", _resume_running),
        Fault("a new training in the folder of a killed one", "refused", _occupied),
        Fault("a new training in the folder of a finished one", "refused", _finished),
        Fault("a training after one that failed at its start", "works", _after_failure),
        Fault("resume of an empty folder", "refused", _empty),
    ]


def _two_new(folder: Path) -> Seen:
    run = folder / "run"
    both = [start("train", *TINY, f"run={run}", before=slow_steps) for _ in range(2)]
    codes = [process.wait().code for process in both]
    said = [process.said for process in both if process.code]
    seen = compare(run, reference())
    return Seen(
        sorted(map(str, codes)) == ["0", "2"] and seen.passed, f"{codes} {said} {seen.text}"
    )


def _two_resumes(folder: Path) -> Seen:
    run = folder / "run"
    killed_at(run, 33)
    both = [start("train", f"resume={run}", before=slow_steps) for _ in range(2)]
    codes = [process.wait().code for process in both]
    said = [process.said for process in both if process.code]
    seen = compare(run, reference())
    return Seen(
        sorted(map(str, codes)) == ["0", "2"] and seen.passed, f"{codes} {said} {seen.text}"
    )


def _resume_running(folder: Path) -> Seen:
    run = folder / "run"
    first = start("train", *TINY, f"run={run}", before=lambda: slow_steps(0.2))
    wait_until(lambda: len(steps_of(run)) >= 5 or first.poll())
    second = refused(start("train", f"resume={run}").wait(), "is in use by process")
    first.wait()
    seen = compare(run, reference())
    return Seen(second.passed and first.code == 0 and seen.passed, f"{second.text}; {seen.text}")


def _occupied(folder: Path) -> Seen:
    run = folder / "run"
    killed_at(run, 25)
    second = refused(train(run), "already contains a run", f"resume={run}")
    seen = finished_equal(run)
    return Seen(second.passed and seen.passed, f"{second.text}; then resumed: {seen.text}")


def _finished(folder: Path) -> Seen:
    shutil.copytree(reference(), folder / "run")
    return refused(train(folder / "run"), "already contains a run")


def _after_failure(folder: Path) -> Seen:
    run = folder / "run"
    failed = train(run, "optimizer.lr=nonsense")
    ended = train(run)
    seen = compare(run, reference()) if ended.code == 0 else Seen(False, ended.said)
    return Seen(failed.code == 2 and seen.passed, f"{failed.said}; then: {seen.text}")


def _empty(folder: Path) -> Seen:
    return refused(start("train", f"resume={folder}", before=lambda: kill_at(1)).wait())
