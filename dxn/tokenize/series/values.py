"""Read the numbers of a series from a list, a text or a .csv file.

Exported models use it without dxn.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dxn.tokenize.cells.cell_values import has_no_number, plain_number, plain_value

# Values of one series. It is checked before a file is decoded, because a header can promise more
# than fits into memory.
MAX_VALUES = 10_000_000
MAX_SHOWN = 40  # characters of a cell in a message
NPY = b"\x93NUMPY"  # the first bytes of a .npy file
SUFFIXES = (".npy", ".csv", ".parquet")
SEPARATORS = re.compile(r"[\s,;]+")
# Between the words of a text, in which a comma can be a decimal comma.
WORDS = re.compile(r"[\s;]+")
BESIDE_COMMAS = re.compile(r"(?:,?[\s;])+")
GROUPED = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+")  # 1.234,5
DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")
MAX_DECIDING = 100_000  # characters of a text that shows the decimal mark; longer ones take long


def to_steps(values: Any) -> np.ndarray:
    """Return a list or an array as float32 (T, C) or, for frames of cells, (T, H, W).

    NaN is a missing value. An array (T,) becomes (T, 1).

    Raises:
        ValueError: If it has other values than numbers, infinite or too many ones.
    """
    array = values if isinstance(values, np.ndarray) else from_list(values)
    if array.dtype.kind not in "iufb" or array.ndim not in (1, 2, 3):
        raise ValueError(
            "must be numbers with the axes (time steps, channels) or (time steps, rows, columns), "
            f"got {array.dtype} {array.shape}"
        )
    check_count(array.size)
    # A copy, because the memory of an array belongs to the caller, and a file can be read-only.
    with np.errstate(over="ignore"):
        steps = np.array(array, dtype=np.float32, ndmin=1)
    if np.isinf(steps).any():
        raise ValueError("infinite numbers, or numbers beyond 3e38; use NaN for a missing value")
    return steps[:, None] if steps.ndim == 1 else steps


def without_end(steps: np.ndarray) -> np.ndarray | None:
    """Return steps without those at the end that have no value; None if none has one.

    Files of unequal lengths are often padded with NaN at the end.
    """
    present = np.flatnonzero((~np.isnan(steps)).any(axis=tuple(range(1, steps.ndim))))
    return steps[: present[-1] + 1] if len(present) else None


def is_number(word: str) -> bool:
    """Whether a word of a text is a number, or says that there is none."""
    word = word.strip("[]")
    return has_no_number(word) or plain_number(word) is not None


def parse_series(text: str, decimal: str = "") -> Any:
    """Parse a text such as "1 2 nan", "1,2,3" or "[[1, 2], [3, null]]".

    Args:
        text: The text.
        decimal: Decimal mark of the column, see `find_decimal`.
    """
    stripped = text.strip()
    if len(stripped) > 20 * MAX_VALUES:
        raise ValueError(f"a text of {len(stripped):,} characters, more than {20 * MAX_VALUES:,}")
    if stripped.startswith("["):
        try:
            # Python and NumPy write nan and None, and JSON writes NaN and null.
            return json.loads(re.sub(r"(?i)\bnan\b|\bnone\b", "NaN", stripped))
        except (ValueError, RecursionError):
            pass  # NumPy separates numbers by spaces
    is_other = decimal == "." and "," in stripped and len(stripped) <= MAX_DECIDING
    if is_other and _decimal_of(stripped.strip("[] ")) == ",":
        raise ValueError(
            "must have decimal points, as other texts of the column have, got "
            f"{shortened(stripped)}"
        )
    return split_numbers(stripped, decimal)


def split_numbers(text: str, decimal: str = "") -> list[str]:
    """Return the numbers of a text, with decimal points.

    Args:
        text: Numbers that are separated by spaces, semicolons or commas, or in brackets.
        decimal: Decimal mark of the column, see `find_decimal`.

    Raises:
        ValueError: If nothing shows whether a comma separates numbers or is a decimal comma.
    """
    stripped = text.strip().strip("[] ")
    if not stripped:
        return []
    mark = decimal or _decimal_of(stripped)
    if mark == "?":
        raise ValueError(
            f"a comma can be a decimal comma or between two numbers in {shortened(text)}; write "
            "decimal points, or another separator than commas"
        )
    if mark != ",":
        return SEPARATORS.split(stripped)
    return [DECIMAL_COMMA.sub(".", word) for word in BESIDE_COMMAS.split(stripped)]


def find_decimal(cells: Iterable[Any]) -> str:
    """Return the decimal mark of the texts of a column: a point or a comma. "": none shows it.

    It is decided by all texts together. A single "1,5 2,5" can be two numbers or four.
    """
    texts = (cell for cell in cells if isinstance(cell, str) and len(cell) <= MAX_DECIDING)
    marks = Counter(_decimal_of(text.strip().strip("[] ")) for text in texts)
    points, commas = marks["."], marks[","]
    if not points and not commas:
        return ""
    return "," if commas > points else "."


def _decimal_of(text: str) -> str:
    """Return the decimal mark that the numbers of a text show; "" if both are possible.

    "?" is returned if the numbers depend on it.
    """
    words = [word.strip(",") for word in WORDS.split(text)]
    if "." in text:
        return "?" if any(map(GROUPED.fullmatch, words)) else "."
    if any(word.count(",") > 1 for word in words):
        return "."
    pairs = [word.split(",") for word in words if "," in word]
    if not pairs or len(words) == 1:
        return ""
    if all(len(part) == 3 for _, part in pairs):
        return "?"  # 1,050 can be 1050 as well
    # No whole number is written like -0 or 05.
    if any(whole == "-0" or (len(part) > 1 and part[0] == "0") for whole, part in pairs):
        return ","
    if len(pairs) == len(words):
        # Where commas are decimal commas, semicolons separate numbers. Lines are steps of two
        # channels, as in a CSV file.
        between = {mark.strip(" \t") for mark in BESIDE_COMMAS.findall(text)}
        marks = {";": ",", "\n": ".", ",\n": "."}
        return marks.get(between.pop(), "?") if len(between) == 1 else "?"
    # "1 2,3 4" can be two steps of two channels.
    lengths = {len(WORDS.split(step.strip())) for step in text.split(",")}
    return "," if len(lengths) > 1 else "?"


def from_list(values: Any) -> np.ndarray:
    """Convert a list (T,) or a list of lists (T, C), None where a value is missing, to float64."""
    if not isinstance(values, list | tuple):
        raise ValueError(f"must be a list of numbers, got {shortened(values)}")
    check_count(len(values))
    if not any(isinstance(value, list | tuple | np.ndarray) for value in values):
        return np.array([number_of(value) for value in values], dtype=np.float64)
    rows = []
    width = None
    for i, value in enumerate(values):
        if not isinstance(value, list | tuple | np.ndarray):
            raise ValueError(
                f"step {i + 1} must be a list like the other steps, got {shortened(value)}"
            )
        width = len(value) if width is None else width
        if len(value) != width:
            raise ValueError(
                f"every time step must have the same number of channels, got {width} in step 1 and "
                f"{len(value)} in step {i + 1}"
            )
        if (i + 1) * width > MAX_VALUES:
            raise ValueError(f"{len(values) * width:,} values, more than {MAX_VALUES:,}")
        rows.append([number_of(item) for item in value])
    return np.array(rows, dtype=np.float64)


def number_of(value: Any) -> float:
    """Return a value of a series, NaN where it is missing.

    Raises:
        ValueError: If it is not a number.
    """
    if has_no_number(value):
        return math.nan
    value = plain_value(value)
    if isinstance(value, float | np.floating):  # `to_steps` explains infinity
        return float(value)
    # Strictly: a single "1,234" can be 1234 or 1.234, and a series has no column that shows which.
    is_number = isinstance(value, int | str | np.integer) and not isinstance(value, bool)
    number = plain_number(value) if is_number else None
    if number is None:
        raise ValueError(f"must contain only numbers, got {shortened(value)}")
    return number


def read_steps(content: bytes, kinds: str = ".csv") -> list[list[str]]:
    """Read a .csv file with one row per time step. The first row may contain names.

    The index and the numbers of columns that pandas writes are left out.

    Args:
        content: Content of the file.
        kinds: Kinds of files that it could be, for the message about a wrong one.
    """
    try:
        text = content.decode("utf-8-sig")
        separator = ";" if ";" in text.partition("\n")[0] else ","
        rows: list[list[str]] = []
        num_values = 0
        for row in csv.reader(io.StringIO(text), delimiter=separator):
            num_values += len(row)
            # While the file is read: a text needs much more memory as a list of cells.
            check_count(num_values)
            if row:
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"not a {kinds} file of numbers ({error})") from None
    if len(rows) > 1 and rows[0][0] == "" and _are_names(rows[0][1:], rows):
        return [row[1:] for row in rows[1:]]  # the column without a name is the index
    return rows[1:] if rows and _are_names(rows[0], rows) else rows


def _are_names(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether cells of the first of several rows are names of columns."""
    if cells != [str(i) for i in range(len(cells))]:
        return not any(map(is_number, cells))
    # pandas numbers columns without names. A single 0, or 0 and 1, can be values as well.
    if len(rows) == 1:
        return False
    is_index = len(cells) < len(rows[0]) and rows[1][0] == "0"
    return is_index or len(cells) > 2 or (len(cells) > 1 and any("." in c for c in rows[-1]))


def check_count(num_values: int) -> None:
    """Raise ValueError if a series has too many values."""
    if num_values > MAX_VALUES:
        raise ValueError(f"{num_values:,} values, more than {MAX_VALUES:,}")


def shortened(value: Any) -> str:
    """Return the repr of a value for an error message."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
