"""Signals that ask a training to save a checkpoint and stop."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

# SIGTERM: a container or a batch system stops the job. SIGUSR1: Slurm's warning before the time
# limit (--signal=USR1@60). SIGHUP: the terminal is closed. SIGINT: Ctrl+C. Windows lacks some.
NAMES = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT")


class StopRequested(Exception):
    """Leaves the validation after a signal."""


class StopSignals:
    """Context manager that records these signals, instead of letting them end the process.

    The training reads `received` after each batch. A second Ctrl+C raises KeyboardInterrupt at
    once. Without the main thread of the process, which alone can handle signals, nothing happens.
    A signal that the process ignores stays ignored.
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._previous: dict[int, Any] = {}
        self._pid = os.getpid()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for name in NAMES:
                number = getattr(signal, name, None)
                # `nohup dxn train` ignores SIGHUP, so that the training survives its terminal.
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Data workers inherit the handler. They end with the training process, not before it.
        if os.getpid() != self._pid:
            return
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
