"""The faults of serving.py. Each function returns what it saw, and if that is right."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from collections.abc import Awaitable, Callable

import numpy as np
from PIL import Image
from serving_requests import HOST, Connection, file_request, json_request, request

Outcome = tuple[str, bool]
SECONDS = 30  # in which a fault must be over


async def slow_body(port: int) -> Outcome:
    """Send the headers at once, and the body one byte at a time."""
    async with Connection(port) as connection:
        connection.writer.write(request("/predict", b" " * 1000)[:-1000])
        answer = asyncio.create_task(connection.answer())
        while not answer.done():
            connection.writer.write(b" ")
            await asyncio.sleep(0.1)
        return _expected((await answer)[0], 408)


async def silent(port: int) -> Outcome:
    """Open connections, send a part of the headers, and nothing more."""
    connections = [await asyncio.open_connection(HOST, port) for _ in range(50)]
    for _, writer in connections:
        writer.write(b"POST /predict HTTP/1.1\r\nHost: ")
    async with asyncio.timeout(SECONDS):
        ends = await asyncio.gather(*(reader.read() for reader, _ in connections))
    for _, writer in connections:
        writer.close()
    return f"{len(ends)} connections closed", True


async def vanishing(port: int) -> Outcome:
    """Send requests, and close the connections before the answers."""
    for _ in range(100):
        async with Connection(port) as connection:
            connection.writer.write(json_request({"inputs": [{"text": "seven"}] * 8}))
            await connection.writer.drain()
    return "100 connections closed", True


async def oversized(port: int) -> Outcome:
    """Announce a body that is too large."""
    async with Connection(port) as connection:
        connection.writer.write(request("/predict", b" " * 2_000_000)[:1000])
        return _expected((await connection.answer())[0], 413)


async def broken_picture(port: int) -> Outcome:
    """Send a picture that ends in the middle."""
    return await _picture(port, _png(64, 64)[:-100])


async def huge_picture(port: int) -> Outcome:
    """Send a small file of a picture with 400 million pixels."""
    return await _picture(port, _png(20_000, 20_000, mode="1"))


async def no_picture(port: int) -> Outcome:
    """Send random bytes as a picture."""
    return await _picture(port, np.random.default_rng(0).bytes(100_000))


async def path_as_picture(port: int) -> Outcome:
    """Send the path of a file instead of its content."""
    async with Connection(port) as connection:
        payload = json_request({"inputs": [{"image": "/etc/passwd"}]})
        return _expected((await connection.ask(payload))[0], 422)


async def deep_json(port: int) -> Outcome:
    """Send JSON that is nested very deeply."""
    async with Connection(port) as connection:
        return _expected((await connection.ask(request("/predict", b"[" * 900_000)))[0], 400)


async def full_queue(port: int) -> Outcome:
    """Send more samples than may wait."""

    async def ask() -> int:
        async with Connection(port) as connection:
            payload = json_request({"inputs": [{"text": "seven " * 50}] * 32})
            return (await connection.ask(payload))[0]

    statuses = Counter(await asyncio.gather(*(ask() for _ in range(30))))
    listed = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    return listed, set(statuses) <= {200, 503} and statuses[503] > 0


async def _picture(port: int, content: bytes) -> Outcome:
    async with Connection(port) as connection:
        status, body = await connection.ask(file_request("image", content))
        assert json.loads(body)["error"]["message"].startswith("image: ")
        return _expected(status, 422)


def _png(height: int, width: int, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    if mode == "RGB":
        noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(noise).save(file, "PNG")
    else:
        Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


def _expected(status: int, right: int) -> Outcome:
    return str(status), status == right


FAULTS: dict[str, Callable[[int], Awaitable[Outcome]]] = {
    "body sent byte by byte": slow_body,
    "50 connections that fall silent": silent,
    "100 clients that do not wait for the answer": vanishing,
    "body too large": oversized,
    "picture cut off": broken_picture,
    "picture of 400 million pixels": huge_picture,
    "random bytes as a picture": no_picture,
    "path instead of a file": path_as_picture,
    "nested JSON": deep_json,
    "more samples than may wait": full_queue,
}
