"""The accelerator: the device, the number of processes and the precision of a training."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from accelerate.state import AcceleratorState
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from dxn.training.parent import end_with_launcher
from dxn.training.precision import Precision, choose

# Environment variables that torchrun sets.
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"
PROCESSES = "LOCAL_WORLD_SIZE"  # on this machine


def make_accelerator(device: str, precision: Precision) -> tuple[Accelerator, str]:
    """Create the accelerator of a training.

    Args:
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32 or bf16.

    Returns:
        The accelerator, and a note that says which precision it uses and why.

    Raises:
        ValueError: If the device is not available, or there are more processes than GPUs.
    """
    # Before anything waits for the other processes.
    end_with_launcher()
    # Accelerate keeps its settings in a singleton. Without the reset, the second training of a
    # process (in a sweep, for example) would silently use the device and precision of the first.
    AcceleratorState._reset_state(reset_partial_state=True)
    # Accelerate runs several processes on CPUs only with cpu=True, so this is also set on a machine
    # without a GPU.
    on_cpu = device == "cpu" or (device == "auto" and not torch.accelerator.is_available())
    if not on_cpu and torch.cuda.is_available():
        _check_gpus(torch.cuda.device_count())
    selected = torch.device(PartialState(cpu=on_cpu, **_own_store()).device or "cpu")
    if device not in ("auto", selected.type):
        raise ValueError(f"device: {device} is not available on this machine; set device=auto")
    bf16, note = choose(precision, selected)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision="bf16" if bf16 else "no",
        # If a whole batch lacks an input, the weights of its adapter receive no gradient. DDP
        # raises an error in this case by default.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    return accelerator, note


def wait_for_all(accelerator: Accelerator) -> None:
    """Wait until all processes of the training have called this."""
    if accelerator.device.type == "cpu" and accelerator.num_processes > 1:
        # accelerate names a GPU for each process, and fails if the machine has fewer GPUs.
        torch.distributed.barrier()
    else:
        accelerator.wait_for_everyone()


def is_lost_connection(error: BaseException) -> bool:
    """Whether another process of the training has stopped, or cannot be reached."""
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )


def _check_gpus(count: int) -> None:
    processes = int(os.environ.get(PROCESSES, "1"))
    if processes > count:
        raise ValueError(
            f"device: torchrun started {processes} processes on this machine, which has {count} "
            f"GPU{'s' if count > 1 else ''}; start at most one process per GPU "
            f"(--nproc_per_node {count}), or set device=cpu"
        )


def _own_store() -> dict[str, Any]:
    """Return the arguments of `init_process_group` after torchrun has restarted the processes.

    torchrun keeps its store of addresses at a restart (--max-restarts). Without a prefix, a process
    could read the address of a process that was killed, and would fail to connect to it.
    """
    restarts = os.environ.get(RESTARTS, "0")
    if restarts == "0" or os.environ.get(HAS_STORE) != "True":
        return {}
    store, rank, world_size = next(rendezvous("env://"))
    own = distributed_c10d.PrefixStore(f"restart-{restarts}", store)
    return {"store": own, "rank": rank, "world_size": world_size}
