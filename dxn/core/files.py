"""Files that are replaced atomically: after a crash, either the old or the new content is there."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from dxn.core.errors import UserError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

# The files and folders of a run.
MODEL = "model"
CHECKPOINTS = "checkpoints"
PRETRAINING = "pretrain"  # a run folder of its own
LOG = "metrics.jsonl"
METRICS = "metrics.json"
VALIDATION = "validation.json"  # metrics of a trial of a search, which is not evaluated
PREDICTIONS = "predictions.csv"
TOKENS = "tokens.png"
REPORT = "report.html"
SCORES = "scores.json"
# Files of a model folder. The first one also contains the settings of a run.
CONFIG = "config.yaml"
CARD = "README.md"
WEIGHTS = "model.safetensors"
LABELS = "labels.json"
TARGET_TOKENIZER = "target_tokenizer.json"  # of the texts that a model generates
STACK = "stack.json"  # of a model with a baseline

SUMS = "SHA256SUMS"
# Start of the names of unfinished files and folders. `remove_unfinished` deletes what a killed
# process left behind.
UNFINISHED = ".unfinished-"
OLD = ".old"
CHUNK = 1 << 20  # bytes that are read at once
MAX_SUMS = 1 << 20  # bytes of a SHA256SUMS; a model folder has about ten lines of 80 bytes
# A name with a slash could make dxn read files outside of the folder.
SUM_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\x00-\x1f]+)")
# The disk or the quota is full, or the file is larger than the file system or the user may write.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Arguments of the system call renameat2 of Linux, from fcntl.h and stdio.h.
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name, which replaces `path` at the end of the block.

    The data is on the disk before the file is renamed. An error in the block leaves `path` as it
    was, and removes the temporary file.

    Args:
        path: File to write. Its folder is created if necessary.

    Yields:
        Path of the temporary file, with the same suffix.

    Raises:
        UserError: If there is no space left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    partial = path.with_name(_unfinished_name(path))
    try:
        with explain_full_disk(path, partial):
            yield partial
            sync(partial)
            partial.replace(path)
            sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Write a new folder, which replaces `folder` with all its files at the end of the block.

    Args:
        folder: Folder to replace. It need not exist.

    Yields:
        Path of the new folder, which is empty.

    Raises:
        UserError: If there is no space left, or the folder is a link to one with other files.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The target of a link is replaced, and not the link: it may lead to a larger disk. In a
    # stranger's folder, it may also lead to the documents of the user.
    is_link = folder.is_symlink()
    folder = folder.resolve()
    if is_link and not (folder / SUMS).is_file() and folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder}: would be replaced with all its files, because a link in the run folder "
            f"leads to it, but it has no {SUMS}; remove the link or empty the folder"
        )
    _remove_abandoned(folder)
    partial = folder.with_name(_unfinished_name(folder))
    partial.mkdir()
    try:
        with explain_full_disk(folder, partial):
            yield partial
            for path in [*partial.rglob("*"), partial]:
                sync(path)
            if not folder.exists():
                partial.replace(folder)
            elif not _exchange(partial, folder):
                # Not every operating system and file system can exchange two folders. Between these
                # two renames, a crash leaves no folder at this place, but both next to it.
                aside = folder.with_name(_unfinished_name(folder) + OLD)
                folder.replace(aside)
                partial.replace(folder)
                shutil.rmtree(aside, ignore_errors=True)
            sync(folder.parent)
    finally:
        # After an exchange, this is the old folder.
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, as UTF-8.

    Raises:
        UserError: If there is no space left.
    """
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Add a line to a log file.

    Raises:
        UserError: If there is no space left.
    """
    with explain_full_disk(path, path), open_own(path) as file:
        file.write(f"{line}\n")


def open_own(path: Path, *, binary: bool = False) -> IO[Any]:
    """Open a file to read it and to append to it. It is created if necessary.

    Args:
        path: The file.
        binary: Whether it contains bytes. Default: it is a text in UTF-8.

    Raises:
        UserError: If it is a link, which could lead to any file of the user, or a device.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    if sys.platform == "win32":
        flags |= os.O_BINARY  # line ends would otherwise be translated
    else:
        # Non-blocking, because opening a pipe would otherwise wait for its reader.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise UserError(f"{path}: must be a regular file, got {_what(path)}; remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path}: must be a regular file, got {_what(path)}; remove it")
    return os.fdopen(descriptor, "a+b") if binary else os.fdopen(descriptor, "a+", encoding="utf-8")


def lock(file: IO[Any], *, wait: bool = False) -> bool:
    """Lock an open file for this process, until it ends or closes the file.

    It is a lock of the process (POSIX): data workers that outlive a killed process do not hold it.

    Args:
        file: The file.
        wait: Whether to wait for another process that has locked it.

    Returns:
        False if another process has locked the file, or, with `wait`, if there are no locks.
    """
    if fcntl is not None:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError:  # a network drive without locks
            return not wait
        return True
    return not wait


def cache_folder(name: str) -> Path:
    """Return a folder of the user's cache, such as ~/.cache/dxn/tokens. It need not exist.

    Raises:
        OSError: If the user has no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "dxn", name).expanduser()
    except RuntimeError as error:
        raise OSError(str(error)) from error


def remove_old(folder: Path, max_days: float) -> None:
    """Delete the files and folders in a folder that have not been used for so many days."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process deletes it too
            if path.stat().st_mtime < time.time() - max_days * 24 * 3600:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def refuse_links_out(folder: Path, root: Path) -> None:
    """Refuse links that lead out of a run folder, before something is written through them.

    Args:
        folder: The run folder, or a folder in it. It need not exist.
        root: The run folder, which may come from an untrusted source. It may be a link itself.

    Raises:
        UserError: If the folder is such a link, or contains one at any depth.
    """
    paths = [] if folder == root else [folder]
    for parent, folders, files in os.walk(folder):
        paths += [Path(parent, name) for name in (*folders, *files)]
    for path in paths:
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise UserError(
                f"{path}: must not be a link out of {root}, because dxn would write to "
                f"{path.resolve()}; remove the link"
            )


def new_folder(path: Path) -> Path:
    """Create a folder that no other process has created: `path`, or otherwise path-2, path-3, ...

    Args:
        path: The folder, such as one with the time in its name.

    Returns:
        The folder that was created.
    """
    number = 1
    folder = path
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = path.with_name(f"{path.name}-{number}")


def link(path: Path, new: Path) -> None:
    """Give a file a second name, or copy it where the file system has no hard links."""
    try:
        new.hardlink_to(path)
    except OSError:
        shutil.copy2(path, new)


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files and folders that a killed process left behind in a folder."""
    for path in folder.glob(f"{UNFINISHED}*"):
        _remove_or_restore(path)


def _remove_abandoned(path: Path) -> None:
    """Delete what killed processes of this machine left behind when they wrote the same path."""
    machine = _machine()
    for partial in path.parent.glob(f"{UNFINISHED}{machine}*"):
        process = partial.name.removeprefix(f"{UNFINISHED}{machine}")[:8]
        if _original(partial) == path and not _is_running(process):
            _remove_or_restore(partial)


def this_process() -> str:
    """Return the hexadecimal digits of this machine and process, see `has_ended`."""
    return f"{_machine()}{os.getpid():08x}"


def has_ended(process: str) -> bool:
    """Whether a process of this machine does not run any more. False for other machines."""
    machine = _machine()
    return process.startswith(machine) and not _is_running(process.removeprefix(machine))


def _is_running(process: str) -> bool:
    """Whether a process is running, by its number in hexadecimal digits."""
    try:
        os.kill(int(process, 16), 0)  # no signal, only a check
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):  # the process of another user, or no number
        return True
    return True


@cache
def _machine() -> str:
    """Return 8 hexadecimal digits of the machine or container, in which processes have numbers."""
    processes = Path("/proc/self/ns/pid")
    number = processes.stat().st_ino if processes.exists() else 0
    return hashlib.sha256(f"{platform.node()} {number}".encode()).hexdigest()[:8]


def _original(partial: Path) -> Path:
    """Return the path that an unfinished file or folder replaces, see `_unfinished_name`."""
    _, _, name = partial.name.removeprefix(UNFINISHED).partition("-")
    return partial.parent / name.removesuffix(OLD)


def _remove_or_restore(path: Path) -> None:
    # The old folder, if the process was killed between the two renames of `replace_folder`.
    original = _original(path)
    if path.name.endswith(OLD) and not original.exists():
        path.replace(original)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_sums(folder: Path, digests: Mapping[str, str] | None = None) -> None:
    """Write SHA256SUMS with the digests of all files of a folder, in the format of sha256sum.

    Args:
        folder: The folder.
        digests: Digests by name of files that need not be read again. A copied digest also shows
            damage since the original was written.
    """
    digests = digests or {}
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != SUMS]
    lines = [f"{digests.get(path.name) or sha256(path)}  {path.name}" for path in paths]
    write_text(folder / SUMS, "\n".join(lines) + "\n")


def check_sums(folder: Path, *, may_differ: Sequence[str] = ()) -> frozenset[str]:
    """Compare the files of a folder, which may come from an untrusted source, with its SHA256SUMS.

    Args:
        folder: The folder. Without SHA256SUMS in it, nothing is compared.
        may_differ: Names of files that users may edit.

    Returns:
        The names of the files that SHA256SUMS lists.

    Raises:
        UserError: If a file is missing or has changed, or SHA256SUMS is not valid.
    """
    sums = folder / SUMS
    if not sums.exists():
        return frozenset()
    digests = read_sums(sums)
    for name, expected in digests.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: file not found, although {SUMS} lists it; copy it again")
        if name not in may_differ and sha256(path) != expected:
            raise UserError(
                f"{path}: the file changed after it was saved (its SHA-256 checksum differs from "
                f"{SUMS}); copy it again, or run `sha256sum *.* > {SUMS}` in its folder if you "
                "trust the change"
            )
    return frozenset(digests)


def read_sums(path: Path) -> dict[str, str]:
    """Return the digests in SHA256SUMS by file name."""
    if not path.is_file() or path.stat().st_size > MAX_SUMS:
        raise UserError(f"{path}: must be a file of at most {MAX_SUMS:,} bytes")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    digests: dict[str, str] = {}
    for line in lines:
        match = SUM_LINE.fullmatch(line)
        if match is None:
            raise UserError(
                f"{path}: each line must have a SHA-256 digest, two spaces and the name of a file "
                f"in this folder, got {line[:100]!r}"
            )
        digests[match[2]] = match[1]
    return digests


def _unfinished_name(path: Path) -> str:
    # The suffix is kept, because libraries infer the format from it. The numbers of the machine and
    # of the process tell whether it still writes, and the random part keeps two threads apart.
    return f"{UNFINISHED}{this_process()}{uuid.uuid4().hex[:4]}-{path.name}"


@contextmanager
def explain_full_disk(path: Path, partial: Path) -> Iterator[None]:
    """Replace the error of a full disk by a sentence with the size and the free space."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        free = shutil.disk_usage(path.parent).free
        raise UserError(
            f"{path}: cannot be written: {_size(partial) / 1e6:,.1f} MB were written before there "
            f"was no space left (disk: {free / 1e6:,.1f} MB free, or a file size limit); free some "
            "space and run the command again"
        ) from error


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or what caused it, is a full disk or a file size limit."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return True
    # safetensors is written in Rust. Its errors contain the number only in their text.
    codes = [f"os error {code})" for code in NO_SPACE]
    if type(error).__name__ == "SafetensorError" and any(code in str(error) for code in codes):
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and is_disk_full(cause)


def _what(path: Path) -> str:
    if path.is_symlink():
        return "a link"
    return "a folder" if path.is_dir() else "a device or pipe"


def _size(path: Path) -> int:
    """Return the size of a file, or of all files of a folder, in bytes."""
    paths = path.rglob("*") if path.is_dir() else [path]
    with suppress(OSError):
        return sum(file.stat().st_size for file in paths if file.is_file())
    return 0


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically with a system call of Linux; False if it is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old C library
        return False
    paths = (os.fsencode(first), os.fsencode(second))
    return rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0


def sync(path: Path) -> None:
    """Write a file or folder to the disk. Without this, a rename can reach it before the data."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network drives cannot synchronize. But a full disk may be noticed only here.
        if is_disk_full(error):
            raise
    finally:
        os.close(descriptor)
