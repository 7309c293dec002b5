"""The command `dxn tokenize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dxn.commands.options import Adapters, Count, FromRun, Input, Seed, TableInput
from dxn.config.command import OUTPUT_FILE


@dataclass(frozen=True, kw_only=True)
class Tokenize(FromRun, TableInput):
    """Convert one sample to its D×N matrix and draw it, or write the matrices of a data set.

    Args:
        input: One sample: a file (input=photo.jpg) or several inputs (input.text=...
            input.image=...). With run=RUN and output=FILE.parquet also a table, folder or pattern.
        output: Image file to write; .parquet or .npz for the numbers of one or several samples.
        run: Run folder with trained adapters to use (default: untrained adapters).
        dim: Token width D.
        seed: Random seed of the embeddings of untrained adapters.
        adapters: Kinds of inputs to read.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn tokenize adapters=[image] photo.jpg",
        'dxn tokenize input.text="hello there"',
        "dxn tokenize run=RUN new.csv output=tokens.parquet",
    )

    input: Input
    output: Annotated[str, OUTPUT_FILE] = "tokens.png"
    dim: Count = 128
    seed: Seed = 0
    adapters: Adapters

    def execute(self) -> int:
        """Print the tokens of each input and draw them, or write those of each sample."""
        from dxn.runs.tokenize import run

        return run(self.settings)
