"""Answers of the HTTP interface: JSON, server-sent events, and refusals of a request."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from dxn.core.errors import UserError
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
# `json.dumps` would make one per answer.
ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=str)
# no: a proxy such as nginx would otherwise collect the whole answer.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


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


async def while_connected(request: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """Return an answer. If the client closes the connection before, the work is cancelled."""
    working = asyncio.ensure_future(answer)
    # The body has been read, so the next message is that the client has gone.
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(400, "the connection was closed before the answer was complete")
        return await working
    finally:
        working.cancel()
        leaving.cancel()


def error_answer(error: Exception, path: str) -> Response:
    """Return the answer for an exception to a request of this path."""
    if isinstance(error, UserError):
        error = Refusal(422, str(error))
    elif isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        advice = "GET /openapi.json describes all requests"
        error = Refusal(error.status_code, f"{error.detail}; {advice}", headers)
    elif not isinstance(error, Refusal):
        report(error)
        error = Refusal(500, INTERNAL)
    status, content = error.answer(path)
    return json_answer(content, status, error.headers)


def event_stream(parts: AsyncIterator[Any], path: str, last: str = "") -> Response:
    """Return the parts of a stream as server-sent events. An error is the last event.

    Args:
        parts: JSON data.
        path: Path of the request.
        last: Content of the last event, if there is no error. "": no such event.
    """

    async def events() -> AsyncIterator[bytes]:
        try:
            async for part in parts:
                yield b"data: %b\n\n" % dumps(part)
            if last:
                yield b"data: %b\n\n" % last.encode()
        except Exception as error:
            yield b"event: error\ndata: %b\n\n" % bytes(error_answer(error, path).body)

    return StreamingResponse(events(), media_type="text/event-stream", headers=STREAM_HEADERS)


def json_answer(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer with JSON data."""
    return Response(
        dumps(content),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def dumps(content: Any) -> bytes:
    """Return JSON. Numbers that are not finite become null, which JSON has instead."""
    try:
        text = ENCODER.encode(content)
    except ValueError:
        text = ENCODER.encode(_finite(content))
    # Half of a character, which a message may repeat, has the same escape sequence in JSON.
    return text.encode(errors="backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
