"""The command `dxn check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from dxn.commands.options import DATA_FILES, Adapters, Count, Data, Seed
from dxn.config.command import OUTPUT_FILE, Group


@dataclass(frozen=True, kw_only=True)
class Check(Data):
    """Read a whole data set and report its contents and errors.

    Args:
        dim: Token width D; has no effect here, but adapters need it.
        seed: Random seed of the splits, if the data has none.
        output: CSV that lists bad rows and files, rows in two splits, and contradictions.
        adapters: Kinds of inputs to read.
        head: Task; auto infers it from the target.
        data: Data source; inferred from data.path.
    """

    path_key: ClassVar[str | None] = "data.path"
    usage: ClassVar[Sequence[str]] = (
        "dxn check reviews.csv target=label",
        "dxn check photos/",
    )

    dim: Count = 128
    seed: Seed = 0
    output: Annotated[str, OUTPUT_FILE] = "bad_files.csv"
    adapters: Adapters
    head: Annotated[Any, Group("auto")]
    data: Annotated[Any, Group("digits"), DATA_FILES] = None

    def execute(self) -> int:
        """Report what the data contains. The exit code is 1 if rows are bad."""
        from dxn.runs.check import run

        return run(self.settings)
