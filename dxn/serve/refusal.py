"""The exceptions that become an HTTP answer with an error."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from dxn.core.printable import printable

OPENAI = "/v1/"  # start of the paths of OpenAI's API, whose errors have its form
# The option that a message is about stands at its start.
OPTION = re.compile(r"'?([a-z][\w.\[\]]*)'?: ")
INTERNAL = "an error of the server; its log says more"
# The name of the error in the answer, and its description, by status code. The message of an answer
# says what to do.
KINDS = {
    400: ("bad_request", "The body has another format."),
    401: ("unauthorized", "The API key is missing or wrong."),
    403: ("forbidden", "The request comes from a page of another server."),
    404: ("not_found", "There is no such path, or the model cannot do this."),
    405: ("method_not_allowed", "The path has another method."),
    408: ("request_timeout", "The request arrived too slowly."),
    413: ("too_large", "The request is too large."),
    415: ("unsupported_media_type", "The content type is neither JSON nor a form."),
    421: ("wrong_host", "The server does not know this host name."),
    422: ("bad_input", "A sample cannot be used."),
    431: ("headers_too_large", "The headers are too large."),
    500: ("internal_error", "An error of the server, whose log says more."),
    503: ("busy", "Too many samples wait. Try again later."),
    504: ("timeout", "The answer took too long."),
}


class Refusal(Exception):
    """A request that is not answered.

    Args:
        status: Status code of HTTP.
        message: One sentence: what is wrong, what was received, what to do.
        headers: Further headers of the answer.
        code: Name of the error on the paths of OpenAI's API, if it differs from that of the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
        code: str | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        self.code = code

    def answer(self, path: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Return the status code and the body of the answer to a request of this path."""
        kind = KINDS[self.status][0] if self.status in KINDS else "error"
        if not path.startswith(OPENAI):
            return self.status, {"error": {"type": kind, "message": self.message}}
        option = OPTION.match(self.message)
        error = {
            "message": self.message,
            "type": "server_error" if self.status >= 500 else "invalid_request_error",
            "param": option[1] if option else None,
            "code": self.code or kind,
        }
        # Clients expect 400 for every value that cannot be used.
        return 400 if self.status == 422 else self.status, {"error": error}


def busy(message: str) -> Refusal:
    """Return the refusal of a request for which too many samples or connections wait."""
    return Refusal(503, message, {"Retry-After": "1"})


def timed_out(seconds: float) -> Refusal:
    """Return the refusal of a request whose answer took too long."""
    return Refusal(
        504,
        f"no answer within {seconds:g} seconds; send fewer or smaller samples, or try again later",
    )


def report(error: BaseException) -> None:
    """Print an unexpected error for the operator, with DXN_DEBUG=1 as a traceback."""
    line = f"{type(error).__name__}: {error}".partition("\n")[0]
    print(f"dxn: error in a request: {printable(line)}", file=sys.stderr, flush=True)
    if os.environ.get("DXN_DEBUG"):
        traceback.print_exception(error)
