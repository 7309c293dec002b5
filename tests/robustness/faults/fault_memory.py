"""Faults of faults.py: memory that is too short for a batch."""

from __future__ import annotations

import argparse
import importlib
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_process import Fault, Seen, refused, start, train

from dxn.training.checkpoint import all_checkpoints

HALVED = "smaller parts with a note, or a clear error"
LARGE = ("dim=128", "backbone.depth=6", "batch_size=400", "trainer.epochs=1")


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    return [
        *(
            Fault(f"address space of {mb} MB more, batch of 400", HALVED, _capped(mb))
            for mb in (60, 100, 200, 400)
        ),
        Fault("out of memory in the second of 3 accumulated batches", "equal to 1e-5", _halved),
        Fault("out of memory in every batch", "code 2, says what to change", _always),
        Fault("out of memory in a validation", "smaller batches", _validation),
        Fault("out of memory while the data is read", "code 2", _reading),
        Fault("the same folder again after a failure", "works or is refused", _again),
    ]


def cap_training(mb: int) -> None:
    """Limit the address space of this process from the first epoch on."""
    trainer = importlib.import_module("dxn.training.loop").Fit
    epoch = trainer.train_epoch

    def capped(self: Any) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (mb << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        trainer.train_epoch = epoch
        epoch(self)

    trainer.train_epoch = capped


def _capped(mb: int) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        ended = train(folder / "run", *LARGE, before=lambda: cap_training(mb))
        notes = [line for line in ended.output.splitlines() if "out of memory" in line]
        passed = ended.code in (0, 2) and not ended.has_traceback and bool(notes)
        # With enough memory there is nothing to say.
        passed = passed or (ended.code == 0 and mb >= 400)
        return Seen(passed, f"code {ended.code}; {' / '.join(notes) or ended.said}")

    return inject


def fail_backward(*calls: int, after: int | None = None) -> None:
    """Raise an out of memory error in some calls of the backward pass of this process.

    Args:
        calls: Numbers of the calls.
        after: All calls after this number fail too.
    """
    trainer = importlib.import_module("dxn.training.loop").Fit
    original = trainer.add_gradients
    count = 0

    def add_gradients(self: Any, batch: dict[str, Any], **options: Any) -> Any:
        nonlocal count
        count += 1
        if count in calls or (after is not None and count > after):
            # After the gradients have been added: they must be removed again.
            original(self, batch, **options)
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return original(self, batch, **options)

    trainer.add_gradients = add_gradients


def _halved(folder: Path) -> Seen:
    import json

    more = ["trainer.grad_accum_steps=3", "backbone.dropout=0", "head.dropout=0"]
    train(folder / "whole", *more)
    ended = train(folder / "run", *more, before=lambda: fail_backward(8))
    note = [line for line in ended.output.splitlines() if "out of memory" in line]
    losses = [
        [row["train/loss"] for row in map(json.loads, text.splitlines()) if "train/loss" in row]
        for text in ((folder / name / "metrics.jsonl").read_text() for name in ("run", "whole"))
    ]
    difference = max(abs(a - b) for a, b in zip(*losses, strict=True))
    passed = ended.code == 0 and len(note) == 1 and difference < 1e-5
    return Seen(passed, f"code {ended.code}; {note}; largest difference {difference:.1e}")


def _always(folder: Path) -> Seen:
    return refused(train(folder / "run", before=lambda: fail_backward(after=0)), "out of memory")


def _fail_once(module: str, name: str) -> None:
    """Make the first call of a function fail."""
    path, _, cls = module.partition(":")
    owner: Any = importlib.import_module(path)
    owner = getattr(owner, cls) if cls else owner
    original = getattr(owner, name)

    def replaced(*arguments: Any, **options: Any) -> Any:
        setattr(owner, name, original)
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    setattr(owner, name, replaced)


def _validation(folder: Path) -> Seen:
    def before() -> None:
        trainer = importlib.import_module("dxn.training.loop").Fit
        validate = trainer.validate

        def fail_in_validation(self: Any) -> Any:
            _fail_once("dxn.models:MultimodalModel", "forward")
            trainer.validate = validate
            return validate(self)

        trainer.validate = fail_in_validation

    ended = train(folder / "run", before=before)
    note = [line for line in ended.output.splitlines() if "out of memory" in line]
    return Seen(ended.code == 0 and bool(note), f"code {ended.code}; {note or ended.said}")


def _reading(folder: Path) -> Seen:
    ended = train(folder / "run", before=lambda: _fail_once("dxn.runs.prepare", "open_splits"))
    passed = ended.code == 2 and not ended.has_traceback
    return Seen(passed, f"code {ended.code}; {ended.said}")


def _again(folder: Path) -> Seen:
    first = train(folder / "run", before=lambda: fail_backward(after=0))
    second = train(folder / "run")
    third = start("train", f"resume={folder / 'run'}").wait()
    kept = len(all_checkpoints(folder / "run" / "checkpoints"))
    passed = first.code == 2 and second.code == 2 and third.code == 0
    return Seen(passed, f"codes {first.code}, {second.code}; resumed: {third.code}; {kept} kept")
