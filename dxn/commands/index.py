"""The commands `dxn index` and `dxn search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from dxn.commands.options import (
    OUTPUT_FILE,
    OUTPUT_FOLDER,
    Compute,
    Count,
    Data,
    DtypeName,
    FromRun,
    FromWeights,
    Input,
    InputTable,
    Seed,
    TableInput,
    Weights,
)
from dxn.core.errors import UserError

MAX_PRINTED = 20  # rows; a file has all of them


@dataclass(frozen=True, kw_only=True)
class Index(FromWeights, Data, TableInput, Compute):
    """Embed the rows of a table or data set, and write an index for dxn search.

    Args:
        input: Table, folder or pattern ('photos/*.jpg') to embed instead of data.
        split: Split to embed (default: the first of test, validation and train that has rows).
        only: Inputs to embed, such as [image] (default: all; the mean of their embeddings).
        output: Folder to write.
        keep: Further columns of the table to copy to the index.
        seed: Random seed of the splits, if the data has none.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn index run=RUN photos/ output=photos.index",
        "dxn index run=RUN split=test only=[image] output=INDEX",
    )

    needs: ClassVar[Mapping[str, Sequence[str]]] = {"data": ["seed"]}
    excludes: ClassVar[Mapping[str, Sequence[str]]] = {"input": ["data", "split"]}

    input: InputTable = None
    split: Literal["train", "validation", "test"] | None = None
    only: Sequence[str] | None = None
    output: Annotated[str, OUTPUT_FOLDER] = "index"
    dtype: DtypeName = "float32"
    keep: Sequence[str] = ()
    seed: Seed = 0

    def execute(self) -> int:
        """Embed many rows, and write the folder."""
        from dxn.core.display import next_step, print_line
        from dxn.runs.evaluation.data import open_evaluation_data
        from dxn.runs.evaluation.next_commands import code_options, sample_options
        from dxn.runs.index import check_only, model_options, write_index
        from dxn.runs.saved.loading import load_predictor, prompted
        from dxn.weights.sentence_files import DOCUMENT_PROMPTS

        weights = prompted(self.weights, DOCUMENT_PROMPTS)
        trust = self.settings.folder_trust
        predictor = load_predictor(
            self.run, weights, trust=trust, head=self.head, **self.computing()
        )
        only = check_only(self.only, predictor)
        if self.input is not None:
            options = self.table_options()
            opened = predictor.model_inputs.option(self.input, keep=self.keep, only=only, **options)
        else:
            data = open_evaluation_data(predictor, self.run, **self.source_options())
            opened = data.opened
        lines = write_index(
            Path(self.output),
            predictor,
            opened,
            model=model_options(self.run, weights),
            only=only,
            batch_size=self.batch_size,
        )
        for line in lines:
            print_line(line)
        if sample := sample_options(opened):
            code = code_options(self.settings)
            next_step("dxn", "search", f"index={self.output}", *code, *sample)
        return 0


@dataclass(frozen=True, kw_only=True)
class Search(FromRun, TableInput, Compute):
    """Find the rows of an index that are most similar to a query, such as a text.

    Args:
        index: Folder that dxn index wrote.
        input: One query (input.text="red shoes", input.image=photo.jpg), or a table of queries.
        k: Number of rows to find for each query.
        only: Inputs of a table of queries to use, such as [text] (default: all).
        prompt: Prompt of a checkpoint of sentence-transformers for the queries (default: query, if
            it has this one).
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
    prompt: str | None = None
    dtype: DtypeName = "float32"
    output: Annotated[str | None, OUTPUT_FILE] = None

    def execute(self) -> int:
        """Find the rows that are most similar to each query."""
        from dxn.core.display import count, next_step, print_line, records_table
        from dxn.data.dataset import Samples
        from dxn.runs.index import check_only, model_of, read_index, search
        from dxn.runs.predictor.output import check_suffix, write_records
        from dxn.runs.saved.loading import load_predictor, prompted
        from dxn.weights.sentence_files import QUERY_PROMPTS

        output = check_suffix(self.output)
        index = read_index(self.index)
        run, saved = model_of(index, self.run)
        if saved is None and self.prompt is not None:
            raise UserError(
                f"prompt: a trained model has its own prompt, got {self.prompt!r}; leave it out"
            )
        # The rows have another prompt.
        weights = Weights(**{**(saved or {}), "prompt": self.prompt})
        predictor = load_predictor(
            run,
            prompted(weights, QUERY_PROMPTS),
            **self.computing(),
            trust=self.settings.folder_trust,
        )
        is_single = not self.has_many_rows()
        only = check_only(self.only, predictor)
        opened = self.opened(predictor, only)
        samples = Samples(opened, predictor.tokenizers, only=only)
        if not len(samples):
            names = ", ".join(only or predictor.inputs)
            raise UserError(f"input: no row has any of the inputs {names}")
        records = search(
            index,
            predictor,
            samples,
            is_single=is_single,
            k=self.k,
            batch_size=self.batch_size,
        )
        if output is not None:
            write_records(output, records)
            print_line(f"written: {output} ({count(len(records), 'row')})")
            return 0
        records_table(records[:MAX_PRINTED])
        if len(records) > MAX_PRINTED:
            print_line(f"and {count(len(records) - MAX_PRINTED, 'more row')}")
        next_step("dxn", *self.with_output("found.csv"))
        return 0
