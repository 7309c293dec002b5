"""The kind "folders" of fuzz.py: model folders and public checkpoints of an untrusted source."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from fuzz_changes import change
from PIL import Image

import dxn
from dxn.core.files import SUMS, write_sums
from dxn.runs.saved.model_folder import load
from dxn.weights import read_public

SMALL = (
    *("dim=16", "backbone.depth=1", "trainer.epochs=1", "trainer.device=cpu"),
    *("trainer.precision=float32", "batch_size=16"),
)
NUM_ROWS = 60
VOCAB = "adapters.text.vocab_size=300"
RATE = 4000  # samples per second


def _noise(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 255, shape)


# Tables for the trained models: columns, a function that writes row i, options, and a sample.
TABLES: dict[str, tuple[str, Callable[[int], str], list[str], dict[str, Any]]] = {
    "classes": (
        "text,size,day,color,label",
        lambda i: (
            f"a {i % 7} film,{i / 7:.3f},2026-01-{i % 28 + 1:02},{'rgb'[i % 3]},{'xy'[i % 2]}"
        ),
        ["data=table", "data.target=label", "adapters=[text,number,date,category]", VOCAB],
        {"text": "a fine film"},
    ),
    "amounts": (
        "text,price",
        lambda i: f"{i % 5} rooms and {i % 3} gardens,{i % 5 * 10 + i / 100}",
        ["data=table", "data.target=price", "adapters=[text]", VOCAB],
        {"text": "3 rooms"},
    ),
    "writes": (
        "text,answer",
        lambda i: f"say {'ab'[i % 2]} {i % 4} times,{' '.join('ab'[i % 2] * (i % 4 + 1))}",
        ["data=table", "data.target=answer", "head=generate", "adapters=[text]", VOCAB],
        {"text": "say a 2 times"},
    ),
    "forecasts": (
        "hour,load",
        lambda i: f"2026-01-{i // 24 + 1:02} {i % 24:02}:00,{math.sin(i / 4):.3f}",
        ["data=timeline", "data.horizon=3", "data.context=8", "adapters=[series]"],
        {"series": [[math.sin(i / 4)] for i in range(8)]},
    ),
}
# Folders with one folder per class: a function that writes file i, options, and a sample.
FILES: dict[str, tuple[Callable[[Path, int], None], list[str], dict[str, Any]]] = {
    "images": (
        lambda folder, i: Image.fromarray(_noise(i, (20, 24, 3)).astype(np.uint8)).save(
            folder / f"{i}.png"
        ),
        ["adapters=[image]", "adapters.image.image_size=16", "adapters.image.patch_size=8"],
        {"image": _noise(99, (20, 24, 3)).astype(np.uint8)},
    ),
    "sounds": (
        lambda folder, i: soundfile.write(folder / f"{i}.wav", _noise(i, (RATE,)) / 999, RATE),
        [
            "adapters=[audio]",
            f"adapters.audio.sample_rate={RATE}",
            "adapters.audio.spectrogram.n_mels=16",
        ],
        {"audio": (_noise(99, (RATE,)).astype(np.float32) / 999, RATE)},
    ),
}
# Public checkpoints: their names in benchmarks/speed/parity_cases.py, and samples.
PUBLIC: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BERT", {"text": "a fine film"}),
    "vit": ("ViT (transformers)", {"image": np.full((40, 40, 3), 99, np.uint8)}),
}


class Folders:
    """Mutated model folders and public checkpoints, which are loaded and used."""

    name = "folders"

    def prepare(self, folder: Path) -> None:
        """Train a small model of each kind, and save small public models."""
        self.base = folder / "base"
        for name, (header, row, options, _) in TABLES.items():
            table = folder / f"{name}.csv"
            lines = [header, *(row(i) for i in range(NUM_ROWS))]
            table.write_text("\n".join(lines) + "\n")
            self._train(folder / name, [f"data.path={table}", *options])
        for name, (write, options, _) in FILES.items():
            for i in range(NUM_ROWS):
                place = folder / f"data-{name}" / "xy"[i % 2]
                place.mkdir(parents=True, exist_ok=True)
                write(place, i)
            self._train(
                folder / name, ["data=folder", f"data.path={folder / f'data-{name}'}", *options]
            )
        script = (
            "import sys; from pathlib import Path; import parity_cases as cases; "
            "sizes = cases.Sizes(dim=12, depth=2, heads=2, batch=2, side=40, length=11); "
            "case = next(c for c in cases.CASES if c.name == sys.argv[1]); "
            "cases.save(case, case.make(sizes), Path(sys.argv[2]), heads=2)"
        )
        for name, (case, _) in PUBLIC.items():
            (self.base / name).mkdir()
            _run(["-c", script, case, str(self.base / name)])
        for copy in self.base.iterdir():
            _use(copy)

    def _train(self, run: Path, options: list[str]) -> None:
        _run(["-m", "dxn", "train", *options, *SMALL, f"run={run}"])
        shutil.copytree(run / "model", self.base / run.name)

    def mutate(self, rand: random.Random, folder: Path) -> str:
        """Copy a valid folder, and change one to three things."""
        name = rand.choice([*TABLES, *TABLES, *FILES, *FILES, *PUBLIC])
        copy = folder / name
        shutil.copytree(self.base / name, copy)
        changes = [change(copy, rand) for _ in range(rand.choice((1, 1, 2, 3)))]
        # A stranger can write the checksums again. A broken disk cannot.
        if rand.random() < 0.9 and (copy / SUMS).is_file() and not (copy / SUMS).is_symlink():
            write_sums(copy)
        return f"{name}: {'; '.join(changes)}"

    def use(self, folder: Path) -> Any:
        """Load the model and predict."""
        (copy,) = folder.iterdir()
        return _use(copy)


def make_kind() -> Folders:
    """Return the kind, for fuzz.py."""
    return Folders()


def _run(arguments: list[str]) -> None:
    """Run a Python program without its output."""
    folder = Path(__file__).parents[3] / "benchmarks" / "speed"  # where parity_cases.py is
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _use(folder: Path) -> Any:
    if folder.name in PUBLIC:
        model = dxn.from_public(str(folder))
        return _check_numbers(model.embed(**PUBLIC[folder.name][1]).tolist())
    if sum(folder.name.encode()) % 2 and (folder / "README.md").exists():
        read_public(str(folder))
    sample = {**TABLES, **FILES}[folder.name][-1]
    model = load(folder)
    answer = model.predict(**sample)
    probabilities = answer.get("probabilities")
    if probabilities is not None:
        assert abs(sum(probabilities.values()) - 1) < 1e-3, answer
    _check_numbers(model.embed(**sample).tolist())
    return _check_numbers(answer)


def _check_numbers(value: Any) -> Any:
    """Return a value, and fail if it contains a number that is not finite."""
    if isinstance(value, dict):
        for inner in value.values():
            _check_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner)
    assert not isinstance(value, float) or math.isfinite(value), value
    return value
