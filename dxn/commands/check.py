"""The command `dxn check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from dxn.commands.options import DATA_FILES, Adapters, Count, Data, Seed
from dxn.config.command import OUTPUT_FILE, Group


@dataclass(frozen=True, kw_only=True)
class Check(Data):
    """Read a whole data set and report its contents and errors.

    Args:
        dim: Token width D; has no effect here, but adapters need it.
        fusion: How the tokens of several inputs are combined; has no effect here, but tasks with
            queries need its registers.
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
    fusion: Annotated[Any, Group("early")]
    head: Annotated[Any, Group("auto")]
    data: Annotated[Any, Group("digits"), DATA_FILES] = None

    def execute(self) -> int:
        """Report what the data contains. The exit code is 1 if rows are bad."""
        from dxn.core.display import next_step, print_line
        from dxn.runs.check import check_data
        from dxn.tasks import Auto

        config = {"data": self.data, "adapters": self.adapters, "head": self.head}
        result, task = check_data(config, Path(self.output), self.settings.trust)
        if result.errors or result.bad:
            print_line(
                f"correct the rows in {self.output}, or train with data.on_bad=skip"
                if result.bad
                else "correct the data or the options, see the errors above"
            )
            return 1
        # The output of the check is a file, and that of the training is a folder.
        options = [o for o in self.settings.overrides if not o.startswith("output=")]
        if isinstance(task, Auto):
            options.append("head=masked")  # the training without a target that needs no options
        elif task.target.source == "stream":
            options.append("backbone.causal=true")  # a check has no backbone
        next_step("dxn", "train", *options)
        return 0
