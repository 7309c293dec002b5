"""The processes of a training: device, precision and connection of each, and signals to stop."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState

from dxn.core.processes import from_first, launch, processes
from dxn.core.runtime import choose_bf16

UsedPrecision = Literal["float32", "tf32", "bf16", "fp16"]
Precision = Literal["auto"] | UsedPrecision
TF32_CAPABILITY = (8, 0)  # of the GPU

# Environment variables that torchrun sets.
LAUNCH = "TORCHELASTIC_RUN_ID"
PROCESSES = "LOCAL_WORLD_SIZE"  # on this machine
INTERVAL = 1.0  # seconds between two checks of torchrun, each of which takes microseconds
# Seconds to save a checkpoint. A process that waits for a dead one does not react to the signal.
# Checkpoints are written under another name first, so the exit cannot damage one.
GRACE = 60.0
# SIGTERM: a container or a batch system stops the job. SIGUSR1: Slurm's warning before the time
# limit (--signal=USR1@60). SIGHUP: the terminal is closed. SIGINT: Ctrl+C. Windows lacks some.
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT")


def make_accelerator(device: str, precision: Precision) -> tuple[Accelerator, UsedPrecision, str]:
    """Create the accelerator of a training, which knows its device and its processes.

    Args:
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32, tf32, bf16 or fp16.

    Returns:
        The accelerator, the precision to use, and a note that says why.

    Raises:
        ValueError: If the device is not available or has no tf32, or there are more processes than
            GPUs.
    """
    selected = connect(device)
    used: UsedPrecision
    if precision == "auto":
        # Processes on different GPUs must agree.
        bf16, note = from_first(lambda: choose_bf16(selected))
        used = "bf16" if bf16 else "float32"
    else:
        used, note = precision, f"{precision}, as configured"
    is_cuda = selected.type == "cuda"
    if used == "tf32" and not (
        is_cuda and torch.cuda.get_device_capability(selected) >= TF32_CAPABILITY
    ):
        raise ValueError(
            "precision: tf32 needs an NVIDIA GPU of the Ampere generation or a newer one, got "
            f"device={selected.type}; set precision=float32"
        )
    if is_cuda:
        # Also the reset of an earlier training of this process.
        torch.backends.cuda.matmul.allow_tf32 = used == "tf32"
    return Accelerator(cpu=selected.type == "cpu"), used, note


def connect(device: str) -> torch.device:
    """Connect the processes that torchrun started, if there are any.

    Args:
        device: Device to use: auto, cpu, cuda or mps.

    Returns:
        The device of this process.

    Raises:
        ValueError: If the device is not available, or there are more processes than GPUs.
    """
    if LAUNCH in os.environ:
        # Before anything waits for the other processes.
        end_with_launcher()
    # Accelerate keeps its settings in a singleton. Without the reset, the second training of a
    # process (in a search, for example) would silently use the device and precision of the first.
    AcceleratorState._reset_state(reset_partial_state=True)
    # Accelerate runs several processes on CPUs only with cpu=True, so this is also set on a machine
    # without a GPU.
    on_cpu = device == "cpu" or (device == "auto" and not torch.accelerator.is_available())
    if not on_cpu and torch.cuda.is_available():
        _check_gpus(torch.cuda.device_count())
    started = launch()
    connection = {} if started is None else started.connection
    selected = torch.device(PartialState(cpu=on_cpu, **connection).device or "cpu")
    if processes()[1] > 1:
        # Not before: a second connection of the same processes would read the addresses of the
        # first one, and wait forever.
        atexit.register(disconnect)
    if device not in ("auto", selected.type):
        raise ValueError(f"device: {device} is not available on this machine; set device=auto")
    return selected


def disconnect() -> None:
    """End the connection of the processes, if there is one."""
    if processes()[1] > 1:
        torch.distributed.destroy_process_group()


def is_any(accelerator: Accelerator, value: bool) -> bool:
    """Return whether a value is true in any of the processes."""
    if accelerator.num_processes == 1:
        return value
    summed: Any = accelerator.reduce(torch.tensor(float(value), device=accelerator.device))
    return bool(summed > 0)


def is_lost_connection(error: BaseException) -> bool:
    """Whether another process of the training has stopped, or cannot be reached."""
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )


def end_with_launcher() -> None:
    """Watch torchrun, which started this process, in a thread.

    torchrun ends the other processes if one of them fails. If torchrun itself is killed with
    SIGKILL, nobody does: the processes keep the lock of the run folder, or wait forever for one of
    them that died. So this process gets SIGTERM when torchrun is gone, after which a training saves
    a checkpoint and stops. A process that is still there after `GRACE` seconds exits at once.
    """
    # A thread and not prctl(PR_SET_PDEATHSIG): it works on every operating system, and it can end a
    # process whose main thread waits in a library and handles no signals.
    if all(thread.name != LAUNCH for thread in threading.enumerate()):
        arguments = (os.getppid(),)
        threading.Thread(target=_watch, args=arguments, name=LAUNCH, daemon=True).start()


def _watch(parent: int) -> None:
    # A process whose parent ends gets another one.
    while os.getppid() == parent:
        time.sleep(INTERVAL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(128 + signal.SIGTERM)


def _check_gpus(count: int) -> None:
    started = int(os.environ.get(PROCESSES, "1"))
    if started > count:
        raise ValueError(
            f"device: torchrun started {started} processes on this machine, which has {count} "
            f"GPU{'s' if count > 1 else ''}; start at most one process per GPU "
            f"(--nproc_per_node {count}), or set device=cpu"
        )


@contextmanager
def stop_signals() -> Iterator[list[signal.Signals]]:
    """Record signals to stop, instead of letting them end the process.

    A second Ctrl+C raises KeyboardInterrupt at once. Without the main thread of the process, which
    alone can handle signals, nothing happens. A signal that the process ignores stays ignored.

    Yields:
        The list of the signals that have arrived. The training reads it after each step.
    """
    received: list[signal.Signals] = []
    pid = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        # Data workers inherit the handler. They end with the training process, not before it.
        if os.getpid() != pid:
            return
        if number == signal.SIGINT and signal.SIGINT in received:
            raise KeyboardInterrupt
        received.append(signal.Signals(number))

    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signal.Signals:
            # `nohup dxn train` ignores SIGHUP, so that the training survives its terminal.
            if number.name in SIGNALS and signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
