"""Read text from files that may be compressed and may have several encodings."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, cast

from dxn.core.errors import UserError
from dxn.data.sources.detect import require_path
from dxn.data.tables.limits import check_expansion, checked_lines, chunks_of

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
            exceeds a limit of `dxn.data.tables.limits`.
    """
    require_path(path)
    # Reading a pipe or a device could wait forever, or never end.
    if not path.is_file():
        raise UserError(f"{path}: must be a regular file")
    try:
        with path.open("rb") as file:
            is_gzip = file.read(len(GZIP)) == GZIP
            file.seek(0)
            chunks = _decompressed(path, file) if is_gzip else chunks_of(file)
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
        for chunk in chunks_of(cast("IO[bytes]", content)):
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
