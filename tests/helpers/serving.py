"""A served model for tests: through the test client, or on a port of this machine."""

import threading
from contextlib import contextmanager

from fastapi.testclient import TestClient

from dxn.serve.app import make_app
from dxn.serve.command import bind
from dxn.serve.options import ServeOptions
from dxn.serve.server import Server, configure

URL = "http://127.0.0.1"


@contextmanager
def client_of(predictor, *, key=None, examples=(), name="model", **options):
    """A client of the application."""
    app = make_app(predictor, ServeOptions(**options), key=key, examples=examples, name=name)
    with TestClient(app, base_url=URL, raise_server_exceptions=False) as client:
        client.service = app.state.service
        yield client


@contextmanager
def server_of(predictor, *, key=None, examples=(), name="model", **options):
    """The URL of a server that runs in another thread."""
    chosen = ServeOptions(**options, port=0)
    app = make_app(predictor, chosen, key=key, examples=examples, name=name)
    listener = bind(chosen.host, chosen.port)
    is_ready = threading.Event()
    server = Server(configure(app, chosen), is_ready.set)
    # Only the main thread can handle signals.
    server.capture_signals = no_signals
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert is_ready.wait(30)
        yield f"{URL}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@contextmanager
def no_signals():
    yield


def error_of(answer, status):
    """The message of a refused request."""
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["message"]
