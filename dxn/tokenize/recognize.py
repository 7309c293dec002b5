"""Recognize what is in a column: which modality its cells have.

The readers of dxn are not asked, so that only the one that is chosen is imported and built.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.lazy import imported
from dxn.core.randomness import evenly_spaced
from dxn.tokenize.base import READERS, Reader
from dxn.tokenize.cells.cell_values import MAX_CHARS, find_separator, has_no_value
from dxn.tokenize.cells.dates import are_dates
from dxn.tokenize.cells.numbers import are_codes, read_numbers
from dxn.tokenize.media import SOUND_TRACK, kinds_of
from dxn.tokenize.series.values import NPY, SEPARATORS, SUFFIXES, is_number

MAX_INSPECTED = 2000  # cells are enough to recognize files, series and texts
# Minimum score at which a column becomes an input. Lower scores come from columns in which only a
# few cells look like the modality.
MIN_SCORE = 0.1
# Of a film whose sound track is read. Its pictures have the score 1, so that it is a video if there
# is an adapter for them.
SOUND_TRACK_SCORE = 0.5
# Cells with at least this many words on average are sentences.
SENTENCE_WORDS = 4
MAX_JOINED_CHARS = 2_000  # of a cell with several values; longer ones are texts
# A file name has no spaces, and its suffix starts with a letter. A decimal number such as 3.14
# does not match.
FILE_NAME = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{1,4}")
# What a text of numbers can consist of: the start of a cell decides quickly in most cases.
NUMBERS = re.compile(r"[-+\[\s.,;\deE\]?]|nan|null|none|na", re.IGNORECASE)


class LazyReaders(Mapping[str, Reader]):
    """Readers by adapter key or modality, each of which is built when it is first needed.

    Args:
        modalities: Modality of each reader.
        classes: Class of each reader of another package.
    """

    def __init__(self, modalities: Mapping[str, str], classes: Mapping[str, type[Reader]]):
        self.modalities = dict(modalities)
        self.classes = classes
        self._built: dict[str, Reader] = {}

    def __getitem__(self, key: str) -> Reader:
        if key not in self._built:
            known = self.classes.get(key) or imported(READERS[self.modalities[key]])
            self._built[key] = known()
        return self._built[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.modalities)

    def __len__(self) -> int:
        return len(self.modalities)


def by_modality(readers: Mapping[str, Reader]) -> Mapping[str, Reader]:
    """Return one reader per modality: that of the first adapter of this modality."""
    is_lazy = isinstance(readers, LazyReaders)
    modalities = readers.modalities if is_lazy else {k: r.modality for k, r in readers.items()}
    keys: dict[str, str] = {}
    for key, modality in modalities.items():
        keys.setdefault(modality, key)
    if not isinstance(readers, LazyReaders):
        return {modality: readers[key] for modality, key in keys.items()}
    classes = {m: readers.classes[key] for m, key in keys.items() if key in readers.classes}
    return LazyReaders({modality: modality for modality in keys}, classes)


def modality_of(cells: Sequence[Any], readers: Mapping[str, Reader]) -> str | None:
    """Return the modality with the highest score for cells. None: no reader can be meant.

    Args:
        cells: Cells of a column; None where missing.
        readers: Readers in use, by modality.
    """
    present = [cell for cell in cells if cell is not None]
    if not present:  # a blank column has no modality
        return None
    scores = scores_of(present)
    are_values = scores.get("number") or scores.get("date")
    # Readers of other packages can have a score of their own.
    for modality in readers.classes if isinstance(readers, LazyReaders) else readers:
        reader = readers[modality]
        if type(reader).score is not Reader.score:
            can_be = not (are_values and (reader.words or reader.files))
            if are_file_names(present):
                can_be = reader.files
            scores[modality] = reader.score(present) if can_be else 0.0
    # The first one of equal scores, in the order of the readers.
    best = max(readers, key=lambda modality: scores.get(modality, 0.0), default=None)
    return best if best is not None and scores.get(best, 0.0) > MIN_SCORE else None


def scores_of(cells: Sequence[Any]) -> dict[str, float]:
    """Return how likely a column has each modality of dxn, from 0 to 1. Default: 0.

    Args:
        cells: Cells of the column, none of which is None.
    """
    inspected = list(evenly_spaced(cells, MAX_INSPECTED))
    if not inspected:
        return {}
    counts: Counter[str] = Counter()
    for cell in inspected:
        counts.update(kinds_of(cell))
        counts["series"] += is_series(cell)
    count = len(inspected)
    # A GIF is an image and a video. Images come first in READERS, so that they are preferred.
    files = {modality: counts[modality] / count for modality in ("image", "video", "series")}
    # The sound track of a film is read as well.
    tracks = SOUND_TRACK_SCORE * counts[SOUND_TRACK] / count
    files["audio"] = max(counts["audio"] / count, tracks)
    present = [cell for cell in cells if not has_no_value(cell)]
    if are_file_names(present):  # "0.wav" could be 0 of the unit wav
        return files
    have_numbers, have_dates = read_numbers(present) is not None, are_dates(present)
    have_booleans = [isinstance(cell, bool) for cell in present]
    # Zip codes and dates such as 20260131 are written like numbers.
    have_codes = have_numbers and are_codes(present)
    is_measured = have_numbers and not have_codes and not have_dates
    is_quantity = have_dates or (is_measured and not all(have_booleans))
    scores = {
        "number": float(is_measured and not any(have_booleans)),
        "date": float(have_dates),
        "category": _category_score(present, is_quantity=is_quantity),
    }
    # Numbers such as "$1,200.50" and dates are strings as well, but neither texts nor files.
    if not have_numbers and not have_dates:
        scores |= files
        scores["text"] = _text_score(inspected)
    return scores


def _text_score(cells: Sequence[Any]) -> float:
    """Return 0.5 for texts, lists of words or conversations, and 0 for categories."""
    if not all(isinstance(cell, str) for cell in cells):
        return 0.5 if all(map(_are_words, cells)) else 0.0
    words = fmean(len(cell.split()) for cell in cells)
    unique = len(set(cells)) / len(cells)
    # Categories repeat, and names and identifiers are one word. So a column contains texts if
    # its values have several words, or are different in almost every row.
    several_words = (words > 1.5 and unique > 0.05) or (words > 1 and unique > 0.5)
    if several_words or unique > 0.9:
        return 0.5
    # Sentences are texts even if they repeat. Other modalities can have a better reason.
    return 0.2 if words >= SENTENCE_WORDS and len(set(cells)) > 1 else 0.0


def _category_score(cells: Sequence[Any], *, is_quantity: bool) -> float:
    """Return 0.3 for repeated short values, booleans or codes.

    The score is below that of texts, which repeat less. It is 0.55, above that of texts, for cells
    with several tags: most combinations occur once, but the tags repeat.
    """
    if not all(isinstance(cell, str | bool | int) for cell in cells):
        return 0.0
    texts = [str(cell) for cell in cells]
    longest = max(map(len, texts), default=0)
    separator = find_separator(texts) if 0 < longest <= MAX_JOINED_CHARS else None
    if separator is not None:
        parts = {part for text in texts for part in text.split(separator)}
        return 0.55 if max(map(len, parts)) <= MAX_CHARS else 0.0
    if is_quantity or not texts or len(set(texts)) > len(texts) / 2 or longest > MAX_CHARS:
        return 0.0
    inspected = list(evenly_spaced(texts, MAX_INSPECTED))
    return 0.15 if fmean(len(text.split()) for text in inspected) >= SENTENCE_WORDS else 0.3


def _are_words(value: Any) -> bool:
    # The messages of a conversation are texts as well.
    return isinstance(value, list) and all(
        isinstance(word, str) or (isinstance(word, dict) and "content" in word) for word in value
    )


def are_file_names(values: Sequence[Any]) -> bool:
    """Return whether more than half of the values are file names, or lists of them."""
    return sum(map(_is_file_name, values)) > len(values) / 2


def _is_file_name(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(v, str) and _is_file_name(v) for v in value)
    return isinstance(value, str) and FILE_NAME.fullmatch(value.strip()) is not None


def is_series(value: Any) -> bool:
    """Whether a cell looks like a series: several numbers, or the path of a file of numbers."""
    if isinstance(value, str | Path):
        text = str(value)
        if text.lower().endswith(SUFFIXES):
            return True
        if not NUMBERS.match(text):
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
