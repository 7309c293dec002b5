"""The command `dxn tokenize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from dxn.commands.options import OUTPUT_FILE, Adapters, Count, Input, ManyRows, Seed
from dxn.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Tokenize(ManyRows):
    """Convert one sample to its D×N matrix and draw it, or write the matrices of a data set.

    Args:
        input: One sample: a file (input=photo.jpg) or several inputs (input.text=...
            input.image=...). With run=RUN and output=FILE.parquet also a table, folder or pattern.
        output: Image file to write; .parquet or .npz for the numbers of one or several samples.
            With engine=ray a folder.
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

    # Trained adapters have their own options. Without them, the input is one sample.
    excludes: ClassVar[Mapping[str, Sequence[str]]] = {"run": ["dim", "seed", "adapters"]}
    needs: ClassVar[Mapping[str, Sequence[str]]] = {
        "run": ["columns", "sep", "encoding", "sheet", "on_bad"]
    }

    input: Input
    output: Annotated[str, OUTPUT_FILE] = "tokens.png"
    dim: Count = 128
    seed: Seed = 0
    adapters: Adapters

    def execute(self) -> int:
        """Print the tokens of each input and draw them, or write those of each sample."""
        from dxn.core.display import print_line
        from dxn.runs.tokenize import MATRIX_SUFFIXES, tokenize_sample, write_matrices

        if self.engine == "ray":
            from dxn.runs.tokenize import tokenized_rows

            self.required_run()
            return self.on_ray(tokenized_rows)
        # Unlike the other commands, this one works without a trained model.
        predictor = None if self.run is None else self.load()
        output = Path(self.output)
        if output.suffix.lower() not in MATRIX_SUFFIXES:
            lines = tokenize_sample(
                self.input,
                output,
                predictor,
                adapters=self.adapters,
                seed=self.seed,
                trust=self.settings.trust,
                model_name=self.run or "",
            )
            for line in lines:
                print_line(line)
            return 0
        if predictor is None:
            raise UserError(
                f"output: {output.name} needs fitted adapters; set run=RUN to the run folder of a "
                "trained model"
            )
        opened = self.opened(predictor)
        write_matrices(opened, predictor, output, identity=self.identity(opened))
        return 0
