"""The command `dxn index`."""

from __future__ import annotations

from dxn.runs.evaluation.next_commands import code_options, sample_options
from dxn.runs.evaluation.printing import next_step, print_line
from dxn.runs.index.index import write_index
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Embed many rows, and write a folder that `dxn search` can search."""
    opened, lines = write_index(settings, load_predictor(settings))
    for line in lines:
        print_line(line)
    if sample := sample_options(opened):
        output = settings.values["output"]
        next_step("dxn", "search", f"index={output}", *code_options(settings), *sample)
    return 0
