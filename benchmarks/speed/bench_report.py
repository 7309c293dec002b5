"""The report of bench.py: lines on the terminal, results.json and BENCHMARKS.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from bench_row import OURS

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
REPORT = FOLDER.parents[1] / "BENCHMARKS.md"
# The script replaces the text between these lines of BENCHMARKS.md.
START = "<!-- Written by bench.py: start -->"
END = "<!-- Written by bench.py: end -->"
PACKAGES = ("torch", "torchvision", "torchaudio", "tokenizers", "timm", "transformers")
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # of a CPU, the fastest first
KINDS = {
    "inference": "Inference",
    "generation": "Generation",
    "training": "Training",
    "input": "Reading, starting and single predictions",
    "memory": "Memory of attention",
    "run": "Whole runs",
}

Record = Mapping[str, Any]


def machine(device: torch.device, dtype: str) -> dict[str, Any]:
    """Describe the machine, the data type, the versions of the libraries and the date."""
    return {
        "device": _device(device),
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.date.today().isoformat(),
    }


def line(result: Record) -> str:
    """Return the line of a row for the terminal."""
    if "error" in result:
        return f"{result['name']:<26} FAILED: {result['error']}"
    values = "  ".join(f"{n} {number(v, result['unit'])}" for n, v in result["values"].items())
    ratios = "  ".join(f"{ratio:.2f} x {name}" for name, ratio in result["ratios"].items())
    limit = "" if result["fraction"] is None else f"  {result['fraction']:.2f} of the limit"
    goals = "; ".join(f"{g}: {'yes' if ok else 'NO'}" for g, ok in result["goals"].items())
    facts = "".join(f"\n    {name}: {value:.4g}" for name, value in result["facts"].items())
    return f"{result['name']:<26} {values}  |  {ratios}{limit}  |  {goals}{facts}"


def write(results: Sequence[Record], *, order: Sequence[str]) -> None:
    """Add results to results.json, and write the table of all of them to BENCHMARKS.md.

    Args:
        results: The new results. They replace those of the same row and device.
        order: Names of all rows, in the order of the table.
    """
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    records = {(r["name"], r["machine"]["device"]): r for r in (*old, *results)}
    # Rows that no longer exist are dropped.
    kept = [record for (name, _), record in records.items() if name in order]
    kept.sort(key=lambda r: (r["machine"]["device"], order.index(r["name"])))
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    text = (
        REPORT.read_text(encoding="utf-8")
        if REPORT.exists()
        else f"# Benchmarks\n\n{START}\n{END}\n"
    )
    before, rest = text.split(START)
    _, after = rest.split(END)
    REPORT.write_text(f"{before}{START}\n\n{tables(kept)}\n{END}{after}", encoding="utf-8")


def tables(records: Sequence[Record]) -> str:
    """Return the tables of all records, one section per device and one table per group of rows."""
    lines: list[str] = []
    for device, of_device in groupby(records, key=lambda r: r["machine"]["device"]):
        rows = list(of_device)
        lines += [f"## {device}", "", _conditions(rows), ""]
        for kind, of_kind in groupby(rows, key=lambda r: r["kind"]):
            lines += [f"### {KINDS[kind]}", ""]
            lines += ["| row | work | dxn | peers | speed | limit | goals | date |"]
            lines += ["|---|---|---|---|---|---|---|---|", *map(_row, of_kind), ""]
    return "\n".join(lines)


def number(value: float, unit: str) -> str:
    """Return a value with its unit, such as "12.3 ms"."""
    if unit != "s":
        return f"{value:.3g}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _row(record: Record) -> str:
    start = f"| `{record['name']}` | {record['title']} |"
    date = record["machine"]["date"]
    if "error" in record:
        return f"{start} failed: {record['error']} | | | | | {date} |"
    unit = record["unit"]
    peers = {name: value for name, value in record["values"].items() if name != OURS}
    cells = [
        number(record["values"][OURS], unit),
        ", ".join(f"{name} {number(value, unit)}" for name, value in peers.items()) or "-",
        ", ".join(f"{ratio:.2f} ({name})" for name, ratio in record["ratios"].items()) or "-",
        "-" if record["fraction"] is None else f"{record['fraction']:.2f}",
        ", ".join(f"{goal}: {'yes' if ok else '**no**'}" for goal, ok in record["goals"].items()),
        date,
    ]
    facts = "; ".join(f"{name} {value:.4g}" for name, value in record["facts"].items())
    return f"{start[:-2]}{f' ({facts})' if facts else ''} | {' | '.join(cells)} |"


def _conditions(rows: Sequence[Record]) -> str:
    """Return the sentences about versions, threads and load of a section."""
    newest = max(rows, key=lambda r: r["machine"]["date"])["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in newest["versions"].items())
    loads = [row["load"] for row in rows if "load" in row]
    rates = [row["limit"] for row in rows if row.get("limit")]
    load = (
        f" Load of the machine before a row: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    )
    limit = f" Limit: {min(rates) / 1e9:,.0f} to {max(rates) / 1e9:,.0f} GFLOP/s." if rates else ""
    return (
        f"Models in {newest['dtype']}. Python {newest['python']}, {versions}; "
        f"{newest['threads']} threads. "
        f"Command of a row: `python benchmarks/speed/bench.py --only ROW`.{load}{limit}"
    )


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name, flags = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")  # it exists on Linux only
    if info.exists():
        fields: dict[str, str] = {}
        for entry in info.read_text(encoding="utf-8").split("\n\n")[0].splitlines():
            key, _, value = entry.partition(":")
            fields[key.strip()] = value.strip()
        name, flags = fields.get("model name", name), fields.get("flags", "")
    fastest = next((flag for flag in INSTRUCTIONS if flag in flags.split()), None)
    return f"{name}, {os.cpu_count()} cores{f', {fastest}' if fastest else ''}"
