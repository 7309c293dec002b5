"""Find rows with equal inputs, so that drawn splits and warnings can consider them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from dxn.data.rows import TARGET, Rows

# A file that occurs this much more often than the median file, and in this fraction of the rows, is
# a placeholder such as no_photo.png. Rows that share it are not similar.
PLACEHOLDER_RATIO = 20
PLACEHOLDER_SHARE = 0.05
NUM_BYTES = 4096  # at each end of a file that are compared first


def keys_by_input(splits: Iterable[Rows], files: Sequence[str]) -> list[dict[str, list[Hashable]]]:
    """Return a key of each input cell: cells with equal keys have equal content.

    Args:
        splits: Rows of all splits, which are compared with each other.
        files: Names of the inputs whose cells are paths or contents of files.

    Returns:
        For each split, the keys by input name; None where a cell is missing.
    """
    parts = list(splits)
    names = dict.fromkeys(name for rows in parts for name in rows.cells if name != TARGET)
    results: list[dict[str, list[Hashable]]] = [{} for _ in parts]
    for name in names:
        columns = [rows.cells.get(name, [None] * len(rows)) for rows in parts]
        copies = _copies(cell for column in columns for cell in column) if name in files else {}
        for result, column in zip(results, columns, strict=True):
            keys = map(_key, column)
            result[name] = [copies.get(key, key) for key in keys]
    return results


def row_keys(keys: Mapping[str, Sequence[Hashable]], count: int) -> list[Hashable]:
    """Return one key per row from the keys of all its inputs; None for a row without inputs."""
    if not keys:
        return [None] * count
    rows = zip(*keys.values(), strict=True)
    return [None if all(key is None for key in row) else row for row in rows]


def units_of(rows: Rows, files: Sequence[str]) -> list[int]:
    """Return the unit of each row. Rows of a unit must be in the same split.

    Rows are in the same unit if all their inputs are equal, if they share a file, or if they are in
    the same group. A short text that rows share, such as a question about different pictures, does
    not make them similar.

    Args:
        rows: Rows to divide.
        files: Names of the inputs whose cells are paths or contents of files.

    Returns:
        For each row, the index of the first row of its unit.
    """
    (keys,) = keys_by_input([rows], files)
    columns = [row_keys(keys, len(rows))]
    columns += [_without_placeholders(keys[name]) for name in files if name in keys]
    if rows.groups is not None:
        columns.append(list(map(_key, rows.groups)))
    parents = list(range(len(rows)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = parents[parents[i]]  # shorten the path, so that the next search is faster
            i = parents[i]
        return i

    for column in columns:
        first: dict[Hashable, int] = {}
        for i, key in enumerate(column):
            if key is not None:
                a, b = root(i), root(first.setdefault(key, i))
                parents[max(a, b)] = min(a, b)
    return [root(i) for i in range(len(rows))]


def _without_placeholders(keys: Sequence[Hashable]) -> list[Hashable]:
    counts = Counter(key for key in keys if key is not None)
    if not counts:
        return list(keys)
    limit = max(PLACEHOLDER_RATIO * median(counts.values()), PLACEHOLDER_SHARE * len(keys))
    return [None if counts[key] > limit else key for key in keys]


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
