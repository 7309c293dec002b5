"""The command `dxn neighbors`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from dxn.commands.model import FromWeights
from dxn.commands.options import Count
from dxn.config.command import AS_TYPED


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

        from dxn.core.display import plain_text, print_table

        closest = self.load().neighbors(self.token, count=self.count)
        table = Table(title="tokens of the vocabulary with the most similar embeddings")
        table.add_column("token")
        table.add_column("cosine", justify="right")
        for token, cosine in closest:
            table.add_row(plain_text(token), f"{cosine:.3f}")
        print_table(table)
        return 0
