"""The commands whose result is a page: `dxn report` and `dxn compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from dxn.commands.model import Compute, FromRun
from dxn.commands.options import DtypeName, Runs
from dxn.config.command import OUTPUT_FILE, Command
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
        output: Page to write.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn compare run=[outputs/label/A,outputs/label/B]",
        "dxn compare run=[A,B,C] output=compare.html",
    )

    run: Runs = ()
    output: Annotated[str, OUTPUT_FILE] = "compare.html"

    def execute(self) -> int:
        """Compare runs, and compare their answers row by row."""
        from dxn.core.display import print_line
        from dxn.runs.compare import compare_runs, comparison_lines

        names = [self.run] if isinstance(self.run, str) else self.run
        path = Path(self.output)
        runs, tests = compare_runs([Path(name) for name in names], path, self.settings)
        for line in comparison_lines(runs, tests):
            print_line(line)
        print_line(f"written: {path}")
        print_line(f"open {path} in a browser")
        return 0
