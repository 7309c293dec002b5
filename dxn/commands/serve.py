"""The command `dxn serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Interval, Le

from dxn.commands.options import Compiled, Count, FromWeights, Labels


@dataclass(frozen=True, kw_only=True)
class Serve(FromWeights, Labels, Compiled):
    """Answer requests over HTTP with a trained model, and show a page to try it.

    Args:
        host: Address to listen on; 0.0.0.0 lets other machines use the model.
        port: TCP port; 0 chooses a free one.
        allowed_hosts: Additional host names of the server, such as the name of a proxy.
        batch_size: Maximum number of samples that are computed together.
        max_wait: Seconds that a sample waits for others to share its batch.
        max_queue: Maximum number of samples that wait; further requests get status 503.
        max_samples: Maximum number of samples per request.
        max_body: Maximum size of a request in megabytes.
        timeout: Seconds for receiving a request, and for answering it.
        max_new: Maximum number of tokens of a generated text.
        examples: Number of test rows that the page offers; 0: none.
    """

    usage: ClassVar[Sequence[str]] = (
        "dxn serve run=outputs/label",
        "dxn serve run=latest port=8001 batch_size=64",
        "dxn serve weights=openai-community/gpt2 dtype=int8",
    )

    host: str = "127.0.0.1"
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    allowed_hosts: Sequence[str] = ()
    batch_size: Count = 32
    max_wait: Annotated[float, Interval(ge=0, le=1)] = 0.002
    max_queue: Count = 256
    max_samples: Count = 64
    max_body: Annotated[float, Gt(0), Le(1e6)] = 20.0
    timeout: Annotated[float, Gt(0), Le(1e6)] = 30.0
    max_new: Count = 200
    examples: Annotated[int, Ge(0)] = 8

    def execute(self) -> int:
        """Serve a model until a signal arrives."""
        from dxn.serve.command import serve

        return serve(self.settings)
