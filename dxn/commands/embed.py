"""The command `dxn embed`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dxn.commands.options import OUTPUT_FILE, Compute, FromWeights, Input, ManyRows
from dxn.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Embed(FromWeights, ManyRows, Compute):
    """Compute one embedding per sample with a trained model or a public checkpoint.

    Args:
        input: Table, file, folder, pattern ('photos/*.jpg') or one sample (input.text=...).
        only: Inputs to use, such as [image] (default: all).
        output: .npy, .csv or .parquet file; required for several samples. With engine=ray a folder.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn embed run=RUN new.csv output=vectors.npy",
        'dxn embed weights=google-bert/bert-base-uncased input.text="a fine film"',
    )

    input: Input
    only: Sequence[str] | None = None
    output: Annotated[str | None, OUTPUT_FILE] = None

    def execute(self) -> int:
        """Compute the embedding of one sample, or of each sample of a table or folder."""
        from dxn.core.display import next_step, print_line
        from dxn.data.dataset import Samples
        from dxn.runs.index import check_only
        from dxn.runs.predictor.output import (
            VECTOR_SUFFIXES,
            check_suffix,
            ids_file,
            list_suffixes,
            vector_lines,
            write_array,
        )
        from dxn.runs.predictor.resumable import write_answers
        from dxn.runs.predictor.table import embedded_rows

        if self.engine == "ray":
            return self.on_ray(embedded_rows, batch_size=self.batch_size, **self.computing())
        output = check_suffix(self.output, VECTOR_SUFFIXES)
        is_single = not self.has_many_rows()
        if output is None and not is_single:
            raise UserError(
                "output: must be set for several samples, to a file that ends in "
                f"{list_suffixes(VECTOR_SUFFIXES)}"
            )
        predictor = self.load(**self.computing())
        only = check_only(self.only, predictor)
        opened = self.opened(predictor, only)
        samples = Samples(opened, predictor.tokenizers, only=only)
        if is_single:
            _, embeddings = predictor.vectors(samples)
            for line in vector_lines(embeddings[0]):
                print_line(line)
        if output is None:
            next_step("dxn", *self.with_output("vector.npy"))
            return 0
        is_array = output.suffix.lower() == ".npy"
        written = write_answers(
            output,
            functools.partial(embedded_rows, split=not is_array),
            predictor,
            samples,
            batch_size=self.batch_size,
            identity=self.identity(opened),
            finish=write_array if is_array else None,
        )
        if written is None:
            return 0
        rows, (size,) = written
        print_line(f"written: {output} ({rows}; {size} numbers each)")
        if is_array:
            print_line(f"written: {ids_file(output)} (file, row number and ids of each row)")
        return 0
