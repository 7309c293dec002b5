"""What the cells of a column look like, computed once from all of them, and their modality.

The choice of a modality or of a task, and the checks of data, compare the numbers of a profile
instead of looking at the cells again.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.parts import imported
from dxn.core.randomness import evenly_spaced
from dxn.tokenize.base import READERS, Reader
from dxn.tokenize.cells.cell_values import (
    ParsedNumbers,
    find_codes,
    has_no_number,
    has_no_value,
    is_phone,
    read_numbers,
)
from dxn.tokenize.cells.date_values import are_dates
from dxn.tokenize.cells.joined import MAX_CHARS, find_separator, split_cell
from dxn.tokenize.media import SOUND_TRACK, is_file_name, kinds_of
from dxn.tokenize.series.values import NPY, SUFFIXES, find_decimal, is_number, split_numbers

# Cells are enough to recognize files and series, and to count the words of texts. A sample also
# makes the share of different texts comparable: in a longer table, more of them are repeated.
MAX_INSPECTED = 2000
# Shares of the different texts of a column of codes, such as zip codes.
MOST_CODES, MIN_PADDED = 0.95, 0.05
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
        separator: Character between several values of a cell, see `find_separator`. None: cells
            are single values.
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
    codes = find_codes(present)
    values = [c for c in present if not has_no_value(c) or (codes and str(c).strip() in codes)]
    types = frozenset(str if issubclass(t, str) else t for t in set(map(type, values)))
    are_texts = types == {str}
    texts = values
    if not are_texts:
        texts = [str(value) for value in values if isinstance(value, SCALARS)]
    different = set(texts)
    max_chars = max(map(len, different), default=0)
    inspected = list(evenly_spaced(values, MAX_INSPECTED))
    counts: Counter[str] = Counter()
    decimal = find_decimal(cell for cell in inspected if _starts_with_number(cell)) or "."
    for cell in inspected:
        counts.update(kinds_of(cell))
        counts["series"] += is_series(cell, decimal)
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
        are_codes=_are_codes([text for text in different if not has_no_number(text)]),
    )


def _are_codes(texts: Sequence[str]) -> bool:
    """Return whether different texts are digits that can start with a zero.

    A single one can be a typing error: an amount that is written as 05, or a code with a letter.
    """
    digits = [text for text in texts if text.isdigit()]
    padded = [text for text in digits if len(text) > 1 and text[0] == "0"]
    if not padded or len(digits) < MOST_CODES * len(texts):
        return False
    # Most codes have the same length.
    lengths = Counter(map(len, digits))
    is_usual = any(lengths[len(text)] >= MOST_CODES * len(digits) for text in padded)
    return is_usual or len(padded) >= MIN_PADDED * len(digits)


def _starts_with_number(cell: Any) -> bool:
    return isinstance(cell, str) and START_OF_NUMBERS.match(cell) is not None


def is_series(value: Any, decimal: str) -> bool:
    """Whether a cell looks like a series: several numbers, or the path of a file of numbers.

    Args:
        value: The cell.
        decimal: Decimal mark of the column, a point or a comma.
    """
    if isinstance(value, str | Path):
        text = str(value)
        if text.lower().endswith(SUFFIXES):
            return True
        if not _starts_with_number(text) or is_phone(text):
            return False
        words = split_numbers(text, decimal)
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


# Minimum score at which a column becomes an input. Lower scores come from columns in which only a
# few cells look like the modality.
MIN_SCORE = 0.1
# Of a film whose sound track is read. Its pictures have the score 1, so that it is a video if there
# is an adapter for them.
SOUND_TRACK_SCORE = 0.5
# Texts, lists of words and conversations. Other modalities can have a better reason.
TEXT_SCORE = 0.5
# Sentences are texts even if they repeat.
SENTENCE_SCORE = 0.2
# Cells with at least this many words on average are sentences.
SENTENCE_WORDS = 4
# Repeated short values, booleans or codes. Below that of texts, which repeat less.
CATEGORY_SCORE, CATEGORY_OF_SENTENCES_SCORE = 0.3, 0.15
# Cells with several tags. Above that of texts: most combinations occur once, but the tags repeat.
TAGS_SCORE = 0.55
FILES = ("image", "audio", "video", "series")


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
            reader = self.classes.get(key) or imported(READERS[self.modalities[key]])
            self._built[key] = reader()
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


def modality_of(
    profile: ColumnProfile, readers: Mapping[str, Reader], *, column: str = ""
) -> str | None:
    """Return the modality with the highest score for a column. None: no reader can be meant.

    Args:
        profile: Profile of the column.
        readers: Readers in use, by modality.
        column: Name of the column, for messages.

    Raises:
        UserError: If the score of a reader of another package fails.
    """
    if not profile.values:  # a blank column has no modality
        return None
    scores = scores_of(profile)
    are_values = scores.get("number") or scores.get("date")
    # Readers of other packages can have a score of their own.
    for modality in readers.classes if isinstance(readers, LazyReaders) else readers:
        reader = readers[modality]
        if type(reader).score is not Reader.score:
            can_be = not (are_values and (reader.words or reader.files))
            if profile.are_file_names:
                can_be = reader.files
            scores[modality] = _own_score(reader, profile, column) if can_be else 0.0
    # The first one of equal scores, in the order of the readers.
    best = max(readers, key=lambda modality: scores.get(modality, 0.0), default=None)
    return best if best is not None and scores.get(best, 0.0) > MIN_SCORE else None


def _own_score(reader: Reader, profile: ColumnProfile, column: str) -> float:
    """Return the score of a reader of another package."""
    try:
        return reader.score(profile.values)
    except UserError:
        raise
    except Exception as error:
        place = f"column {column!r}: " if column else ""
        raise UserError(f"{place}{type(reader).__name__}.score failed: {error!r}") from error


def scores_of(profile: ColumnProfile) -> dict[str, float]:
    """Return how likely a column has each modality of dxn, from 0 to 1. Default: 0."""
    # A GIF is an image and a video. Images come first in READERS, so that they are preferred.
    files = {modality: profile.kinds.get(modality, 0.0) for modality in FILES}
    # The sound track of a film is read as well.
    track = SOUND_TRACK_SCORE * profile.kinds.get(SOUND_TRACK, 0.0)
    files["audio"] = max(files["audio"], track)
    if profile.are_file_names:  # "0.wav" could be 0 of the unit wav
        # Names of unknown files that repeat are names of something else, such as gmail.com.
        is_category = not any(files.values()) and profile.types == {str} and _do_repeat(profile)
        return {**files, "category": CATEGORY_SCORE if is_category else 0.0}
    # Zip codes and dates such as 20260131 are written like numbers.
    are_numbers = profile.numbers is not None
    is_measured = are_numbers and not profile.are_codes and not profile.are_dates
    is_quantity = profile.are_dates or is_measured
    scores = {"number": float(is_measured), "date": float(profile.are_dates)}
    # Numbers such as "$1,200.50" and dates are strings as well, but neither texts nor files.
    if not are_numbers and not profile.are_dates:
        scores |= {**files, "text": _text_score(profile)}
    if not profile.values or not profile.types <= {str, bool, int}:
        return scores
    if profile.separator is not None:
        cells = set(map(str, profile.values))
        parts = {str(part) for cell in cells for part in split_cell(cell, profile.separator)}
        is_short = max(map(len, parts), default=0) <= MAX_CHARS
        scores["category"] = TAGS_SCORE if is_short else 0.0
    elif not is_quantity and _do_repeat(profile):
        is_sentence = profile.words >= SENTENCE_WORDS
        scores["category"] = CATEGORY_OF_SENTENCES_SCORE if is_sentence else CATEGORY_SCORE
    return scores


def _do_repeat(profile: ColumnProfile) -> bool:
    """Return whether the values are short and repeat, as categories do."""
    return 2 * profile.num_different <= len(profile.values) and profile.max_chars <= MAX_CHARS


def _text_score(profile: ColumnProfile) -> float:
    if profile.types != {str}:
        return TEXT_SCORE if profile.values and all(map(_are_words, profile.values)) else 0.0
    # Categories repeat, and names and identifiers are one word. So a column contains texts if
    # its values have several words, or are different in almost every row.
    words, share = profile.words, profile.share_different
    if share > 0.9 or (words > 1.5 and share > 0.05) or (words > 1 and share > 0.5):
        return TEXT_SCORE
    return SENTENCE_SCORE if words >= SENTENCE_WORDS and profile.num_different > 1 else 0.0


def _are_words(cell: Any) -> bool:
    # The messages of a conversation are texts as well.
    return isinstance(cell, list) and all(
        isinstance(word, str) or (isinstance(word, dict) and "content" in word) for word in cell
    )
