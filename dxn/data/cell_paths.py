"""The files that the cells of a table name, and whether they are in the data folder.

A table or a folder can come from an untrusted source. Without this check, it could make dxn read
any file of the user, whose content or existence would then be part of a report or a model.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dxn.core.errors import UserError
from dxn.data.formats import CONFINE
from dxn.tokenize.media import embedded_file

FILE_URL = "file://"


class OutsidePath(str):
    """A path that leads out of the data folder, so its file is not read.

    Attributes:
        reason: Why it is refused, and what to do.
    """

    reason: str


def usual_file(text: str, folder: Path, confine: str | None) -> str | None:
    """Return the path of a file in the data folder, None if it takes longer to find out.

    Most cells of a table name such a file. This takes one system call, and no object of pathlib.

    Args:
        text: The cell.
        folder: Folder of the table.
        confine: Option that allows paths out of the folder. None: they are allowed.
    """
    parent, slash, name = text.rpartition("/")
    if name in ("", ".", "..") or "\\" in name or (slash and not parent):
        return None
    inside = _folder_inside(str(folder), parent, confine)
    path = f"{inside}{os.sep}{name}"
    try:
        is_link = inside is None or stat.S_ISLNK(os.lstat(path).st_mode)
    except (OSError, ValueError):  # no such file, too long, or with a zero byte
        return None
    return None if is_link else path


# Cached, because the files of a data set are in few folders.
@lru_cache(maxsize=4096)
def _folder_inside(folder: str, name: str, confine: str | None) -> str | None:
    path = str(Path(folder, name))
    if confine is not None and isinstance(confined(path, Path(folder), confine), OutsidePath):
        return None
    return path


def file_of_cell(text: str, folder: Path) -> str | bytes:
    """Return the path of the file that a cell names, or the content of a file in the cell itself.

    A path as other systems write it is found too: with backslashes, as a file URL, with spaces
    around it, with another case, or in another Unicode normal form (macOS decomposes letters).

    Args:
        text: The cell.
        folder: Folder of the table, to which paths are relative.
    """
    content = embedded_file(text)
    if content is not None:
        return content
    name = text.strip()
    if name.lower().startswith(FILE_URL):
        name = unquote(urlsplit(name).path)
    for candidate in (text, name, name.replace("\\", "/")):
        path = _similar(Path(folder, candidate))
        if path is not None:
            return str(path)
    return str(Path(folder, text))


def _similar(path: Path) -> Path | None:
    """Return an existing path whose parts are equal, apart from case and Unicode normal form."""
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # too long, or with a zero byte
        return None
    if path.name in ("", "..") or path == path.parent:
        return None
    parent = _similar(path.parent)
    names = () if parent is None else _names(str(parent)).get(_folded(path.name), ())
    # With two files that differ in case only, the cell names neither of them.
    return Path(parent, names[0]) if parent is not None and len(names) == 1 else None


# Cached, because thousands of cells can name files of the same folder.
@lru_cache(maxsize=256)
def _names(folder: str) -> dict[str, list[str]]:
    """Return the names in a folder by their folded form."""
    names: dict[str, list[str]] = {}
    try:
        for path in Path(folder).iterdir():
            names.setdefault(_folded(path.name), []).append(path.name)
    except OSError:  # not a folder, or not readable
        pass
    return names


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def confined(path: str | Path, root: Path, key: str = CONFINE) -> str:
    """Return a path, as an `OutsidePath` if it leads out of a folder.

    Args:
        path: Path of a file, which need not exist.
        root: The data folder.
        key: Option that turns the check off, for the message.
    """
    text = str(path)
    try:
        real = _real_path(text)
        folder = _real_folder(_absolute(str(root)))
    except (OSError, ValueError):  # too long, or with a zero byte: there is no such file
        return text
    if real == folder or real.startswith(f"{folder.rstrip(os.sep)}{os.sep}"):
        return text
    outside = OutsidePath(text)
    outside.reason = (
        f"leads out of the data folder {folder}; copy the file into the folder, or set {key}=false "
        "if you trust the data"
    )
    return outside


def require_inside(path: str | Path, root: Path, key: str = CONFINE) -> None:
    """Raise a UserError if a path leads out of a folder, see `confined`."""
    path_inside = confined(path, root, key)
    if isinstance(path_inside, OutsidePath):
        raise UserError(f"{path}: {path_inside.reason}")


# Functions of os.path: for a million paths, creating objects of pathlib takes longer than the
# system calls.
def _real_path(path: str) -> str:
    """Return os.path.realpath of a file, with one system call for most files of a folder."""
    folder, name = os.path.split(path)
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    real = os.path.join(_real_folder(_absolute(folder)), name)  # noqa: PTH118
    return os.path.realpath(real) if os.path.islink(real) else real  # noqa: PTH114


def _absolute(folder: str) -> str:
    return folder if os.path.isabs(folder) else str(Path(folder).absolute())  # noqa: PTH117


# Cached, because each part of a path takes a system call, and a data set has few folders. The path
# is absolute, because the current folder can change.
@lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
