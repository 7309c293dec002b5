"""The commands `dxn verify` and `dxn doctor`: is a run, or this computer, in order?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dxn.commands.options import FromRun
from dxn.config.command import Command
from dxn.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Verify(FromRun):
    """Check the files of a run: checksums, whether they load, whether metrics are finite.

    Args:
        run: Run folder, folder of runs (its newest one is used) or latest.
    """

    usage: ClassVar[Sequence[str]] = ("dxn verify run=outputs/label", "dxn verify run=latest")

    def execute(self) -> int:
        """Check the files of a run folder. All problems are listed."""
        from dxn.core.display import print_line
        from dxn.runs.verify import verify

        result = verify(Path(self.required_run()), trust=self.settings.folder_trust)
        for line in result.checked:
            print_line(f"intact: {line}")
        for line in result.notes:
            print_line(f"note: {line}")
        if result.problems:
            raise UserError("\n".join(result.problems))
        print_line("no problems found")
        return 0


@dataclass(frozen=True, kw_only=True)
class Doctor(Command):
    """Print versions, devices and formats of this computer, and what is fast on it."""

    usage: ClassVar[Sequence[str]] = ("dxn doctor",)

    def execute(self) -> int:
        """Print what a report of a problem should contain."""
        from dxn.core.display import print_line
        from dxn.runs.doctor import lines

        for line in lines():
            print_line(line)
        return 0
