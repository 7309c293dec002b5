"""The command `dxn neighbors`."""

from __future__ import annotations

from dxn.runs.evaluation.printing import Table, plain_text, print_table
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Print the tokens whose embeddings are most similar to that of one token."""
    values = settings.values
    closest = load_predictor(settings).neighbors(str(values["token"]), count=values["count"])
    table = Table(title="tokens of the vocabulary with the most similar embeddings")
    table.add_column("token")
    table.add_column("cosine", justify="right")
    for token, cosine in closest:
        table.add_row(plain_text(token), f"{cosine:.3f}")
    print_table(table)
    return 0
