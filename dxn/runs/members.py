"""The members of an ensemble in its run folder. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMBERS = "members"


@dataclass(frozen=True)
class Member:
    """What the training of a member takes from its ensemble.

    Args:
        number: Number of the member, from 0.
        size: Number of members.
        folder: Run folder of the ensemble.
    """

    number: int
    size: int
    folder: Path

    @property
    def fitted_in(self) -> Path | None:
        """The run whose tokenizers and labels this member uses. None: it fits its own."""
        return member_folder(self.folder, 0) if self.number else None

    def with_time(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with this member's share of the time limit."""
        trainer = values["trainer"]
        limit = trainer.get("max_minutes")
        share = {} if limit is None else {"max_minutes": limit / self.size}
        return {**values, "trainer": {**trainer, **share}}


def member_folder(folder: Path, number: int) -> Path:
    """Return the run folder of a member."""
    return folder / MEMBERS / str(number)


def member_folders(folder: Path) -> list[Path]:
    """Return the run folders of the members in a run folder; none if it is no ensemble."""
    paths = [path for path in (folder / MEMBERS).glob("*") if path.name.isdecimal()]
    return sorted(paths, key=lambda path: int(path.name))


def is_member(folder: Path) -> bool:
    """Whether a run folder is that of a member of an ensemble."""
    return folder.parent.name == MEMBERS
