"""The command `dxn report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dxn.commands.model import Compute, FromRun
from dxn.commands.options import DtypeName
from dxn.core.errors import UserError
from dxn.runs.paths import is_run


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
