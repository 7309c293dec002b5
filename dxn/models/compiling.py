"""torch.compile for the computation of a batch, or on a CPU for parts of it.

On a CPU, it is used for the layers of a block after its attention, which process each token
separately. The attention is not compiled there: its groups change with every batch, so it would be
compiled again and again, and its kernels do most of its work already. Other devices have no such
groups, so all layers are one graph, from the adapters to the loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from textwrap import shorten
from typing import Any

import torch
from torch.fx.experimental import _config as symbols

BACKEND = "inductor"
# Variants of a compiled function, such as for other norms, dtypes or dropout rates, or for batches
# with and without padding. When there are more, the further ones are computed without compilation.
MAX_VARIANTS = 16
MAX_REASON = 200  # characters


# Called with the reason if this machine cannot compile.
on_failure: Callable[[str], None] | None = None
_failures: list[str] = []


def call(function: Callable[..., Any], *args: Any, fullgraph: bool = False) -> Any:
    """Compute function(*args) in compiled form, or as it is if this machine cannot compile.

    Args:
        function: A function of a module. It is compiled once for all batches and modules.
        args: Its arguments.
        fullgraph: Whether it is an error if the function is not one graph.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException  # takes a second

    if not _failures:
        try:
            return _compiled(function, fullgraph)(*args)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            # For example, there is no C++ compiler. Nothing has been computed yet.
            reason = shorten(str(error).strip().splitlines()[0], MAX_REASON)
            _failures.append(reason)
            if on_failure is not None:
                on_failure(reason)
    return function(*args)


@cache
def _compiled(function: Callable[..., Any], fullgraph: bool) -> Callable[..., Any]:
    # torch reads this attribute of all inputs when it compiles, and warns about itself.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    compiled = torch.compile(function, dynamic=True, fullgraph=fullgraph, backend=BACKEND)
    # The numbers of the dropouts are part of the blocks. They differ, but need no other code.
    options: dict[str, Any] = {
        "allow_unspec_int_on_nn_module": True,
        "recompile_limit": MAX_VARIANTS,
    }
    compiled = torch._dynamo.config.patch(options)(compiled)
    # Otherwise axes that have the same size in the first batch would have to remain equal.
    return symbols.patch(use_duck_shape=False)(compiled)  # pyright: ignore
