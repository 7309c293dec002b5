"""Limits of the files that are read, so that a small untrusted file cannot fill the memory.

They are checked in the header of a file where it has one, and otherwise while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO

from dxn.core.errors import UserError

# Tables of gene expressions have up to 60,000 columns.
MAX_COLUMNS = 100_000
# Bytes. A cell can be a whole book, which has a few megabytes.
MAX_LINE = 16_000_000
# A compressed file may expand to this multiple of its size. Texts and numbers of real data sets
# reach 5 to 50; a file of zeros reaches 1,000.
MAX_EXPANSION = 100
FREE_BYTES = 100_000_000  # every file may expand to this size
# Empty cells of rows with different keys. Every file may have this number of them.
FREE_CELLS = 10_000_000
MAX_MEMBERS = 1_000_000  # files of an archive
CHUNK = 1 << 20  # bytes that are read at once


def check_expansion(path: Path, num_bytes: int, size: int | None = None) -> None:
    """Check that a compressed file does not expand to much more than its size.

    Args:
        path: The file.
        num_bytes: Number of bytes that it expands to, at least.
        size: Number of bytes of the file. Default: that of `path`.

    Raises:
        UserError: If it does.
    """
    size = path.stat().st_size if size is None else size
    allowed = max(FREE_BYTES, MAX_EXPANSION * size)
    if num_bytes > allowed:
        raise UserError(
            f"{path}: its {size:,} bytes expand to {num_bytes:,} or more, and at most {allowed:,} "
            "are allowed; extract the file if you trust it"
        )


def check_num_columns(path: Path, count: int) -> None:
    """Raise UserError if a table has too many columns."""
    if count > MAX_COLUMNS:
        raise UserError(
            f"{path}: must have at most {MAX_COLUMNS:,} columns, got {count:,}; remove columns, or "
            "store the values of a row as one series"
        )


def check_num_cells(path: Path, rows: int, columns: int, present: int) -> None:
    """Check that most cells of a table exist in its file.

    Args:
        path: The file.
        rows: Number of rows.
        columns: Number of columns.
        present: Number of cells, or of bytes, that the file contains.

    Raises:
        UserError: If the table would be much larger than the file.
    """
    check_num_columns(path, columns)
    num_cells = rows * columns
    if num_cells > max(FREE_CELLS, MAX_EXPANSION * present):
        raise UserError(
            f"{path}: the table would have {num_cells:,} cells or more, almost all of them empty; "
            "remove empty rows and columns"
        )


def checked_lines(path: Path, chunks: Iterable[bytes]) -> Iterable[bytes]:
    """Yield the chunks of a text file, while its lines are not too long.

    Raises:
        UserError: If a line is longer than MAX_LINE bytes.
    """
    length = 0  # of the line at the end of the last chunk
    number = 1
    for chunk in chunks:
        first = chunk.find(b"\n")
        # A file of an old Macintosh separates lines by \r only.
        if first < 0:
            first = chunk.find(b"\r")
        length += len(chunk) if first < 0 else first
        if length > MAX_LINE:
            raise UserError(
                f"{path} line {number}: more than {MAX_LINE:,} bytes without a line break; split "
                "the line, or store a long text in several rows"
            )
        if first >= 0:
            number += chunk.count(b"\n")
            length = len(chunk) - 1 - max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        yield chunk


def chunks_of(file: IO[bytes]) -> Iterable[bytes]:
    """Yield the content of a file in chunks."""
    while chunk := file.read(CHUNK):
        yield chunk
