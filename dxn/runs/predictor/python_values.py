"""Values that a Python program passes to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dxn.core.errors import UserError
from dxn.tasks import Task
from dxn.tokenize.base import Tokenizer
from dxn.tokenize.cells.numbers import is_null


def to_cell(name: str, value: Any, task: Task, prepare: Tokenizer) -> Any:
    """Return a value that the caller passed, as the cell of a table. None: it is missing.

    Raises:
        UserError: If it is a list of texts, but the task does not predict one tag per word.
    """
    # The cells of a pandas row are NumPy scalars.
    value = value.item() if isinstance(value, np.generic) else value
    value = None if is_null(value) else value
    is_list_of_texts = isinstance(value, list | tuple) and any(isinstance(v, str) for v in value)
    # The preprocessor of a text would accept them as the words of one text.
    if is_list_of_texts and prepare.reader.words and not task.wants_words:
        raise UserError(
            f"{name}: must be one text, got a list of {len(value)}; for several samples, use "
            f"predict_many([{{{name!r}: ...}}, {{{name!r}: ...}}])"
        )
    # A cell of a table is a str, and `read` of a user's preprocessor may accept nothing else.
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):  # the array and the sample rate of a clip
        return tuple(_writable(item) for item in value)
    return _writable(value)


def _writable(value: Any) -> Any:
    """Return a copy of an array that is read-only, because PyTorch warns about such arrays."""
    is_read_only = isinstance(value, np.ndarray) and not value.flags.writeable
    return value.copy() if is_read_only else value
