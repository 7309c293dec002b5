"""Tar and zip archives, which are extracted into a cache folder once."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

from dxn.core.errors import UserError
from dxn.data.formats import require_path
from dxn.data.tables.files import CHUNK, check_expansion

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


def extracted(path: Path) -> Path:
    """Return a folder with the files of an archive, which is extracted if it is new or changed.

    Args:
        path: The archive, whose format is recognized by its content.

    Raises:
        UserError: If it is not an archive, is damaged, expands to too many bytes, or contains a
            name or a link that leads out of it.
    """
    require_path(path)
    status = path.stat()
    version = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dxn" / "archives"
    folder = cache / hashlib.blake2b(version.encode(), digest_size=16).hexdigest()
    if folder.is_dir():
        return folder
    if not (zipfile.is_zipfile(path) or _is_tar(path)):
        raise UserError(f"{path}: must be a folder, or a tar or zip archive")
    cache.mkdir(parents=True, exist_ok=True)
    # Renamed at the end, so that an extraction that was interrupted is not taken for a whole one.
    partial = Path(mkdtemp(prefix=f".{folder.name}-", dir=cache))
    try:
        if zipfile.is_zipfile(path):
            _extract_zip(path, partial)
        else:
            _extract_tar(path, partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise, another process was faster
                raise
    except tarfile.FilterError as error:
        raise UserError(f"{path}: {error}; pack it again without this file") from error
    except DAMAGED as error:
        raise UserError(
            f"{path}: cannot be extracted to {cache}, or is a damaged or truncated archive "
            f"({error}); download or pack it again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except DAMAGED:
        return False


def _extract_zip(path: Path, folder: Path) -> None:
    """Extract a zip archive. `ZipFile.extract` itself would change a name that leads out of it."""
    with zipfile.ZipFile(path) as archive:
        check_expansion(path, sum(info.file_size for info in archive.infolist()))
        for info in archive.infolist():
            name = PurePosixPath(info.filename)
            if name.is_absolute() or ".." in name.parts:
                raise UserError(
                    f"{path}: the name {info.filename!r} leads out of the archive; pack it again "
                    "without this file"
                )
            if stat.S_ISLNK(info.external_attr >> 16):
                raise UserError(
                    f"{path}: {info.filename} is a link; pack it again with the file itself (zip "
                    "without --symlinks)"
                )
            archive.extract(info, folder)


def _extract_tar(path: Path, folder: Path) -> None:
    """Extract a tar archive. The filter refuses devices, and what leads out of the folder."""
    num_bytes = 0
    with tarfile.open(path) as archive:
        for info in archive:
            num_bytes += info.size
            check_expansion(path, num_bytes)
            archive.extract(info, folder, filter="data")
        # tarfile takes a damaged header, or the end of a truncated file, for the end of the
        # archive, which is at least two blocks of zeros. A compressed file ends with a checksum.
        assert archive.fileobj is not None
        has_end = False
        while rest := archive.fileobj.read(CHUNK):
            has_end = True
            if any(rest):
                raise tarfile.ReadError(f"unexpected end at byte {archive.offset:,}")
        if not has_end:
            raise tarfile.ReadError(f"unexpected end at byte {archive.offset:,}")
