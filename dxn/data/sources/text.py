"""Data sets of plain text files, to train a language model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from dxn.core.errors import UserError
from dxn.data.cell_paths import require_inside
from dxn.data.columns.infer import Readers
from dxn.data.formats import SPLITS
from dxn.data.rows import InputSpec, Rows, Source
from dxn.data.sources.detect import is_text
from dxn.data.splits.split import check_fractions
from dxn.data.tables.files import read_text


def text_files(
    path: str | Sequence[str],
    *,
    readers: Readers,
    fractions: Sequence[float] = (0.9, 0.1),
    encoding: str | None = None,
    confine: bool = True,
) -> Source:
    """Read a data set of text files. There is one row per file and split, and no target.

    Args:
        path: A text file, a list of text files, or a folder with .txt files.
        readers: Readers in use, by modality. The caller sets this argument.
        fractions: Fractions of the training, validation and test split. Each file is cut into
            consecutive parts in this order.
        encoding: Encoding of the files, such as cp1252. Default: UTF-8, or UTF-16 if a file starts
            with a byte order mark.
        confine: Refuse files of a folder that lead out of it through symbolic links.

    Raises:
        UserError: If a file cannot be read, if there is no training text, or if no reader
            reads text.
    """
    check_fractions(fractions)
    modality = _text_modality(readers)
    cells: dict[str, list[str]] = {name: [] for name in SPLITS}
    origin: dict[str, list[str]] = {name: [] for name in SPLITS}
    for file in _files([path] if isinstance(path, str) else path, confine=confine):
        text = read_text(file, encoding, key="data.encoding")
        for name, part in zip(SPLITS, _cut(text, fractions), strict=False):
            # The part of a short file may be empty.
            if part.strip():
                cells[name].append(part)
                origin[name].append(file.name)
    if not cells["train"]:
        raise UserError(
            f"data.path: no text for the training split in {path}; use files that are not blank"
        )
    splits = {name: Rows({modality: cells[name]}, origin[name]) for name in SPLITS if cells[name]}
    sizes = ", ".join(f"{name} {sum(map(len, cells[name])):,}" for name in splits)
    notes = [f"splits: consecutive parts of each file; number of characters: {sizes}"]
    return Source(splits, {modality: InputSpec("files", modality)}, notes=notes)


def _text_modality(readers: Readers) -> str:
    """Return the first modality that reads text."""
    for modality, reader in readers.items():
        # A reader that accepts words reads text. The name of the modality is not reliable,
        # because users can add modalities.
        if reader.words:
            return modality
    names = ", ".join(readers) or "no adapter"
    raise UserError(f"adapters: no adapter in use reads text, got {names}; set adapters=text")


def _files(paths: Sequence[str], *, confine: bool) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        # iterdir() returns files in the order of the file system, so sort them for reproducibility.
        selected = sorted(filter(is_text, path.iterdir())) if path.is_dir() else [path]
        if not selected:
            raise UserError(f"{path}: the folder contains no .txt file; add one, or set data.path")
        for file in selected if confine and path.is_dir() else ():
            require_inside(file, path)
        files += selected
    return files


def _cut(text: str, fractions: Sequence[float]) -> list[str]:
    """Cut a text into consecutive parts with these fractions of its length."""
    # Round the cumulative fractions, so that no character is lost or repeated between two parts.
    edges = [0, *(round(fraction * len(text)) for fraction in accumulate(fractions))]
    return [text[start:stop] for start, stop in pairwise(edges)]
