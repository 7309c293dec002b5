"""The command `dxn compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from dxn.commands.options import Runs
from dxn.config.command import OUTPUT_FILE, Command


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
