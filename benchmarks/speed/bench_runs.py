"""Rows of bench.py: whole trainings, against a plain Trainer of transformers.

Both sides start a process, read the data, train a model of the same width, depth and number of
epochs, and evaluate it on the test split. Their accuracies are facts of the row.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench_measure import value_of
from bench_row import OURS, Goal, Options, Row, Work

PEER = Path(__file__).parent / "bench_trainer.py"


@dataclass(frozen=True)
class Run:
    """A whole training.

    Args:
        path: Data in the folder of data sets.
        epochs: Number of epochs of both sides.
        options: Further options of `dxn train`.
    """

    path: str
    epochs: int
    options: tuple[str, ...] = ()


RUNS = {
    "sst2": Run("sst2", 12),
    "fsdd": Run("fsdd/meta.csv", 8),
    "cifar10": Run("cifar10.tar.gz", 2),
}


def whole_run(options: Options, *, name: str) -> Work:
    """`dxn train experiment=NAME`, and the Trainer of transformers."""
    assert options.data is not None
    run = RUNS[name]
    path = options.data / run.path
    folder = options.folder / "run"
    work = Work({})

    def call(command: list[str]) -> None:
        ended = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(ended.stderr[-2000:])

    def ours() -> float:
        train = ["-m", "dxn", "train", f"experiment={name}", f"data.path={path}", f"run={folder}"]
        seconds = value_of(
            partial(call, [*train, f"trainer.epochs={run.epochs}", *run.options]), options.device, 1
        )
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        work.facts["accuracy of dxn"] = metrics["test/accuracy"]
        return seconds

    def peer() -> float:
        result = options.folder / "peer.json"
        command = [str(PEER), name, str(path), str(run.epochs), str(result), str(options.dtype)]
        seconds = value_of(partial(call, command), options.device, 1)
        work.facts["accuracy of transformers"] = json.loads(result.read_text())["accuracy"]
        return seconds

    work.calls = {OURS: ours, "transformers": peer}
    return work


ROWS = tuple(
    Row(
        f"run_{name}",
        f"`dxn train experiment={name}`, {run.epochs} epochs, against transformers' Trainer",
        "run",
        partial(whole_run, name=name),
        (Goal(at_most=0.7, peer="transformers"),),
        rounds=1,
        data=run.path.split("/")[0],
    )
    for name, run in RUNS.items()
)
