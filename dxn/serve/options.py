"""The options of `dxn serve`, and the API key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from typing import Any

from dxn.core.errors import UserError

KEY_VARIABLE = "DXN_API_KEY"
MIN_KEY = 16  # characters; a shorter key can be found by trying
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MEGABYTE = 1_000_000
# The bodies of all requests together may have this multiple of the size of one body.
BODIES = 16


@dataclass(frozen=True)
class ServeOptions:
    """How a model is served.

    Args:
        host: Address to listen on.
        port: TCP port. 0: a free one.
        batch_size: Maximum number of samples that are computed together.
        max_wait: Seconds that a sample waits for others to share its batch.
        max_queue: Maximum number of samples in preparation or waiting.
        max_samples: Maximum number of samples per request.
        max_body: Maximum size of a request in megabytes.
        timeout: Seconds for receiving a request, and for answering it.
        max_new: Maximum number of tokens of a generated text.
        examples: Number of rows of the test split that the page offers.
        allowed_hosts: Further host names under which the server is reached.

    Raises:
        UserError: If a value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    batch_size: int = 32
    max_wait: float = 0.002
    max_queue: int = 256
    max_samples: int = 64
    max_body: float = 20.0
    timeout: float = 30.0
    max_new: int = 200
    examples: int = 8
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("batch_size", "max_queue", "max_samples", "max_new"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("max_body", "timeout"):
            # Written so that NaN is refused too.
            if not 0 < getattr(self, name) <= 1e6:
                raise UserError(f"{name}: must be in (0, 1e6], got {getattr(self, name)}")
        if not 0 <= self.max_wait <= 1:
            raise UserError(f"max_wait: must be from 0 to 1 seconds, got {self.max_wait}")
        if not 0 <= self.port <= 65535:
            raise UserError(f"port: must be from 0 to 65535, got {self.port}")
        if self.examples < 0:
            raise UserError(f"examples: must be at least 0, got {self.examples}")

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ServeOptions:
        """Return the options of a composed configuration."""
        named = {field.name: values[field.name] for field in fields(cls)}
        return cls(**{**named, "allowed_hosts": tuple(values["allowed_hosts"])})

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
