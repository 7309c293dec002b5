"""The processes of one command that torchrun started: how they meet, and objects that they send."""

from __future__ import annotations

import functools
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed as dist
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.rendezvous import rendezvous

from dxn.core.errors import UserError

T = TypeVar("T")

HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # torchrun sets this to True
POLL = 0.01  # seconds between two looks for processes that have not arrived
# How long processes wait for what the first one computes alone, such as the vectors of an encoder:
# longer than a call of all processes, which fails after 10 minutes (NCCL) or 30 (gloo). If the
# first one fails, torchrun ends the others.
MAX_WAIT = timedelta(days=7)
CALLS = itertools.count()  # of `from_first`, in the same order in all processes


@dataclass(frozen=True)
class Launch:
    """What the processes that one torchrun started on one or several machines have in common.

    Attributes:
        id: Identifies the torchrun. It stays the same when torchrun restarts the processes.
        is_restart: Whether torchrun has started the processes before.
        connection: Arguments of `init_process_group`.
    """

    id: str
    is_restart: bool
    connection: dict[str, Any]


@functools.cache
def launch() -> Launch | None:
    """Meet the other processes that torchrun started with this one. None without torchrun.

    torchrun keeps its store of addresses when it restarts the processes (--max-restarts). A process
    could read the address of one that was killed, so each start has its own part of the store. Its
    name cannot be TORCHELASTIC_RESTART_COUNT: each machine counts only the failures of its own
    processes. So the first process chooses the name. The others cannot know whether a name in the
    store is that of this start, so each one asks with a random word that the first one answers.
    """
    if os.environ.get(HAS_STORE) != "True":
        return None
    store, rank, world_size = next(rendezvous("env://"))
    nonce = uuid.uuid4().hex
    if rank:
        store.set(f"dxn/word/{rank}", nonce)
        # This waits for the answer.
        start, identity, is_restart = json.loads(store.get(f"dxn/answer/{nonce}"))
        store.set(f"dxn/{start}/{rank}", "here")
    else:
        start = nonce
        identity = store.compare_set("dxn/launch", "", nonce).decode()
        is_restart = identity != nonce
        missing = set(range(1, world_size))
        while missing:
            for other in sorted(missing):
                # The word can be that of a process before the restart. Nobody reads that answer.
                if store.check([f"dxn/word/{other}"]):
                    word = store.get(f"dxn/word/{other}").decode()
                    store.set(f"dxn/answer/{word}", json.dumps([start, identity, is_restart]))
            time.sleep(POLL)
            missing = {other for other in missing if not store.check([f"dxn/{start}/{other}"])}
    part = dist.PrefixStore(start, store)  # pyright: ignore
    return Launch(identity, is_restart, {"store": part, "rank": rank, "world_size": world_size})


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
    store, key = _get_default_store(), f"dxn/first/{next(CALLS)}"
    sent: list[Any] = [None]
    if index == 0:
        sent = [_outcome(compute)]
        store.set(key, "")
    else:
        store.wait([key], MAX_WAIT)
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
    outcome = _outcome(compute)
    received: list[Any] = [None] * count
    dist.gather_object(outcome, received if index == 0 else None, dst=0)
    # An error is sent to all. Without one, only the first process needs the results.
    problem = from_first(lambda: next((text for _, text in received if text is not None), None))
    if problem is not None:
        raise UserError(problem)
    return [result for result, _ in received] if index == 0 else []


def _outcome(compute: Callable[[], T]) -> tuple[T | None, str | None]:
    """Return the result of a function and None, or None and the message of its error."""
    try:
        return compute(), None
    except UserError as error:
        return None, str(error)
