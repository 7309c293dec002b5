"""Rows of tar files in the format of WebDataset: the files of a row have the same key.

Everything after the first dot of the base name of a file is its suffix, which is the name of the
column: the key of a/0001.label.txt is a/0001, and its column is label.txt.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from dxn.core.errors import UserError
from dxn.core.untrusted import shortened
from dxn.data.rows import as_column, blank_to_none
from dxn.data.tables.files import FREE_BYTES, MAX_EXPANSION
from dxn.data.tables.read import Table, concatenate
from dxn.tokenize.media import SUFFIXES

KEY = "__key__"  # column with the name that the files of a row have in common
MEMBER = re.compile(r"((?:.*/)?[^./][^.]*)\.([^/]+)")  # a key and a suffix
HIDDEN = (".", "__")  # start of base names that are no data, such as those of macOS
# Suffixes whose content is text. Numbers such as those of .cls are parsed like the cells of a CSV
# file, so that a column with a single word in it is a column of classes.
TEXTS = ("txt", "text", "transcript", "cls", "cls2", "index", "inx", "id")
OBJECTS = ("json", "jsn")
PACKED = ".gz"
# Suffixes of one kind of file, of which a row usually has one, whatever its format.
KINDS = (
    *(tuple(suffix[1:] for suffix in ends) for ends in SUFFIXES.values()),
    TEXTS[:2],
)
# With a dot in the keys, each row has a column of its own, such as "2_0001.png" of
# v1.2_0001.png. So many columns with numbers, most of whose cells are empty, are no columns.
MAX_NUMBERED = 16
NUMBERED = re.compile(r"[^.]*\d[^.]*\.")
RULE = (
    "the suffix of a file is everything after the first dot of its name, so the files of a row "
    "must have the same name up to the first dot, without a dot in it"
)


def rows_of_tar(name: str, files: Iterable[tuple[str, IO[bytes]]]) -> Iterator[dict[str, Any]]:
    """Yield the cells of each row by the name of the column, in the order of the archive.

    Args:
        name: Name of the archive, for messages.
        files: The name and the content of each regular file in it.

    Raises:
        UserError: If the files of a row are not next to one another, or have wrong contents.
    """
    row: dict[str, Any] = {}
    members: dict[str, frozenset[str]] = {}  # the suffixes of each key
    suffixes: list[str] = []
    key = None
    path = None
    for path, file in files:
        match = MEMBER.fullmatch(path)
        if match is None or path.rpartition("/")[2].startswith(HIDDEN):
            continue
        new, suffix = match[1], match[2].lower()
        if new != key:
            if key is not None:
                yield {**row, KEY: key}
                members[key] = frozenset(suffixes)
            key, row, suffixes = new, {}, []
        # The same row twice is harmless; two halves of a row would be two rows.
        if suffix in suffixes or (key in members and suffix not in members[key]):
            problem = "twice" if suffix in suffixes else "away from the other files of its row"
            raise UserError(
                f"{name}: {path} is in the archive {problem}; write the files of a row next to one "
                "another, for example with tar --sort=name"
            )
        suffixes.append(suffix)
        row |= _cells(f"{name}: {path}", suffix, file)
    if key is not None:
        yield {**row, KEY: key}
    elif path is not None:
        raise UserError(
            f"{name}: no file in it is part of a row, such as {path}; a row is a group of files "
            "with the same name and different suffixes, such as 1.jpg and 1.cls"
        )


def _cells(where: str, suffix: str, file: IO[bytes]) -> dict[str, Any]:
    """Return what a file has for each column; only the fields of an object are several columns."""
    content = file.read()
    if suffix.endswith(PACKED):
        suffix = suffix.removesuffix(PACKED)
        content = _unpacked(where, content)
    end = suffix.rpartition(".")[2]
    if end not in (*TEXTS, *OBJECTS):
        return {suffix: content or None}
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: byte 0x{content[error.start]:02x} is not valid UTF-8; save the file as UTF-8"
        ) from error
    if end in TEXTS:
        return {suffix: blank_to_none(text.rstrip("\r\n"))}
    if not text.strip():
        return {}
    try:
        return _fields(suffix, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: damaged JSON ({error}); write the file again") from error


def _fields(name: str, value: Any) -> dict[str, Any]:
    """Return the fields of an object as columns, also those of the objects in it."""
    if not isinstance(value, dict):
        return {name: blank_to_none(value)}
    cells: dict[str, Any] = {}
    for field, inner in value.items():
        cells |= _fields(f"{name}.{field}", inner)
    return cells


def _unpacked(where: str, content: bytes) -> bytes:
    allowed = max(FREE_BYTES, MAX_EXPANSION * len(content))
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: with the header of gzip
    try:
        unpacked = unpacker.decompress(content, allowed)
        if not unpacker.eof and not unpacker.unconsumed_tail:
            raise gzip.BadGzipFile("it is cut off")
    except (zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{where}: damaged or truncated gzip file ({error}); compress it again"
        ) from error
    if unpacker.unconsumed_tail:
        raise UserError(f"{where}: expands to more than {allowed:,} bytes; store it uncompressed")
    return unpacked


def to_cells(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the cells of each column.

    Args:
        rows: The cells of each row.
        names: The column of each kind of file, see `names_of_kinds`.

    Raises:
        UserError: If a row has two files for one column.
    """
    cells: dict[str, list[Any]] = {}
    for i, row in enumerate(rows):
        used: dict[str, str] = {}
        for name, cell in row.items():
            column = names.get(kind_of(name), name)
            first = used.setdefault(column, name)
            if first != name:
                raise UserError(
                    f"{row[KEY]}: has {first} and {name}, but no row of the sample has both, so "
                    "they are one column; give one of them another suffix, or raise "
                    "data.sample_shards"
                )
            cells.setdefault(column, [None] * len(rows))[i] = cell
    if KEY in cells:  # the column with the keys is the last one
        cells[KEY] = cells.pop(KEY)
    return cells


def kind_of(column: str) -> str:
    """Return what columns with the same kind of file have in common; empty: of no known kind."""
    prefix, _, end = column.rpartition(".")
    for kind in KINDS:
        if end in kind:
            return f"{prefix}.{kind[0]}"
    return ""


def join_tables(tables: Sequence[Table]) -> Table:
    """Return the rows of tables, of which some lack a column."""
    names = dict.fromkeys(name for table in tables for name in table.columns)
    return concatenate([with_columns(table, [*names]) for table in tables])


def with_columns(table: Table, names: Collection[str]) -> Table:
    """Return a table with further columns, which are empty, if it lacks them."""
    lacking = [name for name in names if name not in table.columns]
    if not lacking:
        return table
    empty = {name: as_column([None] * len(table)) for name in lacking}
    columns = {**table.columns, **empty}
    if KEY in columns:
        columns[KEY] = columns.pop(KEY)
    return replace(table, columns=columns)


def names_of_kinds(table: Table, known: Collection[str] = ()) -> dict[str, str]:
    """Return the column of each kind of file, such as "jpg" also for jpeg and png.

    Files of one kind are one column if no row has two of them. Otherwise, such as with a mask next
    to each photo, each suffix is a column.

    Args:
        table: The rows, with a column for each suffix.
        known: Columns that are preferred, such as those of a training. Default: the suffix that
            most rows have.
    """
    columns_of: dict[str, list[str]] = {}
    for column in table.columns:
        columns_of.setdefault(kind_of(column), []).append(column)
    columns_of.pop("", None)
    names: dict[str, str] = {}
    for kind, columns in columns_of.items():
        filled = {name: _filled(table, name) for name in columns}
        if len(columns) > 1 and np.sum([*filled.values()], 0).max(initial=0) > 1:
            continue
        counts = Counter({name: int(rows.sum()) for name, rows in filled.items()})
        chosen = [name for name in known if kind_of(name) == kind]
        if len(chosen) > 1:
            continue
        names[kind] = chosen[0] if chosen else counts.most_common(1)[0][0]
    return names


def with_kinds(table: Table, names: Mapping[str, str]) -> Table:
    """Return a table whose files of one kind are one column, and say so in its notes.

    Raises:
        UserError: If the columns show that the keys have dots.
    """
    _refuse_dots(table)
    joined: dict[str, list[str]] = {}
    for name in table.columns:
        joined.setdefault(names.get(kind_of(name), name), []).append(name)
    columns = dict(table.columns)
    notes = list(table.notes)
    for new, old in joined.items():
        first, *others = [columns.pop(name) for name in old]
        columns[new] = first
        if others:
            rows = zip(first, *others, strict=True)
            cells = [next((cell for cell in row if cell is not None), None) for row in rows]
            columns[new] = as_column(cells)
            notes.append(f"{' and '.join(old)}: one column, {new}, because no row has two of them")
    return replace(table, columns=columns, notes=notes)


def _filled(table: Table, name: str) -> np.ndarray:
    return np.array([cell is not None for cell in table.columns[name]], bool)


def _refuse_dots(table: Table) -> None:
    numbered = [name for name in table.columns if NUMBERED.match(name)]
    if len(numbered) <= MAX_NUMBERED:
        return
    shares = [float(_filled(table, name).mean()) for name in numbered]
    if len(numbered) > len(table) or float(np.median(shares)) < 1 / 2:
        key = next((key for key in table.columns.get(KEY, ()) if key is not None), "")
        raise UserError(
            f"{table.name}: the files of the row {shortened(str(key))} have {len(numbered)} "
            f"different suffixes, such as {shortened(numbered[0])}; {RULE}; rename the files"
        )
