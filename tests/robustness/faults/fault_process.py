"""Runs the commands of faults.py in forked processes that can be killed for real."""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# A training of 3 epochs of 20 steps that takes two seconds.
TINY = (
    *(
        "adapters=[text,audio]",
        "dim=32",
        "backbone.depth=1",
        "data.num_train=400",
        "data.num_validation=60",
    ),
    *("data.num_test=40", "batch_size=20", "trainer.precision=float32", "trainer.log_every=1"),
    *("trainer.epochs=3", "trainer.device=cpu", "seed=3"),
)
SECONDS = 180  # limit of one command; the machine may be busy
CRASH = 70  # exit code of a Python exception
TIMEOUT = "timeout"


@dataclass(frozen=True)
class Seen:
    """What happened.

    Args:
        passed: Whether it is what was expected.
        text: The observation.
    """

    passed: bool
    text: str


@dataclass(frozen=True)
class Fault:
    """One fault to inject.

    Args:
        name: The fault.
        expected: What dxn must do.
        inject: Function of an empty folder that injects the fault.
    """

    name: str
    expected: str
    inject: Callable[[Path], Seen]


@dataclass
class Process:
    """A command in a forked process.

    Args:
        pid: Process id.
        log: File with its output.
    """

    pid: int
    log: Path
    code: int | str | None = None
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    @property
    def output(self) -> str:
        """Everything that it printed."""
        return self.log.read_text(errors="replace")

    @property
    def has_traceback(self) -> bool:
        """Whether it printed a traceback."""
        return "Traceback (most recent" in self.output or "panicked at" in self.output

    @property
    def said(self) -> str:
        """Its error message, or its last line."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("dxn:")]
        return " / ".join(errors or lines[-1:])

    def poll(self) -> bool:
        """Return whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._end(os.waitstatus_to_exitcode(status))
        return self.code is not None

    def wait(self, seconds: float = SECONDS) -> Process:
        """Wait until it ends, and kill it after a time limit."""
        wait_until(self.poll, seconds)
        if not self.poll():
            self.kill()
            self.code = TIMEOUT
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal. After SIGKILL, wait until the process has ended."""
        if not self.poll():
            os.kill(self.pid, number)
            if number == signal.SIGKILL:
                self._end(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))

    def _end(self, code: int) -> None:
        self.code = code
        self.seconds = time.monotonic() - self.started


def preload() -> None:
    """Import everything that a training imports, so that forked processes start fast."""
    torch.set_num_threads(1)
    libraries = ("matplotlib.pyplot", "torchaudio")
    for name in ("dxn.runs.train", "dxn.config.command", "dxn.data.loader", *libraries):
        importlib.import_module(name)
    importlib.import_module("dxn.commands.train").Train.compose(list(TINY))
    # Drawing takes longer than the training.
    evaluation: Any = importlib.import_module("dxn.runs.evaluation.evaluate")
    assert evaluation.draw_tokens  # an AttributeError if it has another name now
    evaluation.draw_tokens = lambda *arguments, **options: None
    # Forked processes need not search the objects of this one for garbage.
    gc.freeze()


def start(
    *arguments: object,
    before: Callable[[], object] | None = None,
    limits: Mapping[int, int] | None = None,
    log: Path | None = None,
) -> Process:
    """Start `dxn ARGUMENTS`.

    Args:
        arguments: The arguments.
        before: Function to call first in the new process, which injects the fault.
        limits: Resource limits of the new process.
        log: File for its output. Default: a new file in the scratch folder.
    """
    log = log or scratch() / f"log-{time.monotonic_ns()}.txt"
    log.touch()
    sys.stdout.flush()
    # torch has no threads yet that could hold a lock: OMP_NUM_THREADS is 1.
    pid = os.fork()
    if pid:
        return Process(pid, log)
    code = CRASH
    try:
        os.setpgid(0, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        for target in (1, 2):
            os.dup2(descriptor, target)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name, value in (limits or {}).items():
            resource.setrlimit(name, (value, value))
        if before is not None:
            before()
        code = importlib.import_module("dxn.cli").main(without_repeats(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def without_repeats(arguments: Sequence[object]) -> list[str]:
    """Return the words of a command, in which the last value of each option replaces the others.

    dxn refuses an option that occurs twice, and a fault changes some of the common options.
    """
    words = list(map(str, arguments))
    return list({word.partition("=")[0]: word for word in words}.values())


def run(*arguments: object, **options: Any) -> Process:
    """Run `dxn ARGUMENTS` and wait until it ends, see `start`."""
    return start(*arguments, **options).wait()


def train(folder: Path, *options: object, before: Callable[[], object] | None = None) -> Process:
    """Run a small training."""
    return run("train", *TINY, *options, f"run={folder}", before=before)


def resumed(folder: Path, *options: object, **more: Any) -> Process:
    """Resume a training and wait until it ends."""
    return run("train", f"resume={folder}", *options, **more)


def scratch() -> Path:
    """Return the scratch folder of this program."""
    return Path(os.environ["DXN_FAULTS"])


def kill_at(step: int, number: int = signal.SIGKILL) -> None:
    """Make this process send itself a signal after an optimizer step."""
    after_step(lambda done: os.kill(os.getpid(), number) if done == step else None)


def after_step(action: Callable[[int], object]) -> None:
    """Call a function with the number of steps after each optimizer step of this process."""
    trainer = importlib.import_module("dxn.training.loop").Fit
    original = trainer.train_step

    def step(self: Any, parts: Any) -> None:
        original(self, parts)
        action(self.state.step)

    trainer.train_step = step


def slow_steps(seconds: float = 0.05) -> None:
    """Make the optimizer steps of this process slow."""
    after_step(lambda step: time.sleep(seconds))


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Wait until a condition holds; False after a time limit."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def refused(ended: Process, *words: str) -> Seen:
    """Check that a command ended with code 2 and a sentence that contains these words."""
    missing = [word for word in words if word not in ended.said]
    passed = ended.code == 2 and not ended.has_traceback and not missing
    return Seen(passed, f"exit code {ended.code}: {ended.said}")
