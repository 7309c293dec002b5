"""Faults of faults.py: a training is killed at each write of an epoch's end.

The writes are found with an audit hook, which Python calls before it opens, renames or deletes a
file. A file that is being written when the process dies can be incomplete ("cut").
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_compare import finished_equal
from fault_process import Fault, Process, Seen, run, train

EVENTS = {
    *("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod"),
    *("os.truncate", "shutil.rmtree", "shutil.copyfile", "ctypes.dlsym"),
}
MAX_EVENTS = 200
# Small, because there are about a hundred trainings.
SHORT = (
    *("adapters=[text]", "data.num_train=60", "data.num_validation=20", "data.num_test=20"),
    "trainer.patience=0",
)


def faults(options: argparse.Namespace) -> list[Fault]:
    """Return the faults of this group."""
    return [
        Fault(f"kill -9 at each write of an epoch's end{how}", expected, _inject_all(cut))
        for cut, how in ((False, ""), (True, ", with the last file cut"))
        for expected in ("model/ loads before and after; resumed, equal to the bit",)
    ]


def _inject_all(cut: bool) -> Any:
    def inject(folder: Path) -> Seen:
        bad: list[str] = []
        for number in range(1, MAX_EVENTS):
            path = folder / "run"
            shutil.rmtree(path, ignore_errors=True)
            ended = train(path, *SHORT, before=lambda: kill_at_write(path, number, cut=cut))  # noqa: B023
            if ended.code != -signal.SIGKILL:
                return Seen(not bad and number > 1, f"{number - 1} writes; {'; '.join(bad)}")
            bad += _problems(path, ended, number)
        return Seen(False, f"more than {MAX_EVENTS} writes")

    return inject


def _problems(path: Path, ended: Process, number: int) -> Sequence[str]:
    """Load the model, resume the training, and return what went wrong."""
    event = (path.parent / "event.txt").read_text()
    loaded = run("predict", f"run={path / 'model'}", "input.text=one")
    problems = [f"model/ does not load: {loaded.said}"] if loaded.code else []
    seen = finished_equal(path, *SHORT)
    if not seen.passed:
        problems.append(seen.text)
    left = [each.name for each in path.rglob(".unfinished-*")]
    if left and seen.passed:
        problems.append(f"left behind: {left}")
    return [f"write {number} ({event}): {problem}" for problem in problems]


def kill_at_write(folder: Path, number: int, *, cut: bool) -> None:
    """Make this process kill itself before a write at the end of the second epoch.

    Args:
        folder: The run folder. Only writes in it count.
        number: Number of the write.
        cut: Whether the file that was opened last for writing loses half of its content.
    """
    trainer = importlib.import_module("dxn.training.loop").Fit
    validate = trainer.validate
    is_on = False
    count = 0
    opened: Path | None = None

    def validate_and_count(self: Any) -> Any:
        nonlocal is_on
        is_on = self.state.epoch == 2
        return validate(self)

    trainer.validate = validate_and_count
    train_epoch = trainer.train_epoch

    def stop_counting(self: Any) -> None:
        nonlocal is_on
        is_on = False
        train_epoch(self)

    trainer.train_epoch = stop_counting

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, opened, is_on
        if not is_on or event not in EVENTS or not _is_write(folder, event, arguments):
            return
        count += 1
        if count == number:
            is_on = False
            if cut and opened is not None and opened.is_file():
                _cut(opened)
            names = [str(each).removeprefix(str(folder)) for each in arguments[:2]]
            (folder.parent / "event.txt").write_text(f"{event} {' '.join(names)}")
            os.kill(os.getpid(), signal.SIGKILL)
        if event == "open":
            opened = Path(arguments[0])

    sys.addaudithook(audit)


def _is_write(folder: Path, event: str, arguments: tuple[Any, ...]) -> bool:
    if event == "ctypes.dlsym":
        return arguments[1] == "renameat2"
    path = arguments[0]
    if not isinstance(path, str | os.PathLike) or not str(path).startswith(str(folder)):
        return False
    # open: the mode of the function open, or the flags of os.open.
    return event != "open" or (
        any(letter in arguments[1] for letter in "wax+")
        if isinstance(arguments[1], str)
        else bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
    )


def _cut(path: Path) -> None:
    content = path.read_bytes()
    # A log is appended to, so only its last line can be incomplete.
    keep = len(content) - 20 if path.suffix == ".jsonl" else len(content) // 2
    path.write_bytes(content[: max(keep, 0)])
