"""The command `dxn report`."""

from __future__ import annotations

from dxn.runs.evaluation.printing import print_line
from dxn.runs.evaluation.reporting import write_again
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Write the report of a run again."""
    path = write_again(settings)
    print_line(f"written: {path}")
    print_line(f"open {path} in a browser")
    return 0
