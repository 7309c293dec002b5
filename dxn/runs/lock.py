"""The lock of a run folder, which keeps a second training out of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dxn.core.errors import UserError
from dxn.core.files import open_own

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

FILE = ".lock"


@contextmanager
def locked(folder: Path, *, main: bool) -> Iterator[None]:
    """Hold the lock of a run folder. The operating system releases it when the process ends.

    It is a lock of the process (POSIX): data workers that outlive a killed training do not hold it.

    Args:
        folder: The run folder. It is created if necessary.
        main: Whether this is the main process, which alone takes the lock.

    Raises:
        UserError: If another process holds the lock, or its file is a link.
    """
    if not main or fcntl is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with open_own(path) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read(200).strip() or "another process"
            raise UserError(
                f"run: {folder} is in use by {owner}; wait until it ends, or choose another folder"
            ) from error
        except OSError:  # a network drive without locks
            yield
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
        # The file stays. Two processes could hold locks of two files, if one of them deleted it.
