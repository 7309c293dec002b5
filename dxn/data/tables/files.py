"""Read the text of a file, and limit what is read: a small untrusted file cannot fill the memory.

The limits are checked in the header of a file where it has one, and otherwise while it is read.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from dxn.core.errors import UserError
from dxn.data.formats import require_path

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
CHUNK = 1 << 20  # bytes that are read at once
GZIP = b"\x1f\x8b"
# Byte order marks. That of UTF-32 starts with that of UTF-16, so it comes first.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    # Excel writes this mark at the start of a UTF-8 file.
    codecs.BOM_UTF8: "utf-8-sig",
}


def check_expansion(path: Path, num_bytes: int) -> None:
    """Check that a compressed file does not expand to much more than its size.

    Args:
        path: The file.
        num_bytes: Number of bytes that it expands to, at least.

    Raises:
        UserError: If it does.
    """
    size = path.stat().st_size
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


def read_text(
    path: Path, encoding: str | None = None, *, key: str = "", has_lines: bool = False
) -> str:
    r"""Return the text of a file, with lines that end in \n.

    Args:
        path: The file, which may be compressed with gzip.
        encoding: Encoding of the text. None: that of the byte order mark, otherwise UTF-8.
        key: Option that sets the encoding, for error messages. Empty if there is none.
        has_lines: Whether the format has lines, whose length is limited.

    Raises:
        UserError: If the file is not found, cannot be read, is damaged, has another encoding, or
            exceeds a limit of this module.
    """
    require_path(path)
    # Reading a pipe or a device could wait forever, or never end.
    if not path.is_file():
        raise UserError(f"{path}: must be a regular file")
    try:
        with path.open("rb") as file:
            is_gzip = file.read(len(GZIP)) == GZIP
            file.seek(0)
            chunks = _decompressed(path, file) if is_gzip else iter(lambda: file.read(CHUNK), b"")
            data = b"".join(checked_lines(path, chunks) if has_lines else chunks)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: damaged or truncated gzip file ({error}); download or compress it again"
        ) from error
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    chosen = encoding or next((MARKS[mark] for mark in MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(chosen)
    except LookupError as error:
        raise UserError(
            f"{key}: unknown encoding {encoding!r}; use a name such as utf-8, utf-16 or cp1252"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(_message(path, data, error, encoding, key)) from error
    zero = text.find("\0")
    if zero >= 0:
        row = text.count("\n", 0, zero) + 1
        advice = f"; if it is UTF-16, set {key}=utf-16-le" if key else ""
        raise UserError(f"{path} row {row}: contains a zero byte, so it is not a text{advice}")
    # An encoding that the user sets can leave the byte order mark.
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _decompressed(path: Path, file: IO[bytes]) -> Iterable[bytes]:
    num_bytes = 0
    with gzip.open(file) as content:
        while chunk := content.read(CHUNK):
            num_bytes += len(chunk)
            check_expansion(path, num_bytes)
            yield chunk


def _message(
    path: Path, data: bytes, error: UnicodeDecodeError, encoding: str | None, key: str
) -> str:
    row = data.count(b"\n", 0, error.start) + 1
    where = f"{path} row {row}: byte 0x{data[error.start]:02x} is not valid {error.encoding}"
    if not key:
        return f"{where}; save the file as UTF-8"
    if encoding is not None:
        return f"{where}; set {key} to the encoding of the file, got {encoding}"
    # Text in UTF-16 has a zero byte in each ASCII character.
    other = "utf-16-le" if b"\0" in data[:1000] else "cp1252"
    return f"{where}; set {key}={other} or the encoding of the file, or save it as UTF-8"
