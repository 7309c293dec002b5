"""Output vectors of frozen encoders: computed once per value, and kept in memory-mapped files.

The folder ~/.cache/dxn/encoded has a folder per encoder, with a file of vectors and one of the
place of each value in it. New values are added at the end, so that a training with more rows
computes only those that are new.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dxn.core.files import cache_folder, lock, open_own, remove_old
from dxn.data.files import digest
from dxn.data.raws import RawFiles, digest_of
from dxn.data.rows import Column
from dxn.tokenize.base import ENCODED, Batch, pad

MAX_DAYS = 30  # after which the vectors of an encoder that no training used are deleted
VECTORS, PLACES = "vectors", "places"
# Digest of a value, and the numbers of its first vector and of the one after its last.
PLACE = np.dtype([("digest", "V16"), ("start", "i8"), ("stop", "i8")])


class EncodedColumn:
    """The output vectors of the encoder of an input, for each row of a split.

    Args:
        path: File with all vectors (n, E) of the encoder.
        shape: Their shape, (n, E).
        dtype: Their type.
        places: (rows, 2) int64. Numbers of the first vector of each row and of the one after its
            last. Equal numbers: the row has none.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: torch.dtype, places: np.ndarray):
        self.path = path
        self.shape = shape
        self.dtype = dtype
        self.places = places

    def __reduce__(self):
        # A data worker that is not forked maps the file, too.
        return EncodedColumn, (self.path, self.shape, self.dtype, self.places)

    @cached_property
    def vectors(self) -> Tensor:
        """All vectors (n, E), mapped from the file."""
        count = self.shape[0] * self.shape[1]
        if not count:
            return torch.empty(self.shape, dtype=self.dtype)
        whole = torch.from_file(str(self.path), shared=False, size=count, dtype=self.dtype)
        return whole.view(self.shape)

    @property
    def is_readable(self) -> bool:
        """Whether this process can read the file."""
        size = self.shape[0] * self.shape[1] * self.dtype.itemsize
        return not size or (self.path.is_file() and self.path.stat().st_size >= size)

    def has(self, row: int) -> bool:
        """Whether a row has any vector."""
        return bool(self.places[row, 0] < self.places[row, 1])

    def batch(self, rows: Iterable[int]) -> Batch:
        """Return a batch of the vectors of some rows, as `EncodedAdapter` reads it."""
        parts = [self.vectors[start:stop] for start, stop in self.places[list(rows)].tolist()]
        return pad([{ENCODED: x, "mask": torch.ones(len(x), dtype=torch.bool)} for x in parts], {})


class VectorStore:
    """The vectors of an encoder in a folder of the cache. Only `opened` creates one.

    Args:
        folder: The folder.
        width: Width E of a vector.
        dtype: Type of the vectors.

    Attributes:
        places: Numbers of the first vector of each value and of the one after its last, by the
            digest of the value.
    """

    def __init__(self, folder: Path, width: int, dtype: torch.dtype):
        self.folder = folder
        self.width = width
        self.dtype = dtype
        path = folder / PLACES
        table = np.fromfile(path, PLACE) if path.exists() else np.empty(0, PLACE)
        # A process that was killed can have written places without their vectors.
        vectors = folder / VECTORS
        size = vectors.stat().st_size if vectors.exists() else 0
        stops = table["stop"].astype(np.int64)
        is_whole = stops * self.bytes_per_vector <= size
        table = table[: len(table) if is_whole.all() else int(is_whole.argmin())]
        bounds = zip(table["start"].tolist(), table["stop"].tolist(), strict=True)
        self.places = dict(zip((d.tobytes() for d in table["digest"]), bounds, strict=True))
        self.count = int(table["stop"].max(initial=0))

    @property
    def bytes_per_vector(self) -> int:
        """Number of bytes of a vector."""
        return self.width * self.dtype.itemsize

    @classmethod
    @contextmanager
    def opened(cls, key: str, width: int, dtype: torch.dtype) -> Iterator[VectorStore]:
        """Open the folder of an encoder, which is locked until the context ends.

        Args:
            key: Digest of all that determines the vectors of a value.
            width: Width E of a vector.
            dtype: Type of the vectors.
        """
        folder = cache_folder("encoded") / key
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        remove_old(folder.parent, MAX_DAYS)
        # Another training that computes the same vectors is faster than two of them.
        with open_own(_lock_of(folder)) as file:
            os.utime(_lock_of(folder))
            if not lock(file, wait=True):
                raise OSError(f"{folder.parent} has no file locks")
            yield cls(folder, width, dtype)

    def make_room(self, num_bytes: int, limit: int) -> bool:
        """Delete vectors of other encoders, the oldest first, so that all need at most `limit`.

        Args:
            num_bytes: Number of bytes that will be added.
            limit: Maximum number of bytes of the vectors of all encoders.

        Returns:
            False if there is no room, or not enough space on the disk.
        """
        own = self.count * self.bytes_per_vector + num_bytes
        if own > limit or num_bytes > shutil.disk_usage(self.folder).free // 2:
            return False
        # Not those that another training computes. To open the own lock would release it, because
        # a process has it only once.
        others = [path for path in self.folder.parent.iterdir() if path.is_dir()]
        others = sorted(filter(_is_free, set(others) - {self.folder}), key=_time)
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in others}
        for path in others:
            if own + sum(sizes.values()) <= limit:
                break
            # A training that has mapped a file can still read it.
            shutil.rmtree(path)
            del sizes[path]
        return True

    def add(self, values: Iterable[tuple[bytes, Tensor]]) -> None:
        """Add the vectors (N, E) of values by digest.

        If `values` ends with an error, those before it are kept.
        """
        vectors, places = self.folder / VECTORS, self.folder / PLACES
        with open_own(vectors, binary=True) as file, open_own(places, binary=True) as table:
            file.truncate(self.count * self.bytes_per_vector)
            table.truncate(len(self.places) * PLACE.itemsize)
            for key, x in values:
                stop = self.count + len(x)
                file.write(x.to(self.dtype).contiguous().view(torch.uint8).numpy().data)
                table.write(np.array([(key, self.count, stop)], PLACE).tobytes())
                self.places[key] = self.count, stop
                self.count = stop

    def column(self, digests: Iterable[bytes | None]) -> EncodedColumn:
        """Return the vectors of the rows of an input, by the digests of their values.

        None, and a value that could not be encoded, have no vectors.
        """
        nothing = (0, 0)
        places = [nothing if key is None else self.places.get(key, nothing) for key in digests]
        table = np.array(places, np.int64).reshape(-1, 2)
        shape = self.count, self.width
        column = EncodedColumn(self.folder / VECTORS, shape, self.dtype, table)
        _ = column.vectors  # another training can delete the file as soon as it is not locked
        return column


def _time(folder: Path) -> float:
    return folder.stat().st_mtime


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _is_free(folder: Path) -> bool:
    """Whether no other process has opened a folder of vectors."""
    with open_own(_lock_of(folder)) as file:
        return lock(file)


def value_digests(column: Column, present: np.ndarray) -> list[bytes | None]:
    """Return a digest of the raw value of each row, None where it is missing.

    A file is not read again: that of a path consists of path, size, time and the ends of the file.

    Args:
        column: The raw values.
        present: Whether each row has one, bool.
    """
    digests: list[bytes | None] = [None] * len(present)
    for row in np.flatnonzero(present).tolist():
        key = digest_of(column, row)
        if isinstance(column.values, RawFiles) and column.rows is not None:
            number = int(column.rows[row])
            source, facts = column.values.sources[number], column.values.facts[number]
            if isinstance(source, str | Path):
                path = str(Path(source).absolute())
                key = digest(f"{path} {facts['size']} {facts['time']} {key!r}")
        digests[row] = key
    return digests
