"""The command `dxn tokenize`: draw the D×N matrix of one sample, or write those of a data set."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow
import torch

from dxn import viz
from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.files import atomic_file
from dxn.core.randomness import named_draws
from dxn.core.tokens import Tokens, join
from dxn.data.dataset import Opened, Samples
from dxn.runs.build import build_adapters
from dxn.runs.decide import readers_of
from dxn.runs.predictor.option import read_sample
from dxn.runs.predictor.output import Chunks
from dxn.runs.predictor.predictor import Predictor
from dxn.runs.predictor.resumable import AnsweredRows, write_answers
from dxn.runs.predictor.table import Record, identify
from dxn.tokenize.media import BadMedia
from dxn.training.predict import run_batches

# Files of numbers. All others are pictures.
MATRIX_SUFFIXES = (".parquet", ".npz")
BATCH_SIZE = 64  # samples whose matrices are in memory


def write_matrices(opened: Opened, predictor: Predictor, output: Path, *, identity: str) -> None:
    """Write the D×N matrix of each sample, and print a line about the file.

    Args:
        opened: The samples.
        predictor: Trained model whose adapters to use.
        output: A .parquet file has one row per sample: the columns that identify it, `matrix` (a
            list of D lists of N numbers), and `input` (the input of each of the N columns). A .npz
            file has the arrays matrix (B, D, N) in float32, mask (B, N), which is False for
            padding, input (B, N), and origin (B,).
        identity: See `dxn.runs.predictor.resumable.RowWriter`.
    """
    is_array = output.suffix.lower() == ".npz"
    written = write_answers(
        output,
        functools.partial(tokenized_rows, is_array=is_array),
        predictor,
        Samples(opened, predictor.tokenizers),
        batch_size=BATCH_SIZE,
        identity=identity,
        finish=write_arrays if is_array else None,
    )
    if written is not None:
        rows, (dim, longest) = written
        print_line(f"written: {output} ({rows}: D={dim}, N up to {longest})")


@torch.inference_mode()
def tokenized_rows(
    predictor: Predictor,
    samples: Samples,
    batch_size: int,
    start: int = 0,
    *,
    is_array: bool = False,
) -> Iterator[AnsweredRows]:
    """Yield the matrices of each batch as rows, see `dxn.runs.predictor.resumable.Answers`.

    With `is_array`, a row has its origin instead of the columns that identify it.
    """
    opened = samples.opened

    def run(batch: dict[str, Any]) -> tuple[list[int], Tokens]:
        return batch["#index"], join(predictor.model.embed(batch))

    device = predictor.device
    parts = run_batches(run, samples, batch_size, device=device, start=start, divided=True)
    for rows, tokens in parts:
        names = np.array([span.name for span in tokens.spans for _ in range(len(span))])
        records: list[Record] = []
        for row, x, mask in zip(rows, tokens.x.float().cpu(), tokens.mask.cpu(), strict=True):
            record = {"origin": opened.origin[row]} if is_array else identify(opened, row)
            matrix = list(x[mask].T.numpy())
            records.append({**record, "matrix": matrix, "input": names[mask.numpy()].tolist()})
        longest = max(len(record["input"]) for record in records)
        yield rows, records, (tokens.x.shape[2], longest)


def write_arrays(chunks: Chunks, path: Path) -> None:
    """Write chunks of matrices as the four arrays of a .npz file, with padding."""
    num_rows = dim = longest = width = origin_width = 0
    for chunk in chunks():
        num_rows += len(chunk)
        dim = len(chunk["matrix"][0])
        longest = max(longest, *map(len, chunk["input"]))
        width = max(width, *map(len, chunk["input"].combine_chunks().flatten().to_pylist()))
        origin_width = max(origin_width, *map(len, chunk["origin"].to_pylist()))

    def matrices(chunk: pyarrow.Table) -> np.ndarray:
        array = np.zeros((len(chunk), dim, longest), np.float32)
        numbers = chunk["matrix"].combine_chunks().flatten().flatten().to_numpy()
        end = 0
        for row, length in enumerate(map(len, chunk["input"])):
            start, end = end, end + dim * length
            array[row, :, :length] = numbers[start:end].reshape(dim, length)
        return array

    def masks(chunk: pyarrow.Table) -> np.ndarray:
        lengths = np.array([len(names) for names in chunk["input"]])
        return np.arange(longest) < lengths[:, None]

    def names(chunk: pyarrow.Table) -> np.ndarray:
        padded = [row + [""] * (longest - len(row)) for row in chunk["input"].to_pylist()]
        return np.array(padded, f"<U{width}")

    def origins(chunk: pyarrow.Table) -> np.ndarray:
        return np.array(chunk["origin"].to_pylist(), f"<U{origin_width}")

    arrays = {"matrix": matrices, "mask": masks, "input": names, "origin": origins}
    with atomic_file(path) as partial, ZipFile(partial, "w") as archive:
        for name, convert in arrays.items():
            first = convert(next(chunks()))
            header = {
                "descr": first.dtype.str,
                "fortran_order": False,
                "shape": (num_rows, *first.shape[1:]),
            }
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for chunk in chunks():
                    file.write(convert(chunk).tobytes())


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
        readers = readers_of({"adapters": adapters}, trust)
        sample = read_sample(value, readers)
        used = {name: adapters[name] for name in readers if name in sample}
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
