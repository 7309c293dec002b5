"""Rows of the test split of a run, which the page offers as examples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.core.errors import UserError
from dxn.data.rows import TARGET, Rows
from dxn.data.sources.confine import OutsidePath
from dxn.runs.evaluation.data import rows_of_run
from dxn.runs.predictor.predictor import Predictor
from dxn.serve.prepare import takes_text
from dxn.tokenize.base import BadMedia, Tokenizer
from dxn.viz.drawers import Shown, get_drawer

MAX_BYTES = 5_000_000  # of a file; all examples are in memory
MAX_TEXT = 20_000  # characters
MAX_NAME = 60  # characters of a target
DIGITS = 6  # of the numbers of a series


def read_examples(
    run: str, predictor: Predictor, count: int, trust: Sequence[str]
) -> list[dict[str, Any]]:
    """Read rows of the test split of a run, evenly spaced.

    Args:
        run: The run folder.
        predictor: The model.
        count: Number of rows.
        trust: Top-level packages besides dxn whose code the folder may use.

    Returns:
        Of each row, the "texts" of the inputs that can be written as a text, the contents of the
        "files" of the others, both by input name, and the "target" as a text ("": none).

    Raises:
        UserError: If the data of the run cannot be read.
    """
    # A folder from an untrusted source could name any file as its data, see SECURITY.md.
    rows = rows_of_run(predictor, run, confine=True, trust=trust)
    chosen = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int)
    examples = [_example(rows, int(row), predictor) for row in chosen]
    return [example for example in examples if example["texts"] or example["files"]]


def _example(rows: Rows, row: int, predictor: Predictor) -> dict[str, Any]:
    texts: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for name, prepare in predictor.tokenizers.items():
        cell = rows.cells[name][row] if name in rows.cells else None
        if cell is None:
            continue
        text = _text_of(cell, prepare)
        if text is not None:
            texts[name] = text[:MAX_TEXT]
        elif (content := _file_of(name, cell, prepare)) is not None:
            files[name] = content
    target = rows.cells[TARGET][row] if TARGET in rows.cells else None
    shown = "" if target is None else str(target)[:MAX_NAME]
    return {"texts": texts, "files": files, "target": shown}


def _text_of(cell: Any, prepare: Tokenizer) -> str | None:
    """Return a cell as a text; None if it is a file."""
    if prepare.reader.is_path(cell) or isinstance(cell, bytes) or not takes_text(prepare):
        return None
    if isinstance(cell, np.ndarray | Tensor):
        # A series of one channel is shorter without its second axis.
        is_flat = cell.ndim == 2 and cell.shape[1] == 1
        cell = _rounded((cell[:, 0] if is_flat else cell).tolist())
    if isinstance(cell, list | tuple):
        is_words = all(isinstance(item, str) for item in cell)
        return " ".join(cell) if is_words else json.dumps(list(cell))
    return str(cell)


def _rounded(value: Any) -> Any:
    """Return nested lists of numbers with DIGITS digits, which a page can show."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _file_of(name: str, cell: Any, prepare: Tokenizer) -> bytes | None:
    """Return the content of the file of a cell; None if it is too large or has no file format."""
    if isinstance(cell, bytes):
        return cell if len(cell) <= MAX_BYTES else None
    try:
        if isinstance(cell, OutsidePath):
            return None
        if prepare.reader.is_path(cell):
            path = Path(cell)
            if not path.is_file() or path.stat().st_size > MAX_BYTES:
                return None
            prepare.reader.read(cell)  # it must be a file of the kind that the model reads
            return path.read_bytes()
        # An array of built-in data. Its drawer may know how to write it as a file.
        raw = prepare.reader.read(cell) if prepare.reader.files else None
        shown = Shown(prepare.modality, raw, prepare, name=name)
        return None if raw is None else get_drawer(prepare.modality).file(shown)
    except (OSError, BadMedia, UserError):
        return None
