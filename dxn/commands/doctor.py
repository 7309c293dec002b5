"""The command `dxn doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dxn.config.command import Command


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
