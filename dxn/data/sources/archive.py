"""The files of tar and zip archives, read into memory one by one and with limits."""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from dxn.core.errors import UserError
from dxn.data.sources.detect import require_path
from dxn.data.tables.files import CHUNK, MAX_MEMBERS, check_expansion

# The exceptions that tarfile, zipfile and their decompressors raise for a damaged file.
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
)
# The first bytes of compressed files. Downloaded archives often have no suffix or a wrong one.
OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}

MAX_LINKS = 20  # links that lead to each other

Member = tuple[tuple[str, ...], bytes]


def read_archive(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[Member]:
    """Yield the parts of the name and the content of each file of an archive.

    Nothing is written to the disk, and devices are left out. A link has the content of the file of
    the archive that it leads to.

    Args:
        path: The archive, whose format is recognized by its content.
        is_wanted: Whether the content of a file with this name is needed. Others are not read, and
            their content is empty.

    Raises:
        UserError: If it is not an archive, is damaged, exceeds a limit of `dxn.data.tables.files`,
            or contains a name or a needed link that leads out of it.
    """
    require_path(path)
    try:
        if zipfile.is_zipfile(path):
            files = _read_zip(path, is_wanted)
        elif _is_tar(path):
            files = _read_tar(path, is_wanted)
        else:
            raise UserError(f"{path}: must be a folder, or a tar or zip archive")
        contents: dict[tuple[str, ...], bytes] = {}
        links: dict[tuple[str, ...], str] = {}
        for count, (name, data) in enumerate(files, 1):
            if count > MAX_MEMBERS:
                raise UserError(f"{path}: contains more than {MAX_MEMBERS:,} files; extract it")
            parts = _parts(path, name)
            if isinstance(data, Link):
                links[parts] = data
                continue
            contents[parts] = data
            yield parts, data
        # At the end, because a symbolic link can come before its file.
        for parts in links:
            target = _target(parts, links)
            if target in contents:
                yield parts, contents[target]
            elif is_wanted(parts[-1]):
                raise UserError(
                    f"{path}: {'/'.join(parts)} is a link to {links[parts]}, which is not a file "
                    "of the archive; pack it again with the file itself (tar --dereference)"
                )
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(
            f"{path}: damaged or truncated archive ({error}); download or pack it again"
        ) from error


class Link(str):
    """The path that a link leads to, relative to the archive."""


def _target(name: tuple[str, ...], links: Mapping[tuple[str, ...], str]) -> tuple[str, ...] | None:
    """Return the file that a link leads to, also through other links; None for a circle."""
    for _ in range(MAX_LINKS):
        if name not in links:
            return name
        name = tuple(part for part in links[name].split("/") if part not in ("", "."))
    return None


def _relative(name: str, target: str) -> Link:
    """Return the target of a symbolic link, which is relative to the folder of the link."""
    return Link(posixpath.normpath(posixpath.join(posixpath.dirname(name), target)))


def _parts(path: Path, name: str) -> tuple[str, ...]:
    # Zip and tar use "/" on every system. Some archives start all names with "./".
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or not parts:
        raise UserError(
            f"{path}: the name {name!r} leads out of the archive; pack it again without such names"
        )
    return parts


def _read_zip(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes | Link]]:
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        check_expansion(path, sum(info.file_size for info in infos))
        for info in infos:
            # Reading also verifies the checksum of the file.
            data = archive.read(info) if is_wanted(_name(info.filename)) else b""
            # The upper bits are the type of the file, as Unix has it.
            if stat.S_ISLNK(info.external_attr >> 16):
                data = _relative(info.filename, data.decode("utf-8", "replace"))
            yield info.filename, data


def _is_tar(path: Path) -> bool:
    try:
        with _open(path) as file:
            tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except DAMAGED:
        return False
    return True


def _read_tar(path: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes | Link]]:
    size = path.stat().st_size
    num_bytes = 0
    with _open(path) as content:
        limited = _Limited(content)
        # "r:": the content is decompressed already.
        with tarfile.open(fileobj=cast("IO[bytes]", limited), mode="r:") as archive:
            for info in archive:
                # The size that the header states, before anything is decompressed. A sparse file is
                # larger than what the archive contains of it.
                num_bytes += info.size
                check_expansion(path, num_bytes, size)
                # tarfile keeps every header, which takes a gigabyte for a million of them.
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
                if info.islnk():
                    yield info.name, Link(info.linkname)
                if info.issym():
                    yield info.name, _relative(info.name, info.linkname)
                if not info.isfile():
                    continue
                file = archive.extractfile(info) if is_wanted(_name(info.name)) else None
                limited.largest = max(info.size, CHUNK)
                data = b"" if file is None else file.read()
                limited.largest = CHUNK
                if file is not None and len(data) != info.size:
                    raise tarfile.ReadError(f"unexpected end of {info.name}")
                yield info.name, data
            _check_end_of_tar(archive)
        # A compressed file ends with a checksum of its whole content.
        num_bytes = content.tell()
        while chunk := content.read(CHUNK):
            num_bytes += len(chunk)
            check_expansion(path, num_bytes, size)


def _check_end_of_tar(archive: tarfile.TarFile) -> None:
    """Check that the archive ends with a block of zeros.

    tarfile itself treats a damaged header, or the end of a truncated file, as the end of the
    archive, and silently returns fewer files.
    """
    if archive.fileobj is None:
        return
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError(f"unexpected end at byte {archive.offset:,}")


def _open(path: Path) -> IO[bytes]:
    """Open a file, and decompress it while it is read."""
    with path.open("rb") as file:
        start = file.read(max(map(len, OPENERS)))
    opener = next((OPENERS[mark] for mark in OPENERS if start.startswith(mark)), open)
    return opener(path, "rb")


def _name(path: str) -> str:
    return PurePosixPath(path).name


class _Limited:
    """A file of which only a limited number of bytes can be read at once.

    tarfile reads long names and attributes as a whole, and their length comes from the archive.

    Args:
        file: The file.
    """

    def __init__(self, file: IO[bytes]):
        self.file = file
        self.largest = CHUNK

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes."""
        if not 0 <= size <= self.largest:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Change the position."""
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self.file.tell()
