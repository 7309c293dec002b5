"""Faults of faults.py: trainings that are killed between two steps, and resumed."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
from pathlib import Path
from typing import Any

from fault_compare import compare, finished_equal, killed_at, log_rows, reference, sha256
from fault_process import Fault, Seen, kill_at, refused, resumed, train

EQUAL = "resumed; equal to the bit"
EVERY_STEP = "trainer.checkpoint_minutes=1e-9"


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    rows = [Fault("none (the same training twice)", "equal to the bit", _twice)]
    # Without checkpoints within an epoch: the training returns to the end of the last epoch.
    for step, workers in ((21, 0), (27, 0), (33, 2), (40, 0), (45, 4)):
        rows.append(_kill(step, workers))
    for step, workers, more in (
        (25, 0, ["trainer.checkpoint_minutes=1e-9"]),
        (34, 2, ["trainer.checkpoint_minutes=1e-9"]),
        (49, 4, ["trainer.checkpoint_minutes=1e-9"]),
        (13, 2, ["trainer.checkpoint_minutes=1e-9", "trainer.grad_accum_steps=2"]),
        (17, 0, [EVERY_STEP, "trainer.grad_accum_steps=3"]),
        (12, 0, ["trainer.checkpoint_minutes=0.0001", "trainer.grad_accum_steps=3"]),
        (25, 0, ["trainer.checkpoint_minutes=1e-9", "trainer.log_every=7"]),
        (28, 0, ["trainer.ema_decay=0.99", "trainer.mixup=0.2", "trainer.checkpoint_minutes=1e-9"]),
        (31, 2, ["adapters.audio.augment.noise=0.5", "loader.input_dropout=0.3", EVERY_STEP]),
    ):
        rows.append(_kill(step, workers, *more))
    return [
        *rows,
        Fault("kill -9 before the first checkpoint", "started again; equal", _early),
        Fault("kill -9 three times (steps 14, 31, 45), with 0, 2 and 0 workers", EQUAL, _thrice),
        Fault("kill -9 after a validation, before its checkpoint", EQUAL, _after_validation),
        Fault("kill -9 during pretraining", EQUAL, _pretraining),
        Fault("kill -9 during the final evaluation", EQUAL, _during_evaluation),
        Fault("precision=auto, and the machine now has another one", "kept", _precision),
        Fault("resume of a finished run", "exit code 0, the same weights", _finished),
        Fault("resume of a finished run with more epochs", "continues", _more_epochs),
    ]


def _kill(step: int, workers: int, *more: str) -> Fault:
    def inject(folder: Path) -> Seen:
        killed_at(folder / "run", step, *more)
        return finished_equal(folder / "run", *more, changes=[f"loader.num_workers={workers}"])

    options = f" ({' '.join(more)})" if more else ""
    return Fault(f"kill -9 at step {step}{options}, resumed with {workers} workers", EQUAL, inject)


def _early(folder: Path) -> Seen:
    run = killed_at(folder / "run", 7)
    answer = refused(resumed(run), "has no checkpoint yet", "start the training again")
    train(run)
    seen = compare(run, reference())
    return Seen(answer.passed and seen.passed, f"{answer.text}; then started again: {seen.text}")


def _twice(folder: Path) -> Seen:
    train(folder / "run")
    return compare(folder / "run", reference())


def _thrice(folder: Path) -> Seen:
    run = killed_at(folder / "run", 14, "trainer.checkpoint_minutes=1e-9")
    resumed(run, "loader.num_workers=2", before=lambda: kill_at(31))
    resumed(run, "loader.num_workers=0", before=lambda: kill_at(45))
    return finished_equal(run, "trainer.checkpoint_minutes=1e-9")


def _kill_in(module: str, name: str, *, call: int = 1, after: bool = False) -> None:
    """Make this process kill itself in a call of a function.

    Args:
        module: Module of the function, or module:class.
        name: Name of the function.
        call: Number of the call.
        after: Whether to kill after the call instead of before it.
    """
    path, _, cls = module.partition(":")
    owner = importlib.import_module(path)
    owner = getattr(owner, cls) if cls else owner
    original = getattr(owner, name)
    calls = 0

    def replaced(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, replaced)


def _after_validation(folder: Path) -> Seen:
    train(
        folder / "run",
        before=lambda: _kill_in("dxn.training.loop:Fit", "validate", call=2, after=True),
    )
    return finished_equal(folder / "run")


def _pretraining(folder: Path) -> Seen:
    more = ["pretrain=masked", "pretrain.epochs=2", "trainer.epochs=1"]
    killed_at(folder / "run", 25, *more)
    return finished_equal(folder / "run", *more)


def _during_evaluation(folder: Path) -> Seen:
    train(
        folder / "run",
        before=lambda: _kill_in("dxn.runs.evaluation.after_training", "evaluate_subsets"),
    )
    seen = finished_equal(folder / "run")
    written = (folder / "run" / "metrics.json").exists()
    return Seen(seen.passed and written, f"{seen.text}; metrics.json written: {written}")


def _precision(folder: Path) -> Seen:
    auto = ["trainer.precision=auto"]
    # Two machines, of which the second one has no instructions for bf16.
    run = folder / "run"
    expected = folder / "expected"
    train(expected, *auto, before=lambda: _choose(True))
    train(run, *auto, before=lambda: (_choose(True), kill_at(27)))
    ended = resumed(run, before=lambda: _choose(False))
    if ended.code:
        return Seen(False, f"exit code {ended.code}: {ended.said}")
    seen = compare(run, expected)
    line = next(line for line in ended.output.splitlines() if line.startswith("precision"))
    return Seen(seen.passed, f"{seen.text}; {line}")


def _choose(bf16: bool) -> None:
    parallel = importlib.import_module("dxn.training.parallel")
    setattr(parallel, "choose_bf16", lambda device: (bf16, "a test"))  # noqa: B010


def _finished(folder: Path) -> Seen:
    run = folder / "run"
    train(run)
    before = sha256(run), log_rows(run)
    ended = resumed(run)
    equal = before == (sha256(run), log_rows(run))
    return Seen(ended.code == 0 and equal, f"exit code {ended.code}, equal: {equal}; {ended.said}")


def _more_epochs(folder: Path) -> Seen:
    run = folder / "run"
    train(run)
    ended = resumed(run, "trainer.epochs=4")
    epochs = log_rows(run)[-1]["epoch"]
    return Seen(ended.code == 0 and epochs == 4, f"exit code {ended.code}, epochs: {epochs}")
