"""The command `dxn tokenize`: draw the D×N matrix of one sample, or write those of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dxn import viz
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.core.randomness import named_draws
from dxn.core.tokens import join
from dxn.data.dataset import Opened, Samples
from dxn.runs.build import build_adapters
from dxn.runs.decide import adapter_nodes, readers_of
from dxn.runs.predictor.option import read_sample
from dxn.runs.predictor.output import rows_text, write_records
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.table import identify
from dxn.tokenize.media import BadMedia

# Files of numbers. All others are pictures.
MATRIX_SUFFIXES = (".parquet", ".npz")


def write_matrices(opened: Opened, predictor: Predictor, output: Path) -> str:
    """Write the D×N matrix of each sample.

    Args:
        opened: The samples.
        predictor: Trained model whose adapters to use.
        output: A .parquet file has one row per sample: the columns that identify it, `matrix` (a
            list of D lists of N numbers), and `input` (the input of each of the N columns). A .npz
            file has the arrays matrix (B, D, N) in float32, mask (B, N), which is False for
            padding, input (B, N), and origin (B,).

    Returns:
        The line to print.
    """
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
def tokenize_sample(
    value: Any,
    output: Path,
    predictor: Predictor | None,
    *,
    adapters: Mapping[str, Any],
    seed: int,
    trust: Sequence[str],
    model_name: str,
) -> list[str]:
    """Convert one sample to its D×N matrix, and draw it.

    Args:
        value: Option `input`.
        output: Picture to write.
        predictor: Trained model whose adapters to use. None: use `adapters`, with random weights
            and fitted on this sample.
        adapters: Configuration nodes of adapters.
        seed: Seed of their weights.
        trust: Top-level packages besides dxn whose code they may use.
        model_name: Name of the model, for the picture. "": untrained adapters.

    Returns:
        Lines to print.

    Raises:
        UserError: If an input is unknown or cannot be read.
    """
    if predictor is not None:
        sample = read_sample(value, predictor.model_inputs.readers, predictor.columns)
        built = {name: predictor.adapters[name] for name in predictor.inputs if name in sample}
    else:
        config = {"adapters": adapters}
        sample = read_sample(value, readers_of(config, trust))
        nodes = adapter_nodes(config)
        used = {name: nodes[name] for name in nodes if name in sample}
        built: dict[str, Any] = build_adapters(used, trust, seed=seed)
    if not sample:
        raise UserError("input: needs a value, such as input=photo.jpg or input.NAME=...")
    lines: list[str] = []
    parts = []
    raws: dict[str, Any] = {}
    for name, adapter in built.items():
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
            with named_draws(seed, f"fit of adapters.{name}"):
                adapter.fit([raw])
        adapter.eval()  # without dropout, the same command draws the same picture
        tokens = adapter(adapter.tokenizer.collate([adapter.tokenizer(raw)])).renamed(name)
        parts.append(tokens)
        about = adapter.describe(raw)  # such as the subwords of a text
        lines.append(f"{name}: {adapter.dim}×{tokens.x.shape[1]}  {about}")
    joined = join(parts)
    lines.append(f"matrix: {joined.x.shape[2]}×{joined.x.shape[1]}, one column per token")
    described = viz.sample.describe_sample(sample)
    about = f"{described}; model: {model_name}" if model_name else described
    view = viz.sample.SampleView.of(joined, built, raws, sample)
    viz.tokens.token_picture(view, output, about=about)
    return [*lines, f"picture: {output}"]


def _read(adapter: Any, name: str, source: Any) -> Any:
    try:
        return adapter.tokenizer.reader.read(source)
    except BadMedia as error:
        raise UserError(f"input.{name}: {source}: {error}") from error
