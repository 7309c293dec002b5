"""Train, use and export models of tables with random columns: every layout must work.

    python benchmarks/studies/layouts.py [--count 50] [--seed 0] [--case 7]

Each layout has columns of all kinds that a table can have (numbers, categories, cells with several
categories, dates, booleans, series, texts, pictures, sounds and videos), some of them with missing
cells, and a target: one class, a number, several labels in a column, or several columns. The script
trains a tiny model for one epoch, runs `dxn predict` and `dxn evaluate`, exports the model in both
formats, and compares the answers of the exported programs with those of dxn for rows of the table,
also for rows with missing cells. It prints one line per layout, and exits with 1 if one of them
failed.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

import dxn
from dxn.cli import main as run_command

ROWS = 40
ROWS_COMPARED = 6
MISSING = 0.15  # fraction of the cells of some columns
# Largest difference of a probability. Libraries decode and resize pictures and sounds differently.
TOLERANCE = 1e-4
TOLERANCE_MEDIA = 0.02
TRAIN = (
    *("dim=16", "backbone.depth=1", "backbone.num_heads=2", "trainer.epochs=1", "report=false"),
    *("trainer.device=cpu", "trainer.precision=float32", "batch_size=8", "pretrained=none"),
)
FILES = {"picture", "sound", "video"}
TARGETS = {"class": ["answer"], "number": ["answer"], "labels": ["answer"], "flags": ["old", "new"]}
NO_VALUE = "N/A"
WORDS = ("apple", "boat", "cloud", "door", "early", "fine", "green", "house", "idea", "jump")

Row = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """A random table.

    Args:
        kinds: Kind of each column, by its name.
        target: class, number, labels or flags.
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
        "tags": rand.choice((0, 0, 1)),
        "series": rand.choice((0, 0, 1)),
        "text": rand.choice((0, 0, 1, 2, 3)),
        "picture": rand.choice((0, 0, 0, 1, 2, 3)),
        "sound": rand.choice((0, 0, 0, 1)),
        "video": rand.choice((0, 0, 0, 0, 1)),
    }
    counts = {kind: count for kind, count in counts.items() if count} or {"number": 1}
    kinds = {f"{kind}{i}": kind for kind, count in counts.items() for i in range(count)}
    makers = {name: _maker(kind, rand, folder) for name, kind in kinds.items()}
    gaps: dict[str, str | None] = {}  # what the missing cells of a column contain
    for name, kind in kinds.items():
        if rand.random() < 0.4:
            gaps[name] = rand.choice((None, NO_VALUE)) if kind not in (*FILES, "text") else None
    target = rand.choice(("class", "class", "number", "labels", "flags"))
    rows: list[Row] = []
    for i in range(ROWS):
        cells = {name: make(f"{name}_{i}") for name, make in makers.items()}
        missing = {name: gap for name, gap in gaps.items() if rand.random() < MISSING}
        if len(missing) < len(cells):  # every row has a cell
            cells |= missing
        rows.append({**cells, **_answer(target, rand)})
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
        writer = csv.DictWriter(file, [*layout.kinds, *TARGETS[layout.target]])
        writer.writeheader()
        writer.writerows(layout.rows)
    target = f"target=[{','.join(TARGETS[layout.target])}]"
    _command("train", str(table), f"run={run}", *TRAIN, *layout.options, target)
    _command("predict", f"run={run}", f"input={table}", f"output={folder / 'answers.csv'}")
    _command("evaluate", f"run={run}", f"input={table}")
    predictor = dxn.load(run, device="cpu", dtype="float32")
    rows = [_sample(row, layout.kinds, predictor.columns, folder) for row in layout.rows]
    samples = [row for row in rows if set(row.values()) - {NO_VALUE}][:ROWS_COMPARED]
    wanted = [_numbers(predictor.predict(**sample)) for sample in samples]
    has_media = FILES & set(layout.kinds.values())
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
    separator = rand.choice("|;")
    size = rand.choice(((24, 24), (20, 30), (33, 12)))
    mode = rand.choice(("RGB", "RGB", "L", "RGBA", "LA", "P"))
    rate, channels = rand.choice((8000, 8000, 22050)), rand.choice((1, 1, 2))
    has_comma = rand.random() < 0.3

    def tags(name: str) -> str:
        return separator.join(rand.sample(WORDS[:5], rand.randint(1, 3)))

    def picture(name: str) -> str:
        _smooth(rand, size).convert(mode).save(folder / f"{name}.png")
        return f"{name}.png"

    def sound(name: str) -> str:
        times = np.arange(int(rate * rand.uniform(0.1, 0.4))) / rate
        samples = 0.5 * np.sin(2 * math.pi * rand.uniform(200, 2000) * times)
        with wave.open(str(folder / f"{name}.wav"), "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((samples * 32767).astype("<i2").repeat(channels).tobytes())
        return f"{name}.wav"

    def video(name: str) -> str:
        frames = [_smooth(rand, (32, 24)) for _ in range(rand.randint(3, 6))]
        with av.open(str(folder / f"{name}.mp4"), "w") as file:
            stream: Any = file.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
            for frame in frames:
                file.mux(stream.encode(av.VideoFrame.from_image(frame)))
            file.mux(stream.encode())
        return f"{name}.mp4"

    def series(name: str) -> str:
        return " ".join(f"{rand.gauss(3, 2):.3f}" for _ in range(rand.randint(5, 20)))

    def number(name: str) -> str:
        written = price.format(rand.uniform(0, 9000))
        return written.translate(str.maketrans(".,", ",.")) if has_comma else written

    def text(name: str) -> str:
        return " ".join(rand.choice(WORDS) for _ in range(rand.randint(3, 9)))

    def date(name: str) -> str:
        return date_format.format(
            y=rand.randint(2001, 2026), m=rand.randint(1, 12), d=rand.randint(1, 28)
        )

    date_format = rand.choice(("{y}-{m:02}-{d:02}", "{d}.{m}.{y}", "{m}/{d}/{y}"))
    price = rand.choice(("{:.2f}", "{:,.2f}", "${:,.2f}", "{:.1f} kg", "{:.1f} %"))
    makers: dict[str, Callable[[str], Any]] = {
        "number": number,
        "category": lambda name: rand.choice(values),
        "tags": tags,
        "date": date,
        "boolean": lambda name: rand.choice(("true", "false")),
        "series": series,
        "text": text,
        "picture": picture,
        "sound": sound,
        "video": video,
    }
    return makers[kind]


def _smooth(rand: random.Random, size: tuple[int, int]) -> Image.Image:
    """Return a smooth picture: libraries round the weights of an interpolation differently."""
    pixels = bytes(rand.randrange(256) for _ in range(27))
    return Image.frombytes("RGB", (3, 3), pixels).resize(size, Image.Resampling.BICUBIC)


def _answer(target: str, rand: random.Random) -> Row:
    """Return the targets of a row."""
    if target == "flags":
        return {name: rand.choice((0, 1)) for name in TARGETS[target]}
    labels = rand.sample(["red", "green", "blue", "big"], rand.randint(1, 3))
    answers = {
        "number": f"{rand.gauss(50, 20):.3f}",
        "class": rand.choice("abc"),
        "labels": "|".join(labels),
    }
    return {"answer": answers[target]}


def _sample(row: Row, kinds: Mapping[str, str], columns: Mapping[str, str], folder: Path) -> Row:
    """Return the cells of a row by the names of the inputs, without empty ones."""
    cells = {name: row[column] for name, column in columns.items() if row[column] is not None}
    files = {name for name in cells if kinds[columns[name]] in FILES}
    return {name: str(folder / cell) if name in files else cell for name, cell in cells.items()}


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
        code = run_command(list(arguments))
    assert code == 0, f"dxn {' '.join(arguments)}: {error.getvalue()}"


if __name__ == "__main__":
    raise SystemExit(main())
