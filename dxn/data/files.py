"""One survey of the files of a data set: what is known of each of them before it is decoded."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from dxn.core.display import track
from dxn.core.runtime import spare_processes
from dxn.data.cell_paths import OutsidePath
from dxn.data.rows import Column, Rows, as_column, join_columns

Result = TypeVar("Result")

# Size and time of modification of a file; what tells hard links apart from other files; and a
# digest of its ends, see `digest_ends`. 0: it was not needed yet.
FACTS = np.dtype(
    [("size", "i8"), ("time", "i8"), ("device", "u8"), ("inode", "u8"), ("digest", "u8", 2)]
)
MISSING, NO_FILE = -2, -1  # instead of a size: there is no cell, or it is not the path of a file
NUM_BYTES = 4096  # at each end of a file that are compared first
# Files in one piece of work: enough that handing it over takes no time.
CHUNK = 256
# From this number of files on, processes are faster than threads, although they take longer to
# start.
MIN_FORKED = 20_000
# Threads that read files. Image and audio decoders release the GIL, so threads run in parallel;
# more than two are not faster if the disk is the bottleneck.
READER_THREADS = 2


class Files:
    """The distinct files of a column, in all splits.

    Args:
        cells: Paths or contents of the files, each of them once; None where a cell is missing.

    Attributes:
        facts: `FACTS` of each file.
    """

    def __init__(self, cells: Column):
        self.cells = cells
        self.facts = np.zeros(len(cells), FACTS)
        for part, facts in in_parts(self._status, len(cells), "listing files"):
            self.facts[part] = facts

    def _status(self, part: slice) -> np.ndarray:
        facts = np.zeros(part.stop - part.start, FACTS)
        facts["size"] = facts["time"] = NO_FILE
        for i, cell in enumerate(self.cells[part]):
            if cell is None:
                facts["size"][i] = MISSING
            if isinstance(cell, str | Path) and not isinstance(cell, OutsidePath):
                try:
                    # Not Path.stat: creating a Path takes longer than the system call.
                    status = os.stat(cell)  # noqa: PTH116
                except (OSError, ValueError):
                    continue  # a missing file is reported when it is opened
                if not stat.S_ISREG(status.st_mode):
                    continue  # to open a pipe could wait forever
                ids = status.st_dev, status.st_ino % 2**64
                facts[i] = (status.st_size, status.st_mtime_ns, *ids, (0, 0))
        return facts

    @cached_property
    def codes(self) -> np.ndarray:
        """A code of each file, int64: files with equal codes have equal content.

        -1: the cell is missing.
        """
        codes = np.arange(len(self.cells))
        files = np.flatnonzero(self.facts["size"] >= 0)
        ids = combined([self.facts[name][files] for name in ("device", "inode")])
        # A file can have several paths, such as hard links. It is read once.
        _, first, links = np.unique(ids, return_index=True, return_inverse=True)
        unique = files[first]
        sizes = self.facts["size"][unique]
        # Only files of the same size and with the same ends can be equal, so few files are read
        # completely.
        self.read_digests(unique[_is_repeated(combined([sizes]))])
        digests = self.facts["digest"][unique]
        groups = combined([sizes, *digests.T])
        same = np.arange(len(unique))
        first_of: dict[Hashable, int] = {}  # first file with a content
        for i in np.flatnonzero(_is_repeated(groups) & digests.any(axis=1)).tolist():
            key: Hashable = int(groups[i])
            if sizes[i] > 2 * NUM_BYTES:  # otherwise the ends are the whole file
                with suppress(OSError):
                    key = (key, _content(self.cells[int(unique[i])]))
            same[i] = first_of.setdefault(key, i)
        codes[files] = unique[same][links]
        # Contents, arrays, and paths without a file.
        first_of.clear()
        for i in np.flatnonzero(self.facts["size"] < 0).tolist():
            cell = self.cells[i]
            codes[i] = -1 if cell is None else first_of.setdefault(content_key(cell), i)
        return codes

    def read_digests(self, files: np.ndarray) -> None:
        """Read the digests of these files, int64, that are not known yet."""
        files = files[~self.facts["digest"][files].any(axis=1)]
        for part, digests in in_parts(
            lambda part: self.digests(files[part]), len(files), "comparing files"
        ):
            self.facts["digest"][files[part]] = digests

    def digests(self, files: np.ndarray) -> np.ndarray:
        """Return the digests of these files, int64, reading those that are not known yet."""
        digests = self.facts["digest"][files]
        for i in np.flatnonzero(~digests.any(axis=1)).tolist():
            # A file that was deleted in the meantime is reported later.
            with suppress(OSError):
                digests[i] = np.frombuffer(digest_ends(self.cells[int(files[i])]), np.uint64)
        return digests


def survey(splits: Mapping[str, Rows], files: Sequence[str]) -> dict[str, Rows]:
    """Return the splits, with the facts about the files of some inputs, which are read once.

    Args:
        splits: Rows by split.
        files: Names of the inputs whose cells are paths or contents of files.
    """
    if not files:
        return dict(splits)
    cells = {split: dict(rows.cells) for split, rows in splits.items()}
    for name in files:
        having = [split for split in splits if name in cells[split]]
        if not having:
            continue
        columns = [as_column(cells[split][name]) for split in having]
        whole = with_files(join_columns(columns))
        start = 0
        for split, column in zip(having, columns, strict=True):
            cells[split][name] = whole[start : start + len(column)]
            start += len(column)
    return {
        split: Rows(cells[split], rows.origin, rows.ids, rows.groups)
        for split, rows in splits.items()
    }


def with_files(column: Column) -> Column:
    """Return a column of files whose values are the distinct ones, with what is known of them."""
    if column.files is not None:
        return column
    values: Any = column.values
    if column.has_only_texts:
        encoded = values.dictionary_encode(null_encoding="encode")
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        numbers = numbers if column.rows is None else numbers[column.rows]
        # Most columns name each file once. Then they need no copy.
        is_distinct = len(encoded.dictionary) == len(values)
        distinct = Column(values if is_distinct else encoded.dictionary)
    else:
        # Equal strings and bytes are the same file. Arrays and lists are not hashable, so each of
        # them has its row index as the key.
        number_of: dict[Any, int] = {}
        cells: list[Any] = []
        numbers = np.empty(len(column), np.int64)
        for i, cell in enumerate(column):
            key = cell if isinstance(cell, str | bytes | Path | None) else i
            numbers[i] = number_of.setdefault(key, len(cells))
            if numbers[i] == len(cells):
                cells.append(cell)
        distinct = as_column(cells)
    return Column(distinct.values, numbers, files=Files(distinct))


def in_parts(
    function: Callable[[slice], Result], count: int, title: str
) -> Iterator[tuple[slice, Result]]:
    """Yield the result of a function of each part of a range, in order.

    Args:
        function: A function that reads files. Of many files, forked processes call it.
        count: Number of files.
        title: Name of the work, for the progress.
    """
    parts = [slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    if len(parts) < 2:
        yield from ((part, function(part)) for part in parts)
        return
    num_processes = spare_processes() if count >= MIN_FORKED else 0
    if num_processes:
        # A forked process has the function already, so that it need not be picklable.
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(
            num_processes, mp_context=context, initializer=_use, initargs=(function,)
        )
        call: Callable[[slice], Any] = _call
    else:
        pool = ThreadPoolExecutor(READER_THREADS)
        call = function
    with pool:
        results = zip(parts, pool.map(call, parts), strict=True)
        yield from track(results, len(parts), title)


_function: Callable[[slice], Any] | None = None  # of a process of `in_parts`


def _use(function: Callable[[slice], Any]) -> None:
    global _function
    _function = function


def _call(part: slice) -> Any:
    assert _function is not None
    return _function(part)


def digest_ends(path: str) -> bytes:
    """Return a digest (16 bytes) of the first and the last bytes of a file."""
    # A digest, because the ends of a million files would not fit into memory.
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        content = hashlib.blake2b(file.read(NUM_BYTES), digest_size=16)
        file.seek(max(file.seek(0, os.SEEK_END) - NUM_BYTES, 0))
        content.update(file.read())
    return content.digest()


def combined(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number of each row of several columns, equal for equal rows, int64."""
    rows = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct, numbers = np.unique(column, return_inverse=True)
        # Numbered again for each column, so that the product of the numbers fits into 64 bits.
        _, rows = np.unique(rows * len(distinct) + numbers, return_inverse=True)
    return rows


def content_key(value: Any) -> Hashable:
    """Return a hashable key of the content of a cell."""
    return value if value is None or isinstance(value, str | int | float) else digest(value)


def digest(raw: Any) -> bytes:
    """Return a hash (16 bytes) of the content of a cell or of a raw value."""
    if isinstance(raw, str | float):  # most cells
        return hashlib.blake2b(repr(raw).encode(), digest_size=16).digest()
    content = hashlib.blake2b(digest_size=16)
    if isinstance(raw, Tensor):
        raw = raw.numpy(force=True)
    if isinstance(raw, np.ndarray) and raw.dtype == object:
        raw = raw.tolist()
    if isinstance(raw, np.ndarray):
        # Include the shape: equal bytes with different shapes are different images.
        content.update(f"({raw.shape!r}, {_written(raw.dtype)})".encode())
        content.update(np.ascontiguousarray(raw).data)
    elif isinstance(raw, list | tuple | Mapping) and _has_arrays(raw):
        # The repr of a large array is shortened.
        content.update(repr((type(raw), len(raw))).encode())
        items = raw.items() if isinstance(raw, Mapping) else raw
        for item in items:
            content.update(digest(item))
    elif isinstance(raw, bytes):
        content.update(raw)
    else:
        content.update(repr(raw).encode())
    return content.digest()


@cache
def _written(dtype: np.dtype) -> str:
    """Return the repr of a dtype, which NumPy takes longer to write than a small array to hash."""
    return repr(dtype)


def _has_arrays(raw: Any) -> bool:
    """Whether a raw value contains arrays. Long lists of words are hashed faster as a whole."""
    if isinstance(raw, Mapping):
        return _has_arrays(list(raw.values()))
    if isinstance(raw, list | tuple):
        return any(map(_has_arrays, raw))
    return isinstance(raw, Tensor | np.ndarray)


def _is_repeated(numbers: np.ndarray) -> np.ndarray:
    return np.bincount(numbers)[numbers] > 1


def _content(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()
