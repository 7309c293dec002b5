"""The command `dxn check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from dxn.commands.options import OUTPUT_FILE
from dxn.commands.train import Train

if TYPE_CHECKING:
    from dxn.config.settings import Settings
    from dxn.config.words import Request


@dataclass(frozen=True, kw_only=True)
class Check(Train):
    """Check the options of a training without its weights, and read and report its whole data.

    Args:
        output: CSV that lists bad rows and files, rows in two splits, and contradictions.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn check reviews.csv target=label",
        "dxn check photos/",
    )

    output: Annotated[str, OUTPUT_FILE] = "bad_files.csv"

    @classmethod
    def resumed(cls, request: Request, words: Sequence[str]) -> Settings | None:
        """Return the saved configuration of the run that `resume` names."""
        # The output of the check is a file, and that of the training is a folder.
        return super().resumed(request, [f"output={cls.output}", *words])

    def execute(self) -> int:
        """Report what the data contains. The exit code is 1 if rows are bad."""
        from dxn.core.display import next_step, print_line
        from dxn.runs.check import check_data
        from dxn.tasks import Auto

        result, task = check_data(self.settings.values, Path(self.output), self.settings.trust)
        if result.errors or result.bad:
            print_line(
                f"correct the rows in {self.output}, or train with data.on_bad=skip"
                if result.bad
                else "correct the data or the options, see the errors above"
            )
            return 1
        options = [o for o in self.settings.overrides if not o.startswith("output=")]
        if isinstance(task, Auto):
            options.append("head=masked")  # the training without a target that needs no options
        next_step("dxn", "train", *options)
        return 0
