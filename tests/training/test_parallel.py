"""What processes of a training need from each other: addresses, one run folder, and an end."""

import os
import threading
import time

import pytest
import torch
from torch.distributed import HashStore

from dxn.core import processes
from dxn.training import parallel
from dxn.training.parallel import LAUNCH, is_lost_connection


@pytest.fixture
def store(monkeypatch):
    """The store of torchrun, which all restarts of the processes share."""
    shared = HashStore()
    # The threads of a test stand for processes.
    thread = threading.current_thread
    monkeypatch.setattr(
        processes, "rendezvous", lambda url: iter([(shared, int(thread().name), 2)])
    )
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return shared


def start_of_two():
    """What two processes that meet learn about their start."""
    learned = {}

    def meet():
        learned[threading.current_thread().name] = processes.launch.__wrapped__()

    threads = [threading.Thread(target=meet, name=rank) for rank in "01"]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=20)
    return [learned[rank] for rank in "01"]


def test_another_launcher_has_no_store(store, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert processes.launch.__wrapped__() is None


def test_a_restart_does_not_read_the_addresses_before_it(store):
    # Of a process that was killed before the first one arrived.
    store.set("dxn/word/1", "word")
    starts = [start_of_two() for _ in range(3)]
    for i, start in enumerate(starts):
        first, second = (each.connection for each in start)
        assert (first["rank"], second["rank"]) == (0, 1)
        assert first["world_size"] == second["world_size"] == 2
        assert not first["store"].check(["address"])
        first["store"].set("address", str(i))
        # All processes of one start share their part of the store.
        assert second["store"].get("address") == str(i).encode()
    every = [each for start in starts for each in start]
    assert [each.is_restart for each in every] == [False, False, True, True, True, True]
    assert len({each.id for each in every}) == 1


LOST = [
    torch.distributed.DistBackendError("NCCL error"),
    torch.distributed.DistNetworkError("broken pipe"),
    RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
    RuntimeError("Gloo connectFullMesh failed"),
]
OTHER = [RuntimeError("shape '[3]' is invalid"), ValueError("gloo"), KeyboardInterrupt()]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_lost_connection_is_recognized(error):
    assert is_lost_connection(error)


@pytest.mark.parametrize("error", OTHER, ids=repr)
def test_other_errors_are_no_lost_connection(error):
    assert not is_lost_connection(error)


def test_the_parent_is_watched_only_below_torchrun(monkeypatch):
    monkeypatch.delenv(LAUNCH, raising=False)
    parallel.find_hardware("cpu", "float32")
    assert LAUNCH not in [thread.name for thread in threading.enumerate()]


def test_a_process_without_its_parent_is_asked_to_stop_and_then_ended(monkeypatch):
    events = []
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda pid, number: events.append((pid, int(number))))
    monkeypatch.setattr(time, "sleep", events.append)
    monkeypatch.setattr(os, "_exit", lambda code: events.append(("exit", code)))
    parallel._watch(7)
    wait = parallel.INTERVAL
    assert events == [wait, wait, (os.getpid(), 15), parallel.GRACE, ("exit", 143)]
