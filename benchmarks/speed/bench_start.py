"""Rows of bench.py: the start of commands, and single predictions."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from bench_row import OURS, Goal, Options, Row, Work, check_equal

import dxn
from dxn.config import signatures

WORDS = ("fine", "slow", "warm", "dull", "bright", "plain")
SINGLES = 1000
ENDED = 17  # exit code of `after_steps`
# Runs dxn, and ends the process after some steps of the optimizer. The patch is applied when dxn
# imports the module, so that the order of its imports stays the same.
AFTER_STEPS = """
import os, sys, time, importlib.abc, importlib.util
times = []
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "dxn.training.loop":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            step = module.Fit.train_step
            def patched(*args, **kwargs):
                step(*args, **kwargs)
                times.append(time.time())
                if len(times) == 1:  # seconds of the processor, also of the processes that ended
                    print("CPU", sum(os.times()[:4]), flush=True)
                if len(times) == COUNT:
                    print("STEPS", *times, flush=True)
                    os._exit(17)
            module.Fit.train_step = patched
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
from dxn.cli import main
sys.argv[0] = "dxn"
sys.exit(main())
"""


def after_steps(count: int) -> str:
    """Return a program that runs dxn, and ends after some steps of the optimizer.

    It prints a line of STEPS and the time at the end of each step, and a line of CPU and the
    seconds of the processor at the end of the first step.
    """
    return AFTER_STEPS.replace("COUNT", str(count))


def process(command: list[str], *, expected: int = 0) -> Callable[[], float]:
    """Return a call that runs a Python process, and returns its seconds.

    The seconds are those of the processor, in user and system mode: other processes change them
    less than those on the clock. A command that used several threads would need less on the clock.
    """

    signatures.update()  # an installed package contains the current file

    def run() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # One thread: the seconds of a second one would be added. An installed package has compiled
        # modules, as torch has here.
        changed = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
        environment = {**os.environ, **changed}
        ended = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, env=environment
        )
        if ended.returncode != expected:
            raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-2000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return run


IMPORT_TORCH = ["-c", "import torch"]


def help_page(options: Options) -> Work:
    """`dxn --help`."""
    return Work({OURS: process(["-m", "dxn", "--help"])})


def check_table(options: Options) -> Work:
    """`dxn check` of a table of ten rows."""
    path = options.folder / "table.csv"
    path.write_text(_table(10), encoding="utf-8")
    ours = process(["-m", "dxn", "check", str(path)])
    return Work({OURS: ours, "import torch": process(IMPORT_TORCH)})


def first_step(options: Options) -> Work:
    """`dxn train` on the embedded digits, until its first step has ended."""

    def ours() -> float:
        # Another folder in each call, because dxn does not overwrite a run.
        folder = tempfile.mkdtemp(dir=options.folder)
        command = ["-c", after_steps(1), "train", f"run={folder}/run", "trainer.device=cpu"]
        return process(command, expected=ENDED)()

    return Work({OURS: ours, "import torch": process(IMPORT_TORCH)})


def predict_start(options: Options) -> Work:
    """`dxn predict` of one text."""
    run = _small_run(options.folder)
    ours = process(["-m", "dxn", "predict", f"run={run}", f"input.text={_text(0)}"])
    return Work({OURS: ours, "import torch": process(IMPORT_TORCH)})


def single_predictions(options: Options) -> Work:
    """1,000 calls of `predict`, and one of `predict_many`, of a small text classifier."""
    model = dxn.load(_small_run(options.folder))
    samples = [{"text": _text(i)} for i in range(SINGLES)]

    def singles() -> list[dict]:
        return [model.predict(**sample) for sample in samples]

    def batch() -> list[dict]:
        return model.predict_many(samples, batch_size=SINGLES)

    ours, theirs = (
        torch.tensor([list(answer["probabilities"].values()) for answer in answers])
        for answers in (singles(), batch())
    )
    check_equal(ours, theirs, tolerance=1e-2, name="probabilities")

    def run_singles() -> None:
        singles()

    def run_batch() -> None:
        batch()

    return Work({OURS: run_singles, "one batch": run_batch})


def _small_run(folder: Path) -> str:
    """Train a small text classifier, and return its run folder."""
    table, run = folder / "table.csv", folder / "run"
    table.write_text(_table(400), encoding="utf-8")
    model = ["backbone=nano", "pretrained=none", "trainer.epochs=1"]
    process(["-m", "dxn", "train", str(table), f"run={run}", *model])()
    return str(run)


def _text(i: int) -> str:
    return f"a {WORDS[i % 6]} text number {i} with {WORDS[i // 6 % 6]} words"


def _table(rows: int) -> str:
    lines = [f"{_text(i)},{'good' if i % 6 < 3 else 'bad'}" for i in range(rows)]
    return "\n".join(["text,label", *lines, ""])


ROWS = (
    Row("help", "`dxn --help`", "input", help_page, (Goal(at_most=0.1),)),
    Row(
        "check",
        "`dxn check` of a table of ten rows, seconds of the processor",
        "input",
        check_table,
        (Goal(at_most=1.5, peer="import torch"),),
    ),
    Row(
        "first_step",
        "`dxn train` on the embedded digits to the end of its first step, seconds of the processor",
        "input",
        first_step,
        (Goal(at_most=2.5, peer="import torch"),),
    ),
    Row(
        "predict_start",
        "`dxn predict` of one text from the shell, seconds of the processor",
        "input",
        predict_start,
        (Goal(at_most=1.2, peer="import torch"),),
    ),
    Row(
        "single_predictions",
        "1,000 calls of `predict` of a nano model, against one batch of 1,000",
        "input",
        single_predictions,
        (Goal(at_most=3, peer="one batch"),),
    ),
)
