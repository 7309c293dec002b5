"""The body of a request, as JSON or multipart/form-data: the values of samples, and options."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from dxn.serve.refusal import Refusal

INPUTS = "inputs"
JSON_TYPE = "application/json"
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
MAX_OPTION = 1000  # characters of an option in a form
FORM_TYPE = "multipart/form-data"
FORM_ESCAPES = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})
LONG = 200_000  # bytes
# Values of a JSON body. A list of this many numbers takes 0.1 seconds to parse, in which nothing
# else runs, and 100 MB of memory with the most expensive kind of values, empty objects.
MAX_VALUES = 1_000_000
# Long bodies are parsed one after the other, because each blocks the event loop.
PARSER = ThreadPoolExecutor(1, thread_name_prefix="dxn-parser")
ADVICE = f'send {{"{INPUTS}": [{{"NAME": VALUE}}]}} with the names of the inputs (GET /model)'


@dataclass(frozen=True)
class Body:
    """The content of a request.

    Args:
        samples: Values of each sample by input name.
        options: Options of the request, such as the temperature.
    """

    samples: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]


async def read_body(
    request: Request,
    *,
    inputs: Sequence[str],
    options: Sequence[str],
    timeout: float,
    max_parts: int,
    max_samples: int,
) -> Body:
    """Receive and parse the body of a request.

    Args:
        request: The request.
        inputs: Names of the inputs of the model.
        options: Names of the options that the request may have.
        timeout: Number of seconds in which the body must arrive.
        max_parts: Maximum number of parts of a form.
        max_samples: Maximum number of samples.

    Raises:
        Refusal: If it arrives too slowly, or has another format.
    """
    try:
        async with asyncio.timeout(timeout):
            content = await request.body()
    except TimeoutError:
        # The rest of the body must not be read as the next request.
        raise Refusal(
            408,
            f"the request did not arrive within {timeout:g} seconds; send it faster",
            {"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Refusal(400, "the connection was closed before the request was complete") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # curl -d sends another type by default. Only a form and JSON are possible, so this is JSON.
    if kind in (JSON_TYPE, "", "text/plain", "application/x-www-form-urlencoded"):
        _check_values(content)
        if len(content) > LONG:
            loop = asyncio.get_running_loop()
            body = await loop.run_in_executor(PARSER, _parse_json, content, options)
        else:
            body = _parse_json(content, options)
    elif kind == FORM_TYPE:
        _check_charset(request.headers["content-type"])
        body = await _parse_form(request, inputs, options, max_parts)
    else:
        raise Refusal(415, f"Content-Type: must be {JSON_TYPE} or {FORM_TYPE}, got {kind[:60]!r}")
    if len(body.samples) > max_samples:
        raise Refusal(
            413,
            f"{INPUTS}: at most {max_samples} samples per request, got {len(body.samples):,}; "
            "send several requests",
        )
    return body


def _check_charset(content_type: str) -> None:
    """Refuse other codecs of the fields of a form than UTF-8. Some take quadratic time."""
    header = Message()
    header["content-type"] = content_type
    charset = header.get_content_charset() or CHARSETS[0]
    if charset not in CHARSETS:
        raise Refusal(415, f"Content-Type: charset must be {CHARSETS[0]}, got {charset[:60]!r}")


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


def _parse_json(content: bytes, options: Sequence[str]) -> Body:
    try:
        data = json.loads(content)
    # A number with thousands of digits is a ValueError, deep nesting a RecursionError.
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise Refusal(400, f"the body is not valid JSON ({reason}); {ADVICE}") from None
    if not isinstance(data, dict) or INPUTS not in data:
        raise Refusal(400, f'the body must be an object with the key "{INPUTS}"; {ADVICE}')
    unknown = [name for name in data if name != INPUTS and name not in options]
    if unknown:
        known = ", ".join([INPUTS, *options])
        raise Refusal(400, f"{unknown[0][:60]!r}: there is no such key; the keys are {known}")
    samples = data[INPUTS]
    if isinstance(samples, dict):
        samples = [samples]
    is_list = isinstance(samples, list) and all(isinstance(each, dict) for each in samples)
    if not is_list or not samples:
        raise Refusal(400, f"{INPUTS}: must be a list of at least one object; {ADVICE}")
    return Body(samples, {name: data[name] for name in options if name in data})


async def _parse_form(
    request: Request, inputs: Sequence[str], options: Sequence[str], max_parts: int
) -> Body:
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
        columns.setdefault(escaped.get(name, name), []).append(content)
    await form.close()
    chosen: dict[str, Any] = {}
    for name in options:
        if name in columns:
            chosen[name] = _parse_option(columns.pop(name)[-1])
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
    return Body([dict(zip(columns, row, strict=True)) for row in rows], chosen)


def _parse_option(value: Any) -> Any:
    """Return an option of a form, which is a text, as JSON would contain it."""
    if isinstance(value, bytes) or len(value) > MAX_OPTION:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
