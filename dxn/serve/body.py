"""The body of a request: it is received, and parsed as JSON or as multipart/form-data."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from dxn.core.untrusted import unique_keys
from dxn.serve.answers import Refusal
from dxn.serve.options import ServeOptions
from dxn.serve.schema import (
    ADVICE,
    DESCRIBED,
    FORM_TYPE,
    INPUTS,
    JSON_TYPE,
    PROMPT,
    Body,
    check_body,
)

CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
MAX_OPTION = 1000  # characters of an option in a form
FORM_ESCAPES = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})
LONG = 200_000  # bytes
# Values of a JSON body. A list of this many numbers takes 0.1 seconds to parse, in which nothing
# else runs, and 100 MB of memory with the most expensive kind of values, empty objects.
MAX_VALUES = 1_000_000
# A wrong form is refused, and needs no warning in the log.
logging.getLogger("python_multipart").setLevel(logging.ERROR)
# Long bodies are parsed one after the other, because each blocks the event loop.
PARSER = ThreadPoolExecutor(1, thread_name_prefix="dxn-parser")

AnyBody = TypeVar("AnyBody", bound=Body)


async def read_body(
    request: Request, model: type[AnyBody], inputs: Sequence[str], options: ServeOptions
) -> AnyBody:
    """Receive, parse and check the body of a request.

    Args:
        request: The request.
        model: Model of the body.
        inputs: Names of the inputs of the model that is served.
        options: Limits.

    Raises:
        Refusal: If it arrives too slowly, or has another format.
        UserError: If a value is wrong.
    """
    kind = _media_type(request)
    if kind == FORM_TYPE:
        _check_form(request.headers["content-type"], await _receive(request, options))
        names = [name for name in model.model_fields if name != INPUTS]
        max_parts = options.max_samples * len(inputs) + len(names)
        data = await _parse_form(request, inputs, names, max_parts)
    else:
        data = await read_json(request, options, kinds=f"{JSON_TYPE} or {FORM_TYPE}", advice=ADVICE)
    body = check_body(model, data)
    check_count(INPUTS, len(body.inputs), options)
    return body  # pyright: ignore[reportReturnType]


async def read_json(
    request: Request, options: ServeOptions, *, kinds: str = JSON_TYPE, advice: str = DESCRIBED
) -> Any:
    """Receive and parse a body that is JSON.

    Args:
        request: The request.
        options: Limits.
        kinds: The content types of the path, for a message.
        advice: What to send instead, for a message.

    Raises:
        Refusal: If it arrives too slowly, or is not JSON.
    """
    kind = _media_type(request)
    # curl -d sends another type by default. Only a form and JSON are possible, so this is JSON.
    if kind not in (JSON_TYPE, "", "text/plain", "application/x-www-form-urlencoded"):
        raise Refusal(415, f"Content-Type: must be {kinds}, got {kind[:60]!r}")
    content = await _receive(request, options)
    _check_values(content)
    if len(content) <= LONG:
        return _parse_json(content, advice)
    return await asyncio.get_running_loop().run_in_executor(PARSER, _parse_json, content, advice)


def check_count(name: str, count: int, options: ServeOptions) -> None:
    """Refuse a request with too many samples, whose list has this name."""
    if count > options.max_samples:
        raise Refusal(
            413,
            f"{name}: at most {options.max_samples} samples per request, got {count:,}; send "
            "several requests",
        )


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _receive(request: Request, options: ServeOptions) -> bytes:
    """Receive the body of a request in the time limit."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    # A compressed body would have to be limited twice.
    if encoding not in ("", "identity"):
        raise Refusal(415, f"Content-Encoding: send the body uncompressed, got {encoding[:60]!r}")
    try:
        async with asyncio.timeout(options.timeout):
            return await request.body()
    except TimeoutError:
        raise Refusal(
            408,
            f"the request did not arrive within {options.timeout:g} seconds; send it faster",
        ) from None
    except ClientDisconnect:
        raise Refusal(400, "the connection was closed before the request was complete") from None


def _check_form(content_type: str, content: bytes) -> None:
    """Refuse what the parser of forms would accept."""
    # The parser of the library, because others read a header with two charsets in another way.
    _, options = parse_options_header(content_type)
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    # Some codecs take quadratic time.
    if charset.lower() not in CHARSETS:
        raise Refusal(415, f"Content-Type: charset must be {CHARSETS[0]}, got {charset[:60]!r}")
    # Its last part would be left out.
    boundary = options.get(b"boundary")
    if boundary and b"--" + boundary in content and b"--%b--" % boundary not in content:
        raise Refusal(400, "the form ends before its last boundary; send it again")


def _check_values(content: bytes) -> None:
    """Refuse JSON with very many values before it is parsed, when it takes 20 times its size."""
    # Commas and brackets in texts count too, which makes no difference for texts of normal length.
    count = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if count > MAX_VALUES:
        raise Refusal(
            413,
            f"the body has more than {MAX_VALUES:,} values; send several requests, or a file in "
            "base64",
        )


def _parse_json(content: bytes, advice: str) -> Any:
    try:
        return json.loads(content, object_pairs_hook=unique_keys)
    # A number with thousands of digits is a ValueError, deep nesting a RecursionError.
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise Refusal(400, f"the body is not valid JSON ({reason}); {advice}") from None


async def _parse_form(
    request: Request, inputs: Sequence[str], options: Sequence[str], max_parts: int
) -> dict[str, Any]:
    """Parse a form. The n-th part with the name of an input belongs to the n-th sample."""
    # Browsers send some characters of a name in this form (HTML standard, multipart/form-data).
    escaped = {name.translate(FORM_ESCAPES): name for name in inputs}
    try:
        # The size of the whole body is limited, so that of a part need not be.
        form = await request.form(max_files=max_parts, max_fields=max_parts, max_part_size=1 << 40)
    except HTTPException as error:
        raise Refusal(400, f"the form cannot be read ({error.detail})") from None
    columns: dict[str, list[Any]] = {}
    for name, value in form.multi_items():
        content = await value.read() if isinstance(value, UploadFile) else value
        if name == PROMPT and isinstance(content, bytes):
            content = content.decode("utf-8", errors="surrogateescape")
        columns.setdefault(escaped.get(name, name), []).append(content)
    await form.close()
    chosen: dict[str, Any] = {}
    for name in options:
        if name not in columns:
            continue
        if name in inputs:
            raise Refusal(400, f"{name}: is an input and an option, which a form mixes; send JSON")
        value, *others = columns.pop(name)
        if others:
            raise Refusal(400, f"{name}: must be one part of the form, got {len(others) + 1}")
        chosen[name] = _parse_option(value)
    if not columns:
        raise Refusal(400, "the form has no part with the name of an input (GET /model)")
    counts = {name: len(values) for name, values in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of {name[:60]!r}" for name, count in counts.items())
        raise Refusal(
            400,
            f"the form must have the same number of parts of each input, got {listed}; send "
            "samples that lack an input in separate requests",
        )
    rows = zip(*columns.values(), strict=True)
    return {INPUTS: [dict(zip(columns, row, strict=True)) for row in rows], **chosen}


def _parse_option(value: Any) -> Any:
    """Return an option of a form, which is a text, as JSON would contain it."""
    if isinstance(value, bytes) or len(value) > MAX_OPTION:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
