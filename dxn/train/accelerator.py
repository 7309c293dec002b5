"""The accelerator: the device, the number of processes and the precision of a training."""

from __future__ import annotations

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from accelerate.state import AcceleratorState

from dxn.train.precision import Precision, choose


def make_accelerator(device: str, precision: Precision) -> tuple[Accelerator, str]:
    """Create the accelerator of a training.

    Args:
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32 or bf16.

    Returns:
        The accelerator, and a note that says which precision it uses and why.

    Raises:
        ValueError: If the device is not available.
    """
    # Accelerate keeps its settings in a singleton. Without the reset, the second training of a
    # process (in a sweep, for example) would silently use the device and precision of the first.
    AcceleratorState._reset_state(reset_partial_state=True)
    # Accelerate runs several processes on CPUs only with cpu=True, so this is also set on a machine
    # without a GPU.
    on_cpu = device == "cpu" or (device == "auto" and not torch.accelerator.is_available())
    selected = torch.device(PartialState(cpu=on_cpu).device or "cpu")
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
