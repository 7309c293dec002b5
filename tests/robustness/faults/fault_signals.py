"""Faults of faults.py: signals that ask a training to stop."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from fault_compare import checkpoint_step, finished_equal, steps_of
from fault_process import TINY, Fault, Process, Seen, resumed, slow_steps, start, wait_until

MAX_SECONDS = 10  # from the signal until the process has ended
NAMES = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT")


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    rows = [_signal(name) for name in NAMES]
    rows += [
        _signal("SIGTERM", "loader.num_workers=2", group=True),
        _signal("SIGINT", "loader.num_workers=2", group=True),
        # More epochs, because an optimizer step has three batches.
        _signal("SIGTERM", "trainer.grad_accum_steps=3", "trainer.epochs=9"),
        _signal("SIGTERM", "pretrain=masked", "pretrain.epochs=3"),
    ]
    return [
        *rows,
        Fault("SIGINT twice during a slow step", "stops at once, code 130", _twice),
        Fault("SIGTERM during a validation", "checkpoint, code 143, resumed", _in_validation),
        Fault("SIGTERM while the data is read", "code -15 or 143, nothing to resume", _in_setup),
        Fault("SIGTERM during the final evaluation", "resumed, equal", _in_evaluation),
        Fault("SIGTERM twice to a resumed training", "resumed twice, equal", _again),
    ]


def _signal(name: str, *more: str, group: bool = False) -> Fault:
    """Return the fault of one signal.

    Args:
        name: Name of the signal.
        more: Options of the training.
        group: Whether the data workers also receive the signal, as with Ctrl+C in a terminal.
    """
    number = getattr(signal, name)

    def inject(folder: Path) -> Seen:
        run = folder / "run"
        log = run / "pretrain" if "pretrain=masked" in more else run
        process = start("train", *TINY, *more, f"run={run}", before=slow_steps)
        wait_until(lambda: len(steps_of(log)) >= 25 or process.poll())
        at = max(steps_of(log), default=0)
        seconds = _stop(process, number, group=group)
        saved = checkpoint_step(log)
        said = process.said
        seen = finished_equal(run, *more)
        passed = (
            process.code == 128 + number
            and seconds <= MAX_SECONDS
            and saved is not None
            and saved >= at
            and f"continue with: dxn train resume={run}" in said
            and seen.passed
        )
        text = f"code {process.code} after {seconds:.1f} s, signal at step {at}, checkpoint at"
        return Seen(passed, f"{text} {saved}; {said}; {seen.text}")

    to = " to all processes of the group" if group else ""
    options = f" ({' '.join(more)})" if more else ""
    expected = f"checkpoint, code {128 + number} within {MAX_SECONDS} s, resumed, equal"
    return Fault(f"{name}{to}{options}", expected, inject)


def _stop(process: Process, number: int, *, group: bool = False) -> float:
    """Send a signal, and return the seconds until the process has ended."""
    sent = time.monotonic()
    if group:
        os.killpg(process.pid, number)
    else:
        process.kill(number)
    process.wait(60)
    return time.monotonic() - sent


def _twice(folder: Path) -> Seen:
    run = folder / "run"
    process = start("train", *TINY, f"run={run}", before=lambda: slow_steps(5))
    wait_until(lambda: len(steps_of(run)) >= 1 or process.poll())
    time.sleep(0.5)
    process.kill(signal.SIGINT)
    time.sleep(0.3)
    sent = time.monotonic()
    process.kill(signal.SIGINT)
    process.wait(60)
    seconds = time.monotonic() - sent
    seen = finished_equal(run)
    passed = process.code == 130 and seconds < 3 and not process.has_traceback and seen.passed
    return Seen(passed, f"code {process.code} after {seconds:.1f} s; {process.said}; {seen.text}")


def _when(function: str, owner: str, number: int, *, call: int = 1) -> Any:
    """Return a function that makes this process send itself a signal in a call of a function."""

    def before() -> None:
        path, _, cls = owner.partition(":")
        target: Any = importlib.import_module(path)
        target = getattr(target, cls) if cls else target
        original = getattr(target, function)
        calls = 0

        def replaced(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), number)
            return original(*arguments, **options)

        setattr(target, function, replaced)

    return before


def _in_validation(folder: Path) -> Seen:
    run = folder / "run"
    before = _when("predict", "dxn.training.loop", signal.SIGTERM, call=2)
    process = start("train", *TINY, f"run={run}", before=before).wait()
    seen = finished_equal(run)
    return Seen(process.code == 143 and seen.passed, f"code {process.code}; {seen.text}")


def _in_setup(folder: Path) -> Seen:
    run = folder / "run"
    before = _when("open_splits", "dxn.runs.prepare", signal.SIGTERM)
    process = start("train", *TINY, f"run={run}", before=before).wait()
    # The same command again, because there is nothing to resume.
    again = start("train", *TINY, f"run={run}").wait()
    passed = process.code in (-15, 143) and not process.has_traceback and again.code == 0
    return Seen(passed, f"code {process.code}; the same command again: code {again.code}")


def _in_evaluation(folder: Path) -> Seen:
    run = folder / "run"
    before = _when("evaluate", "dxn.runs.evaluation.after_training", signal.SIGTERM)
    process = start("train", *TINY, f"run={run}", before=before).wait()
    seen = finished_equal(run)
    passed = process.code in (-15, 143) and not process.has_traceback and seen.passed
    return Seen(passed, f"code {process.code}; {seen.text}")


def _again(folder: Path) -> Seen:
    run = folder / "run"
    before = _when("train_step", "dxn.training.loop:Fit", signal.SIGTERM, call=13)
    first = start("train", *TINY, f"run={run}", before=before).wait()
    second = resumed(run, before=before)
    seen = finished_equal(run)
    passed = first.code == second.code == 143 and seen.passed
    return Seen(passed, f"codes {first.code} and {second.code}; {seen.text}")
