"""Faults of faults.py: full disks, and files of a run folder that are damaged."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_compare import finished_equal, killed_at, reference
from fault_process import TINY, Fault, Seen, refused, resumed, run, scratch, start, train

from dxn.training.checkpoint import FILE, all_checkpoints

NAMED = "named; the checkpoint before it is used; equal"
REFUSED = "exit code 2, the file is named"


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    rows = [
        Fault(f"newest checkpoint: {name}", NAMED, _damage(change))
        for name, change in {
            "one bit of a weight flipped": lambda path: _flip(path / FILE, -20_001),
            "one bit of the last tensor flipped": lambda path: _flip(path / FILE, -3),
            "one bit of the header flipped": lambda path: _flip(path / FILE, 40),
            "truncated": lambda path: _keep(path / FILE, -1000),
            "empty": lambda path: (path / FILE).write_bytes(b""),
            "random bytes": lambda path: (path / FILE).write_bytes(os.urandom(10_000)),
            "file missing": lambda path: (path / FILE).unlink(),
            "SHA256SUMS missing": lambda path: (path / "SHA256SUMS").unlink(),
            "SHA256SUMS cut": lambda path: _keep(path / "SHA256SUMS", 30),
            "SHA256SUMS empty": lambda path: (path / "SHA256SUMS").write_bytes(b""),
            "an empty folder": _empty,
        }.items()
    ]
    rows += [
        Fault(f"checkpoints/start: {name}", REFUSED, _damage_start(change))
        for name, change in {
            "tokenizer.json missing": lambda path: (path / "tokenizer.json").unlink(),
            "tokenizer.json of another run": _other_tokenizer,
            "plan.json changed": lambda path: _append(path / "plan.json", " "),
            "plan.json cut": lambda path: _keep(path / "plan.json", 10),
            "plan.json missing": lambda path: (path / "plan.json").unlink(),
            "SHA256SUMS missing": lambda path: (path / "SHA256SUMS").unlink(),
            "SHA256SUMS empty": lambda path: (path / "SHA256SUMS").write_bytes(b""),
            "the folder missing": shutil.rmtree,
        }.items()
    ]
    return [
        *rows,
        Fault("both checkpoints damaged", "exit code 2, both are named", _both),
        Fault(".hydra/config.yaml cut", "exit code 2, or equal", _hydra("config.yaml")),
        Fault(".hydra/overrides.yaml cut", "exit code 2, or equal", _hydra("overrides.yaml")),
        Fault("metrics.jsonl ends in half a line", "resumed, equal", _half_line),
        Fault("metrics.jsonl with a damaged line", REFUSED, _bad_line),
        Fault("metrics.jsonl missing", "resumed, the same weights", _no_log),
        Fault("unfinished files of a killed process", "resumed, removed", _left_over),
        Fault("file size limit below that of a checkpoint", "path and size are named", _limit),
        Fault("disk full from the second epoch on", "named; model/ loads; then equal", _full),
        Fault("run folder that cannot be created", "exit code 2", _no_folder),
    ]


def _cut_run(folder: Path) -> Path:
    """Return a copy of a training that was killed in its third epoch."""
    source = scratch() / "cut"
    if not source.exists():
        killed_at(source, 45)
    shutil.copytree(source, folder / "run")
    return folder / "run"


def _damage(change: Callable[[Path], object]) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        path = _cut_run(folder)
        newest = all_checkpoints(path / "checkpoints")[0]
        change(newest)
        seen = finished_equal(path)
        aside = newest.with_name(f"damaged-{newest.name}").exists()
        return Seen(seen.passed and aside, f"{seen.text}; set aside: {aside}")

    return inject


def _damage_start(change: Callable[[Path], object]) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        path = _cut_run(folder)
        change(path / "checkpoints" / "start")
        return refused(resumed(path), "checkpoints/start")

    return inject


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def _keep(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _other_tokenizer(path: Path) -> None:
    text = (path / "tokenizer.json").read_text()
    (path / "tokenizer.json").write_text(text.replace('"e":', '"E":'))


def _both(folder: Path) -> Seen:
    path = _cut_run(folder)
    paths = all_checkpoints(path / "checkpoints")
    for each in paths:
        _flip(each / FILE, -3)
    return refused(resumed(path), *(each.name for each in paths))


def _hydra(name: str) -> Callable[[Path], Seen]:
    def inject(folder: Path) -> Seen:
        path = _cut_run(folder)
        size = (path / ".hydra" / name).stat().st_size
        _keep(path / ".hydra" / name, size // 2)
        ended = resumed(path)
        if ended.code == 0:
            return finished_equal(path)
        return refused(ended, name)

    return inject


def _half_line(folder: Path) -> Seen:
    path = _cut_run(folder)
    _append(path / "metrics.jsonl", '{"step": 28, "epo')
    return finished_equal(path)


def _bad_line(folder: Path) -> Seen:
    path = _cut_run(folder)
    log = path / "metrics.jsonl"
    log.write_text("junk\n" + log.read_text())
    return refused(resumed(path), "metrics.jsonl line 1")


def _no_log(folder: Path) -> Seen:
    path = _cut_run(folder)
    (path / "metrics.jsonl").unlink()
    seen = finished_equal(path)
    # Only the lines before the checkpoint are lost.
    passed = seen.text == "not equal: lines of metrics.jsonl"
    return Seen(passed, seen.text)


def _left_over(folder: Path) -> Seen:
    path = _cut_run(folder)
    (path / "checkpoints" / ".unfinished-0123abcd-step-000000060").mkdir()
    (path / ".unfinished-0123abcd-metrics.jsonl").write_text("half")
    seen = finished_equal(path)
    left = [each.name for each in path.rglob(".unfinished-*")]
    return Seen(seen.passed and not left, f"{seen.text}; left: {left}")


def _ignore_size_signal() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _limit(folder: Path) -> Seen:
    size = (all_checkpoints(reference() / "checkpoints")[0] / FILE).stat().st_size
    path = folder / "run"
    limits = {resource.RLIMIT_FSIZE: size - 5000}
    command = ("train", *TINY, f"run={path}")
    ended = start(*command, before=_ignore_size_signal, limits=limits).wait()
    seen = refused(ended, str(path / "checkpoints"), "MB")
    left = [each.name for each in path.rglob("*unfinished-*")]
    return Seen(seen.passed and not left, f"{seen.text}; left: {left}")


def _full(folder: Path) -> Seen:
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        return Seen(True, "not tried: mounting a file system is not permitted")
    try:
        ended = train(disk / "run", before=lambda: _fill_after_first_epoch(disk))
        loaded = run("predict", f"run={disk / 'run' / 'model'}", "input.text=one")
        (disk / "ballast").unlink()
        shutil.copytree(disk / "run", folder / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    error = refused(ended, "no space left")
    seen = finished_equal(folder / "run")
    passed = error.passed and loaded.code == 0 and seen.passed
    return Seen(passed, f"{error.text}; model/ loads: {loaded.code == 0}; resumed: {seen.text}")


def _fill_after_first_epoch(disk: Path) -> None:
    trainer = importlib.import_module("dxn.training.loop").Fit
    save = trainer.save

    def save_and_fill(self: Any) -> None:
        save(self)
        if self.state.epoch == 1 and not (disk / "ballast").exists():
            with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))

    trainer.save = save_and_fill


def _no_folder(folder: Path) -> Seen:
    return refused(train(Path("/proc/nowhere/run")))
