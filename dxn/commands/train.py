"""The command `dxn train`."""

from __future__ import annotations

from dxn.runs.ensemble import run_training
from dxn.runs.evaluation.printing import next_step
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Train, evaluate on the test split, and write the run folder."""
    for command in run_training(settings).next_commands:
        next_step("dxn", *command)
    return 0
