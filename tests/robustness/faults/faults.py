"""Inject faults into trainings: killed processes, full disks, damaged files, changed data.

    python tests/robustness/faults/faults.py [GROUP ...] [--count 100] [--seed 0] [--only TEXT]

Every training is a real one: `dxn train` in a forked process, or in several processes that
torchrun starts. The program prints a table with one row per fault, and exits with 1 if one of them
failed. docs/reliability.md describes what is promised. The group `kills` kills trainings at
--count random moments.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

# Before torch is imported: a forked process must not wait for threads that were not forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_CBWR", "AUTO")

from fault_process import Fault, Seen, preload

# The module of each group. It has a function `faults(options)`.
GROUPS = {
    "resume": "fault_resume",
    "writes": "fault_writes",
    "signals": "fault_signals",
    "files": "fault_files",
    "changes": "fault_changes",
    "folders": "fault_folders",
    "numbers": "fault_numbers",
    "memory": "fault_memory",
    "workers": "fault_workers",
    "ranks": "fault_ranks",
    "kills": "fault_kills",
}
MAX_TEXT = 300  # characters of an observation


def main() -> int:
    """Inject the faults of the chosen groups, and print the table."""
    options = _options()
    rows: list[tuple[str, Fault, Seen]] = []
    with tempfile.TemporaryDirectory(prefix="dxn-faults-", dir=options.scratch) as scratch:
        os.environ["DXN_FAULTS"] = scratch
        preload()
        for group in options.groups:
            for i, fault in enumerate(importlib.import_module(GROUPS[group]).faults(options)):
                if options.only in fault.name:
                    seen = _inject(fault, Path(scratch, f"{group}-{i}"))
                    rows.append((group, fault, seen))
    print("\n".join(["", "| group | fault | expected | seen | result |", "|---" * 5 + "|"]))
    for group, fault, seen in rows:
        text = " ".join(seen.text.split()).replace("|", "/").replace(scratch, "")[:MAX_TEXT]
        result = "pass" if seen.passed else "FAIL"
        print(f"| {group} | {fault.name} | {fault.expected} | {text} | {result} |")
    failed = sum(not seen.passed for _, _, seen in rows)
    print(f"\n{len(rows)} faults, {failed} failed")
    return int(bool(failed))


def _inject(fault: Fault, folder: Path) -> Seen:
    started = time.monotonic()
    folder.mkdir()
    try:
        seen = fault.inject(folder)
    except Exception as error:  # a failure of this program itself must not hide other faults
        seen = Seen(False, f"{type(error).__name__}: {error}")
    shutil.rmtree(folder, ignore_errors=True)
    result = "pass" if seen.passed else "FAIL"
    seconds = time.monotonic() - started
    print(f"{result} {seconds:5.1f} s  {fault.name}: {seen.text}", flush=True)
    return seen


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Inject faults into trainings.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"default: {', '.join(GROUPS)}")
    parser.add_argument("--count", type=int, default=100, help="random moments of the group kills")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument("--scratch", help="parent of the scratch folder (default: /tmp)")
    options = parser.parse_args()
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]}; choose from {', '.join(GROUPS)}")
    options.groups = options.groups or list(GROUPS)
    return options


if __name__ == "__main__":
    sys.exit(main())
