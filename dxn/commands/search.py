"""The command `dxn search`."""

from __future__ import annotations

from dxn.core.display import count
from dxn.runs.evaluation.next_commands import with_output
from dxn.runs.evaluation.printing import next_step, print_line, records_table
from dxn.runs.index.index import read_index
from dxn.runs.index.search import search, with_model
from dxn.runs.predictor.output import check_suffix, write_records
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings

MAX_PRINTED = 20  # rows; a file has all of them


def run(settings: Settings) -> int:
    """Find the rows of an index that are most similar to each query."""
    values = settings.values
    output = check_suffix(values["output"])
    index = read_index(values["index"])
    settings = with_model(settings, index)
    found = search(settings, index, load_predictor(settings))
    records = list(found.records())
    if output is not None:
        write_records(output, records)
        print_line(f"written: {output} ({count(len(records), 'row')})")
        return 0
    records_table(records[:MAX_PRINTED])
    if len(records) > MAX_PRINTED:
        print_line(f"and {count(len(records) - MAX_PRINTED, 'more row')}")
    next_step("dxn", *with_output("search", settings, "found.csv"))
    return 0
