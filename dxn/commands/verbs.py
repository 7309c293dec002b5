"""The commands of the command line, one function each. The return value is the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dxn.commands.attend import draw_attention
from dxn.commands.compare import compare_runs, comparison_lines
from dxn.commands.tokenize import tokenize_sample
from dxn.commands.verify import verify as verify_run
from dxn.core.display import count
from dxn.core.errors import UserError
from dxn.data.dataset import Samples
from dxn.data.reading import Opened
from dxn.models import make_sampler
from dxn.runs.ensemble import run_training
from dxn.runs.evaluation import printing as output_of
from dxn.runs.evaluation.evaluate import evaluate_model
from dxn.runs.evaluation.next_commands import code_options, sample_options, with_output
from dxn.runs.evaluation.printing import next_step, print_line, print_rule
from dxn.runs.evaluation.reporting import write_again
from dxn.runs.index.index import check_only, read_index, write_index
from dxn.runs.index.search import search as run_search
from dxn.runs.index.search import with_model
from dxn.runs.predictor import vectors
from dxn.runs.predictor.input_rows import has_many_samples, open_input
from dxn.runs.predictor.output import check_suffix, list_suffixes, write_records
from dxn.runs.predictor.prompts import read_prompts, write_texts
from dxn.runs.predictor.samples import read_sample
from dxn.runs.predictor.table import answer_lines, identify, prediction_records, record_line
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings
from dxn.tokenize.base import remark

MAX_PRINTED = 20  # rows; a file has all of them


def train(settings: Settings) -> int:
    """Train, evaluate on the test split, and write the run folder."""
    for command in run_training(settings).next_commands:
        next_step("dxn", *command)
    return 0


def evaluate(settings: Settings) -> int:
    """Compute the metrics of a trained model, with all inputs and with subsets of them."""
    predictor = load_predictor(settings)
    folder = evaluate_model(settings, predictor)
    files = "metrics.json, predictions.csv, plots/" if predictor.task.answers else "metrics.json"
    print_line(f"written: {folder}: {files}")
    if predictor.task.answers:
        print_line(f"{folder / 'predictions.csv'} has the prediction of each row")
    return 0


def predict(settings: Settings) -> int:
    """Predict for one sample, or for each sample of a table, a folder or a pattern of files."""
    values = settings.values
    # Before the model is loaded, so that a mistake is reported at once.
    output = check_suffix(values["output"])
    predictor = load_predictor(settings)
    predictor.require_answers()  # before a large table is read
    is_single = not has_many_samples(values["input"])
    if is_single:
        samples = predictor.samples(
            [read_sample(values["input"], predictor.preprocessors, predictor.columns)]
        )
    else:
        # Samples without a task: a target column in a new table has no effect.
        samples = Samples(open_input(values, predictor), predictor.preprocessors)
    predictions = predictor.run(samples, batch_size=values["batch_size"])
    opened, task = samples.opened, predictor.task
    if is_single:
        for name, raws in opened.raws.items():
            if note := remark(predictor.preprocessors[name], raws[0]):
                print_line(f"note: {name}: {note}")
        inputs = {name: cells[0] for name, cells in opened.cells.items()}
        for line in answer_lines(task.answer(predictions.predicted[0], inputs)):
            print_line(line)
    records = prediction_records(predictions, opened, task)
    if is_single:
        for record in records:  # a forecast has one per step
            record.pop("file", None)  # there is no file that contains the sample as a row
    if output is not None:
        write_records(output, records, separator=task.separator)
        print_line(f"written: {output} ({_rows(records, opened)})")
    elif not is_single:
        for record in records[:MAX_PRINTED]:
            print_line(record_line(record))
        if len(records) > MAX_PRINTED:
            print_line(f"and {count(len(records) - MAX_PRINTED, 'more row')}")
        if opened.skipped:
            print_line(f"{count(opened.skipped, 'row')} skipped")
        next_step("dxn", *with_output("predict", settings, "answers.csv"))
    return 0


def generate(settings: Settings) -> int:
    """Generate text: continue a prompt, or generate a text for an input."""
    values = settings.values
    # Before the model is loaded, so that a mistake is reported at once.
    output = check_suffix(values["output"])
    prompts = read_prompts(values)
    predictor = load_predictor(settings)
    _check_positive(values, "count", "max_new", "batch_size")
    try:
        sampler = make_sampler(
            values["temperature"],
            top_k=values["top_k"],
            top_p=values["top_p"],
            seed=values["seed"],
            device=predictor.device,
        )
    except ValueError as error:
        raise UserError(str(error)) from error  # the message names the option
    inputs = values["input"]
    texts = predictor.write(
        prompt=prompts,
        inputs=None
        if inputs is None
        else read_sample(inputs, predictor.preprocessors, predictor.columns),
        count=values["count"],
        max_new=values["max_new"],
        sampler=sampler,
        batch_size=values["batch_size"],
    )
    if output is not None:
        write_texts(output, prompts, texts)
        return 0
    for i, text in enumerate(texts):
        if i:
            print_rule()
        print_line(text)
    return 0


def embed(settings: Settings) -> int:
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
            [read_sample(values["input"], predictor.preprocessors, predictor.columns)]
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
    sizes = f"{_rows(rows, opened)} of {embeddings.shape[1]} numbers"
    print_line(f"written: {files[0]} ({sizes})")
    for file in files[1:]:
        print_line(f"written: {file} (file, row number and ids of each row)")
    return 0


def index(settings: Settings) -> int:
    """Embed many rows, and write a folder that `dxn search` can search."""
    opened, lines = write_index(settings, load_predictor(settings))
    for line in lines:
        print_line(line)
    if sample := sample_options(opened):
        output = settings.values["output"]
        next_step("dxn", "search", f"index={output}", *code_options(settings), *sample)
    return 0


def search(settings: Settings) -> int:
    """Find the rows of an index that are most similar to each query."""
    values = settings.values
    output = check_suffix(values["output"])
    index = read_index(values["index"])
    settings = with_model(settings, index)
    found = run_search(settings, index, load_predictor(settings))
    records = list(found.records())
    if output is not None:
        write_records(output, records)
        print_line(f"written: {output} ({count(len(records), 'row')})")
        return 0
    output_of.records_table(records[:MAX_PRINTED])
    if len(records) > MAX_PRINTED:
        print_line(f"and {count(len(records) - MAX_PRINTED, 'more row')}")
    next_step("dxn", *with_output("search", settings, "found.csv"))
    return 0


def attend(settings: Settings) -> int:
    """Draw the attention of a model on one sample."""
    values = settings.values
    predictor = load_predictor(settings)
    sample = read_sample(values["input"], predictor.preprocessors, predictor.columns)
    folder = Path(values["output"])
    name = str(values["run"] or values["weights"]["source"])
    result = draw_attention(predictor, sample, folder, model_name=name)
    for name, share in result.shares.items():
        print_line(f"{name}: {share:.1%} of the attention")
    for note in result.notes:
        print_line(note)
    print_line(f"written: {folder}: {', '.join(path.name for path in result.files)}")
    print_line(f"open {result.files[-1]} in a browser")
    return 0


def neighbors(settings: Settings) -> int:
    """Print the tokens whose embeddings are most similar to that of one token."""
    values = settings.values
    _check_positive(values, "count")
    closest = load_predictor(settings).neighbors(str(values["token"]), count=values["count"])
    table = output_of.Table(title="tokens of the vocabulary with the most similar embeddings")
    table.add_column("token")
    table.add_column("cosine", justify="right")
    for token, cosine in closest:
        table.add_row(output_of.plain_text(token), f"{cosine:.3f}")
    output_of.print_table(table)
    return 0


def tokenize(settings: Settings) -> int:
    """Convert one sample to its D×N matrix, and draw it."""
    # Unlike the other commands, this one works without a trained model.
    predictor = load_predictor(settings) if settings.values["run"] else None
    for line in tokenize_sample(settings, predictor):
        print_line(line)
    return 0


def report(settings: Settings) -> int:
    """Write the report of a run again."""
    path = write_again(settings)
    print_line(f"written: {path}")
    print_line(f"open {path} in a browser")
    return 0


def compare(settings: Settings) -> int:
    """Put runs side by side, and compare their answers row by row."""
    path, runs, tests = compare_runs(settings)
    for line in comparison_lines(runs, tests):
        print_line(line)
    print_line(f"written: {path}")
    print_line(f"open {path} in a browser")
    return 0


def verify(settings: Settings) -> int:
    """Check the files of a run folder. All problems are listed."""
    if settings.values["run"] is None:
        raise UserError("run: set run=RUN to the run folder to check")
    result = verify_run(Path(settings.values["run"]), trust=settings.folder_trust)
    for line in result.checked:
        print_line(f"intact: {line}")
    for line in result.notes:
        print_line(f"note: {line}")
    if result.problems:
        raise UserError("\n".join(result.problems))
    print_line("no problems found")
    return 0


def _rows(rows: Sequence[Any], opened: Opened) -> str:
    skipped = f", {opened.skipped:,} skipped" if opened.skipped else ""
    return f"{count(len(rows), 'row')}{skipped}"


def _check_positive(values: Mapping[str, Any], *names: str) -> None:
    # The types of keys are checked when the configuration is composed, but not their ranges.
    for name in names:
        if values[name] < 1:
            raise UserError(f"{name}: must be at least 1, got {values[name]}")
