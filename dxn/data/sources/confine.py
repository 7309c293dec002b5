"""Paths of a data set stay inside its folder, also through symbolic links.

A table or a folder can come from an untrusted source. Without this check, it could make dxn read
any file of
the user, whose content or existence would then be part of a report or a model.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from dxn.data.files import OutsidePath
from dxn.data.sources.detect import CONFINE


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
