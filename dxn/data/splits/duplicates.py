"""Rows with equal inputs and files, which drawn splits keep together and warnings name."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from dxn.data.files import combined, content_key, with_files
from dxn.data.rows import TARGET, Column, Rows, as_column, join_columns

# A file that occurs this much more often than the median file, and in this fraction of the rows, is
# a placeholder such as no_photo.png. Rows that share it are not similar.
PLACEHOLDER_RATIO = 20
PLACEHOLDER_SHARE = 0.05
# Arrow types whose cells can be compared without making Python objects of them.
ENCODED = ("large_string", "int64", "double", "bool", "date32[day]", "timestamp[us]")


def input_codes(splits: Iterable[Rows], files: Sequence[str]) -> dict[str, np.ndarray]:
    """Return an integer code of each input cell: cells with equal codes have equal content.

    Args:
        splits: Rows of all splits, which are compared with each other.
        files: Names of the inputs whose cells are paths or contents of files.

    Returns:
        By input name, the codes of all splits one after another, int64; -1 where a cell is missing.
    """
    all_rows = list(splits)
    names = dict.fromkeys(name for rows in all_rows for name in rows.cells if name != TARGET)
    codes: dict[str, np.ndarray] = {}
    for name in names:
        cells = [rows.cells.get(name, [None] * len(rows)) for rows in all_rows]
        column = join_columns([as_column(cells_of_split) for cells_of_split in cells])
        if name in files:
            column = with_files(column)
        codes[name] = codes_of(column)
    return codes


def codes_of(column: Column) -> np.ndarray:
    """Return the code of each cell, int64, -1 where it is missing."""
    values: Any = column.values
    if column.files is not None:
        return column.files.codes[column.rows]
    if column.decode is None and column.is_arrow and str(values.type) in ENCODED:
        if str(values.type) == "double":
            from pyarrow import compute

            values = compute.call_function("add", [values, 0.0])  # 0.0 and -0.0 are equal
        indices = values.dictionary_encode().indices
        is_present, content = indices.buffers()  # `to_numpy` and `fill_null` would import pandas
        codes = np.frombuffer(content, np.int32, len(indices), 4 * indices.offset).astype(np.int64)
        if is_present is not None:
            bits = np.unpackbits(np.frombuffer(is_present, np.uint8), bitorder="little")
            codes[bits[indices.offset :][: len(indices)] == 0] = -1
        return codes if column.rows is None else codes[column.rows]
    code_of: dict[Hashable, int] = {}
    keys = map(content_key, column)
    numbers = (-1 if key is None else code_of.setdefault(key, len(code_of)) for key in keys)
    return np.fromiter(numbers, np.int64, len(column))


def row_codes(codes: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return one code per row from the codes of all its inputs; -1 for a row without inputs.

    Args:
        codes: Codes of the rows by input name, int64.
        count: Number of rows.
    """
    if not codes:
        return np.full(count, -1)
    columns = list(codes.values())
    has_input = np.any([column >= 0 for column in columns], axis=0)
    return np.where(has_input, combined(columns), -1)


def divided(codes: np.ndarray, splits: Mapping[str, Sized]) -> dict[str, np.ndarray]:
    """Return the codes of each split, which follow each other in `codes`."""
    ends = np.cumsum([len(rows) for rows in splits.values()])
    return dict(zip(splits, np.split(codes, ends[:-1]), strict=bool(splits)))


def groups_of(rows: Rows, files: Sequence[str]) -> np.ndarray:
    """Return the group of each row. Rows of a group must be in the same split.

    Rows are in the same group if all their inputs are equal, if they share a file, or if they have
    the same value of `Rows.groups`. A short text that rows share, such as a question about
    different pictures, does not make them similar.

    Args:
        rows: Rows to divide.
        files: Names of the inputs whose cells are paths or contents of files.

    Returns:
        For each row, the index of the first row of its group, int64.
    """
    codes = input_codes([rows], files)
    columns = [row_codes(codes, len(rows))]
    for name in files:
        if name in codes:
            counts = np.bincount(codes[name][codes[name] >= 0], minlength=1)
            usual = np.median(counts[counts > 0]) if counts.any() else 0.0
            limit = max(PLACEHOLDER_RATIO * usual, PLACEHOLDER_SHARE * len(rows))
            columns.append(np.where(counts[codes[name]] > limit, -1, codes[name]))
    if rows.groups is not None:
        columns.append(codes_of(as_column(rows.groups)))
    # The edges of a graph whose components are the groups: from the first row with a code.
    edges = [np.empty((2, 0), np.int64)]
    for column in columns:
        present = np.flatnonzero(column >= 0)
        _, first, numbers = np.unique(column[present], return_index=True, return_inverse=True)
        edge = np.stack([present[first][numbers], present])
        edges.append(edge[:, edge[0] < edge[1]])
    start, end = np.hstack(edges)
    if not len(start):
        return np.arange(len(rows))
    from scipy.sparse import coo_array  # it takes time to import
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(start), bool), (start, end)), shape=(len(rows), len(rows)))
    _, group = connected_components(graph, directed=False)
    _, first = np.unique(group, return_index=True)
    return first[group]
