"""The profile of a column: what its cells look like, computed once from all of them.

The choice of a modality or of a task, and the checks of data, compare the numbers of a profile
instead of looking at the cells again.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.randomness import evenly_spaced
from dxn.tokenize.cells.cell_values import find_separator, has_no_number, has_no_value
from dxn.tokenize.cells.dates import are_dates
from dxn.tokenize.cells.numbers import ParsedNumbers, read_numbers
from dxn.tokenize.media import is_file_name, kinds_of
from dxn.tokenize.series.values import NPY, SEPARATORS, SUFFIXES, is_number

# Cells are enough to recognize files and series, and to count the words of texts. A sample also
# makes the share of different texts comparable: in a longer table, more of them are repeated.
MAX_INSPECTED = 2000
MAX_JOINED_CHARS = 2_000  # of a cell with several values; longer ones are texts
# Other cells, such as lists and the content of files, take long to compare.
SCALARS = str | int | float | datetime.date | datetime.time
# What a text of numbers can consist of: the start of a cell decides quickly in most cases.
START_OF_NUMBERS = re.compile(r"[-+\[\s.,;\deE\]?]|nan|null|none|na", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """What the cells of a column look like. All shares are from 0 to 1.

    Args:
        cells: The cells that are not None.
        values: Those of them that have a value, unlike "N/A".
        types: Types of the values.
        num_different: Number of different texts, numbers and dates among the values.
        max_chars: Number of characters of the longest of these.
        separator: Character between several values of a cell. None: cells are single values.
        kinds: Share of the values that look like files of a modality, like a film with a sound
            track, or like a series.
        are_file_names: Whether most values are names of files, or lists of them.
        words: Mean number of words of a text; 0 if a value is not a text.
        share_different: Share of different texts among MAX_INSPECTED; 0 if a value is not a text.
        numbers: The numbers. None: it is not a column of numbers.
        are_dates: Whether nearly all values are dates or times. They can be numbers as well, such
            as 20260131.
        are_codes: Whether the values are digits that can start with a zero, such as zip codes.
    """

    cells: Sequence[Any]
    values: Sequence[Any]
    types: frozenset[type]
    num_different: int
    max_chars: int
    separator: str | None
    kinds: Mapping[str, float]
    are_file_names: bool
    words: float
    share_different: float
    numbers: ParsedNumbers | None
    are_dates: bool
    are_codes: bool


def profile_of(cells: Iterable[Any]) -> ColumnProfile:
    """Return the profile of the cells of a column; None where missing."""
    present = [cell for cell in cells if cell is not None]
    values = [cell for cell in present if not has_no_value(cell)]
    types = frozenset(str if issubclass(t, str) else t for t in set(map(type, values)))
    are_texts = types == {str}
    texts = values
    if not are_texts:
        texts = [str(value) for value in values if isinstance(value, SCALARS)]
    different = set(texts)
    max_chars = max(map(len, different), default=0)
    inspected = list(evenly_spaced(values, MAX_INSPECTED))
    counts: Counter[str] = Counter()
    for cell in inspected:
        counts.update(kinds_of(cell))
        counts["series"] += is_series(cell)
    are_padded = any(len(text) > 1 and text[0] == "0" and text.isdigit() for text in different)
    return ColumnProfile(
        cells=present,
        values=values,
        types=types,
        num_different=len(different),
        max_chars=max_chars,
        separator=find_separator(different) if 0 < max_chars <= MAX_JOINED_CHARS else None,
        kinds={kind: number / len(inspected) for kind, number in counts.items()},
        are_file_names=2 * sum(map(is_file_name, values)) > len(values),
        words=fmean(len(cell.split()) for cell in inspected) if are_texts else 0.0,
        share_different=len(set(inspected)) / len(inspected) if are_texts else 0.0,
        numbers=read_numbers(present),
        are_dates=are_dates(values),
        are_codes=are_padded and all(t.isdigit() or has_no_number(t) for t in different),
    )


def is_series(value: Any) -> bool:
    """Whether a cell looks like a series: several numbers, or the path of a file of numbers."""
    if isinstance(value, str | Path):
        text = str(value)
        if text.lower().endswith(SUFFIXES):
            return True
        if not START_OF_NUMBERS.match(text):
            return False
        words = SEPARATORS.split(text.strip().strip("[]").strip())
        # Two numbers are usually a range or a place, and a date such as 2026 01 31 has three.
        return len(words) > 3 and all(map(is_number, words[:100]))
    if isinstance(value, bytes):
        return value.startswith(NPY)
    if isinstance(value, np.ndarray | Tensor):
        # Arrays of uint8 are pictures.
        return value.ndim in (1, 2) and value.dtype not in (np.uint8, torch.uint8)
    if not isinstance(value, list | tuple) or not value:
        return False
    first = next((item for item in value if item is not None), None)
    if isinstance(first, list | tuple) and first:
        first = next((item for item in first if item is not None), None)
    return isinstance(first, int | float) and not isinstance(first, bool)
