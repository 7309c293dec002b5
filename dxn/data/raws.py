"""The raw values of an input: in memory up to a limit, and otherwise read again when needed."""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
from torch import Tensor

from dxn.core.display import track
from dxn.core.errors import UserError
from dxn.core.runtime import release_memory
from dxn.data.sources.confine import OutsidePath
from dxn.tokenize.base import BadMedia, Tokenizer

GB = 1e9
# Default of loader.cache_gb. 4,000 photos need half of it with image_size=224, and the whole
# training stays under 2 GB.
CACHE_GB = 1.0
# Number of threads that read files. Image and audio decoders release the GIL, so threads run in
# parallel; more than two are not faster if the disk is the bottleneck.
READERS = 2
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
        self.counted: set[int] = set()  # of `take_anyway`

    def take(self, num_bytes: int) -> bool:
        """Reserve memory; return whether there was enough."""
        is_enough = num_bytes <= self.num_bytes
        if is_enough:
            self.num_bytes -= num_bytes
        return is_enough

    def take_anyway(self, files: Iterable[bytes]) -> None:
        """Subtract files that are in memory whether or not they fit, each of them once."""
        for file in files:
            # The inputs of a row can be parts of the same file.
            if id(file) not in self.counted:
                self.counted.add(id(file))
                self.num_bytes -= len(file)


@dataclass(frozen=True, slots=True)
class Unloaded:
    """What is kept of a raw value that does not fit into memory.

    Args:
        source: The path or bytes that the value is read from.
        version: Version of the file, see `file_version`.
        num_tokens: Approximate number of tokens of the value.
        digest: Hash of the value.
    """

    source: Any
    version: tuple[int, int] | None
    num_tokens: float
    digest: bytes


class RawColumn(Sequence[Any]):
    """The raw values of an input that reads files, one per row. None where a row has none.

    Indexing and iterating return raw values, and read those again that are not in memory. Rows that
    share a file share its value.

    Args:
        name: Name of the input, for error messages.
        prepare: Tokenizer that reads the values.
        values: A raw value, Unloaded or None per row.
        source_bytes: Bytes of the files that are in memory anyway, such as those of an archive.
    """

    def __init__(
        self, name: str, prepare: Tokenizer, values: Sequence[Any], *, source_bytes: int = 0
    ):
        self.name = name
        self.prepare = prepare
        self.values = values
        self.source_bytes = source_bytes

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> RawColumn: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(range(*index.indices(len(self))))
        value = self.values[index]
        return self._read(value) if isinstance(value, Unloaded) else value

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def take(self, rows: Sequence[int]) -> RawColumn:
        """Return the column of these rows, without reading any of them."""
        values = [self.values[i] for i in rows]
        return RawColumn(self.name, self.prepare, values, source_bytes=self.source_bytes)

    @property
    def files(self) -> list[Any]:
        """The raw value, or Unloaded, of each file once."""
        return list({id(v): v for v in self.values if v is not None}.values())

    @property
    def is_complete(self) -> bool:
        """Whether all values are in memory."""
        return not any(isinstance(value, Unloaded) for value in self.values)

    def _read(self, value: Unloaded) -> Any:
        problem = "was changed or deleted"
        if file_version(value.source) == value.version:
            try:
                return self.prepare.reader.read(value.source)
            except BadMedia as error:
                problem = f"cannot be read any more ({error})"
        # The first reading has checked the file, so the problem is new.
        path = value.source if isinstance(value.source, str | Path) else "a file"
        raise UserError(
            f"{self.name}: {path} {problem} after it had been checked; run the command again"
        )


def read_column(
    name: str, cells: Sequence[Any], prepare: Tokenizer, budget: CacheBudget
) -> tuple[Sequence[Any], dict[int, str]]:
    """Read one input of all rows.

    Args:
        name: Name of the input.
        cells: What the values are read from, one per row. None where it is missing.
        prepare: Tokenizer of the input.
        budget: Memory for decoded files.

    Returns:
        One raw value per row, None where it is missing or bad; and why values are bad, by row.
    """
    # Equal strings and bytes are read once. Arrays and lists are not hashable, so each of them has
    # its row index as the key.
    keys = [cell if isinstance(cell, str | bytes) else i for i, cell in enumerate(cells)]
    sources = {key: cell for key, cell in zip(keys, cells, strict=True) if cell is not None}
    values = _read_sources(sources, prepare, budget)
    raws: list[Any] = []
    reasons: dict[int, str] = {}
    for i, (key, cell) in enumerate(zip(keys, cells, strict=True)):
        raw = None if cell is None else values[key]
        if isinstance(raw, BadMedia):
            reasons[i] = str(raw)
            raw = None
        raws.append(raw)
    if not prepare.reader.files:
        return raws, reasons
    return RawColumn(name, prepare, raws, source_bytes=_bytes_in_memory(sources)), reasons


def take_rows(column: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    """Return the values of some rows, without reading files again."""
    return column.take(rows) if isinstance(column, RawColumn) else [column[i] for i in rows]


def present_values(columns: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Return the values of all columns of a preprocessor, without those that are missing.

    Files that are not in memory are read when an item of the sequence is used.
    """
    parts: list[Sequence[Any]] = []
    for column in columns:
        parts.append(take_rows(column, present_rows(column)))
    first = parts[0]
    if isinstance(first, RawColumn):
        stored = [part.values for part in parts if isinstance(part, RawColumn)]
        return RawColumn(first.name, first.prepare, list(chain.from_iterable(stored)))
    return list(chain.from_iterable(parts))


def present_rows(column: Sequence[Any]) -> list[int]:
    """Return the rows that have a raw value, without reading any of them."""
    stored = column.values if isinstance(column, RawColumn) else column
    return [row for row, value in enumerate(stored) if value is not None]


def is_present(column: Sequence[Any], row: int) -> bool:
    """Whether a row has a raw value, without reading it."""
    return _stored(column, row) is not None


def num_tokens_of(column: Sequence[Any], row: int, prepare: Tokenizer) -> float:
    """Return the approximate number of tokens of a row, without reading its file again."""
    value = _stored(column, row)
    return value.num_tokens if isinstance(value, Unloaded) else prepare.length(value)


def digest_of(column: Sequence[Any], row: int) -> bytes:
    """Return a hash of the raw value of a row, without reading its file again."""
    value = _stored(column, row)
    return value.digest if isinstance(value, Unloaded) else digest(value)


def digest(raw: Any) -> bytes:
    """Return a hash of the content of a raw value."""
    if isinstance(raw, str | float):  # most cells
        return hashlib.blake2b(repr(raw).encode(), digest_size=16).digest()
    content = hashlib.blake2b(digest_size=16)
    if isinstance(raw, Tensor):
        raw = raw.numpy(force=True)
    if isinstance(raw, np.ndarray) and raw.dtype == object:
        raw = raw.tolist()
    if isinstance(raw, np.ndarray):
        # Include the shape: equal bytes with different shapes are different images.
        content.update(repr(raw.shape).encode())
        content.update(np.ascontiguousarray(raw).data)
    elif isinstance(raw, list | tuple | Mapping) and _has_arrays(raw):
        # The repr of a large array is shortened.
        content.update(repr((type(raw), len(raw))).encode())
        items = raw.items() if isinstance(raw, Mapping) else raw
        for item in items:
            content.update(digest(item))
    else:
        content.update(repr(raw).encode())
    return content.digest()


def _has_arrays(raw: Any) -> bool:
    """Whether a raw value contains arrays. Long lists of words are hashed faster as a whole."""
    if isinstance(raw, Mapping):
        return _has_arrays(list(raw.values()))
    if isinstance(raw, list | tuple):
        return any(map(_has_arrays, raw))
    return isinstance(raw, Tensor | np.ndarray)


def size_of(value: Any) -> int:
    """Return the approximate number of bytes of a raw value."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    return sys.getsizeof(value)


def file_version(source: Any) -> tuple[int, int] | None:
    """Return size and time of modification of a file. None if there is no file."""
    if not isinstance(source, str | Path):
        return None
    try:
        status = Path(source).stat()
    except (OSError, ValueError):  # a name can contain a zero byte
        return None
    return status.st_size, status.st_mtime_ns


def memory_lines(columns: Sequence[Mapping[str, Sequence[Any]]]) -> list[str]:
    """Describe the memory of inputs that need much, or whose files are read again.

    Args:
        columns: Raw values of each split by input name, see `Opened.raws`.
    """
    by_input: dict[str, list[RawColumn]] = {}
    for split in columns:
        for name, column in split.items():
            if isinstance(column, RawColumn):
                by_input.setdefault(name, []).append(column)
    lines: list[str] = []
    for name, parts in by_input.items():
        files = [file for part in parts for file in part.files]
        loaded = [file for file in files if not isinstance(file, Unloaded)]
        num_bytes = sum(map(size_of, loaded)) + sum(part.source_bytes for part in parts)
        line = f"{name}: {_size(num_bytes)} in memory"
        if len(loaded) < len(files):
            lines.append(
                f"{line}, {len(files) - len(loaded):,} of {len(files):,} files are read again in "
                "each epoch (loader.cache_gb)"
            )
        elif num_bytes >= MIN_PRINTED_GB * GB:
            lines.append(line)
    return lines


def _size(num_bytes: float) -> str:
    # Less than 50 MB would round to 0.0 GB.
    return f"{num_bytes / GB:.1f} GB" if num_bytes >= GB / 10 else f"{num_bytes / 1e6:.0f} MB"


def _read_sources(
    sources: Mapping[Any, Any], prepare: Tokenizer, budget: CacheBudget
) -> dict[Any, Any]:
    """Read sources by key. A value is a raw value, `Unloaded`, or the error of a bad source."""

    # Values that are not read from files are in memory anyway, as the cells of the table.
    is_limited = prepare.reader.files

    def read(source: Any) -> tuple[Any, Any]:
        if isinstance(source, OutsidePath):
            return BadMedia(source.reason), None
        # The version before reading: a change during the reading is detected later.
        version = file_version(source) if is_limited else None
        try:
            return prepare.reader.read(source), version
        except BadMedia as error:
            # Return an error as a value: each row that shares this source gets a fault. A new one,
            # because the traceback of the old one keeps the decoded part of the file in memory.
            return BadMedia(str(error)), version

    if is_limited:
        # The bytes of an archive cannot be read again, so they are not dropped, but they count.
        budget.take_anyway(source for source in sources.values() if isinstance(source, bytes))
    values: dict[Any, Any] = {}
    # A number takes less time to read than to pass to a thread.
    read_all: Any = _read_ahead if is_limited and len(sources) > 1 else map
    # Results are handled one by one, so that values that do not fit are freed immediately.
    results = track(read_all(read, sources.values()), len(sources), "reading files")
    for (key, source), (raw, version) in zip(sources.items(), results, strict=True):
        # None: there is nothing to read, such as a video without a sound track.
        is_raw = raw is not None and not isinstance(raw, BadMedia)
        fits = not is_raw or not is_limited or budget.take(size_of(raw))
        values[key] = raw
        if not fits:
            values[key] = Unloaded(source, version, prepare.length(raw), digest(raw))
    if is_limited and len(sources) >= MANY_FILES:
        release_memory()
    return values


def _read_ahead(read: Callable[[Any], Any], sources: Iterable[Any]) -> Iterator[Any]:
    """Yield `read` of each source, which a few threads compute in advance.

    Executor.map would start all of them, and keep the results of those that are ready.
    """
    with ThreadPoolExecutor(READERS) as pool:
        started: deque[Future[Any]] = deque()
        for source in sources:
            started.append(pool.submit(read, source))
            if len(started) == MAX_AHEAD:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()


def _bytes_in_memory(sources: Mapping[Any, Any]) -> int:
    return sum(len(source) for source in sources.values() if isinstance(source, bytes))


def _stored(column: Sequence[Any], row: int) -> Any:
    return column.values[row] if isinstance(column, RawColumn) else column[row]
