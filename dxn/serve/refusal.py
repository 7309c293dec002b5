"""The exceptions that become an HTTP answer with an error."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping

from dxn.core.printable import printable

INTERNAL = "an error of the server; its log says more"
# The name of the error in the answer, by status code. The message says what to do.
KINDS = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "too_large",
    415: "unsupported_media_type",
    421: "wrong_host",
    422: "bad_input",
    431: "headers_too_large",
    500: "internal_error",
    503: "busy",
    504: "timeout",
}


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: Status code of HTTP.
        message: One sentence: what is wrong, what was received, what to do.
        headers: Further headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})

    @property
    def content(self) -> dict[str, dict[str, str]]:
        """The body of the answer."""
        return {"error": {"type": KINDS.get(self.status, "error"), "message": self.message}}


class Busy(Refusal):
    """Too many samples or connections wait."""

    def __init__(self, message: str):
        super().__init__(503, message, {"Retry-After": "1"})


class TimedOut(Refusal):
    """The answer took too long."""

    def __init__(self, seconds: float):
        super().__init__(
            504,
            f"no answer within {seconds:g} seconds; send fewer or smaller samples, or try again "
            "later",
        )


def report(error: BaseException) -> None:
    """Print an unexpected error for the operator, with DXN_DEBUG=1 as a traceback."""
    line = f"{type(error).__name__}: {error}".partition("\n")[0]
    print(f"dxn: error in a request: {printable(line)}", file=sys.stderr, flush=True)
    if os.environ.get("DXN_DEBUG"):
        traceback.print_exception(error)
