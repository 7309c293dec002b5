"""What is checked before a request reaches the application: its origin, its key and its size."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from dxn.serve.answers import Refusal, busy, error_answer, report
from dxn.serve.options import BODIES, LOOPBACK
from dxn.serve.service import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A request without these headers has no body.
BODY_HEADERS = (b"content-length", b"transfer-encoding")
PORTS = {"http": 80, "https": 443}
MAX_HEADERS = 32_000  # bytes
LONG_HEADERS = f"the headers have more than {MAX_HEADERS:,} bytes; send shorter ones"
REST_SECONDS = 5.0  # in which the rest of a body that is refused can arrive
# Paths that need no key: whether the server is alive, and the pages, which ask for the key.
OPEN = ("/", "/docs", "/health")
OPEN_PREFIX = "/static/"
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # The page uses only its own files, so that a text in an answer can never load or run anything.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data: blob:; media-src 'self' data: blob:; frame-ancestors 'none'; "
        b"base-uri 'none'; form-action 'none'",
    ),
)


class Guard:
    """An ASGI application that refuses requests, counts them, and passes on the others.

    Args:
        app: The application.
        service: Its options are the limits, and its metrics count the requests.
        key: The API key. None: requests need no key.
    """

    def __init__(self, app: Any, service: Service, key: str | None):
        self.app = app
        self.service = service
        self.options = options = service.options
        self.key = None if key is None else key.encode()
        # Names and ports; names have no upper case.
        self.allowed = [_address_in(f"//{name}") for name in options.allowed_hosts]
        # Names of the server. Empty: any name.
        self.hosts: set[str] = set()
        if options.is_local or self.allowed:
            self.hosts = {*LOOPBACK, options.host, *(name for name, _ in self.allowed)}
        self.num_bytes = 0  # of all bodies that are being received or used

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, see the specification of ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        received = 0
        headers = dict(scope["headers"])
        has_body = any(name in headers for name in BODY_HEADERS)

        async def count_and_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, has_body
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
                # Many clients read no answer before they have sent the whole body. One that expects
                # an answer before the body needs it now.
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(REST_SECONDS, self.options.timeout)):
                        while has_body and b"expect" not in headers:
                            has_body = (await receive()).get("more_body", False)
                # Otherwise the next request of this client would find the connection closed, or the
                # rest of its body would be read as its next request.
                if has_body or self.service.is_stopping or self.service.is_crowded:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        async def limited_receive() -> MutableMapping[str, Any]:
            nonlocal received, has_body
            message = await receive()
            has_body = has_body and message.get("more_body", False)
            size = len(message.get("body", b""))
            received += size
            self.num_bytes += size
            # Only a part of a body is refused, and not the message that the client has gone.
            if size:
                self._check_size(received)
            return message

        try:
            self._check(scope, headers)
            await self.app(scope, limited_receive, count_and_send)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                # The server stops, and this request has taken longer than it waits.
                error = busy("the server is being stopped; send the request again")
            # After the start of an answer, it can only be cut off.
            if status:
                if not isinstance(error, Refusal):
                    report(error)
                return
            answer = error_answer(error, scope["path"])
            await answer(scope, limited_receive, count_and_send)
        finally:
            self.num_bytes -= received
            self.service.metrics.observe_request(scope["path"], status, time.perf_counter() - start)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        # uvicorn limits only headers that arrive in several parts.
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            raise Refusal(431, LONG_HEADERS)
        # A proxy in front may use the other one to tell where the next request begins (RFC 9112).
        if all(name in headers for name in BODY_HEADERS):
            raise Refusal(
                400,
                "a request has Content-Length or Transfer-Encoding, and not both; remove one",
                {"Connection": "close"},
            )
        path = scope["path"]
        # A busy server is alive.
        if self.service.is_crowded and path != "/health":
            raise busy("too many connections are open; close some, or try again later")
        self._check_host(headers)
        is_open = path in OPEN or path.startswith(OPEN_PREFIX)
        if self.key is not None and not is_open and not self._has_key(headers):
            raise Refusal(
                401,
                "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                {"WWW-Authenticate": "Bearer"},
            )
        length = headers.get(b"content-length", b"0")
        # uvicorn has checked that it is a number.
        # A request without a body, such as GET /health, is answered even if others are too large.
        if length.isdigit() and int(length):
            self._check_size(int(length))

    def _check_host(self, headers: dict[bytes, bytes]) -> None:
        """Refuse requests of web pages of others, which a browser on this machine could send."""
        sent = headers.get(b"host", b"").decode("latin-1")
        host, _ = _address_in(f"//{sent}")
        # A page can resolve its own name to 127.0.0.1 (DNS rebinding), but it cannot change Host.
        if self.hosts and host not in self.hosts:
            raise Refusal(
                421,
                f"Host: this server is not reached as {host[:60]!r}; to allow this name, start "
                "it with allowed_hosts=[NAME]",
            )
        if b"origin" not in headers:
            return
        origin = headers[b"origin"].decode("latin-1")
        sender, port = _address_in(origin)
        # The page of another port is that of another server. Host has no port if it is the usual
        # one, which is that of the page's scheme.
        own = _address_in(f"{origin.partition('//')[0]}//{sent}")
        is_own = (sender, port) in (own, *self.allowed) or (sender, None) in self.allowed
        if not sender or not is_own:
            raise Refusal(
                403,
                "Origin: pages of other servers may not use this one; to allow it, start the "
                "server with allowed_hosts=[NAME]",
            )

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        assert self.key is not None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        sent = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        # In constant time, so that the key cannot be found out character by character.
        return hmac.compare_digest(sent, self.key)

    def _check_size(self, size: int) -> None:
        limit = self.options.max_bytes
        if size > limit:
            raise Refusal(
                413,
                f"the request has more than {limit:,} bytes (max_body={self.options.max_body:g}); "
                "send a smaller file or fewer samples",
            )
        if self.num_bytes > BODIES * limit:
            raise busy("too many large requests at the same time; try again later")


@lru_cache(maxsize=64)  # a client sends the same headers in each request
def _address_in(url: str) -> tuple[str, int | None]:
    """Return the name of the server in a URL, "" if there is none, and its port.

    None as the port means that the URL has neither a port nor a scheme with a usual one.
    """
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port or PORTS.get(parts.scheme)
    except ValueError:  # such as an IPv6 address without its last bracket
        return "", None
