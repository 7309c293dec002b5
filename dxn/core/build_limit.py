"""Limits the memory that a model takes while it is built from an untrusted configuration.

A configuration of a few bytes can describe a model of terabytes. The model is compared with its
weights only after it has been built. Therefore each tensor is measured before it is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dxn.core.errors import UserError

# The model may be larger than its file: buffers such as tables of frequencies are not saved.
FACTOR = 2
EXTRA_BYTES = 128 * 2**20
# Size of a parameter from which on `without_values` does not create it. A checkpoint may lack some
# small ones, such as the embedding of masked patches.
MIN_META = 2**20
# Operations per tensor of the file, to build and initialize it, and for parts without tensors.
OPERATIONS = 100
EXTRA_OPERATIONS = 20_000
# Operations without tensors whose arguments are not sizes, or only the first one.
RANGES = ("arange", "linspace", "logspace")
FIRST_ARGUMENT = ("full",)
# Operations whose result is larger than their broadcast arguments, by the product of all arguments.
MULTIPLYING = (
    *("repeat", "tile", "repeat_interleave", "pad", "interpolate", "one_hot", "outer", "ger"),
    *("kron", "einsum", "tensordot", "meshgrid", "cartesian_prod", "vander", "new_zeros"),
    *("new_ones", "new_empty", "new_full", "block_diag", "combinations"),
)


@contextmanager
def build_limit(
    tensors: Mapping[str, Tensor], path: Path, *, without_values: bool = False
) -> Iterator[None]:
    """Refuse to build a model that is much larger than its weights.

    Args:
        tensors: The weights.
        path: The configuration that describes the model, for messages.
        without_values: Create large parameters without values (device meta), which takes neither
            memory nor time. `dxn.core.tensors.set_tensor` sets their values.

    Raises:
        UserError: If the model, or a tensor that is created to build it, is too large.
    """
    size = max_bytes = 0
    for tensor in tensors.values():
        size += tensor.nbytes
        # A model is built in float32, even if its file is in half precision.
        max_bytes += FACTOR * tensor.numel() * max(tensor.element_size(), 4)
    max_bytes += EXTRA_BYTES
    message = (
        f"{path}: describes a larger model than that of its weights, which have "
        f"{size / 1e6:,.1f} MB in {len(tensors):,} tensors; copy the whole folder again"
    )
    registered = 0

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> Tensor | None:
        nonlocal registered
        registered += 0 if tensor is None else tensor.nbytes
        if registered > max_bytes:
            raise UserError(message)
        if not without_values or not isinstance(tensor, nn.Parameter):
            return None
        if tensor.is_meta or tensor.nbytes < MIN_META:
            return None
        # Until the module initializes its parameter, which is now this one, it uses no memory.
        values = tensor.detach().to("meta")
        return nn.Parameter(values, requires_grad=tensor.requires_grad)

    hook: Any = count  # torch declares no result, although it uses it
    hooks = [
        register_module_parameter_registration_hook(hook),
        register_module_buffer_registration_hook(hook),
    ]
    try:
        with _Limit(max_bytes, OPERATIONS * len(tensors) + EXTRA_OPERATIONS, message):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Limit(TorchFunctionMode):
    """Measures the result of each operation of torch before it is computed.

    Args:
        max_bytes: Maximum size of a new tensor.
        max_operations: Maximum number of operations.
        message: Message of the error.
    """

    def __init__(self, max_bytes: int, max_operations: int, message: str):
        super().__init__()
        self.max_bytes = max_bytes
        self.remaining = max_operations
        self.message = message

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute an operation if it is within the limits."""
        kwargs = kwargs or {}
        self.remaining -= 1
        if self.remaining < 0:
            raise UserError(self.message)
        # Operations in place, such as normal_, allocate nothing.
        name = getattr(func, "__name__", "")
        # A parameter without values needs no initial ones. The first such operation of torch would
        # import its functions for the device "meta", which takes seconds and 80 MB.
        if name.endswith("_") and not name.startswith(("_", "requires_grad")):
            target = args[0] if args else kwargs.get("tensor")  # torch.nn.init passes its name
            if isinstance(target, Tensor) and target.is_meta:
                return target
        if not name.endswith("_") and _bytes(name, args, kwargs) > self.max_bytes:
            raise UserError(self.message)
        return func(*args, **kwargs)


def _bytes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return an upper bound of the size of the result of an operation.

    The device "meta" would compute the exact size, but importing its functions takes a second.

    Args:
        name: Name of the operation.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    values = tree_leaves((args, kwargs))
    tensors = [value for value in values if isinstance(value, Tensor)]
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    item = max([dtype.itemsize, *(tensor.element_size() for tensor in tensors)])
    numbers = [value for value in values if isinstance(value, int | float)]
    if name in RANGES:
        # The stop and the step of arange, and the number of steps of linspace.
        smallest = min((abs(number) for number in numbers if number), default=1)
        return 8 * max(map(abs, numbers), default=0) / min(smallest, 1)
    if not tensors:
        sizes = args[:1] if name in FIRST_ARGUMENT else (args, kwargs.get("size"))
        whole = [value for value in tree_leaves(sizes) if isinstance(value, int)]
        return item * math.prod(max(abs(value), 1) for value in whole)
    if name in MULTIPLYING:
        factors = [max(abs(number), 1) for number in numbers]
        return item * math.prod([*factors, *(max(tensor.numel(), 1) for tensor in tensors)])
    # All other operations broadcast their arguments, or their results are smaller.
    rank = max(tensor.ndim for tensor in tensors)
    shapes = [(1,) * (rank - tensor.ndim) + tuple(tensor.shape) for tensor in tensors]
    return item * max(
        math.prod(map(max, zip(*shapes, strict=True))), sum(tensor.numel() for tensor in tensors)
    )
