"""A stand-in for the streams of a GPU: batches are copied ahead on a CPU as on an NVIDIA GPU."""

from contextlib import nullcontext
from functools import partial

import torch

from dxn.training import device as device_module
from dxn.training import loop, predict


class Stream:
    """A stream that writes its calls to a log."""

    def __init__(self, log):
        self.log = log

    def record_event(self):
        self.log.append("copied")
        return self.log.count("copied")

    def wait_event(self, event):
        self.log.append(f"wait for {event}")


def copy_ahead(monkeypatch):
    """Use the way of an NVIDIA GPU for the batches of trainings and predictions; return the log."""
    log = []
    on_device = partial(device_module.on_device, device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(log))
    monkeypatch.setattr(device_module, "to_device", lambda batch, device: dict(batch))
    for module in (predict, loop):
        monkeypatch.setattr(module, "on_device", lambda batches, device: on_device(batches))
    return log
