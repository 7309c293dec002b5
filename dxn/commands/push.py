"""The command `dxn push`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dxn.commands.model import FromRun
from dxn.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Push(FromRun):
    """Upload a trained model with a model card to the Hugging Face hub.

    Args:
        repo: Repository OWNER/NAME, which is created if necessary.
        revision: Branch to write, which is created if necessary (default: main).
        private: Whether a new repository is private.
        license: License of the model for its card, such as apache-2.0.
        message: Message of the commit.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn push run=outputs/label repo=OWNER/NAME",
        "dxn push run=latest repo=OWNER/NAME private=false license=apache-2.0",
    )

    repo: str | None = None
    revision: str | None = None
    private: bool = True
    license: str | None = None
    message: str = "Upload a dxn model"

    def execute(self) -> int:
        """Upload the model folder of a run."""
        from dxn.core.display import print_line
        from dxn.export.hub import publish

        if self.repo is None:
            raise UserError("repo: set repo=OWNER/NAME to the repository to write")
        run = Path(self.required_run())
        lines = publish(
            run,
            self.repo,
            revision=self.revision,
            private=self.private,
            license=self.license,
            message=self.message,
            trust=self.settings.folder_trust,
        )
        for line in lines:
            print_line(line)
        return 0
