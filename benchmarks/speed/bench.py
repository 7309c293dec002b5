"""Compare the speed of dxn with timm, transformers, torchvision, torchaudio and tokenizers.

    make bench
    python benchmarks/speed/bench.py --only ROW [ROW ...] [--rounds N] [--data DIR]

Each row measures the same work in dxn and in its peers, in one process and in turn, so that other
load on the machine affects all of them. Equal outputs are checked first. The table shows medians,
and the speed relative to each peer: above 1, dxn is faster. The limit is the rate of a matrix
product of 2048×2048 matrices (on a GPU 8192×8192) in the same data type, measured between the
rounds. A row is a fraction of it, which counts useful operations only, without those for padding.
The data type is bf16 where it is measured faster, as in dxn, and otherwise float32.

Every row runs in its own process. It has 9 rounds, but only 3 if these take more than 20 seconds.
The results are written to results.json, and as tables to BENCHMARKS.md. With --only, rows are
measured and printed, and written only with --write.
DIR contains the public data sets of the rows of whole runs, one folder per data set.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dxn.core.runtime import choose_bf16, configure

configure()  # it sets environment variables that torch reads when it is imported

import bench_report  # noqa: E402
import torch  # noqa: E402
from bench_measure import measure  # noqa: E402
from bench_row import Options, Row, Unequal  # noqa: E402

MODULES = (
    "bench_inference",
    "bench_generation",
    "bench_training",
    "bench_input",
    "bench_start",
    "bench_memory",
    "bench_runs",
    "bench_paths",
    "bench_steps",
)


def find_rows() -> tuple[tuple[Row, ...], dict[str, str]]:
    """Return all rows, and the missing package of each module that cannot be imported."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for name in MODULES:
        try:
            rows += import_module(name).ROWS
        except ModuleNotFoundError as error:
            missing[name] = error.name or str(error)
    return tuple(rows), missing


ROWS, MISSING = find_rows()
ROUNDS = 9


def run_row(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a row in this process, and return its result as plain data."""
    if args.tiny:
        from dxn.models import compiling

        compiling.BACKEND = "aot_eager"  # without generated code, which takes a minute
    dtype = getattr(torch, args.dtype)
    options = Options(Path(), torch.device(args.device), dtype, args.data, args.tiny)
    try:
        result = measure(row, options, args.rounds)
    except Unequal as error:
        return {"name": row.name, "title": row.title, "kind": row.kind, "error": str(error)}
    return result.as_dict()


def run_process(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """Measure a row in a process of its own."""
    # In its own process, a row does not find the memory and the compiled code of another one.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, __file__, "--only", row.name, "--rounds", str(args.rounds)]
        command += ["--device", args.device, "--dtype", args.dtype, "--json", str(path)]
        command += ["--data", str(args.data)] if args.data else []
        command += ["--tiny"] if args.tiny else []
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
    error = f"the process ended with exit code {ended.returncode}"
    return {"name": row.name, "title": row.title, "kind": row.kind, "error": error}


def missing_data(row: Row, data: Path | None) -> bool:
    """Whether a row needs a data set that is not in the folder of data sets."""
    return row.data is not None and (data is None or not (data / row.data).exists())


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows to measure")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="maximum number of rounds per row"
    )
    parser.add_argument("--device", default="cpu", help="device of the models")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], help="default: by measurement")
    parser.add_argument("--data", type=Path, help="folder of public data sets")
    parser.add_argument("--write", action="store_true", help="write the rows of --only")
    parser.add_argument("--json", type=Path, help="write the result of one row to this file too")
    parser.add_argument(
        "--tiny", action="store_true", help="small models, to see that the rows work; print only"
    )
    args = parser.parse_args(argv)
    missing = ""
    if MISSING:
        packages = " ".join(sorted(set(MISSING.values())))
        missing = f"; rows of {', '.join(MISSING)} need pip install {packages}"
    for name in args.only or ():
        if name not in {row.name for row in ROWS}:
            parser.error(f"there is no row {name}{missing}; --list shows all rows")
    if missing and args.only is None:
        print(f"left out{missing}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows. Return 1 if outputs differ or a row fails, otherwise 0."""
    args = parse(argv)
    if args.list:
        print("\n".join(f"{row.name:<26} {row.title}" for row in ROWS))
        return 0
    device = torch.device(args.device)
    if args.dtype is None:
        bf16, note = choose_bf16(device)
        args.dtype = "bfloat16" if bf16 else "float32"
        print(note)
    rows = [row for row in ROWS if args.only is None or row.name in args.only]
    results = []
    for row in rows:
        if missing_data(row, args.data):
            print(f"{row.name:<26} left out: it needs --data DIR with the folder {row.data}")
            continue
        if row.gpu and device.type == "cpu" and not args.tiny:
            print(f"{row.name:<26} left out: it needs a GPU (--device cuda)")
            continue
        if row.package is not None and find_spec(row.package) is None:
            print(f"{row.name:<26} left out: it needs pip install {row.package}")
            continue
        # A process that measures one row may do so itself.
        result = run_row(row, args) if len(rows) == 1 else run_process(row, args)
        result["machine"] = bench_report.machine(device, args.dtype)
        results.append(result)
        print(bench_report.line(result), flush=True)
        # After each row, so that nothing is lost if the program is interrupted.
        is_whole = args.only is None and not args.json
        if not args.tiny and (args.write or is_whole):
            bench_report.write([result], order=[row.name for row in ROWS])
    if args.json and results:
        args.json.write_text(json.dumps(results[0]), encoding="utf-8")
    return int(any("error" in result for result in results))


if __name__ == "__main__":
    # Processes that a row starts must find the same Python packages.
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2]))
    sys.exit(main())
