"""Try thousands of mutated inputs of each kind: a clear error or a right answer is expected.

    python tests/robustness/fuzz/fuzz.py [KIND ...] [--count 10000] [--seed 0] [--processes 2]
    python tests/robustness/fuzz/fuzz.py folders --case 123    # one case, in this process

It prints a table with one row per kind, and exits with 1 if any case failed. Each case is run in a
forked process. A case fails if it ends with any other exception than UserError or BadMedia, gives
a wrong answer, needs more than 5 s or 500 MB, or creates the canary file, which the hostile inputs
try to do by running code.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzz_pool import FAILURES, SECONDS, Kind, Outcome, random_of, run_all

# The module of each kind. It has a function `make_kind()`.
KINDS = {
    "folders": "fuzz_folders",
    "runs": "fuzz_runs",
    "tables": "fuzz_tables",
    "pictures": "fuzz_pictures",
    "sounds": "fuzz_sounds",
}
COLUMNS = ("tried", "refused clearly", "right answers", *FAILURES)
MAX_SHOWN = 10  # failures per kind


def main() -> int:
    """Run the chosen kinds, and print the table."""
    options = _options()
    outcomes: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory(prefix="dxn-fuzz-") as scratch:
        os.environ["DXN_FUZZ_CANARY"] = str(Path(scratch, "canary"))
        for name in options.kinds:
            kind: Kind = importlib.import_module(KINDS[name]).make_kind()
            folder = Path(scratch, name)
            folder.mkdir()
            kind.prepare(folder)
            if options.case is not None:
                return _run_one(kind, options.seed, options.case, folder)
            found = run_all(
                kind,
                count=options.count,
                seed=options.seed,
                processes=options.processes,
                folder=folder,
            )
            outcomes[name] = found
            if (folder / "errors.txt").exists():
                print((folder / "errors.txt").read_text())
            for outcome in [each for each in found if each.kind in FAILURES][:MAX_SHOWN]:
                print(f"{name} --case {outcome.case}: {outcome.kind}: {outcome.text}", flush=True)
    print(_table(outcomes))
    return int(any(each.kind in FAILURES for found in outcomes.values() for each in found))


def _run_one(kind: Kind, seed: int, case: int, folder: Path) -> int:
    """Run one case with its traceback."""
    work = folder / "case"
    work.mkdir()
    description = kind.mutate(random_of(kind, seed, case), work)
    print(f"{case}: {description}")
    print(kind.use(work))
    return 0


def _table(outcomes: dict[str, list[Outcome]]) -> str:
    lines = [f"| kind | {' | '.join(COLUMNS)} | slowest (limit {SECONDS} s) |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for name, found in outcomes.items():
        counts = Counter(each.kind for each in found)
        counts["tried"] = len(found)
        slowest = max((each.seconds for each in found), default=0.0)
        cells = [f"{counts[column]:,}" for column in COLUMNS]
        lines.append(f"| {name} | {' | '.join(cells)} | {slowest:.1f} s |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Try mutated inputs of each kind.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"default: {', '.join(KINDS)}")
    parser.add_argument("--count", type=int, default=10_000, help="cases per kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--case", type=int, help="run only this case, in this process")
    options = parser.parse_args()
    unknown = [name for name in options.kinds if name not in KINDS]
    if unknown:
        parser.error(f"unknown kind {unknown[0]}; choose from {', '.join(KINDS)}")
    options.kinds = options.kinds or list(KINDS)
    return options


if __name__ == "__main__":
    sys.exit(main())
