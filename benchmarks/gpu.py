"""Run what needs a GPU: its tests, the paths of dxn for it, and the rows of BENCHMARKS.md.

    python benchmarks/gpu.py --minutes 8 [--log gpu.log] [--only PART ...]
    python benchmarks/gpu.py --packages

It needs no network and no installation of dxn. The parts run one after another, the most valuable
ones first, each in its own process with a time limit, until the time is over. A part that fails or
lacks a package does not stop the others. Results are written to benchmarks/speed/results.json and
BENCHMARKS.md after each part. The log gets the output of all parts, and at the end the tables that
are also printed: the paths beside the plain ones, the rows, and what was left out and why.

With --packages, the packages are printed that a machine needs, with the versions of this one, so
that they can be brought to a machine without a network. With --device cpu, small models show that
the parts work; then nothing but the log is written.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "benchmarks" / "speed" / "bench.py"
TESTS = "tests"
MARK = "pytest.mark.gpu"  # of tests that need a GPU
# The rows of bench.py in the order of their value: first whether the paths of a GPU are right and
# fast, then the comparison with other libraries at its best, then everything else.
ROWS = (
    "path_graph_image",
    "path_kernel_texts",
    "path_graph_writing",
    "path_compiled_images",
    "path_kernel_training",
    "path_compiled_texts",
    "path_graph_texts",
    "vit_b16_batch1",
    "vit_b16_batch16",
    "vit_b16_batch256",
    "gpt2_generation",
    "train_vit_s16_compiled",
    "train_vit_s16_batch256_compiled",
    "train_bert_base_compiled",
    "path_skipped_steps",
    "path_prefetch",
    "path_graph_beams",
    "path_graph_images",
    "path_loss",
    "path_int8",
    "path_low_adapter",
    "path_low_muon",
    "path_fsdp",
    "path_compiled_writing",
    "train_vit_s16",
    "train_vit_s16_batch256",
    "train_bert_base",
    "bert_texts",
    "bert_512_texts",
)
GRAPHS = "path_graph_"  # rows that a CPU cannot compute
ROUNDS, TINY_ROUNDS = 5, 2
MOST = 120.0  # seconds of a part, more than any of them should need
LEAST = 15.0  # seconds in which a part can end; it is not started with less
# Facts of a path, see benchmarks/speed/bench_paths.py, which cannot be imported without torch.
GAP, ALLOWED = "relative difference of the answers", "allowed difference"
GOAL = 1.1  # speed relative to the plain path, from which on a path is worth its code
# Packages that the parts import, by the part. torch brings its own requirements.
PACKAGES = {
    "all parts": "torch torchvision numpy einops tokenizers huggingface-hub safetensors pillow "
    "jinja2 pyarrow rich annotated-types pydantic pydantic-core typing-inspection",
    "the rows of other libraries": "timm transformers",
    TESTS: "pytest",
}


@dataclass
class Done:
    """What was measured.

    Args:
        log: File of the log.
        records: Results of the rows of bench.py.
        left_out: Reasons by the part that has no result.
        tests: Last line of the tests.
    """

    log: TextIO
    records: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    tests: str = ""

    def say(self, text: str) -> None:
        """Print a text, and write it to the log."""
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()


def run(command: Sequence[str], seconds: float, done: Done) -> tuple[int | None, str]:
    """Run a part. Return its exit code and its last line; the code is None if it took too long."""
    # Packages that were brought along may be in folders of this variable, too.
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        # In a session of its own, so that its compiler processes can be ended with it.
        streams: Any = {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, **streams
        )
        code = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
    done.log.write(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return code, lines[-1] if lines else "no output"


def run_tests(seconds: float, done: Done) -> None:
    """Run the tests that need a GPU."""
    files = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARK in path.read_text(encoding="utf-8")
    ]
    # Without the settings of all tests, which need packages that these tests do not need.
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--noconftest", *files]
    command += ["-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    code, last = run(command, seconds, done)
    done.tests = last
    if code is None:
        done.left_out[TESTS] = f"not complete after {seconds:.0f} s"
    elif code:
        done.left_out[TESTS] = f"FAILED: {last}"


def run_row(name: str, args: argparse.Namespace, seconds: float, done: Done) -> None:
    """Measure a row of bench.py."""
    is_tiny = args.device == "cpu"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, str(BENCH), "--only", name, "--device", args.device]
        command += ["--json", str(path), "--rounds", str(TINY_ROUNDS if is_tiny else ROUNDS)]
        command += ["--tiny", "--dtype", "float32"] if is_tiny else ["--write"]
        code, last = run(command, seconds, done)
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if record is not None and "error" not in record:
        done.records.append(record)
    elif record is not None:
        done.left_out[name] = f"FAILED: {record['error']}"
    elif code is None:
        done.left_out[name] = f"not complete after {seconds:.0f} s"
    else:
        done.left_out[name] = f"FAILED: {last}"


def run_all(parts: Sequence[str], args: argparse.Namespace, done: Done) -> None:
    """Run the parts until the time is over."""
    end = time.monotonic() + 60 * args.minutes
    for part in parts:
        start = time.monotonic()
        if end - start < LEAST:
            done.left_out[part] = "no time was left"
            continue
        done.log.write(f"\n=== {part}\n")
        seconds = min(MOST, end - start)
        if part == TESTS:
            run_tests(seconds, done)
        else:
            run_row(part, args, seconds, done)
        # All numbers at once, in case that the program itself is killed.
        ratios = done.records[-1]["ratios"] if done.records else {}
        result = done.left_out.get(part) or (done.tests if part == TESTS else f"speed {ratios}")
        done.say(f"{part}: {result} ({time.monotonic() - start:.0f} s)")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    )


def is_equal(record: dict[str, Any]) -> bool:
    """Whether a path gives the answers of the plain one. Not if the difference is NaN."""
    return record["facts"][GAP] <= record["facts"][ALLOWED]


def of_paths(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of the paths beside the plain ones."""
    rows = []
    for record in records:
        ratio = record["ratios"]["plain"]
        rows.append([
            record["title"],
            f"{'yes' if is_equal(record) else 'NO'} ({record['facts'][GAP]:.1e})",
            milliseconds(record["values"]["plain"]),
            milliseconds(record["values"]["dxn"]),
            f"{ratio:.2f}{'' if ratio >= GOAL else ' (too slow)'}",
        ])  # fmt: skip
    return table(["path", "equal (difference)", "plain, ms", "path, ms", "ratio"], rows)


def of_rows(records: Sequence[dict[str, Any]]) -> str:
    """Return the table of the rows with other libraries."""
    rows = []
    for record in records:
        others = list(record["ratios"])
        limit, fraction = record["limit"], record["fraction"]
        rows.append([
            f"{record['name']}: {record['title']}",
            milliseconds(record["values"]["dxn"]),
            ", ".join(f"{name} {milliseconds(record['values'][name])}" for name in others),
            ", ".join(f"{record['ratios'][name]:.2f}" for name in others),
            "-" if fraction is None else f"{fraction:.3f} of {limit / 1e12:.0f} TFLOP/s",
        ])  # fmt: skip
    return table(["row", "dxn, ms", "others, ms", "speed", "fraction of the rate"], rows)


def milliseconds(seconds: float) -> str:
    """Return a duration as a number."""
    return f"{1e3 * seconds:,.2f}"


def report(done: Done) -> None:
    """Write the tables."""
    paths = [record for record in done.records if record["kind"] == "path"]
    rows = [record for record in done.records if record["kind"] != "path"]
    if done.records:
        done.log.write("".join(json.dumps(record) + "\n" for record in done.records))
        done.say(f"\n{json.dumps(done.records[0]['machine'])}")
    if done.tests:
        done.say(f"\ntests: {done.tests}")
    for records, of in ((paths, of_paths), (rows, of_rows)):
        if records:
            done.say(f"\n{of(records)}")
    if done.left_out:
        done.say("\n" + table(["left out", "reason"], [[*item] for item in done.left_out.items()]))


def package(name: str) -> str:
    """Return a package with its version here."""
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return f"{name}  # missing here"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts. Return 1 if a part failed or a path gives other answers, otherwise 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time limit of all parts")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: cuda")
    parser.add_argument("--log", type=Path, default=Path("gpu.log"), help="default: gpu.log")
    parser.add_argument("--packages", action="store_true", help="print the packages of the parts")
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts to run")
    args = parser.parse_args(argv)
    parts = [TESTS, *ROWS]
    if args.device == "cpu":
        parts = [row for row in ROWS if not row.startswith(GRAPHS)]
    for part in args.only or ():
        if part not in parts:
            parser.error(f"--only: {part} is no part for {args.device}, choose {', '.join(parts)}")
    if args.packages:
        for part, names in PACKAGES.items():
            print(f"# {part}", *map(package, names.split()), sep="\n")
        return 0
    with args.log.open("w", encoding="utf-8") as log:
        done = Done(log)
        try:
            run_all([p for p in parts if args.only is None or p in args.only], args, done)
        finally:  # also if it is interrupted
            report(done)
    paths = (record for record in done.records if record["kind"] == "path")
    are_equal = all(is_equal(record) for record in paths)
    failed = any(reason.startswith("FAILED") for reason in done.left_out.values())
    return int(failed or not are_equal)


if __name__ == "__main__":
    sys.exit(main())
