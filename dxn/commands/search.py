"""The command `dxn search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dxn.commands.model import Compute, FromRun, TableInput
from dxn.commands.options import Count, DtypeName, Input, Weights
from dxn.config.command import OUTPUT_FILE
from dxn.core.errors import UserError

MAX_PRINTED = 20  # rows; a file has all of them


@dataclass(frozen=True, kw_only=True)
class Search(FromRun, TableInput, Compute):
    """Find the rows of an index that are most similar to a query, such as a text.

    Args:
        index: Folder that dxn index wrote.
        input: One query (input.text="red shoes", input.image=photo.jpg), or a table of queries.
        k: Number of rows to find for each query.
        only: Inputs of a table of queries to use, such as [text] (default: all).
        approximate: Search the graph of the index, which can miss rows; only if you trust the
            index.
        output: .csv, .jsonl, .json or .parquet file for the found rows (default: print them).
        run: Folder of the model, if it was moved after the index was written.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        'dxn search index=INDEX input.text="red shoes" k=5',
        "dxn search index=INDEX queries.csv only=[text] output=found.csv",
    )

    index: str
    input: Input
    k: Count = 10
    only: Sequence[str] | None = None
    approximate: bool = False
    dtype: DtypeName = "float32"
    output: Annotated[str | None, OUTPUT_FILE] = None

    def execute(self) -> int:
        """Find the rows that are most similar to each query."""
        from dxn.core.display import count, next_step, print_line, records_table
        from dxn.data.dataset import Samples
        from dxn.runs.index.index import check_only, read_index
        from dxn.runs.index.search import model_of, search
        from dxn.runs.predictor.option import has_many_samples, read_sample
        from dxn.runs.predictor.output import check_suffix, write_records
        from dxn.runs.saved.loading import load_predictor

        output = check_suffix(self.output)
        index = read_index(self.index)
        run, weights = model_of(index, self.run)
        predictor = load_predictor(
            run,
            None if weights is None else Weights(**weights),
            **self.computing(),
            trust=self.settings.folder_trust,
        )
        is_single = not has_many_samples(self.input)
        if is_single:
            samples = predictor.samples([read_sample(self.input, predictor.model_inputs.readers)])
        else:
            only = check_only(self.only, predictor)
            opened = predictor.model_inputs.option(self.input, only=only, **self.table_options())
            samples = Samples(opened, predictor.tokenizers, only=only)
            if not len(samples):
                raise UserError(f"input: no row has any of the inputs {', '.join(only or ())}")
        found = search(
            index,
            predictor,
            samples,
            is_single=is_single,
            k=self.k,
            batch_size=self.batch_size,
            approximate=self.approximate,
        )
        records = list(found.records())
        if output is not None:
            write_records(output, records)
            print_line(f"written: {output} ({count(len(records), 'row')})")
            return 0
        records_table(records[:MAX_PRINTED])
        if len(records) > MAX_PRINTED:
            print_line(f"and {count(len(records) - MAX_PRINTED, 'more row')}")
        next_step("dxn", *self.with_output("found.csv"))
        return 0
