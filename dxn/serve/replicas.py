"""The application on Ray Serve: several copies of the model behind one address."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dxn.core.errors import UserError
from dxn.runs.engine.cluster import (
    LOCALHOST,
    MODEL_CPUS,
    explained,
    quiet,
    replicas_on,
    start,
)
from dxn.serve.options import ServeOptions
from dxn.serve.server import KEEP_ALIVE, MAX_CONNECTIONS, url_of

if TYPE_CHECKING:
    from dxn.commands.options import RayOptions

NAME = "dxn"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL_SECONDS = 0.1  # in which a copy of the model looks whether it has answered its last request


def run(
    build: Callable[[], Any],
    options: ServeOptions,
    ray_options: RayOptions,
    listener: socket.socket,
    *,
    ready: Callable[[str], None],
) -> None:
    """Run copies of an application until SIGINT or SIGTERM, and then finish the running requests.

    Args:
        build: Function that builds the application. Each copy calls it in a process of its own.
        options: Limits. Each copy has its own queue.
        ray_options: The cluster, and the number of copies.
        listener: Socket that holds the port until the proxy of Ray Serve listens on it.
        ready: Function that is called with the URL when the copies answer.

    Raises:
        UserError: If Ray does not start, serves something else already, or a copy fails.
    """
    # Ray reads it when it is imported.
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    ray = start(ray_options.address)
    serve = importlib.import_module("ray.serve")
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    if serve.status().proxies:
        raise UserError(
            f"ray.address: {ray_options.address} serves another application already; stop it with "
            "serve shutdown, or leave the option out"
        )
    copies = replicas_on(ray, ray_options.replicas)
    app = _builder(build, copies.num_threads, is_local=ray_options.address is None)
    deployment = serve.deployment(
        name=NAME,
        num_replicas=copies.size,
        # Beyond its own limits, the application answers with 503, as it does without Ray.
        max_ongoing_requests=MAX_CONNECTIONS,
        ray_actor_options={"num_cpus": MODEL_CPUS, "num_gpus": copies.num_gpus},
        graceful_shutdown_timeout_s=options.timeout,
        graceful_shutdown_wait_loop_s=POLL_SECONDS,
        max_constructor_retry_count=1,
    )(serve.ingress(app)())
    url = url_of(options, listener)
    port = listener.getsockname()[1]
    before = {each: signal.signal(each, signal.default_int_handler) for each in SIGNALS}
    listener.close()
    try:
        http = {"host": options.host, "port": port, "keep_alive_timeout_s": KEEP_ALIVE}
        serve.start(proxy_location="HeadOnly", http_options=http)
        serve.run(deployment.bind(), name=NAME, route_prefix="/")
        ready(url)
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise explained(error) from error
    finally:
        with quiet():
            serve.shutdown()
            ray.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)


def _builder(build: Callable[[], Any], num_threads: int, *, is_local: bool) -> Callable[[], Any]:
    """Return the function that builds the application in the process of a copy."""

    def build_copy() -> Any:
        torch.set_num_threads(num_threads)
        # Ray Serve opens a port of each copy on all addresses. It has no option for it, and
        # executes what anyone sends there. The proxy is on this machine.
        if is_local:
            replica: Any = importlib.import_module("ray.serve._private.replica")
            add_port = replica.add_port_to_grpc_server
            replica.add_port_to_grpc_server = lambda server, _: add_port(server, f"{LOCALHOST}:0")
        return build()

    return build_copy
