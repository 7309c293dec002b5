"""The command `dxn tokenize`: draw the D×N matrix of one sample, or write those of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dxn import viz
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.core.randomness import named_draws
from dxn.core.tokens import join
from dxn.data.dataset import Samples
from dxn.runs.build import build_adapters
from dxn.runs.plan import adapter_nodes, readers_of
from dxn.runs.predictor.option import has_many_samples, read_sample
from dxn.runs.predictor.output import rows_text, write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import identify
from dxn.runs.saved.loading import load_predictor
from dxn.runs.settings import Settings
from dxn.tokenize.media import BadMedia

# Files of numbers. All others are pictures.
MATRIX_SUFFIXES = (".parquet", ".npz")


def run(settings: Settings) -> int:
    """Convert one sample to its D×N matrix and draw it, or write the matrices of all samples."""
    # Unlike the other commands, this one works without a trained model.
    predictor = load_predictor(settings) if settings.values["run"] else None
    output = Path(settings.values["output"])
    if output.suffix.lower() in MATRIX_SUFFIXES:
        if predictor is None:
            raise UserError(
                f"output: {output.name} needs fitted adapters; set run=RUN to the run folder of a "
                "trained model"
            )
        print_line(write_matrices(settings.values, predictor, output))
        return 0
    for line in tokenize_sample(settings, predictor):
        print_line(line)
    return 0


def write_matrices(values: Mapping[str, Any], predictor: Predictor, output: Path) -> str:
    """Write the D×N matrix of each sample of the option `input`.

    Args:
        values: Options of the command.
        predictor: Trained model whose adapters to use.
        output: A .parquet file has one row per sample: the columns that identify it, `matrix` (a
            list of D lists of N numbers), and `input` (the input of each of the N columns). A .npz
            file has the arrays matrix (B, D, N) in float32, mask (B, N), which is False for
            padding, input (B, N), and origin (B,).

    Returns:
        The line to print.

    Raises:
        UserError: If the samples cannot be read.
    """
    if has_many_samples(values["input"]):
        opened = predictor.reads.option(values)
    else:
        sample = read_sample(values["input"], predictor.reads.readers, predictor.columns)
        opened = predictor.reads.samples([sample])
    samples = Samples(opened, predictor.tokenizers)
    matrices: list[np.ndarray] = []
    inputs: list[list[str]] = []
    for i in range(len(samples)):
        tokens = predictor.tokens_of(samples, i)
        names = [span.name for span in tokens.spans for _ in range(span.start, span.stop)]
        mask = tokens.mask[0].cpu()
        matrices.append(tokens.x[0].float().cpu()[mask].T.numpy())
        inputs.append([name for name, real in zip(names, mask.tolist(), strict=True) if real])
    if output.suffix.lower() == ".parquet":
        records = [
            {**identify(opened, i), "matrix": list(matrices[i]), "input": inputs[i]}
            for i in range(len(samples))
        ]
        write_records(output, records)
    else:
        _write_arrays(output, matrices, inputs, opened.origin)
    longest = max(matrix.shape[1] for matrix in matrices)
    size = f"D={matrices[0].shape[0]}, N up to {longest}"
    return f"written: {output} ({rows_text(len(samples), opened)}: {size})"


def _write_arrays(
    output: Path, matrices: Sequence[np.ndarray], inputs: Sequence[list[str]], origin: Sequence[str]
) -> None:
    dim, longest = matrices[0].shape[0], max(map(len, inputs))
    matrix = np.zeros((len(matrices), dim, longest), np.float32)
    mask = np.zeros((len(matrices), longest), bool)
    for i, each in enumerate(matrices):
        matrix[i, :, : each.shape[1]] = each
        mask[i, : each.shape[1]] = True
    names = np.array([row + [""] * (longest - len(row)) for row in inputs])
    with atomic_file(output) as partial, partial.open("wb") as file:
        np.savez(file, matrix=matrix, mask=mask, input=names, origin=np.array(origin))


@torch.inference_mode()
def tokenize_sample(settings: Settings, predictor: Predictor | None) -> list[str]:
    """Convert one sample to its D×N matrix, and draw it.

    Args:
        settings: Settings of the command.
        predictor: Trained model whose adapters to use. None: use the adapters of the settings, with
            random weights and fitted on this sample.

    Returns:
        Lines to print.

    Raises:
        UserError: If an input is unknown or cannot be read.
    """
    values = settings.values
    if predictor is not None:
        sample = read_sample(values["input"], predictor.reads.readers, predictor.columns)
        adapters = {name: predictor.adapters[name] for name in predictor.inputs if name in sample}
    else:
        readers = readers_of(values, settings.trust)
        sample = read_sample(values["input"], readers)
        nodes = adapter_nodes(values)
        used = {name: nodes[name] for name in nodes if name in sample}
        adapters: dict[str, Any] = build_adapters(used, settings.trust, seed=values["seed"])
    if not sample:
        raise UserError("input: needs a value, such as input=photo.jpg or input.NAME=...")
    lines: list[str] = []
    parts = []
    raws: dict[str, Any] = {}
    for name, adapter in adapters.items():
        if predictor is None:
            adapter.tokenizer.reader.learn([sample[name]])
        raw = raws[name] = _read(adapter, name, sample[name])
        if raw is None:
            raise UserError(
                f"input.{name}: {sample[name]!r} means that there is no value; set another one, or "
                "leave the input out"
            )
        # A tokenizer that is trained on one text contains exactly the tokens of this text.
        if predictor is None:
            with named_draws(values["seed"], f"fit of adapters.{name}"):
                adapter.fit([raw])
        adapter.eval()  # without dropout, the same command draws the same picture
        tokens = adapter(adapter.tokenizer.collate([adapter.tokenizer(raw)])).renamed(name)
        parts.append(tokens)
        about = adapter.describe(raw)  # such as the subwords of a text
        lines.append(f"{name}: {adapter.dim}×{tokens.x.shape[1]}  {about}")
    joined = join(parts)
    lines.append(f"matrix: {joined.x.shape[2]}×{joined.x.shape[1]}, one column per token")
    described = viz.sample.describe_sample(sample)
    about = f"{described}; model: {values['run']}" if values["run"] else described
    view = viz.sample.SampleView.of(joined, adapters, raws, sample)
    viz.tokens.token_picture(view, Path(values["output"]), about=about)
    return [*lines, f"picture: {values['output']}"]


def _read(adapter: Any, name: str, source: Any) -> Any:
    try:
        return adapter.tokenizer.reader.read(source)
    except BadMedia as error:
        raise UserError(f"input.{name}: {source}: {error}") from error
