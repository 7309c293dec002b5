"""Ends a process of a training when torchrun, which started it, is gone.

torchrun ends the other processes if one of them fails. If torchrun itself is killed with SIGKILL,
nobody does: the processes go on in the background and keep the lock of the run folder, or wait
forever for one of them that died.
"""

from __future__ import annotations

import os
import signal
import threading
import time

# torchrun sets it. All processes of a training, and those of its restarts, have the same parent.
LAUNCH = "TORCHELASTIC_RUN_ID"
INTERVAL = 1.0  # seconds between two checks, each of which takes microseconds
# Seconds to save a checkpoint. A process that waits for a dead one does not react to the signal.
# Checkpoints are written under another name first, so the exit cannot damage one.
GRACE = 60.0


def end_with_launcher() -> None:
    """Watch the parent process in a thread, if it is torchrun.

    When it is gone, this process gets SIGTERM, after which a training saves a checkpoint and stops.
    A process that is still there after `GRACE` seconds exits at once.
    """
    # A user can start processes in other ways, for example with a shell that ends before them.
    is_watched = any(thread.name == __name__ for thread in threading.enumerate())
    if LAUNCH not in os.environ or is_watched:
        return
    # A thread and not prctl(PR_SET_PDEATHSIG): it works on every operating system, and it can end a
    # process whose main thread waits in a library and handles no signals. If torchrun is gone
    # already, connecting to its store fails.
    arguments = (os.getppid(),)
    threading.Thread(target=_watch, args=arguments, name=__name__, daemon=True).start()


def _watch(parent: int) -> None:
    # A process whose parent ends gets another one.
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)
