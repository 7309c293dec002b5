"""Readers, tables and comparisons for tests of data."""

import csv
import gzip
import json
from pathlib import Path

import openpyxl
import pyarrow
import pyarrow.parquet
import torch

from dxn.tasks.infer import infer
from dxn.tokenize import (
    AudioAdapter,
    ImageAdapter,
    Reader,
    SpectrogramOptions,
    TextAdapter,
)
from dxn.tokenize.column_profile import profile_of

SMALL_RATE = 1000  # Hz
# The option with which a command finds the data sets of the example package.
EXAMPLES = f"conf_dir={Path(__file__).parents[2] / 'examples'}"


def by_modality():
    """The readers of the built-in modalities."""
    return {name: tokenizer.reader for name, tokenizer in tokenizers().items()}


def tokenizers():
    """The tokenizers of the built-in modalities, not fitted."""
    spectrogram = SpectrogramOptions(n_mels=5)
    return {
        "text": TextAdapter(8).tokenizer,
        "image": ImageAdapter(8, image_size=None, patch_size=2).tokenizer,
        "audio": AudioAdapter(8, sample_rate=SMALL_RATE, spectrogram=spectrogram).tokenizer,
    }


class Numbers(Reader):
    """A modality of the user's own: cells are numbers, or texts that spell them."""

    modality = "number"

    def read(self, cell):
        return float(cell)

    def score(self, cells):
        try:
            return float(all(float(cell) is not None for cell in cells))
        except (TypeError, ValueError):
            return 0.0


def write_table(path: Path, rows: list[dict], sep: str | None = None) -> str:
    """Write rows in the format that the suffix says."""
    if path.suffix == ".gz":
        plain = Path(write_table(path.with_suffix(""), rows, sep))
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in [list(rows[0]), *(list(row.values()) for row in rows)]:
            book.active.append(row)
        book.save(path)
    elif path.suffix == ".jsonl":
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(lines, encoding="utf-8")
    else:
        sep = sep or ("\t" if path.suffix == ".tsv" else ",")
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=sep)
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def task_of(source):
    """Name of the task that head=auto infers from the targets of a data set."""
    targets, words, _ = source.targets()
    rows = [] if words is None else list(zip(words, targets, strict=True))
    return infer(profile_of(targets), rows)[0]


def cells_in_order(source, name):
    """A cell of every row of every split, in the order of the table's rows."""
    numbered = []
    for rows in source.splits.values():
        for origin, value in zip(rows.origin, rows.cells[name], strict=True):
            numbered.append((int(origin.rsplit(" ", 1)[1]), value))
    return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]


def sizes(splits):
    """Number of rows by split."""
    return {name: len(rows) for name, rows in splits.items()}


def column_names(source):
    """The column of each input, by the input's name."""
    return {name: spec.column for name, spec in source.inputs.items()}


def are_same(a, b):
    """Whether two samples or batches are equal to the last bit, with NaN in the same places."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    return a == b


class Counted(list):
    """A list that remembers which of its items were read, in `read`."""

    def __init__(self, items):
        super().__init__(items)
        self.read = set()

    def __getitem__(self, index):
        self.read.add(index)
        return super().__getitem__(index)
