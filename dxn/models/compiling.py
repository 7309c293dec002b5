"""torch.compile for the layers of a block after its attention, which process each token separately.

The attention itself is not compiled. Its groups change with every batch, so it would be compiled
again and again, and its kernels do most of its work already.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from dxn.core.dropout import Keys

BACKEND = "inductor"
# Variants of the compiled function, such as for other norms, dtypes or dropout rates. When there
# are more, torch computes the further ones without compilation.
MAX_VARIANTS = 16
MAX_REASON = 200  # characters


# Called with the reason if this machine cannot compile.
on_failure: Callable[[str], None] | None = None
_failures: list[str] = []


def finish(block: Any, x: Tensor, branch: Tensor, keys: Keys | None) -> Tensor:
    """Compute `block.finish` in compiled form, or as it is if this machine cannot compile."""
    from torch._dynamo.exc import TorchDynamoException  # takes a second

    if not _failures:
        try:
            return _compiled()(block, x, branch, keys)
        except TorchDynamoException as error:
            # For example, there is no C++ compiler. Nothing has been computed yet.
            reason = shorten(str(error).strip().splitlines()[0], MAX_REASON)
            _failures.append(reason)
            if on_failure is not None:
                on_failure(reason)
    return block.finish(x, branch, keys)


def failure() -> str | None:
    """Return why this machine cannot compile. None: it can, or has not tried yet."""
    return _failures[0] if _failures else None


@cache
def _compiled() -> Callable[..., Tensor]:
    """Return the compiled function. All blocks share it, so it is not compiled once per block."""
    # torch reads this attribute of all inputs when it compiles, and warns about itself.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    compiled = torch.compile(_finish, dynamic=True, backend=BACKEND)
    # The numbers of the dropouts are part of the blocks. They differ, but need no other code.
    options: dict[str, Any] = {
        "allow_unspec_int_on_nn_module": True,
        "recompile_limit": MAX_VARIANTS,
    }
    return torch._dynamo.config.patch(options)(compiled)


def _finish(block: Any, x: Tensor, branch: Tensor, keys: Keys | None) -> Tensor:
    return block.finish(x, branch, keys)
