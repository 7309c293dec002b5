"""The command `dxn serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dxn.commands.options import Compute, FromWeights, ZeroShotLabels
from dxn.serve.options import ServeOptions


@dataclass(frozen=True, kw_only=True)
class Serve(ServeOptions, FromWeights, ZeroShotLabels, Compute):
    """Answer requests over HTTP with a trained model, and show a page to try it."""

    usage: ClassVar[Sequence[str]] = (
        "dxn serve run=outputs/label",
        "dxn serve run=latest port=8001 batch_size=64",
        "dxn serve weights=openai-community/gpt2 dtype=int8",
    )

    def execute(self) -> int:
        """Serve a model until a signal arrives."""
        from dxn.serve.command import serve

        return serve(
            self.loader(**self.computing(), labels=self.labels, template=self.template),
            self.run,
            self.weights.source,
            self,
            is_chosen="examples" in self.settings.chosen,
            trust=self.settings.folder_trust,
        )
