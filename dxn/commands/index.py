"""The command `dxn index`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from dxn.commands.model import Compute, FromWeights, TableInput
from dxn.commands.options import Data, DtypeName, InputTable, Seed
from dxn.config.command import OUTPUT_FOLDER


@dataclass(frozen=True, kw_only=True)
class Index(FromWeights, Data, TableInput, Compute):
    """Embed the rows of a table or data set, and write an index for dxn search.

    Args:
        input: Table, folder or pattern ('photos/*.jpg') to embed instead of data.
        split: Split to embed (default: the first of test, validation and train that has rows).
        only: Inputs to embed, such as [image] (default: all; the mean of their embeddings).
        output: Folder to write.
        approximate: Also build a graph for a fast search in millions of rows; needs dxn[search].
        keep: Further columns of the table to copy to the index.
        seed: Random seed of the splits, if the data has none.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        "dxn index run=RUN photos/ output=photos.index",
        "dxn index run=RUN split=test only=[image] output=INDEX",
    )

    input: InputTable = None
    split: Literal["train", "validation", "test"] | None = None
    only: Sequence[str] | None = None
    output: Annotated[str, OUTPUT_FOLDER] = "index"
    approximate: bool = False
    dtype: DtypeName = "float32"
    keep: Sequence[str] = ()
    seed: Seed = 0

    def execute(self) -> int:
        """Embed many rows, and write the folder."""
        from dxn.core.display import next_step, print_line
        from dxn.runs.evaluation.data import open_evaluation_data
        from dxn.runs.evaluation.next_commands import code_options, sample_options
        from dxn.runs.index.index import check_only, model_options, write_index

        predictor = self.load(**self.computing())
        only = check_only(self.only, predictor)
        if self.input is not None:
            options = self.table_options()
            opened = predictor.model_inputs.option(self.input, keep=self.keep, only=only, **options)
        else:
            opened = open_evaluation_data(
                predictor,
                self.run,
                data=self.data,
                split=self.split,
                confine=self.confine,
                chosen=self.settings.chosen,
                trust=self.settings.trust,
                folder_trust=self.settings.folder_trust,
            ).opened
        lines = write_index(
            Path(self.output),
            predictor,
            opened,
            model=model_options(self.run, self.weights),
            only=only,
            batch_size=self.batch_size,
            approximate=self.approximate,
        )
        for line in lines:
            print_line(line)
        if sample := sample_options(opened):
            code = code_options(self.settings)
            next_step("dxn", "search", f"index={self.output}", *code, *sample)
        return 0
