"""Reading of series from cells: lists, arrays, texts of numbers, and files."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dxn.tokenize.media import BadMedia, bytes_or_path
from dxn.tokenize.npy_file import NPY, read_npy

if TYPE_CHECKING:
    import pyarrow

PARQUET = b"PAR1"  # the first bytes of a file
SUFFIXES = (".npy", ".csv", ".parquet")
# Values of one series. It is checked before a file is decoded, because a header can promise more
# than fits into memory.
MAX_VALUES = 10_000_000
MAX_BYTES = 200_000_000  # size of a .csv or .parquet file
MAX_SHOWN = 40  # characters of a cell in a message
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-"}
SEPARATORS = re.compile(r"[\s,;]+")
# What a text of numbers can consist of: the start of a cell decides quickly in most cases.
NUMBERS = re.compile(r"[-+\[\s.,;\deE\]?]|nan|null|none|na", re.IGNORECASE)


def read_series(source: Any) -> Tensor | None:
    """Read a series as float32 (T, C). NaN is a missing value. None: all values are missing.

    Args:
        source: Numbers (T,) or (T, C) as an array, a list or a list of lists; a text of numbers
            such as "1.5 2 nan"; or the path of a .npy, .csv or .parquet file with one row per time
            step.

    Raises:
        BadMedia: If the cell is no series, or exceeds a limit.
    """
    is_exact = isinstance(source, Tensor)
    if is_exact:
        if source.dtype == torch.bfloat16:  # NumPy has no such type
            source = source.float()
        source = source.numpy(force=True)
    if isinstance(source, str | Path):
        text = str(source)
        source = _read_file(text) if is_series_path(text) else _parse(text)
    elif isinstance(source, bytes):
        source = _read_bytes(source)
    values = source if isinstance(source, np.ndarray) else _from_list(source)
    if values.dtype.kind not in "iufb" or values.ndim not in (1, 2):
        raise BadMedia(
            "must be numbers with one or two axes (time steps, channels), "
            f"got {values.dtype} {values.shape}"
        )
    _check_count(values.size)
    # A copy, because the memory of an array belongs to the caller, and a file can be read-only.
    with np.errstate(over="ignore"):
        x = torch.from_numpy(np.array(values, dtype=np.float32, ndmin=1))
    if x.ndim == 1:
        x = x[:, None]
    if bool(x.isinf().any()):
        raise BadMedia("infinite numbers, or numbers beyond 3e38; use NaN for a missing value")
    # Files of unequal lengths are often padded with NaN at the end.
    present = (~x.isnan().all(1)).nonzero()
    if not len(present):
        return None
    # The end of a tensor has a meaning: it is the time at which a forecast starts.
    return x if is_exact else x[: int(present[-1]) + 1].contiguous()


def is_series_path(value: str) -> bool:
    """Whether a cell is the path of a file, and not a text of numbers."""
    return value.lower().endswith(SUFFIXES)


def is_series(value: Any) -> bool:
    """Whether a cell looks like a series: several numbers, or the path of a file of numbers."""
    if isinstance(value, str | Path):
        return is_series_path(str(value)) or _is_text_of_numbers(str(value))
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


def _is_text_of_numbers(text: str) -> bool:
    if not text or not NUMBERS.match(text):
        return False
    words = SEPARATORS.split(text.strip().strip("[]").strip())
    # Two numbers are usually a range or a place, and a date such as 2026 01 31 has three.
    return len(words) > 3 and all(map(_is_number, words[:100]))


def _is_number(word: str) -> bool:
    word = word.strip("[]")
    if word.lower() in MISSING:
        return True
    try:
        float(word)
    except ValueError:
        return False
    return True


def _parse(text: str) -> Any:
    """Parse a text such as "1 2 nan", "1,2,3" or "[[1, 2], [3, null]]"."""
    stripped = text.strip()
    if len(stripped) > 20 * MAX_VALUES:
        raise BadMedia(f"a text of {len(stripped):,} characters, more than {20 * MAX_VALUES:,}")
    if stripped.startswith("["):
        try:
            # Python and NumPy write nan and None, and JSON writes NaN and null.
            return json.loads(re.sub(r"(?i)\bnan\b|\bnone\b", "NaN", stripped))
        except (ValueError, RecursionError):
            stripped = stripped.strip("[] ")  # NumPy separates numbers by spaces
    return SEPARATORS.split(stripped) if stripped else []


def _from_list(values: Any) -> np.ndarray:
    """Convert a list (T,) or a list of lists (T, C), None where a value is missing, to float64."""
    if not isinstance(values, list | tuple):
        raise BadMedia(f"must be a list of numbers, got {_short(values)}")
    _check_count(len(values))
    if not any(isinstance(value, list | tuple | np.ndarray) for value in values):
        return np.array([_number(value) for value in values], dtype=np.float64)
    rows = []
    width = None
    for i, value in enumerate(values):
        if not isinstance(value, list | tuple | np.ndarray):
            raise BadMedia(f"step {i + 1} must be a list like the other steps, got {_short(value)}")
        width = len(value) if width is None else width
        if len(value) != width:
            raise BadMedia(
                f"every time step must have the same number of channels, got {width} in step 1 and "
                f"{len(value)} in step {i + 1}"
            )
        if (i + 1) * width > MAX_VALUES:
            raise BadMedia(f"{len(values) * width:,} values, more than {MAX_VALUES:,}")
        rows.append([_number(item) for item in value])
    return np.array(rows, dtype=np.float64)


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, str) and value.strip().lower() in MISSING:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float | str | np.number):
        raise BadMedia(f"must contain only numbers, got {_short(value)}")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise BadMedia(f"must contain only numbers, got {_short(value)}") from None


def _read_file(path: str) -> Any:
    suffix = Path(path).suffix.lower()
    opened = bytes_or_path(path)
    if suffix == ".npy":
        return read_npy(opened)
    size = Path(path).stat().st_size
    if size > MAX_BYTES:
        raise BadMedia(f"{size:,} bytes, more than {MAX_BYTES:,}")
    if suffix != ".csv":
        return _read_parquet(path)
    try:
        return _read_csv(Path(path).read_bytes())
    except OSError as error:
        raise BadMedia(f"not a .csv file of numbers ({error})") from None


def _read_bytes(content: bytes) -> Any:
    """Read the content of a file, whose kind its first bytes tell."""
    if content.startswith(NPY):
        return read_npy(io.BytesIO(content))
    if len(content) > MAX_BYTES:
        raise BadMedia(f"{len(content):,} bytes, more than {MAX_BYTES:,}")
    if content.startswith(PARQUET):
        return _read_parquet(io.BytesIO(content))
    return _read_csv(content, ".npy, .csv or .parquet")


def _read_csv(content: bytes, kinds: str = ".csv") -> list[list[str]]:
    """Read a .csv file with one row per time step. The first row may contain names.

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
            _check_count(num_values)
            if row:
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadMedia(f"not a {kinds} file of numbers ({error})") from None
    has_names = rows and not any(map(_is_number, rows[0]))
    return rows[1:] if has_names else rows


def _read_parquet(path: str | io.BytesIO) -> np.ndarray:
    import pyarrow.parquet  # it takes time to import, and few data sets need it

    rows: list[tuple] = []
    num_values = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for field in file.schema_arrow:
                _check_type(field)
            # In batches, because a small file can contain many values, and its header can be wrong.
            for batch in file.iter_batches():
                num_values += batch.num_rows * batch.num_columns
                _check_count(num_values)
                columns = [column.to_pylist() for column in batch.columns]
                rows += zip(*columns, strict=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadMedia(f"not a .parquet file ({str(error).partition(chr(10))[0]})") from None
    return _from_list(rows)


def _check_type(field: pyarrow.Field) -> None:
    """Raise BadMedia for a column without numbers, whose cells can be of any size."""
    import pyarrow

    kinds = pyarrow.types
    is_number = kinds.is_integer(field.type) or kinds.is_floating(field.type)
    if not is_number and not kinds.is_null(field.type):
        name = _short(field.name)
        raise BadMedia(f"must contain only numbers, got column {name} with values of {field.type}")


def _check_count(num_values: int) -> None:
    if num_values > MAX_VALUES:
        raise BadMedia(f"{num_values:,} values, more than {MAX_VALUES:,}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
