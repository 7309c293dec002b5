"""The processes of one command that torchrun started: their number, and objects that they send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed as dist

from dxn.core.errors import UserError

T = TypeVar("T")


def processes() -> tuple[int, int]:
    """Return the index of this process (its rank), and the number of connected processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def from_first(compute: Callable[[], T]) -> T:
    """Return in all processes what a function returns in the first one, which alone calls it.

    Raises:
        UserError: In all processes, if the function raises one.
    """
    index, count = processes()
    if count == 1:
        return compute()
    sent: list[Any] = [_outcome(compute) if index == 0 else None]
    dist.broadcast_object_list(sent, src=0)
    ((result, problem),) = sent
    if problem is not None:
        raise UserError(problem)
    return result


def from_all(compute: Callable[[], T]) -> list[T]:
    """Return in the first process what a function returns in each of them. The others get nothing.

    Raises:
        UserError: In all processes, if the function raises one in any of them.
    """
    index, count = processes()
    if count == 1:
        return [compute()]
    own = _outcome(compute)
    received: list[Any] = [None] * count
    dist.gather_object(own, received if index == 0 else None, dst=0)
    # An error is sent to all. Without one, only the first process needs the results.
    problem = from_first(lambda: next((each[1] for each in received if each[1] is not None), None))
    if problem is not None:
        raise UserError(problem)
    return [result for result, _ in received] if index == 0 else []


def _outcome(compute: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return the result of a function and None, or None and the message of its error."""
    try:
        return compute(), None
    except UserError as error:
        return None, str(error)
