"""Answers of the HTTP interface: JSON, errors and server-sent events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from dxn.core.errors import UserError
from dxn.serve.refusal import INTERNAL, Refusal, report

# no: a proxy such as nginx would otherwise collect the whole answer.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def while_connected(request: Request, answer: Coroutine[Any, Any, Any]) -> Any:
    """Return an answer. If the client closes the connection before, the work is cancelled."""
    working = asyncio.ensure_future(answer)
    # The body has been read, so the next message is that the client has gone.
    leaving = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            raise Refusal(400, "the connection was closed before the answer was complete")
        return await working
    finally:
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

    async def events() -> AsyncIterator[str]:
        try:
            async for part in parts:
                yield f"data: {dumps(part)}\n\n"
            if last:
                yield f"data: {last}\n\n"
        except Exception as error:
            content = json.loads(bytes(error_answer(error, path).body))
            yield f"event: error\ndata: {dumps(content)}\n\n"

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


def dumps(content: Any) -> str:
    """Return JSON. Numbers that are not finite become null, which JSON has instead."""
    try:
        return json.dumps(content, allow_nan=False, ensure_ascii=False, default=str)
    except ValueError:
        return json.dumps(_finite(content), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
