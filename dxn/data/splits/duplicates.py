"""Find rows with equal inputs, so that drawn splits and warnings can consider them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dxn.data.rows import TARGET, Column, Rows, as_column, join_columns

# A file that occurs this much more often than the median file, and in this fraction of the rows, is
# a placeholder such as no_photo.png. Rows that share it are not similar.
PLACEHOLDER_RATIO = 20
PLACEHOLDER_SHARE = 0.05
# Arrow types whose cells can be compared without making Python objects of them.
ENCODED = ("large_string", "int64", "double", "bool", "date32[day]", "timestamp[us]")
NUM_BYTES = 4096  # at each end of a file that are compared first


def input_codes(splits: Iterable[Rows], files: Sequence[str]) -> dict[str, np.ndarray]:
    """Return an integer code of each input cell: cells with equal codes have equal content.

    Args:
        splits: Rows of all splits, which are compared with each other.
        files: Names of the inputs whose cells are paths or contents of files.

    Returns:
        By input name, the codes of all splits one after another, int64; -1 where a cell is missing.
    """
    parts = list(splits)
    names = dict.fromkeys(name for rows in parts for name in rows.cells if name != TARGET)
    codes: dict[str, np.ndarray] = {}
    for name in names:
        cells = [rows.cells.get(name, [None] * len(rows)) for rows in parts]
        columns = [each if isinstance(each, Column) else as_column(each) for each in cells]
        codes[name], distinct = codes_of(join_columns(columns))
        if name in files:
            # The last one is that of missing cells.
            codes[name] = np.append(_file_codes(distinct), -1)[codes[name]]
    return codes


def codes_of(column: Column) -> tuple[np.ndarray, Sequence[Hashable]]:
    """Return the code of each cell, int64, -1 where it is missing; and the content of each code."""
    values: Any = column.values
    if column.decode is None and column.is_arrow and str(values.type) in ENCODED:
        import pyarrow.compute

        if str(values.type) == "double":
            values = pyarrow.compute.add(values, 0.0)  # 0.0 and -0.0 are equal
        encoded = values.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        return (codes if column.rows is None else codes[column.rows]), encoded.dictionary
    known: dict[Hashable, int] = {}
    keys = map(_key, column)
    numbers = (-1 if key is None else known.setdefault(key, len(known)) for key in keys)
    return np.fromiter(numbers, np.int64, len(column)), list(known)


def row_codes(codes: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return one code per row from the codes of all its inputs; -1 for a row without inputs.

    Args:
        codes: Codes of the rows by input name, int64.
        count: Number of rows.
    """
    rows = np.zeros(count, np.int64)
    has_input = np.zeros(count, bool)
    is_distinct = False
    for column in codes.values():
        has_input |= column >= 0
        if not is_distinct:
            # Numbered again for each input, so that the product of the numbers fits into 64 bits.
            pairs = rows * (column.max(initial=-1) + 2) + column + 1
            distinct, rows = np.unique(pairs, return_inverse=True)
            is_distinct = len(distinct) == count
    return np.where(has_input, rows, -1)


def divided(codes: np.ndarray, splits: Mapping[str, Sized]) -> dict[str, np.ndarray]:
    """Return the codes of each split, which follow each other in `codes`."""
    ends = np.cumsum([len(rows) for rows in splits.values()])
    return dict(zip(splits, np.split(codes, ends[:-1]), strict=bool(splits)))


def units_of(rows: Rows, files: Sequence[str]) -> np.ndarray:
    """Return the unit of each row. Rows of a unit must be in the same split.

    Rows are in the same unit if all their inputs are equal, if they share a file, or if they are in
    the same group. A short text that rows share, such as a question about different pictures, does
    not make them similar.

    Args:
        rows: Rows to divide.
        files: Names of the inputs whose cells are paths or contents of files.

    Returns:
        For each row, the index of the first row of its unit, int64.
    """
    codes = input_codes([rows], files)
    columns = [row_codes(codes, len(rows))]
    columns += [_without_placeholders(codes[name]) for name in files if name in codes]
    if rows.groups is not None:
        groups = rows.groups if isinstance(rows.groups, Column) else as_column(rows.groups)
        columns.append(codes_of(groups)[0])
    every = np.arange(len(rows))
    # The edges of a graph whose components are the units: from the first row with a code to others.
    edges = [np.empty((2, 0), np.int64)]
    for column in columns:
        present = np.flatnonzero(column >= 0)
        _, first, numbers = np.unique(column[present], return_index=True, return_inverse=True)
        edge = np.stack([present[first][numbers], present])
        edges.append(edge[:, edge[0] < edge[1]])
    start, end = np.hstack(edges)
    if not len(start):
        return every
    from scipy.sparse import coo_array  # it takes time to import
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(start), bool), (start, end)), shape=(len(rows), len(rows)))
    _, unit = connected_components(graph, directed=False)
    _, first = np.unique(unit, return_index=True)
    return first[unit]


def _without_placeholders(codes: np.ndarray) -> np.ndarray:
    """Return -1 instead of the codes of placeholders."""
    counts = np.bincount(codes[codes >= 0], minlength=1)
    usual = np.median(counts[counts > 0]) if counts.any() else 0.0
    limit = max(PLACEHOLDER_RATIO * usual, PLACEHOLDER_SHARE * len(codes))
    return np.where(counts[codes] > limit, -1, codes)


def _file_codes(cells: Sequence[Hashable]) -> np.ndarray:
    """Return codes of distinct cells, int64, that are equal for the paths of equal files."""
    codes = np.arange(len(cells))
    paths = cells if isinstance(cells, list) else cells.to_pylist()  # pyright: ignore
    first: dict[Hashable, int] = {}
    copies = _copies(paths)
    for i, path in enumerate(paths):
        if path in copies:
            codes[i] = first.setdefault(copies[path], i)
    return codes


def _copies(cells: Iterable[Any]) -> dict[Hashable, Hashable]:
    """Return a common key for the paths of files with equal content."""
    # A file can have several paths, such as hard links. It is read once.
    paths_of: dict[tuple[int, int], list[str]] = {}
    by_size: dict[int, list[str]] = {}
    for path in dict.fromkeys(cell for cell in cells if isinstance(cell, str)):
        try:
            # Not Path.stat: creating a Path takes longer than the system call.
            status = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):
            continue  # a missing file is reported when it is opened
        paths = paths_of.setdefault((status.st_dev, status.st_ino), [])
        if not paths:
            by_size.setdefault(status.st_size, []).append(path)
        paths.append(path)
    first_of: dict[str, str] = {}
    for size, paths in by_size.items():
        for equal in _equal_files(paths, size):
            first_of |= dict.fromkeys(equal, equal[0])
    copies: dict[Hashable, Hashable] = {}
    for first, *links in paths_of.values():
        if links or first in first_of:
            copies |= dict.fromkeys([first, *links], ("copy", first_of.get(first, first)))
    return copies


def _equal_files(paths: Sequence[str], size: int) -> Iterator[list[str]]:
    """Yield the paths of equal files among files of one size."""
    if len(paths) == 1:
        return
    # Only files with the same ends can be equal, so few files are read completely.
    for group in _grouped(paths, digest_ends):
        if size <= 2 * NUM_BYTES:  # the ends are the whole file
            yield group
        else:
            yield from _grouped(group, _content)


def _grouped(paths: Sequence[str], property_of: Callable[[str], bytes]) -> Iterator[list[str]]:
    """Yield the paths whose files have the same property, if there are several."""
    groups: dict[bytes, list[str]] = {}
    for path in paths:
        with suppress(OSError):  # it was deleted in the meantime, which is reported later
            groups.setdefault(property_of(path), []).append(path)
    yield from (group for group in groups.values() if len(group) > 1)


def digest_ends(path: str) -> bytes:
    """Return a digest (16 bytes) of the first and the last bytes of a file."""
    # A digest, because the ends of a million files would not fit into memory.
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        content = hashlib.blake2b(file.read(NUM_BYTES), digest_size=16)
        file.seek(max(file.seek(0, os.SEEK_END) - NUM_BYTES, 0))
        content.update(file.read())
    return content.digest()


def _content(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()


def _key(value: Any) -> Hashable:
    """Return a hashable key of the content of a cell."""
    if value is None or isinstance(value, str | int | float):
        return value
    digest = hashlib.blake2b(digest_size=16)
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, Tensor):
            part = part.numpy(force=True)
        if isinstance(part, np.ndarray):
            # Include the shape: equal bytes with different shapes are different images.
            digest.update(repr((part.shape, part.dtype)).encode())
            digest.update(np.ascontiguousarray(part).data)
        elif isinstance(part, bytes):
            digest.update(part)
        else:
            digest.update(repr(part).encode())
    return digest.digest()
