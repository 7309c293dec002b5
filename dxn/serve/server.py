"""The HTTP server: uvicorn with limits for slow clients, and a graceful stop."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from dxn.serve.answers import Refusal, error_answer
from dxn.serve.guard import LONG_HEADERS, MAX_HEADERS, SECURITY_HEADERS
from dxn.serve.options import ServeOptions

KEEP_ALIVE = 30  # seconds without a request after which a connection is closed
# In which the headers of a request must arrive, and a client must read a part of its answer. It can
# be twice this time.
CLIENT_SECONDS = 15.0
# Time between the signal to stop and the end of open connections without a request.
DRAIN_SECONDS = 0.5


class Connection(h11.Connection):
    """The state of a connection, which passes the head of an answer on with its body.

    uvicorn would send them one after the other, which wakes the client twice.
    """

    head = b""
    num_bytes = 0  # of all answers so far

    def send(self, event: Any) -> Any:
        """Return the bytes to send for an event, or None."""
        data = super().send(event)
        if data is None:  # the end of the connection
            return None
        self.num_bytes += len(data)
        # The parts of a stream, whose length is not known, can come much later.
        if isinstance(event, h11.Response) and b"content-length" in data.lower():
            self.head = data
            return b""
        head, self.head = self.head, b""
        return head + data


class Protocol(H11Protocol):
    """One connection. It is closed if the client sends headers, or reads the answer, too slowly.

    uvicorn limits only the time between two requests. A client that sends one byte per minute, or
    never reads, would occupy a connection for ever.
    """

    timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Start the time limits."""
        self.conn = Connection(h11.SERVER, MAX_HEADERS)
        super().connection_made(transport)
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request of HTTP in the form of the other errors."""
        error = sys.exception()
        assert isinstance(error, h11.RemoteProtocolError)
        # What follows the colon is a part of the request.
        refusal = Refusal(400, f"the request is not valid HTTP ({str(error).partition(':')[0]})")
        if error.error_status_hint == 431:
            refusal = Refusal(431, LONG_HEADERS)
        answer = error_answer(refusal, "")
        status = answer.status_code
        headers = [*answer.raw_headers, *SECURITY_HEADERS, CLOSE_HEADER]
        start = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (start, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        app: Any = self.config.app
        app.state.service.metrics.observe_request("", status, 0.0)

    def _check(self, before: Any = None) -> None:
        """Close the connection if it still waits for the client as at the last call."""
        unsent = self.transport.get_write_buffer_size()
        # h11 is idle until the headers are complete. uvicorn has a timer if none of them is there.
        is_incomplete = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        state = (self.cycle, self.conn.num_bytes - unsent)
        if state == before and (unsent or is_incomplete):
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(CLIENT_SECONDS, self._check, state)


class Server(uvicorn.Server):
    """A server that returns after SIGINT or SIGTERM, when the running requests are answered.

    Args:
        config: Configuration of uvicorn.
        ready: Function that is called when the server answers.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self.ready = ready
        self.accepting: set[asyncio.Task[Any]] = set()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to stop: answers from now on announce the end of their connection."""
        app: Any = self.config.app
        app.state.service.is_stopping = True
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        app: Any = self.config.app
        app.state.service.requests = self.server_state.tasks
        app.state.service.connections = self.server_state.connections
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, and answer the running requests.

        A client that has just got its answer may have sent its next request already. It is
        answered, too, and its answer announces the end of the connection.
        """
        for listener in sockets or ():
            self._accept_waiting(listener)
        for server in self.servers:
            server.close()
        await asyncio.sleep(DRAIN_SECONDS)
        await super().shutdown(sockets)

    def _accept_waiting(self, listener: socket.socket) -> None:
        """Accept the connections that wait in the operating system, which closing would reset."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # none is left
                return
            connection.setblocking(False)
            task = loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
            self.accepting.add(task)  # a task without a reference may vanish
            task.add_done_callback(self.accepting.discard)

    def _protocol(self) -> Protocol:
        return Protocol(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals. uvicorn would raise them again after the stop."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def configure(app: Any, options: ServeOptions) -> uvicorn.Config:
    """Return the configuration of uvicorn."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(int(options.timeout), 1),
        h11_max_incomplete_event_size=MAX_HEADERS,
    )


def run(
    app: Any, options: ServeOptions, listener: socket.socket, *, ready: Callable[[str], None]
) -> None:
    """Run an application until SIGINT or SIGTERM, and then finish the requests that are running.

    Args:
        app: The application.
        options: Limits.
        listener: Socket to listen on.
        ready: Function that is called with the URL when the server answers.
    """
    # What exists now is used until the end. To search it for garbage again and again would make
    # some answers slow.
    gc.collect()
    gc.freeze()
    server = Server(configure(app, options), lambda: ready(url_of(options, listener)))
    server.run(sockets=[listener])


def url_of(options: ServeOptions, listener: socket.socket) -> str:
    """Return the address of a server, whose option port can be 0."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{listener.getsockname()[1]}"
