"""What processes of a training need from each other: addresses, one run folder, and an end."""

import os
import threading
import time

import pytest
import torch
from torch.distributed import HashStore

from dxn.core.runtime import LAUNCH
from dxn.training import distributed
from dxn.training.distributed import is_lost_connection


@pytest.fixture
def store(monkeypatch):
    """The store of torchrun, which all restarts of the processes share."""
    shared = HashStore()
    monkeypatch.setattr(distributed, "rendezvous", lambda url: iter([(shared, 1, 2)]))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return shared


def test_another_launcher_has_no_store(store, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert distributed.own_store() == {}


def test_a_restart_does_not_read_the_addresses_before_it(store, monkeypatch):
    store.set("address", "of a killed process")
    stores = []
    for count in ("1", "2"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        own = distributed.own_store()
        assert (own["rank"], own["world_size"]) == (1, 2)
        assert not own["store"].check(["address"])
        own["store"].set("address", count)
        stores.append(own["store"])
    assert [store.get("address") for store in stores] == [b"1", b"2"]
    # All processes of one restart share their part of the store.
    assert distributed.own_store()["store"].get("address") == b"2"


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
    distributed.make_accelerator("cpu", "float32")
    assert LAUNCH not in [thread.name for thread in threading.enumerate()]


def test_a_process_without_its_parent_is_asked_to_stop_and_then_ended(monkeypatch):
    events = []
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda pid, number: events.append((pid, int(number))))
    monkeypatch.setattr(time, "sleep", events.append)
    monkeypatch.setattr(os, "_exit", lambda code: events.append(("exit", code)))
    distributed._watch(7)
    wait = distributed.INTERVAL
    assert events == [wait, wait, (os.getpid(), 15), distributed.GRACE, ("exit", 143)]
