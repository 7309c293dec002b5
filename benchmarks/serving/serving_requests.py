"""A client of `dxn serve` that costs little time, because it shares the machine with the server."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Self

HOST = "127.0.0.1"
WORDS = ("one", "zwei", "trois", "cuatro", "fem", "seis", "sieben", "otto", "nove", "ten")


def texts(count: int) -> list[str]:
    """Return texts of 1 to 12 words."""
    rand = random.Random(0)
    return [" ".join(rand.choices(WORDS, k=rand.randint(1, 12))) for _ in range(count)]


def request(path: str, body: bytes, kind: str = "application/json") -> bytes:
    """Return the bytes of a POST request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def json_request(content: Any, path: str = "/predict") -> bytes:
    """Return the bytes of a POST request with JSON."""
    return request(path, json.dumps(content).encode())


def file_request(name: str, content: bytes, path: str = "/predict") -> bytes:
    """Return the bytes of a POST request with one file."""
    body = (
        f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="file"\r\n\r\n'.encode()
        + content
        + b"\r\n--x--\r\n"
    )
    return request(path, body, "multipart/form-data; boundary=x")


class Connection:
    """A connection to a server on this machine.

    Args:
        port: Port of the server.
    """

    def __init__(self, port: int):
        self.port = port
        self.is_closing = False  # the server has announced the end of the connection

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(HOST, self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    async def ask(self, payload: bytes) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of its answer."""
        self.writer.write(payload)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        """Return the status and the body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        lower = head.lower()
        self.is_closing = b"connection: close" in lower
        start = lower.find(b"content-length:")
        if start < 0:
            return status, b""
        length = int(lower[start + 15 : lower.index(b"\r\n", start)])
        return status, await self.reader.readexactly(length)
