"""The options of `dxn serve`, and the API key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated

from annotated_types import Ge, Interval

from dxn.core.errors import UserError

KEY_VARIABLE = "DXN_API_KEY"
MIN_KEY = 16  # characters; a shorter key can be found by trying
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MEGABYTE = 1_000_000
# The bodies of all requests together may have this multiple of the size of one body.
BODIES = 16


@dataclass(frozen=True)
class ServeOptions:
    """How a model is served. These are options of `dxn serve`, which checks their ranges.

    Args:
        host: Address to listen on; 0.0.0.0 lets other machines use the model.
        port: TCP port; 0 chooses a free one.
        allowed_hosts: Additional host names of the server, such as the name of a proxy.
        batch_size: Maximum number of samples that are computed together.
        max_wait: Seconds that a sample waits for others to share its batch.
        max_queue: Maximum number of samples that wait; further requests get status 503.
        max_samples: Maximum number of samples per request.
        max_body: Maximum size of a request in megabytes.
        timeout: Seconds for receiving a request, and for answering it. In a stream, for each part.
        max_new: Maximum number of tokens of a generated text, by default. A request to a language
            model can set another one, up to the number of tokens that the model reads.
        examples: Number of test rows that the page offers; 0: none.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    allowed_hosts: Sequence[str] = ()
    batch_size: Annotated[int, Ge(1)] = 32
    max_wait: Annotated[float, Interval(ge=0, le=1)] = 0.002
    max_queue: Annotated[int, Ge(1)] = 256
    max_samples: Annotated[int, Ge(1)] = 64
    max_body: Annotated[float, Interval(gt=0, le=1e6)] = 20.0
    timeout: Annotated[float, Interval(gt=0, le=1e6)] = 30.0
    max_new: Annotated[int, Ge(1)] = 200
    examples: Annotated[int, Ge(0)] = 8

    @property
    def max_bytes(self) -> int:
        """Maximum number of bytes of the body of a request."""
        return int(self.max_body * MEGABYTE)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # a name, such as 127.example.com
            return self.host in LOOPBACK


def read_key() -> str | None:
    """Return the API key of the environment. None: requests need no key.

    Raises:
        UserError: If the key is too short, or cannot be sent in a header.
    """
    key = os.environ.get(KEY_VARIABLE)
    if key is None:
        return None
    # An empty variable is a mistake: the server would be open although a key was meant.
    if len(key) < MIN_KEY:
        raise UserError(
            f"{KEY_VARIABLE}: must have at least {MIN_KEY} characters, got {len(key)}; set a "
            "random text, or unset the variable to serve without a key"
        )
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise UserError(f"{KEY_VARIABLE}: must consist of printable ASCII characters")
    return key
