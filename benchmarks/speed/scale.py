"""Measure how memory and time grow with the number of rows.

    python benchmarks/speed/scale.py [--rows N ...] [--only train|predict|decode] [OPTION=VALUE ...]

Each row of the generated table has a picture of 64×64 pixels, a text and a label. Every row has a
path of its own, but the paths are hard links to a few hundred pictures, so that a million rows need
little space. The model is small, so that the time is that of reading and preparing.

`dxn train` runs until its first steps have ended, and `dxn predict` writes a Parquet file of all
rows. The script prints for each of them the peak memory of the process and its workers, in which a
page that several processes share counts once; the growth in bytes per row since the smallest table;
the seconds to the first step, on the clock and of the processor; and the samples per second.
Further options are passed to `dxn train`. The cache of decoded files is small, so that it is full
at each number of rows.

At last, `dxn train` of the smallest table is run several times with all pictures in memory, and as
many times with pictures that are decoded in each step, in turns. The medians of both are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from bench_start import ENDED, after_steps
from memory import MODEL, QUALITY
from PIL import Image

ROWS = (10_000, 100_000, 1_000_000)
SIDE = 64  # pixels
PICTURES = 256  # files that the rows share
FOLDER_SIZE = 1000  # paths in one folder
WORDS = 2000  # different words of the texts
MODEL_ROWS = 1000  # rows of the table on which the model of `dxn predict` is trained
BATCH_SIZE = 64
STEPS = 60
WARMUP = 10  # steps that are not timed
INTERVAL = 0.1  # seconds between two looks at the memory
REPEATS = 3  # of the trainings with and without decoding
IN_MEMORY_GB = 8.0
PARTS = ("train", "predict", "decode")
# Growth of memory that the goal allows.
GOAL_FRACTION, GOAL_BYTES = 0.1, 400
TRAIN = ("adapters=[image,text]", f"adapters.image.image_size={SIDE}", *MODEL[1:])


@dataclass(frozen=True)
class Measured:
    """The measurement of one command on one table.

    Args:
        command: The command, such as "train".
        rows: Number of rows of the table.
        megabytes: Peak memory of the process and its workers; a page that they share counts once.
        resident: Sum of the resident memory of these processes, in megabytes.
        start: Seconds to the end of the first step. For predict, of the whole command.
        processor: Seconds of the processor until then. For predict, NaN: its processes still run.
        rate: Samples per second.
    """

    command: str
    rows: int
    megabytes: float
    resident: float
    start: float
    processor: float
    rate: float


def make_table(rows: int, folder: Path) -> Path:
    """Write a table of pictures, texts and labels to a folder, unless it exists."""
    path = folder / f"{rows}.csv"
    pictures = folder / "pictures"
    if path.exists():
        return path
    pictures.mkdir(parents=True, exist_ok=True)
    for i in range(PICTURES):
        rand = np.random.default_rng(i)
        colors = Image.fromarray(rand.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        colors.resize((SIDE, SIDE)).save(pictures / f"{i}.jpg", quality=QUALITY)
    rand = random.Random(0)
    letters = "etaoinshrdlcumwfgypbvk"
    words = ["".join(rand.choices(letters, k=rand.randint(2, 9))) for _ in range(WORDS)]
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write("image,text,label\n")
        for i in range(rows):
            name = f"paths/{i // FOLDER_SIZE:04}/{i:07}.jpg"
            link = folder / name
            if i % FOLDER_SIZE == 0:
                link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():  # a smaller table has the same first rows
                os.link(pictures / f"{i % PICTURES}.jpg", link)
            text = " ".join(rand.choices(words, k=rand.randint(5, 15)))
            file.write(f"{name},{text},{'ab'[i % PICTURES % 2]}\n")
    unfinished.rename(path)
    return path


def watch(command: list[str], expected: int = 0) -> tuple[float, float, float, str]:
    """Run a command of dxn.

    Returns:
        Peak memory in megabytes: shared pages counted once, and resident; the time of its start;
        and what it printed.
    """
    started = time.time()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
        process = psutil.Process(child.pid)
        shared = resident = 0.0
        while child.poll() is None:
            sizes = sizes_of(process)
            shared, resident = max(shared, sizes[0]), max(resident, sizes[1])
            time.sleep(INTERVAL)
        output.seek(0)
        text = output.read()
    if child.returncode != expected:
        sys.exit(f"failed: {' '.join(command[2:])}\n{text[-2000:]}")
    return shared / 1e6, resident / 1e6, started, text


def sizes_of(process: psutil.Process) -> tuple[float, float]:
    """Return the memory of a process and its children in bytes: shared pages once, and resident."""
    shared = resident = files = 0.0
    try:
        for each in [process, *process.children(recursive=True)]:
            memory = each.memory_info()
            rollup = Path(f"/proc/{each.pid}/smaps_rollup").read_text(encoding="utf-8")
            sizes = {words[0]: words[1] for words in map(str.split, rollup.splitlines()[1:])}
            shared += 1024 * (int(sizes["Pss_Anon:"]) + int(sizes["Pss_Shmem:"]))
            # The libraries, which all of them have. Other commands can share them as well, so their
            # part of the proportional size depends on what else runs on the machine.
            files = max(files, memory.shared)
            resident += memory.rss
    except (psutil.Error, OSError, KeyError):  # it has ended
        return 0.0, 0.0
    return shared + files, resident


def measure_train(table: Path, rows: int, folder: Path, options: list[str]) -> Measured:
    """Measure `dxn train` until STEPS steps have ended."""
    run = tempfile.mkdtemp(dir=folder)
    command = ["-c", after_steps(STEPS), "train", str(table), "target=label", f"run={run}/run"]
    command += [f"batch_size={BATCH_SIZE}", *TRAIN, *options]
    shared, resident, started, text = watch(command, ENDED)
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    times = list(map(float, lines["STEPS"]))
    rate = (STEPS - WARMUP) * BATCH_SIZE / (times[-1] - times[WARMUP - 1])
    processor = float(lines["CPU"][0])
    return Measured("train", rows, shared, resident, times[0] - started, processor, rate)


def measure_predict(table: Path, rows: int, folder: Path, run: Path) -> Measured:
    """Measure `dxn predict` of all rows."""
    output = Path(tempfile.mkdtemp(dir=folder)) / "answers.parquet"
    command = ["-m", "dxn", "predict", f"run={run}", str(table), f"output={output}"]
    shared, resident, started, _ = watch(command)
    seconds = time.time() - started
    return Measured("predict", rows, shared, resident, seconds, math.nan, rows / seconds)


def compare_decoding(table: Path, rows: int, folder: Path, options: list[str]) -> None:
    """Print the samples per second of trainings with pictures in memory, and with decoded ones."""
    rates: dict[float, list[float]] = {IN_MEMORY_GB: [], 0.0: []}
    for _ in range(REPEATS):
        for gigabytes, found in rates.items():
            used = [*options, f"loader.cache_gb={gigabytes}"]
            found.append(measure_train(table, rows, folder, used).rate)
    in_memory, decoded = map(statistics.median, rates.values())
    print(
        f"{rows:,} rows, median of {REPEATS}: {in_memory:,.0f} samples/s with pictures in memory, "
        f"{decoded:,.0f} with decoding ({decoded / in_memory:.2f})"
    )


def line_of(measured: Measured, smallest: Measured) -> str:
    """Return one line of the table."""
    growth = measured.megabytes - smallest.megabytes
    more = measured.rows - smallest.rows
    grown = f"{1e6 * growth / more:8,.0f}" if more else " " * 8
    allowed = (1 + GOAL_FRACTION) * smallest.megabytes + GOAL_BYTES * more / 1e6
    verdict = "" if not more else "  reached" if measured.megabytes <= allowed else "  not reached"
    return (
        f"{measured.command:<8} {measured.rows:>9,} {measured.megabytes:9,.0f} "
        f"{measured.resident:9,.0f} {grown} {measured.start:8.1f} "
        f"{measured.processor:6.1f} {measured.rate:9,.0f}{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("options", nargs="*", help="further options of dxn train")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows")
    parser.add_argument("--only", choices=PARTS, help="default: all of them")
    parser.add_argument("--cache-gb", type=float, default=0.1, help="cache of decoded files")
    parser.add_argument("--folder", type=Path, help="folder of the tables; default: temporary")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    arguments = parser.parse_intermixed_args()
    options = [f"loader.cache_gb={arguments.cache_gb}", *arguments.options]
    results: list[Measured] = []
    print(
        "command       rows  MB peak  MB resid.  bytes/row  seconds  CPU s  samples/s  "
        "goal of memory"
    )
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        folder = arguments.folder or temporary
        for command in PARTS if arguments.only is None else (arguments.only,):
            if command == "decode":
                rows = min(arguments.rows)
                compare_decoding(make_table(rows, folder), rows, temporary, arguments.options)
                continue
            run = temporary / "run"
            if command == "predict":
                table = make_table(MODEL_ROWS, folder)
                words = ["train", str(table), "target=label", f"run={run}", "trainer.epochs=1"]
                watch(["-m", "dxn", *words, *TRAIN, *options])
            smallest = None
            for rows in sorted(arguments.rows):
                table = make_table(rows, folder)
                if command == "train":
                    measured = measure_train(table, rows, temporary, options)
                else:
                    measured = measure_predict(table, rows, temporary, run)
                smallest = smallest or measured
                results.append(measured)
                print(line_of(measured, smallest), flush=True)
    if arguments.json:
        text = json.dumps([asdict(each) for each in results], indent=1)
        arguments.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
