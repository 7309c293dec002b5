"""The commands of the command line, one function each. The return value is the exit code."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dxn.data.check import check as check_source
from dxn.data.check import write_bad
from dxn.data.samples import Samples
from dxn.errors import UserError
from dxn.models import make_sampler
from dxn.run import model_folder, report
from dxn.run.attention import draw_attention
from dxn.run.build import (
    assign_inputs,
    build_adapters,
    build_task,
    by_input,
    decide_task,
    fit_adapters,
    open_source,
    preprocessors_of,
)
from dxn.run.evaluation import evaluate_model
from dxn.run.predictor import Predictor
from dxn.run.report import console, print_line
from dxn.run.samples import is_table, open_table, read_sample
from dxn.run.settings import Settings
from dxn.run.tokenizing import tokenize_sample
from dxn.run.training import train_one

VECTOR_SUFFIXES = (".npy", ".csv")


def train(settings: Settings) -> int:
    """Train, evaluate on the test split, and write the run folder."""
    train_one(settings)
    return 0


def sweep(runs: Sequence[Settings]) -> int:
    """Train once per configuration, and print statistics of the test metrics over all runs."""
    results: list[Mapping[str, Any]] = []
    for i, settings in enumerate(runs):
        # Text, because rich would read brackets in an override as markup.
        title = f"{i + 1} of {len(runs)}: {' '.join(settings.overrides)}"
        console.rule(report.Text(title), style="none")
        results.append(train_one(settings).metrics)
    # Metrics of single inputs, such as test/accuracy[text], would make the table too long.
    names = [name for name in results[0] if name.startswith("test/") and "[" not in name]
    table = report.Table(title=f"mean ± sd of {len(results)} runs")
    table.add_column("metric")
    for heading in ("mean", "sd", "min", "max"):
        table.add_column(heading, justify="right")
    for name in names:
        values = [metrics[name] for metrics in results]
        # The sample standard deviation (n - 1), as papers report it; one run has none.
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        cells = (statistics.mean(values), deviation, min(values), max(values))
        table.add_row(name, *(f"{value:.4f}" for value in cells))
    console.print(table)
    return 0


def evaluate(settings: Settings) -> int:
    """Compute the metrics of a trained model, with all inputs and with subsets of them."""
    folder = evaluate_model(settings, load_predictor(settings))
    print_line(f"written: {folder}")
    return 0


def predict(settings: Settings) -> int:
    """Predict for one sample or a table."""
    values = settings.values
    predictor = load_predictor(settings)
    predictor.require_answers()  # before a large table is read
    if not is_table(values["input"]):
        sample = read_sample(values["input"], predictor.preprocessors)
        console.print_json(json.dumps(predictor.predict(**sample)))
        return 0
    opened = open_table(values["input"], predictor, values["on_bad"])
    # Samples without a task: a target column in a new table has no effect.
    samples = Samples(opened, predictor.preprocessors)
    predictions = predictor.run(samples, batch_size=values["batch_size"])
    answers = [predictor.answer(predicted) for predicted in predictions.predicted]
    if not values["output"]:
        for row, answer in zip(predictions.rows, answers, strict=True):
            print_line(f"{opened.origin[row]}: {answer['prediction']}")
        return 0
    output = Path(values["output"])
    report.write_predictions(output, predictions, samples, predictor.task, answers)
    skipped = f", {opened.skipped} skipped" if opened.skipped else ""
    print_line(f"written: {output} ({len(answers):,} rows{skipped})")
    return 0


def generate(settings: Settings) -> int:
    """Generate text: continue a prompt, or generate a text for an input."""
    values = settings.values
    predictor = load_predictor(settings)
    _check_positive(values, "count", "max_new")
    try:
        sampler = make_sampler(
            values["temperature"],
            top_k=values["top_k"],
            top_p=values["top_p"],
            seed=values["seed"],
            device=predictor.device,
        )
    except ValueError as error:
        # The message names the argument; the prefix shows that it is an option of the command.
        raise UserError(f"temperature, top_k, top_p: {error}") from error
    inputs = values["input"]
    texts = predictor.write(
        prompt=str(values["prompt"]),
        inputs=None if inputs is None else read_sample(inputs, predictor.preprocessors),
        count=values["count"],
        max_new=values["max_new"],
        sampler=sampler,
    )
    for i, text in enumerate(texts):
        if i:
            console.rule(style="none")
        print_line(text)
    return 0


def embed(settings: Settings) -> int:
    """Compute the embedding of one sample, or of each row of a table."""
    values = settings.values
    predictor = load_predictor(settings)
    if not is_table(values["input"]):
        sample = read_sample(values["input"], predictor.preprocessors)
        console.print_json(json.dumps(predictor.embed(**sample).tolist()))
        return 0
    output = Path(values["output"] or "")
    if output.suffix not in VECTOR_SUFFIXES:
        raise UserError(
            f"output: must be a file that ends in {' or '.join(VECTOR_SUFFIXES)}, because the "
            f"input is a table; got {values['output']}"
        )
    opened = open_table(values["input"], predictor, values["on_bad"])
    samples = Samples(opened, predictor.preprocessors)
    rows, vectors = predictor.vectors(samples, batch_size=values["batch_size"])
    report.write_vectors(output, [opened.origin[row] for row in rows], vectors)
    skipped = f", {opened.skipped} skipped" if opened.skipped else ""
    print_line(f"written: {output} ({len(rows):,} rows of {vectors.shape[1]} numbers{skipped})")
    return 0


def attend(settings: Settings) -> int:
    """Draw the attention of a model on one sample."""
    values = settings.values
    predictor = load_predictor(settings)
    sample = read_sample(values["input"], predictor.preprocessors)
    folder = Path(values["output"])
    result = draw_attention(predictor, sample, folder)
    for name, share in result.shares.items():
        print_line(f"{name}: {share:.1%} of the attention")
    for note in result.notes:
        print_line(note)
    print_line(f"written: {folder}: {', '.join(path.name for path in result.files)}")
    return 0


def neighbors(settings: Settings) -> int:
    """Print the tokens whose embeddings are most similar to that of one token."""
    values = settings.values
    _check_positive(values, "count")
    closest = load_predictor(settings).neighbors(str(values["token"]), count=values["count"])
    table = report.Table()
    table.add_column("subword")
    table.add_column("cosine", justify="right")
    for token, cosine in closest:
        table.add_row(report.plain_text(token), f"{cosine:.3f}")
    console.print(table)
    return 0


def tokenize(settings: Settings) -> int:
    """Convert one sample to its D×N matrix, and draw it."""
    # Unlike the other commands, this one works without a trained model.
    predictor = load_predictor(settings) if settings.values["run"] else None
    for line in tokenize_sample(settings, predictor):
        print_line(line)
    return 0


def check(settings: Settings) -> int:
    """Read a whole data set and report what it contains. The exit code is 1 if rows are bad."""
    config = settings.values
    trust = settings.trust
    torch.manual_seed(config["seed"])
    task = build_task(config, trust)
    preprocessors = preprocessors_of(config, trust)
    source = open_source(config, preprocessors, trust)
    has_target = source.target is not None
    # A data set without a target can be checked too, for example to train head=language on it.
    decided = decide_task(task, config, source)[0] if has_target else None
    inputs = assign_inputs(config, source.inputs, preprocessors)
    adapters = build_adapters(inputs, trust)

    def fit(splits: Mapping[str, Any]) -> None:
        # Only a fitted tokenizer can tell which texts are truncated.
        fit_adapters(adapters, inputs, splits["train"], ())

    named = {n: a.prepare for n, a in by_input(adapters, inputs.adapters).items()}
    result = check_source(source, named, task=decided, fit=fit)
    for line in result.lines():
        print_line(line)
    if not result.bad:
        return 0
    write_bad(result, Path(config["output"]))
    print_line(f"{len(result.bad)} bad cells or rows, listed in {config['output']}")
    return 1


def show(settings: Settings) -> int:
    """Print the composed configuration."""
    print_line(settings.yaml())
    return 0


def load_predictor(settings: Settings) -> Predictor:
    """Load the trained model `run`, or the public checkpoint `weights`.

    Raises:
        UserError: If not exactly one of them is set, or it cannot be loaded.
    """
    values = settings.values
    # Not every command has the key weights.
    weights: Mapping[str, Any] = values.get("weights") or {"source": None}
    if (values["run"] is None) == (weights["source"] is None):
        raise UserError(
            "run: set run=RUN to use a trained model, or weights=... to use a public checkpoint"
        )
    device = values.get("device", "cpu")
    if device == "auto":
        # Only CUDA is chosen automatically: some operations do not exist on mps.
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if values["run"] is not None:
        return model_folder.load(values["run"], device=device, trust=settings.folder_trust)
    return model_folder.from_public(
        weights["source"],
        revision=weights["revision"],
        part=weights["part"],
        strict=weights["strict"],
        device=device,
        trust=settings.folder_trust,
    )


def _check_positive(values: Mapping[str, Any], *names: str) -> None:
    # The types of keys are checked when the configuration is composed, but not their ranges.
    for name in names:
        if values[name] < 1:
            raise UserError(f"{name}: must be at least 1, got {values[name]}")
