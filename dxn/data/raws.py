"""The raw values of an input: in memory up to a limit, and otherwise read again when needed."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from torch import Tensor

from dxn.core.display import track
from dxn.core.errors import UserError
from dxn.core.runtime import release_memory
from dxn.data.files import MISSING, READER_THREADS, OutsidePath, digest, in_parts, with_files
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
Result = TypeVar("Result")


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


class FileColumn(Sequence[Any]):
    """The raw values of an input that reads files, one per row. None where a row has none.

    Values are in memory as long as they fit into the budget. The others are read again when they
    are used. Rows that share a file share its value.

    Args:
        name: Name of the input, for error messages.
        tokenizer: Tokenizer that reads the values.
        cells: What the values are read from.
        file_of: Number of the file of each row. -1: the row has no value.
        values: Raw value of each file. None: it is not in memory.
        facts: For each file, its size and time of modification, and the number of tokens and the
            digest of its value, see `VALUE_FACTS`. If all files were decoded, the last two are only
            known of values that are not in memory; of others, the number of tokens is NaN.
        on_bad: What to do with a file that was not decoded, and turns out to be bad: "error", or
            any other value to treat it as missing.

    Attributes:
        bad: Why such files are bad, by number.
    """

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        cells: Column,
        file_of: np.ndarray,
        values: Sequence[Any],
        facts: np.ndarray,
        on_bad: OnBad = "error",
    ):
        self.name = name
        self.tokenizer = tokenizer
        self.cells = cells
        self.file_of = file_of
        self.values = values
        self.facts = facts
        self.on_bad: OnBad = on_bad
        self.bad: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.file_of)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> FileColumn: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        file = self.file_of[index]
        if file < 0 or self.values[file] is not None:
            return None if file < 0 else self.values[file]
        source = self.cells[index]
        path = source if isinstance(source, str | Path) else "a file"
        version = (self.facts["size"][file], self.facts["time"][file])
        if _version(source) != version:
            raise UserError(
                f"{self.name}: {path} was changed or deleted after it had been checked; run the "
                "command again"
            )
        try:
            return _read(self.tokenizer, source)
        except BadMedia as error:
            if self.on_bad != "error":
                self.bad[int(file)] = f"{self.name}: {path} {error}"
                return None
            raise UserError(
                f"{self.name}: {path} {error}; correct the data, or set on_bad to skip or missing "
                "(dxn check lists all bad rows)"
            ) from error

    def fact(self, row: int) -> Any:
        """Return the `VALUE_FACTS` of the file of a row; None if they are not known."""
        file = self.file_of[row]
        fact = self.facts[file]
        return None if file < 0 or np.isnan(fact["num_tokens"]) else fact

    def problem(self, row: int) -> str | None:
        """Return why the file of a row turned out to be bad when it was used, see `bad`."""
        return self.bad.get(int(self.file_of[row]))

    def take(self, rows: np.ndarray) -> FileColumn:
        """Return the column of these rows, int64, without reading any of them."""
        cells, file_of = self.cells.take(rows), self.file_of[rows]
        column = FileColumn(
            self.name,
            self.tokenizer,
            cells,
            file_of,
            self.values,
            self.facts,
            self.on_bad,
        )
        column.bad = self.bad
        return column

    @property
    def is_complete(self) -> bool:
        """Whether all values are in memory."""
        return all(self.values[file] is not None for file in np.unique(self.file_of) if file >= 0)


# Version of a file, and number of tokens and digest of its value.
VALUE_FACTS = np.dtype([("size", "i8"), ("time", "i8"), ("num_tokens", "f8"), ("digest", "V16")])


def read_column(
    name: str,
    cells: Column,
    tokenizer: Tokenizer,
    budget: CacheBudget,
    *,
    only_headers: bool = False,
    on_bad: OnBad = "error",
) -> tuple[Column | FileColumn, np.ndarray, dict[int, str]]:
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
        return _read_files(name, cells, tokenizer, budget, only_headers, on_bad)
    read = tokenizer.reader.read
    reasons: dict[int, str] = {}
    present = np.zeros(len(cells), bool)
    for i, cell in enumerate(track(cells, len(cells), "reading files")):
        try:
            present[i] = cell is not None and read(cell) is not None
        except BadMedia as error:
            reasons[i] = str(error)
    if reasons:  # a bad cell has no raw value
        cells = as_column([c if p else None for c, p in zip(cells, present, strict=True)])
    return Column(cells, decode=read), present, reasons


def _read_files(
    name: str,
    cells: Column,
    tokenizer: Tokenizer,
    budget: CacheBudget,
    only_headers: bool,
    on_bad: OnBad,
) -> tuple[FileColumn, np.ndarray, dict[int, str]]:
    """Read each file of an input once, see `read_column`."""
    column = with_files(cells)
    assert column.files is not None and column.rows is not None
    survey = column.files
    # The files of these rows. Other splits have other files of the same column.
    numbers, file_of = np.unique(column.rows, return_inverse=True)
    sources = Column(column.values, numbers)
    # Bytes in cells cannot be read again, so they are not dropped, but they count.
    if not sources.has_only_texts:
        contents = [source for source in sources if isinstance(source, bytes)]
        if sources.is_arrow:  # these bytes are copies of the cells
            budget.num_bytes -= sum(map(len, contents))
        else:
            budget.take_anyway(contents)

    facts = np.zeros(len(sources), VALUE_FACTS)
    facts["size"] = survey.facts["size"][numbers]
    facts["time"] = survey.facts["time"][numbers]
    facts["num_tokens"] = np.nan
    values: list[Any] = [None] * len(sources)
    errors: dict[int, str] = {}
    is_empty = facts["size"] == MISSING  # or because it is a video without a sound track
    # Bytes and arrays are in memory, so they are decoded.
    has_header = (facts["size"] >= 0) & only_headers
    is_decoded = np.zeros(len(sources), bool)
    is_full = budget.num_bytes <= 0  # whether a value did not fit into the memory

    def chosen() -> Iterator[int]:
        """Yield the files that are decoded."""
        for file in np.flatnonzero(~is_empty).tolist():
            if not (is_full and has_header[file]):
                is_decoded[file] = True
                yield file

    def read(file: int) -> tuple[int, Any]:
        try:
            return file, _read(tokenizer, sources[file])
        except BadMedia as error:
            # Return an error as a value: each row that shares this source gets an issue. A new one,
            # because the traceback of the old one keeps the decoded part of the file in memory.
            return file, BadMedia(str(error))

    # Results are handled one by one, so that values that do not fit are freed immediately.
    results = _read_ahead(read, chosen(), len(sources))
    for file, raw in track(results, len(sources), "reading files"):
        is_empty[file] = raw is None or isinstance(raw, BadMedia)
        if isinstance(raw, BadMedia):
            errors[file] = str(raw)
        if is_empty[file]:
            continue
        is_kept = budget.take(size_of(raw))
        values[file] = raw if is_kept else None
        is_full |= not is_kept
        if has_header[file] or not is_kept:
            facts["num_tokens"][file] = tokenizer.length(raw)
        if not has_header[file] and not is_kept:
            facts["digest"][file] = digest(raw)

    rest = np.flatnonzero(has_header & ~is_decoded)

    def headers(part: slice) -> tuple[np.ndarray, dict[int, str], np.ndarray]:
        """Return the lengths of files, NaN without one, the errors, and the digests."""
        lengths = np.full(part.stop - part.start, np.nan)
        found: dict[int, str] = {}
        for i, (file, source) in enumerate(zip(rest[part], sources.take(rest[part]), strict=True)):
            try:
                length = tokenizer.header(source)
                lengths[i] = np.nan if length is None else length
            except BadMedia as error:
                found[int(file)] = str(error)
        return lengths, found, survey.digests(numbers[rest[part]])

    for part, (lengths, found, digests) in in_parts(headers, len(rest), "reading headers"):
        facts["num_tokens"][rest[part]] = lengths
        errors |= found
        survey.facts["digest"][numbers[rest[part]]] = digests
    is_empty[rest] = np.isnan(facts["num_tokens"][rest])
    # The same digest whether or not the value stays in memory.
    good = np.flatnonzero(has_header & ~is_empty)
    survey.read_digests(numbers[good])
    facts["digest"][good] = survey.facts["digest"][numbers[good]].view("V16")[:, 0]
    if len(sources) >= MANY_FILES:
        release_memory()
    bad = np.flatnonzero(np.isin(file_of, list(errors))).tolist() if errors else []
    reasons = {row: errors[int(file_of[row])] for row in bad}
    file_of[is_empty[file_of]] = -1
    opened = FileColumn(name, tokenizer, column, file_of, values, facts, on_bad)
    return opened, file_of >= 0, reasons


def _read(tokenizer: Tokenizer, source: Any) -> Any:
    """Read a file. Raise BadMedia if it is bad, or outside the data folder."""
    if isinstance(source, OutsidePath):
        raise BadMedia(source.reason)
    return tokenizer.reader.read(source)


def present_values(columns: Sequence[tuple[Sequence[Any], np.ndarray]]) -> Sequence[Any]:
    """Return the raw values of several inputs, without those that are missing.

    A file that is not in memory is read when an item is used.

    Args:
        columns: The raw values of each input, and whether each row has one.
    """
    column, present = columns[0]
    if len(columns) == 1 and isinstance(column, Column | FileColumn):
        return column.take(np.flatnonzero(present))
    rows = [np.flatnonzero(present) for _, present in columns]
    column_of = np.repeat(np.arange(len(columns)), [len(each) for each in rows])
    row_of = np.concatenate(rows)
    return Column(
        range(len(row_of)), decode=lambda i: columns[int(column_of[i])][0][int(row_of[i])]
    )


def lengths_of(column: Sequence[Any], rows: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the approximate numbers of tokens of rows, without reading their files again."""
    if not isinstance(column, FileColumn):
        known = column if isinstance(column, Column) else Column(column)
        return tokenizer.lengths(known.take(rows))
    lengths = column.facts["num_tokens"][column.file_of[rows]]
    for i in np.flatnonzero(np.isnan(lengths)).tolist():
        lengths[i] = tokenizer.length(column[int(rows[i])])
    return lengths


def digest_of(column: Sequence[Any], row: int) -> bytes:
    """Return a hash of the raw value of a row, without reading its file again."""
    fact = column.fact(row) if isinstance(column, FileColumn) else None
    return digest(column[row]) if fact is None else fact["digest"].tobytes()


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


def memory_lines(columns: Sequence[Mapping[str, Sequence[Any]]]) -> list[str]:
    """Describe the memory of inputs that need much, or whose files are read again.

    Args:
        columns: Raw values of each split by input name, see `Opened.raws`.
    """
    by_input: dict[str, list[FileColumn]] = {}
    for split in columns:
        for name, column in split.items():
            if isinstance(column, FileColumn):
                by_input.setdefault(name, []).append(column)
    lines: list[str] = []
    for name, parts in by_input.items():
        num_bytes = num_files = num_loaded = 0
        for part in parts:
            files, rows = np.unique(part.file_of, return_index=True)
            rows = rows[files >= 0]
            in_memory = [part.values[file] for file in files[files >= 0].tolist()]
            num_files += len(rows)
            num_loaded += sum(value is not None for value in in_memory)
            num_bytes += sum(size_of(value) for value in in_memory if value is not None)
            if not part.cells.has_only_texts:
                contents = part.cells.take(rows)
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


def _read_ahead(
    read: Callable[[int], Result], files: Iterable[int], count: int
) -> Iterator[Result]:
    """Yield `read` of each of up to `count` files, which a few threads compute in advance.

    Executor.map would start all of them, and keep the results of those that are ready.
    """
    if count == 1:
        yield from map(read, files)
        return
    with ThreadPoolExecutor(READER_THREADS) as pool:
        started: deque[Future[Result]] = deque()
        for file in files:
            started.append(pool.submit(read, file))
            if len(started) == MAX_AHEAD:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
