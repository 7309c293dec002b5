"""The kind "runs" of fuzz.py: run folders from an untrusted source, checked and resumed."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzz_changes import change

from dxn.cli import main as dxn
from dxn.core.errors import UserError
from dxn.core.files import SUMS, write_sums
from dxn.runs.verify import verify
from dxn.training.checkpoint import all_checkpoints

OPTIONS = (
    *("adapters=[text]", "dim=16", "backbone.depth=1", "trainer.device=cpu", "trainer.epochs=1"),
    *("trainer.precision=float32", "batch_size=16", "data.num_train=40", "data.num_validation=10"),
    "data.num_test=10",
)


class Runs:
    """Mutated run folders."""

    name = "runs"

    def prepare(self, folder: Path) -> None:
        """Train a model for one epoch. A resume continues with the second one."""
        self.base = folder / "base"
        command = [sys.executable, "-m", "dxn", "train", *OPTIONS, f"run={self.base}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (self.base / "tokens.png").unlink(missing_ok=True)
        # Drawing takes longer than everything else.
        evaluation: Any = importlib.import_module("dxn.runs.evaluation.evaluate")
        evaluation.draw_tokens = lambda *arguments, **options: None
        shutil.copytree(self.base, folder / "copy")
        _resume(folder / "copy")

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Copy a valid folder, and change one to three things."""
        copy = folder / "run"
        shutil.copytree(self.base, copy)
        descriptions: list[str] = []
        for _ in range(rand.choice((1, 1, 2, 3))):
            start = copy / "checkpoints" / "start"
            latest = all_checkpoints(copy / "checkpoints")[0]
            place = rand.choice(
                (start, start, latest, latest, copy / ".hydra", copy, copy / "model")
            )
            descriptions.append(f"{place.name}/{change(place, rand)}")
            # A stranger can write the checksums again. A broken disk cannot.
            sums = place / SUMS
            if rand.random() < 0.9 and sums.is_file() and not sums.is_symlink():
                write_sums(place)
        return "; ".join(descriptions)

    def use(self, folder: Path) -> Any:
        """Check the run folder, and resume it."""
        verified = verify(folder / "run")
        _resume(folder / "run")
        return len(verified.problems)


def make_kind() -> Runs:
    """Return the kind, for fuzz.py."""
    return Runs()


def _resume(folder: Path) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = dxn(["train", f"resume={folder}", "trainer.epochs=2"])
    if code:
        raise UserError(output.getvalue())
