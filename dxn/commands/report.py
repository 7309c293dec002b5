"""The commands about finished runs: `dxn report` and `dxn compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dxn.commands.options import Compute, DtypeName, FromRun, Runs
from dxn.config.command import Command
from dxn.core.errors import UserError
from dxn.runs.folder import is_run


@dataclass(frozen=True, kw_only=True)
class Report(FromRun, Compute):
    """Write report.html again: data, curves, metrics with intervals, examples, attention.

    Args:
        run: Run folder, folder of runs (its newest one is used) or latest.
        confine: Refuse files of the run's data that lead out of its folder.
    """

    usage: ClassVar[Sequence[str]] = ("dxn report run=outputs/label", "dxn report run=latest")

    confine: bool = True
    dtype: DtypeName = "float32"

    def execute(self) -> int:
        """Write the report of a run again."""
        from dxn.core.display import print_line
        from dxn.runs.evaluation.reporting import write_again

        folder = Path(self.required_run())
        if not is_run(folder):
            raise UserError(
                f"run: {folder}: not a run folder, it has no .hydra/config.yaml; a model folder "
                "alone has no report"
            )
        path = write_again(
            folder,
            self.load(**self.computing()),
            batch_size=self.batch_size,
            confine=self.confine,
            trust=self.settings.folder_trust,
        )
        print_line(f"written: {path}")
        print_line(f"open {path} in a browser")
        return 0


@dataclass(frozen=True, kw_only=True)
class Compare(Command):
    """Compare runs: options that differ, metrics with intervals, a paired test.

    Args:
        run: Two or more run folders.
    """

    usage: ClassVar[Sequence[str]] = ("dxn compare run=[outputs/label/A,outputs/label/B]",)

    run: Runs = ()

    def execute(self) -> int:
        """Compare runs, and compare their answers row by row."""
        from dxn.core.display import print_line
        from dxn.runs.compare import compared_runs, comparison_lines, print_comparison

        names = [self.run] if isinstance(self.run, str) else self.run
        runs = compared_runs([Path(name) for name in names], self.settings)
        print_comparison(runs)
        for line in comparison_lines(runs):
            print_line(line)
        return 0
