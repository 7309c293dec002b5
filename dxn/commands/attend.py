"""The commands that look into a model: `dxn attend` and `dxn neighbors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from dxn.commands.options import OUTPUT_FOLDER, Count, FromWeights, Input
from dxn.config.words import AS_TYPED


@dataclass(frozen=True, kw_only=True)
class Attend(FromWeights):
    """Draw the attention of a model for one sample, head by head, as a page.

    For a model that generates text, the page shows the cross-attention of each generated
    token, too.

    Args:
        input: One sample: a file (input=photo.jpg) or several inputs (input.text=...
            input.image=...).
        encoder: Input with an encoder of its own (pretrained.NAME=...), to draw the attention
            inside this encoder.
        output: Folder for attention.html.
    """

    path_key: ClassVar[str | None] = "input"
    usage: ClassVar[Sequence[str]] = (
        'dxn attend run=RUN input.text="a fine film"',
        "dxn attend weights=models/vit photo.jpg",
        "dxn attend run=RUN input.photo=photo.jpg input.title=cup encoder=photo",
    )

    input: Input
    encoder: Annotated[str, AS_TYPED] | None = None
    output: Annotated[str, OUTPUT_FOLDER] = "attention"

    def execute(self) -> int:
        """Draw the attention, and print the share of each input."""
        from dxn.core.display import print_line
        from dxn.runs.predictor.attention import PAGE, draw_attention
        from dxn.runs.predictor.option import read_sample

        predictor = self.load()
        sample = read_sample(self.input, predictor.model_inputs.readers, predictor.columns)
        folder = Path(self.output)
        name = str(self.run or self.weights.source)
        shares, notes = draw_attention(
            predictor, sample, folder, model_name=name, encoder=self.encoder
        )
        for name, share in shares.items():
            print_line(f"{name}: {share:.1%} of the attention")
        for note in notes:
            print_line(note)
        print_line(f"written: {folder / PAGE}; open it in a browser")
        return 0


@dataclass(frozen=True, kw_only=True)
class Neighbors(FromWeights):
    """List the tokens with the embeddings most similar to the embedding of one token.

    Args:
        token: Token of the vocabulary: a word, subword or character.
        count: Number of neighbors.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn neighbors run=RUN token=king",
        "dxn neighbors weights=google-bert/bert-base-uncased token=king",
    )

    token: Annotated[str, AS_TYPED]
    count: Count = 10

    def execute(self) -> int:
        """Print the most similar tokens with their cosine similarity."""
        from rich.table import Table

        from dxn.core.display import number, plain_text, print_table

        closest = self.load().neighbors(self.token, count=self.count)
        table = Table(title="tokens of the vocabulary with the most similar embeddings")
        table.add_column("token")
        table.add_column("cosine", justify="right")
        for token, cosine in closest:
            table.add_row(plain_text(token), number(cosine))
        print_table(table)
        return 0
