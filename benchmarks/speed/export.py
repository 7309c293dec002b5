"""Measure the size and the speed of exported models.

    python benchmarks/speed/export.py run=RUN [batch_sizes=1,8,64] [rounds=20]

The script exports a run in both formats to a temporary folder. It measures dxn (in float32 and with
dtype=auto), torch.export and onnxruntime in turn on the same prepared batches, and prints a table
in Markdown. The times are those of the model, without the preparation of its inputs, which is the
same for all. The number of threads is that of torch (OMP_NUM_THREADS).
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dxn.export.examples import Example, make_examples
from dxn.export.folder import ABOUT, write_export
from dxn.export.formats import SUFFIXES, load
from dxn.runs.saved import model_folder
from dxn.training.device import to_device

Call = Callable[[], object]


def main(arguments: list[str]) -> None:
    """Print the table of one run."""
    options = {"batch_sizes": "1,8,64", "rounds": "20"}
    options |= dict(argument.split("=", 1) for argument in arguments)
    if "run" not in options:
        raise SystemExit("set run=RUN to the run folder of a trained model")
    sizes = [int(size) for size in options["batch_sizes"].split(",")]
    run = Path(options["run"])
    with tempfile.TemporaryDirectory() as folder:
        print(table(run, Path(folder), sizes, int(options["rounds"])))


def table(run: Path, folder: Path, sizes: list[int], rounds: int) -> str:
    """Return the table of a run as Markdown."""
    paths: dict[str, Path] = {}
    for format in SUFFIXES:
        print(f"exporting: {format}", file=sys.stderr)
        predictor = model_folder.load(run, dtype="float32")
        write_export(predictor, folder / format, format)
        paths[format] = folder / format
    weights = (run / "model" / "model.safetensors").stat().st_size
    header = ["", "size (MB)", *(f"ms for {size} samples" for size in sizes)]
    rows = {"dxn, float32": [f"{weights / 1e6:.1f}"], "dxn, dtype=auto": [f"{weights / 1e6:.1f}"]}
    for name, path in paths.items():
        (graph,) = path.glob(f"*{SUFFIXES[name]}")
        rows[f"exported, {name}"] = [f"{graph.stat().st_size / 1e6:.1f}"]
    calls = _calls(run, paths)
    for size in sizes:
        # Examples of one size, so that all rows compute the same batch.
        (example,) = make_examples(model_folder.load(run).model, 0, [size])
        times = measure([each(example) for each in calls.values()], rounds)
        for name, seconds in zip(calls, times, strict=True):
            rows[name].append(f"{seconds * 1000:.2f}")
    lines = [header, ["---"] * len(header), *([name, *cells] for name, cells in rows.items())]
    threads = f"{torch.get_num_threads()} threads, median of {rounds} rounds"
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", threads])


def _calls(run: Path, paths: dict[str, Path]) -> dict[str, Callable[[Example], Call]]:
    """Return a function for each row, from an example to the call that is measured."""
    plain = model_folder.load(run, dtype="float32")
    auto = model_folder.load(run, dtype="auto")

    def own(predictor: model_folder.Predictor) -> Callable[[Example], Call]:
        def prepare(example: Example) -> Call:
            batch = to_device(example[0], predictor.device)
            return lambda: predictor.network(batch)

        return prepare

    def exported(path: Path, suffix: str) -> Callable[[Example], Call]:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        (part,) = about["parts"]
        graph = load(path / part["file"], [port["name"] for port in part["outputs"]])
        names = [port["name"] for port in part["inputs"]]

        def prepare(example: Example) -> Call:
            tensors = {name: example[1][name] for name in names}
            return lambda: graph(tensors)

        return prepare

    rows = {f"exported, {name}": exported(path, SUFFIXES[name]) for name, path in paths.items()}
    return {"dxn, float32": own(plain), "dxn, dtype=auto": own(auto), **rows}


@torch.inference_mode()
def measure(calls: list[Call], rounds: int) -> list[float]:
    """Return the median seconds of each call. They are measured in turn, in a random order."""
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    rand = random.Random(0)
    for call in calls:  # the first call of a library allocates memory
        call()
        call()
    for _ in range(rounds):
        rand.shuffle(order)
        for i in order:
            start = time.perf_counter()
            calls[i]()
            times[i].append(time.perf_counter() - start)
    return [statistics.median(each) for each in times]


if __name__ == "__main__":
    main(sys.argv[1:])
