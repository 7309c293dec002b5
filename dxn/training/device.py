"""Batches on a device: copies of their tensors, and the precision of matrix products."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the context of matrix products with a precision: float32, tf32, bf16 or fp16."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Move every tensor of a batch to `device`, including those in nested dicts and lists."""
    if device.type == "cpu":
        return batch  # the loader creates its tensors on the CPU
    return {name: _moved(value, device) for name, value in batch.items()}


def on_device(batches: Iterable[dict[str, Any]], device: torch.device) -> Iterator[dict[str, Any]]:
    """Move batches to a device, in order.

    An NVIDIA GPU copies the next batch while it computes the current one. So this takes one batch
    more than it has yielded, before it yields.
    """
    if device.type != "cuda":
        for batch in batches:
            yield to_device(batch, device)
        return
    copies = torch.cuda.Stream(device)
    # Not in local variables, which would keep the memory of a batch after it is used.
    waiting: deque[tuple[dict[str, Any], Any]] = deque()
    for batch in batches:
        with torch.cuda.stream(copies):
            waiting.append((to_device(batch, device), copies.record_event()))
        if len(waiting) > 1:
            yield _received(*waiting.popleft(), device)
    while waiting:
        yield _received(*waiting.popleft(), device)


def _received(batch: dict[str, Any], copied: Any, device: torch.device) -> dict[str, Any]:
    """Return a batch for use in the current stream, after the event of its copy."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(copied)
    for tensor in tree_leaves(batch):
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            tensor.record_stream(stream)  # its memory is not reused before the stream is done
    return batch


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        # non_blocking: the CPU continues while the GPU copies.
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value
