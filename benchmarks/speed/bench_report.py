"""The report of bench.py: lines on the terminal, results.json and BENCHMARKS.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from bench_row import OURS

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
REPORT = FOLDER.parents[1] / "BENCHMARKS.md"
# The script replaces the text between these lines of BENCHMARKS.md.
START = "<!-- Written by benchmarks/speed/bench.py: start -->"
END = "<!-- Written by benchmarks/speed/bench.py: end -->"
PACKAGES = ("torch", "torchvision", "torchaudio", "tokenizers", "timm", "transformers")
INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # of a CPU, the fastest first
KINDS = {
    "inference": "Inference",
    "generation": "Generation",
    "training": "Training",
    "input": "Reading, starting and single predictions",
    "memory": "Memory",
    "run": "Whole runs",
    "path": "Paths of a GPU beside the plain path of the same work",
}
# What dxn is compared with in a row that has no other library.
REFERENCES = ("import torch", "one batch", "dxn, padded", "plain")
EQUAL = 1.05  # speeds up to this factor in both directions count as equal

Record = Mapping[str, Any]


def machine(device: torch.device, dtype: str) -> dict[str, Any]:
    """Describe the machine, the data type, the versions of the libraries and the date."""
    return {
        "device": _device(device),
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES if find_spec(name) is not None},
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
    written = f"{summary(kept)}\n\n{tables(kept)}"
    REPORT.write_text(f"{before}{START}\n\n{written}\n{END}{after}", encoding="utf-8")


def summary(records: Sequence[Record]) -> str:
    """Return five lines about all comparisons: where dxn is faster, equal and slower."""
    compared = [record for record in records if speed(record) is not None]
    machines = {record["machine"]["device"] for record in records}
    groups: dict[str, list[Record]] = {"faster": [], "equal": [], "slower": []}
    timed = [record for record in compared if record["unit"] == "s"]
    for record in timed:
        ratio = speed(record) or 1.0
        is_equal = 1 / EQUAL <= ratio <= EQUAL
        groups["equal" if is_equal else "faster" if ratio > 1 else "slower"].append(record)
    kinds = {record["kind"] for record in compared}
    medians: list[str] = []
    for kind, name in KINDS.items():
        if kind in kinds:
            speeds = _speeds(compared, kind=kind)
            ends = f"{min(speeds):.2f} to {max(speeds):.2f}"
            medians.append(f"{name.lower()} {statistics.median(speeds):.2f} ({ends})")
    return "\n".join(
        [
            f"- {len(timed)} comparisons with the fastest other library on {len(machines)} "
            f"machines; speeds of {1 / EQUAL:.2f} to {EQUAL:g} count as equal.",
            *(
                f"- **{name.capitalize()}** in {len(rows)}: {_ranges(rows) or 'none'}."
                for name, rows in groups.items()
            ),
            f"- Medians and ranges of the value of others over that of dxn: {', '.join(medians)}.",
        ]
    )


def speed(record: Record) -> float | None:
    """Return the speed relative to the fastest other library; None without another library."""
    ratios = record.get("ratios", {})
    return min((ratios[name] for name in ratios if name not in REFERENCES), default=None)


def _speeds(records: Sequence[Record], **fields: str) -> list[float]:
    chosen = [r for r in records if all(r[name] == value for name, value in fields.items())]
    return [ratio for record in chosen if (ratio := speed(record)) is not None]


def _ranges(records: Sequence[Record]) -> str:
    """Return the names of rows with their lowest and highest speed, the fastest one first."""
    speeds = {r["name"]: _speeds(records, name=r["name"]) for r in records}
    texts: list[str] = []
    for name, values in sorted(speeds.items(), key=lambda item: -max(item[1])):
        low, high = f"{min(values):.2f}", f"{max(values):.2f}"
        texts.append(f"`{name}` {low if low == high else f'{low} to {high}'}")
    return ", ".join(texts)


def tables(records: Sequence[Record]) -> str:
    """Return the tables of all records, one section per device, and one table per group of rows.

    Rows without another library are in a table of their own.
    """
    lines: list[str] = []
    for device, of_device in groupby(records, key=lambda r: r["machine"]["device"]):
        rows = list(of_device)
        lines += [f"## {device}", "", _conditions(rows), ""]
        costs = [row for row in rows if "error" not in row and speed(row) is None]
        compared = [row for row in rows if row not in costs]
        for kind, of_kind in groupby(compared, key=lambda r: r["kind"]):
            ratio = "less memory" if kind == "memory" else "speed"
            lines += [f"### {KINDS[kind]}", "", f"| work | dxn | others | {ratio} | row |"]
            lines += ["|---|---|---|---|---|", *map(_row, of_kind), ""]
        if costs:
            lines += ["### Costs without another library", ""]
            lines += ["| work | dxn | compared with | speed | row |"]
            lines += ["|---|---|---|---|---|", *map(_row, costs), ""]
    return "\n".join(lines)


def number(value: float, unit: str) -> str:
    """Return a value with its unit, such as "12.3 ms"."""
    if unit == "MB":
        return f"{value:,.0f} MB"
    if unit != "s":
        return f"{value:.3g}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def _row(record: Record) -> str:
    name = f"`{record['name']}`"
    if "error" in record:
        return f"| {record['title']} | failed: {record['error']} | | | {name} |"
    unit = record["unit"]
    others = [
        f"{peer} {number(value, unit)}" for peer, value in record["values"].items() if peer != OURS
    ]
    ratios = [f"{ratio:.2f} ({peer})" for peer, ratio in record["ratios"].items()]
    if len(ratios) == 1:
        ratios = [ratios[0].partition(" ")[0]]
    cells = [
        record["title"],
        number(record["values"][OURS], unit),
        ", ".join(others) or "-",
        ", ".join(ratios) or "-",
        name,
    ]
    return f"| {' | '.join(cells)} |"


def _conditions(rows: Sequence[Record]) -> str:
    """Return the sentences about versions, threads and load of a section."""
    newest = max(rows, key=lambda r: r["machine"]["date"])["machine"]
    dates = sorted({row["machine"]["date"] for row in rows})
    versions = ", ".join(f"{name} {number}" for name, number in newest["versions"].items())
    loads = [row["load"] for row in rows if "load" in row]
    load = (
        f" Load of the machine before a row: {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    )
    return (
        f"Models in {newest['dtype']}. Python {newest['python']}, {versions}; "
        f"{newest['threads']} threads; measured from {dates[0]} to {dates[-1]}. "
        f"Command of a row: `python benchmarks/speed/bench.py --only ROW`.{load}"
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
