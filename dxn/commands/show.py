"""The command `dxn show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dxn.commands.train import Train
from dxn.config.settings import dump_yaml
from dxn.core.printable import printable


@dataclass(frozen=True, kw_only=True)
class Show(Train):
    """Print the complete configuration of a training run."""

    usage: ClassVar[Sequence[str]] = (
        "dxn show",
        "dxn show reviews.csv target=label",
        "dxn show experiment=trec",
    )

    def execute(self) -> int:
        """Print the values of all options."""
        print(printable(dump_yaml(self.settings.plain())), end="")
        return 0
