"""The command `dxn embed`."""

from __future__ import annotations

from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.runs.evaluation.next_commands import with_output
from dxn.runs.evaluation.printing import next_step, print_line
from dxn.runs.index.index import check_only
from dxn.runs.predictor import vectors
from dxn.runs.predictor.input_rows import has_many_samples, open_input
from dxn.runs.predictor.output import check_suffix, list_suffixes, rows_text
from dxn.runs.predictor.samples import read_sample
from dxn.runs.predictor.table import identify
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings


def run(settings: Settings) -> int:
    """Compute the embedding of one sample, or of each sample of a table or folder."""
    values = settings.values
    output = check_suffix(values["output"], vectors.SUFFIXES)
    is_single = not has_many_samples(values["input"])
    if output is None and not is_single:
        raise UserError(
            "output: must be set for several samples, to a file that ends in "
            f"{list_suffixes(vectors.SUFFIXES)}"
        )
    predictor = load_predictor(settings)
    if is_single:
        samples = predictor.samples(
            [read_sample(values["input"], predictor.readers, predictor.columns)]
        )
    else:
        only = check_only(values["only"], predictor)
        samples = Samples(open_input(values, predictor), predictor.preprocessors, only=only)
    opened = samples.opened
    rows, embeddings = predictor.vectors(samples, batch_size=values["batch_size"])
    if is_single:
        for line in vectors.vector_lines(embeddings[0]):
            print_line(line)
    if output is None:
        next_step("dxn", *with_output("embed", settings, "vector.npy"))
        return 0
    ids = [identify(opened, row) for row in rows]
    files = vectors.write_vectors(output, ids, embeddings)
    sizes = f"{rows_text(len(rows), opened)} of {embeddings.shape[1]} numbers"
    print_line(f"written: {files[0]} ({sizes})")
    for file in files[1:]:
        print_line(f"written: {file} (file, row number and ids of each row)")
    return 0
