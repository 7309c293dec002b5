"""The exceptions that the command line prints as one sentence, and suggestions in them."""

from __future__ import annotations

import difflib
import signal
import sys
import warnings
from collections.abc import Iterable
from types import FrameType

# Minimum similarity of a suggestion, from 0 to 1. Below it, suggestions mislead more often than
# they help: with the default of difflib, 0.6, `loss` suggests `cross`, and `gpu` suggests `cpu`.
MIN_SIMILARITY = 0.75


def warn(message: str) -> None:
    """Warn of a problem, with the line of the program that called dxn."""
    frame, level = sys._getframe(), 1
    # torch and contextlib have the frames of decorators between two functions of dxn.
    while frame.f_back and _package_of(frame) in ("dxn", "torch", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _package_of(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


class UserError(ValueError):
    """A problem that the user can fix.

    The message names the file, row or key, what was received, and what to do. It has one line per
    problem. The command line prints it without a traceback and exits with code 2.
    """


class Interrupted(KeyboardInterrupt):
    """Ctrl+C or another signal, with a message that says what to do next.

    The command line prints the message and exits with `code`.

    Args:
        message: What to do next, such as how to resume a training.
        code: Exit code: 128 plus the number of the signal, as shells report it.
    """

    def __init__(self, message: str = "interrupted", code: int = 128 + signal.SIGINT):
        super().__init__(message)
        self.code = int(code)

    @classmethod
    def by(cls, received: signal.Signals | None) -> Interrupted:
        """Return the exception for a signal. None: another process received it."""
        number = signal.SIGTERM if received is None else received
        return cls(f"stopped by {number.name}", 128 + number)


def similar(wrong: str, names: Iterable[str]) -> str | None:
    """Return the name most similar to a wrong one; None if none is similar enough."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wrong.lower(), list(by_lower), 1, MIN_SIMILARITY)
    return by_lower[close[0]] if close else None


def did_you_mean(wrong: str, names: Iterable[str], form: str = "{!r}") -> str:
    """Return the end of a sentence with the name most similar to a wrong one; "" without any."""
    close = similar(wrong, names)
    return f"; did you mean {form.format(close)}?" if close else ""
