"""The raw values of an input: in memory up to a limit, and otherwise read again when needed."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.core.display import track
from dxn.core.errors import UserError
from dxn.core.runtime import release_memory
from dxn.data.cell_paths import OutsidePath
from dxn.data.files import MISSING, READER_THREADS, digest, in_parts, with_files
from dxn.data.rows import Column, OnBad, as_column
from dxn.tokenize.base import BadMedia, Tokenizer

GB = 1e9
# Default of loader.cache_gb. 4,000 photos need half of it with image_size=224, and the whole
# training stays under 2 GB.
CACHE_GB = 1.0
# Files that are read before their turn. They are not part of the budget yet.
MAX_AHEAD = 16
# From this number of files on, unused memory is returned. This takes as long as a prediction.
MANY_FILES = 100
# Less than this needs no line in the description of a run.
MIN_PRINTED_GB = 0.5


class CacheBudget:
    """The memory that is left for decoded files. All inputs and splits of a command share it.

    Args:
        gigabytes: Maximum number of gigabytes.
    """

    def __init__(self, gigabytes: float = CACHE_GB):
        self.num_bytes = gigabytes * GB
        self.counted: set[int] = set()  # ids of the files of `take_anyway`

    def take(self, num_bytes: int) -> bool:
        """Reserve memory; return whether there was enough."""
        is_enough = num_bytes <= self.num_bytes
        if is_enough:
            self.num_bytes -= num_bytes
        return is_enough

    def take_anyway(self, files: Sequence[bytes]) -> None:
        """Subtract files that are in memory whether or not they fit, each of them once."""
        for file in files:
            # The inputs of a row can be parts of the same file.
            if id(file) not in self.counted:
                self.counted.add(id(file))
                self.num_bytes -= len(file)


# Version of a file, and number of tokens and digest of its value.
VALUE_FACTS = np.dtype([("size", "i8"), ("time", "i8"), ("num_tokens", "f8"), ("digest", "V16")])


class RawFiles(Sequence[Any]):
    """The raw values of the distinct files of an input. None where a file has none.

    Values are in memory as long as they fit into the budget. The others are read again when they
    are used.

    Args:
        name: Name of the input, for error messages.
        tokenizer: Tokenizer that reads the values.
        sources: Paths or contents of the files, see `dxn.data.files.with_files`.
        on_bad: What to do with a file that was not decoded, and turns out to be bad: "error", or
            any other value to treat it as missing.

    Attributes:
        values: Raw value of each file. None: it is not in memory.
        facts: For each file, its size and time of modification, and the number of tokens and the
            digest of its value, see `VALUE_FACTS`. If all files were decoded, the last two are only
            known of values that are not in memory; of others, the number of tokens is NaN.
        is_missing: Whether a file has no value, bool: there is no cell, the file is bad, or it is a
            video without a sound track.
        errors: Why files were bad when they were read first, by number.
        bad: Why files that were not decoded at first turned out to be bad, by number.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, sources: Column, on_bad: OnBad = "error"):
        assert sources.files is not None
        self.name = name
        self.tokenizer = tokenizer
        self.sources = sources
        self.on_bad: OnBad = on_bad
        self.values: list[Any] = [None] * len(sources)
        self.facts = np.zeros(len(sources), VALUE_FACTS)
        for fact in ("size", "time"):
            self.facts[fact] = sources.files.facts[fact][sources.rows]
        self.facts["num_tokens"] = np.nan
        self.is_missing = self.facts["size"] == MISSING
        self.errors: dict[int, str] = {}
        self.bad: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, file: Any) -> Any:  # only single files are read, no slices
        if self.is_missing[file] or self.values[file] is not None:
            return self.values[file]
        source = self.sources[file]
        path = source if isinstance(source, str | Path) else "a file"
        if _version(source) != (self.facts["size"][file], self.facts["time"][file]):
            raise UserError(
                f"{self.name}: {path} was changed or deleted after it had been checked; run the "
                "command again"
            )
        try:
            return self.read(source)
        except BadMedia as error:
            if self.on_bad != "error":
                self.bad[file] = f"{self.name}: {path}: {error}"
                return None
            raise UserError(
                f"{self.name}: {path}: {error}; correct the data, or set on_bad to skip or missing "
                "(dxn check lists all bad rows)"
            ) from error

    def are_in_memory(self, files: np.ndarray | None) -> bool:
        """Return whether the values of these files, int64, or of all of them are in memory."""
        is_read_again = ~self.is_missing & [value is None for value in self.values]
        return not is_read_again[slice(None) if files is None else files].any()

    def read(self, source: Any) -> Any:
        """Return the value of a file. Raise BadMedia if it is bad, or outside the data folder."""
        if isinstance(source, OutsidePath):
            raise BadMedia(source.reason)
        return self.tokenizer.reader.read(source)

    def decode(self, budget: CacheBudget, *, only_headers: bool) -> None:
        """Read each file once, as long as it fits into the budget, or only its header."""
        # Bytes and arrays are in memory, so they are decoded.
        has_header = (self.facts["size"] >= 0) & only_headers
        is_full = budget.num_bytes <= 0  # whether a value did not fit into the memory
        not_decoded: list[int] = []
        files = np.flatnonzero(~self.is_missing).tolist()
        # Executor.map would start all of them, and keep the results of those that are ready.
        started: deque[tuple[int, Future[Any]]] = deque()
        with ThreadPoolExecutor(READER_THREADS) as pool:
            for file in track(files, len(files), "reading files"):
                if is_full and has_header[file]:
                    not_decoded.append(file)
                    continue
                started.append((file, pool.submit(self.read, self.sources[file])))
                # Results are handled one by one, so that values that do not fit are freed
                # immediately.
                if len(started) == MAX_AHEAD:
                    is_full |= not self._add(*started.popleft(), budget, has_header)
            while started:
                self._add(*started.popleft(), budget, has_header)
        self._read_headers(np.array(not_decoded, np.int64))
        self._add_digests(np.flatnonzero(has_header & ~self.is_missing))
        if len(files) >= MANY_FILES:
            release_memory()

    def _add(
        self, file: int, result: Future[Any], budget: CacheBudget, has_header: np.ndarray
    ) -> bool:
        """Add the value of a file; return False if it does not fit into the budget."""
        error = result.exception()
        if isinstance(error, BadMedia):
            self.errors[file] = str(error)
        value = None if isinstance(error, BadMedia) else result.result()
        if value is None:
            self.is_missing[file] = True
            return True
        fits = budget.take(size_of(value))
        if fits:
            self.values[file] = value
        if has_header[file] or not fits:
            self.facts["num_tokens"][file] = self.tokenizer.length(value)
        if not has_header[file] and not fits:
            self.facts["digest"][file] = digest(value)
        return fits

    def _read_headers(self, files: np.ndarray) -> None:
        survey, numbers = self.sources.files, self.sources.rows
        assert survey is not None and numbers is not None

        def read_part(part: slice) -> tuple[np.ndarray, dict[int, str], np.ndarray]:
            """Return the lengths of files, NaN without one, the errors, and the digests."""
            lengths = np.full(part.stop - part.start, np.nan)
            errors: dict[int, str] = {}
            for i, file in enumerate(files[part].tolist()):
                try:
                    length = self.tokenizer.header(self.sources[file])
                    lengths[i] = np.nan if length is None else length
                except BadMedia as error:
                    errors[file] = str(error)
            return lengths, errors, survey.digests(numbers[files[part]])

        for part, result in in_parts(read_part, len(files), "reading headers"):
            lengths, errors, digests = result
            self.facts["num_tokens"][files[part]] = lengths
            self.errors |= errors
            survey.facts["digest"][numbers[files[part]]] = digests
        self.is_missing[files] = np.isnan(self.facts["num_tokens"][files])

    def _add_digests(self, files: np.ndarray) -> None:
        """Add the digests of the ends of files, whether or not their values stay in memory."""
        survey, numbers = self.sources.files, self.sources.rows
        assert survey is not None and numbers is not None
        survey.read_digests(numbers[files])
        self.facts["digest"][files] = survey.facts["digest"][numbers[files]].view("V16")[:, 0]


def read_column(
    name: str,
    cells: Column,
    tokenizer: Tokenizer,
    budget: CacheBudget,
    *,
    only_headers: bool = False,
    on_bad: OnBad = "error",
) -> tuple[Column, np.ndarray, dict[int, str]]:
    """Read one input of all rows.

    Args:
        name: Name of the input.
        cells: What the values are read from, one per row. None where it is missing.
        tokenizer: Tokenizer of the input.
        budget: Memory for decoded files.
        only_headers: Whether only the headers of files that do not fit are read.
        on_bad: What to do with such a file that turns out to be bad when it is used.

    Returns:
        The raw values, None where they are missing or bad; whether each row has one, bool; and why
        values are bad, by row. Values that are not of files are read again when they are used,
        because that takes less time than preparing them.
    """
    if tokenizer.reader.files:
        cells = with_files(cells)
        assert cells.rows is not None
        # The files of these rows. Other splits have other files of the same column.
        numbers, file_of = np.unique(cells.rows, return_inverse=True)
        sources = Column(cells.values, numbers, files=cells.files)
        # Bytes in cells cannot be read again, so they are not dropped, but they count.
        if not sources.has_only_texts:
            contents = [source for source in sources if isinstance(source, bytes)]
            if sources.is_arrow:  # these bytes are copies of the cells
                budget.num_bytes -= sum(map(len, contents))
            else:
                budget.take_anyway(contents)
        files = RawFiles(name, tokenizer, sources, on_bad)
        files.decode(budget, only_headers=only_headers)
        bad = np.flatnonzero(np.isin(file_of, list(files.errors))).tolist() if files.errors else []
        reasons = {row: files.errors[int(file_of[row])] for row in bad}
        return Column(files, file_of), ~files.is_missing[file_of], reasons
    read = tokenizer.reader.read
    reasons: dict[int, str] = {}
    present = np.zeros(len(cells), bool)
    is_unchanged = True
    for i, cell in enumerate(track(cells, len(cells), "reading files")):
        try:
            raw = None if cell is None else read(cell)
        except BadMedia as error:
            reasons[i] = str(error)
            continue
        present[i] = raw is not None
        is_unchanged = is_unchanged and raw is cell
    if reasons:  # a bad cell has no raw value
        cells = as_column([c if p else None for c, p in zip(cells, present, strict=True)])
    return cells if is_unchanged else Column(cells, decode=read), present, reasons


def present_values(columns: Sequence[tuple[Column, np.ndarray]]) -> Column:
    """Return the raw values of several inputs, without those that are missing.

    A file that is not in memory is read when an item is used.

    Args:
        columns: The raw values of each input, and whether each row has one.
    """
    if len(columns) == 1:
        ((column, present),) = columns
        return column.take(np.flatnonzero(present))
    rows = [np.flatnonzero(present) for _, present in columns]
    column_of = np.repeat(np.arange(len(columns)), [len(numbers) for numbers in rows])
    row_of = np.concatenate(rows)
    return Column(
        range(len(row_of)), decode=lambda i: columns[int(column_of[i])][0][int(row_of[i])]
    )


def lengths_of(column: Column, rows: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the approximate numbers of tokens of rows, without reading their files again."""
    column = column.take(rows)
    if not isinstance(column.values, RawFiles):
        return tokenizer.lengths(column)
    lengths = column.values.facts["num_tokens"][column.rows]
    for i in np.flatnonzero(np.isnan(lengths)).tolist():
        lengths[i] = tokenizer.length(column[i])
    return lengths


def digest_of(column: Column, row: int) -> bytes:
    """Return a hash of the raw value of a row, without reading its file again."""
    if isinstance(column.values, RawFiles) and column.rows is not None:
        facts = column.values.facts[column.rows[row]]
        if not np.isnan(facts["num_tokens"]):
            return facts["digest"].tobytes()
    return digest(column[row])


def size_of(value: Any) -> int:
    """Return the approximate number of bytes of a raw value."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sys.getsizeof(value)


def _version(source: Any) -> tuple[int, int]:
    """Return size and time of modification of a file. (-1, -1) if there is no file."""
    if not isinstance(source, str | Path):
        return -1, -1
    try:
        status = os.stat(source)  # noqa: PTH116 (creating a Path takes longer)
    except (OSError, ValueError):  # a name can contain a zero byte
        return -1, -1
    return status.st_size, status.st_mtime_ns


def memory_lines(columns: Sequence[Mapping[str, Column]]) -> list[str]:
    """Describe the memory of inputs that need much, or whose files are read again.

    Args:
        columns: Raw values of each split by input name, see `Opened.raws`.
    """
    by_input: dict[str, list[tuple[RawFiles, np.ndarray]]] = {}
    for split in columns:
        for name, column in split.items():
            files, file_of = column.values, column.rows
            if isinstance(files, RawFiles) and file_of is not None:
                numbers = np.unique(file_of)
                present = numbers[~files.is_missing[numbers]]
                by_input.setdefault(name, []).append((files, present))
    lines: list[str] = []
    for name, parts in by_input.items():
        num_bytes = num_files = num_loaded = 0
        for files, numbers in parts:
            in_memory = [files.values[file] for file in numbers.tolist()]
            num_files += len(numbers)
            num_loaded += sum(value is not None for value in in_memory)
            num_bytes += sum(size_of(value) for value in in_memory if value is not None)
            if not files.sources.has_only_texts:
                contents = files.sources.take(numbers)
                num_bytes += sum(len(cell) for cell in contents if isinstance(cell, bytes))
        line = f"{name}: {_size(num_bytes)} in memory"
        if num_loaded < num_files:
            lines.append(
                f"{line}, {num_files - num_loaded:,} of {num_files:,} files are read again in "
                "each epoch (loader.cache_gb)"
            )
        elif num_bytes >= MIN_PRINTED_GB * GB:
            lines.append(line)
    return lines


def _size(num_bytes: float) -> str:
    # Less than 50 MB would round to 0.0 GB.
    return f"{num_bytes / GB:.1f} GB" if num_bytes >= GB / 10 else f"{num_bytes / 1e6:.0f} MB"
