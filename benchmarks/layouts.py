"""Train, use and export models of tables with random columns: every layout must work.

    python benchmarks/layouts.py [--count 50] [--seed 0] [--case 7]

Each layout has one to eight columns of all kinds that a table can have (numbers, categories, dates,
booleans, texts, pictures and sounds), some of them with missing cells, and a target of one class, a
number, or several labels. The script trains a tiny model for one epoch, runs `dxn predict` and
`dxn evaluate`, exports the model in both formats, and compares the answers of the exported programs
with those of dxn for rows of the table, also for rows with missing cells. It prints one line per
layout, and exits with 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import io
import json
import math
import random
import sys
import tempfile
import traceback
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dxn.cli import main as dxn
from dxn.run import model_folder

ROWS = 40
ROWS_COMPARED = 6
MISSING = 0.15  # fraction of the cells of some columns
# Largest difference of a probability. Libraries decode and resize pictures and sounds differently.
TOLERANCE = 1e-4
TOLERANCE_MEDIA = 0.02
TRAIN = (
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.epochs=1", "report=false"),
    *("trainer.device=cpu", "trainer.precision=float32", "target=answer", "batch_size=8"),
)
MODALITIES = {"picture": "image", "sound": "audio", "text": "text"}
WORDS = ("apple", "boat", "cloud", "door", "early", "fine", "green", "house", "idea", "jump")

Row = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """A random table.

    Args:
        kinds: Kind of each column, by its name.
        target: class, number or labels.
        options: Options of the training.
        rows: The cells by the name of the column, None where a cell is missing.
    """

    kinds: dict[str, str]
    target: str
    options: Sequence[str]
    rows: Sequence[Row]

    def __str__(self) -> str:
        kinds = list(self.kinds.values())
        counts = [f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))]
        return f"{', '.join(counts)} -> {self.target} {' '.join(self.options)}".strip()


def make_layout(rand: random.Random, folder: Path) -> Layout:
    """Return a random layout, whose pictures and sounds are written to a folder."""
    counts = {
        "number": rand.choice((0, 1, 1, 2, 3)),
        "category": rand.choice((0, 1, 2, 2, 4)),
        "date": rand.choice((0, 0, 1)),
        "boolean": rand.choice((0, 0, 1)),
        "text": rand.choice((0, 0, 1, 2, 3)),
        "picture": rand.choice((0, 0, 0, 1, 2, 3)),
        "sound": rand.choice((0, 0, 0, 1)),
    }
    counts = {kind: count for kind, count in counts.items() if count} or {"number": 1}
    kinds = {f"{kind}{i}": kind for kind, count in counts.items() for i in range(count)}
    makers = {name: _maker(kind, rand, folder) for name, kind in kinds.items()}
    with_gaps = {name for name in kinds if rand.random() < 0.4}
    target = rand.choice(("class", "class", "number", "labels"))
    rows: list[Row] = []
    for i in range(ROWS):
        cells = {name: make(f"{name}_{i}") for name, make in makers.items()}
        missing = {name for name in with_gaps if rand.random() < MISSING}
        if len(missing) < len(cells):  # every row has a cell
            cells |= dict.fromkeys(missing)
        rows.append({**cells, "answer": _answer(target, rand)})
    fusions = ["fusion=late"], ["fusion=bottleneck"]
    options = rand.choice(([], [], ["preset=plain"], ["baseline=none"], *fusions))
    return Layout(kinds, target, options, rows)


def check(layout: Layout, folder: Path, formats: Sequence[str] = ("onnx", "torch")) -> None:
    """Train, predict, evaluate, export, and compare.

    Raises:
        AssertionError: If a command fails or an answer differs.
    """
    table, run = folder / "table.csv", folder / "run"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*layout.kinds, "answer"])
        writer.writeheader()
        writer.writerows(layout.rows)
    _command("train", str(table), f"run={run}", *TRAIN, *layout.options)
    _command("predict", f"run={run}", f"input={table}", f"output={folder / 'answers.csv'}")
    _command("evaluate", f"run={run}", f"input={table}")
    predictor = model_folder.load(run, device="cpu", dtype="float32")
    rows = [_sample(row, layout, list(predictor.adapters), folder) for row in layout.rows]
    samples = rows[:ROWS_COMPARED]
    wanted = [_numbers(predictor.predict(**sample)) for sample in samples]
    has_media = {"picture", "sound"} & set(layout.kinds.values())
    tolerance = TOLERANCE_MEDIA if has_media else TOLERANCE
    for format in formats:
        output = folder / format
        _command("export", f"run={run}", f"format={format}", f"output={output}")
        with _program(output) as answer:
            for sample, expected in zip(samples, wanted, strict=True):
                found = answer(sample)
                scale = max(1.0, *map(abs, expected))
                differences = [abs(a - b) / scale for a, b in zip(found, expected, strict=True)]
                assert max(differences) <= tolerance, f"{format}: {found}, expected {expected}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the layouts, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int)
    options = parser.parse_args(arguments)
    cases = range(options.count) if options.case is None else [options.case]
    failures = 0
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="dxn-layout-") as scratch:
            folder = Path(scratch)
            layout = make_layout(random.Random(f"{options.seed}/{case}"), folder)
            try:
                check(layout, folder)
                result = "ok"
            except Exception:
                failures += 1
                result = f"FAILED\n{traceback.format_exc()}"
        print(f"{case}: {layout}: {result}", flush=True)
    print(f"{len(cases) - failures} of {len(cases)} layouts work")
    return int(failures > 0)


def _maker(kind: str, rand: random.Random, folder: Path) -> Callable[[str], Any]:
    """Return a function that makes the cells of one column, and takes the name of a new file."""
    values = [f"v{i}" for i in range(rand.choice((1, 2, 3, 12)))]
    separator = rand.choice((None, None, "|"))

    def category(name: str) -> str:
        if separator is None:
            return rand.choice(values)
        return separator.join(rand.sample(values, rand.randint(1, min(3, len(values)))))

    def picture(name: str) -> str:
        # Smooth: libraries round the weights of an interpolation differently.
        pixels = bytes(rand.randrange(256) for _ in range(27))
        image = Image.frombytes("RGB", (3, 3), pixels)
        size = rand.choice(((24, 24), (20, 30), (33, 12)))
        image.resize(size, Image.Resampling.BICUBIC).save(folder / f"{name}.png")
        return f"{name}.png"

    def sound(name: str) -> str:
        seconds = rand.uniform(0.1, 0.4)
        times = np.arange(int(8000 * seconds)) / 8000
        samples = 0.5 * np.sin(2 * math.pi * rand.uniform(200, 2000) * times)
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes((samples * 32767).astype("<i2").tobytes())
        return f"{name}.wav"

    def text(name: str) -> str:
        return " ".join(rand.choice(WORDS) for _ in range(rand.randint(3, 9)))

    def date(name: str) -> str:
        return date_format.format(
            y=rand.randint(2001, 2026), m=rand.randint(1, 12), d=rand.randint(1, 28)
        )

    date_format = rand.choice(("{y}-{m:02}-{d:02}", "{d}.{m}.{y}", "{m}/{d}/{y}"))
    price = rand.choice(("{:.2f}", "{:.2f}", "${:.2f}", "{:.1f} kg"))
    makers: dict[str, Callable[[str], Any]] = {
        "number": lambda name: price.format(rand.uniform(0, 900)),
        "category": category,
        "date": date,
        "boolean": lambda name: rand.choice(("true", "false")),
        "text": text,
        "picture": picture,
        "sound": sound,
    }
    return makers[kind]


def _answer(target: str, rand: random.Random) -> str:
    if target == "number":
        return f"{rand.gauss(50, 20):.3f}"
    if target == "class":
        return rand.choice("abc")
    return "|".join(rand.sample(["red", "green", "blue", "big"], rand.randint(1, 3)))


def _sample(row: Row, layout: Layout, inputs: Sequence[str], folder: Path) -> Row:
    """Return the cells of a row by the names of the inputs, without missing ones."""
    sample: Row = {}
    for name, kind in layout.kinds.items():
        # The only column of a modality can have its name.
        key = name if name in inputs else MODALITIES.get(kind, kind)
        if row[name] is not None and key in inputs:
            sample[key] = str(folder / row[name]) if kind in ("picture", "sound") else row[name]
    return sample


def _numbers(answer: Row) -> list[float]:
    """Return the probabilities in the order of the labels, or the predicted number."""
    if "probabilities" in answer:
        return list(answer["probabilities"].values())
    return [float(answer["prediction"])]


@contextlib.contextmanager
def _program(folder: Path) -> Iterator[Callable[[Row], list[float]]]:
    """Return a function that answers with the programs of an exported folder."""
    about = json.loads((folder / "preprocess.json").read_text())
    (part,) = about["parts"]
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        prepare = importlib.import_module("prepare_inputs")
        run = importlib.import_module("run_graph").load(folder / part["file"])

        def answer(sample: Row) -> list[float]:
            outputs = run(prepare.prepare_sample(sample, about, part["inputs"]))
            (values,) = (array for name, array in outputs.items() if name != "embeddings")
            return np.asarray(values)[0].reshape(-1).tolist()

        yield answer
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if name.startswith(("prepare_", "run_graph")):
                del sys.modules[name]


def _command(*arguments: str) -> None:
    """Run a command of dxn in this process.

    Raises:
        AssertionError: If it fails, with its error.
    """
    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        code = dxn(list(arguments))
    assert code == 0, f"dxn {' '.join(arguments)}: {error.getvalue()}"


if __name__ == "__main__":
    raise SystemExit(main())
