"""The processes of a training: device, precision, one model in all of them, and signals to stop."""

from __future__ import annotations

import atexit
import copy
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dxn.core.errors import UserError
from dxn.core.processes import from_first, launch, processes
from dxn.core.runtime import choose_bf16
from dxn.data.dataset import Samples
from dxn.models.fusion import EarlyFusion
from dxn.models.model import MultimodalModel, as_float
from dxn.tasks.task import Task
from dxn.training.average import Average, weights_and_buffers
from dxn.training.checkpoint import unchanged
from dxn.training.device import to_device
from dxn.training.optim import Muon

UsedPrecision = Literal["float32", "tf32", "bf16", "fp16"]
Precision = Literal["auto"] | UsedPrecision
TF32_CAPABILITY = (8, 0)  # of the GPU

# Environment variables that torchrun sets.
LAUNCH = "TORCHELASTIC_RUN_ID"
NUM_PROCESSES = "WORLD_SIZE"  # on all machines
NUM_LOCAL = "LOCAL_WORLD_SIZE"  # on this machine
LOCAL_RANK = "LOCAL_RANK"  # index of this process among them
INTERVAL = 1.0  # seconds between two checks of torchrun, each of which takes microseconds
# Seconds to save a checkpoint. A process that waits for a dead one does not react to the signal.
# Checkpoints are written under another name first, so the exit cannot damage one.
GRACE = 60.0
# SIGTERM: a container or a batch system stops the job. SIGUSR1: Slurm's warning before the time
# limit (--signal=USR1@60). SIGHUP: the terminal is closed. SIGINT: Ctrl+C. Windows lacks some.
SIGNALS = ("SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT")


@dataclass(frozen=True)
class Hardware:
    """What a process of a training computes with.

    Args:
        device: Device of this process.
        precision: Precision of matrix products.
        precision_note: Why it is this precision.
        rank: Index of this process.
        num_processes: Number of processes of the training.
    """

    device: torch.device
    precision: UsedPrecision
    precision_note: str
    rank: int
    num_processes: int

    @property
    def is_main(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0


def find_hardware(device: str, precision: Precision) -> Hardware:
    """Connect the processes, and choose the precision of a training.

    Args:
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32, tf32, bf16 or fp16.

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
    return Hardware(selected, used, note, *processes())


def connect(device: str) -> torch.device:
    """Connect the processes that torchrun started, if there are any.

    Args:
        device: Device to use: auto, cpu, cuda or mps.

    Returns:
        The device of this process. A GPU has its number, if there are several processes.

    Raises:
        ValueError: If the device is not available, or there are more processes than GPUs.
    """
    if LAUNCH in os.environ:
        # Before anything waits for the other processes.
        end_with_launcher()
    gpu = torch.accelerator.current_accelerator(check_available=True)
    kinds = ("cpu",) if gpu is None else (gpu.type, "cpu")
    kind = kinds[0] if device == "auto" else device
    if kind not in kinds:
        raise ValueError(f"device: {device} is not available on this machine; set device=auto")
    selected = torch.device(kind)
    num_local = int(os.environ.get(NUM_LOCAL, "1"))
    if kind == "cuda" and num_local > 1:
        count = torch.cuda.device_count()
        if num_local > count:
            raise ValueError(
                f"device: torchrun started {num_local} processes on this machine, which has "
                f"{count} GPU{'s' if count > 1 else ''}; start at most one process per GPU "
                f"(--nproc_per_node {count}), or set device=cpu"
            )
        selected = torch.device(kind, int(os.environ[LOCAL_RANK]))
        torch.cuda.set_device(selected)  # NCCL and new tensors use the current one
    if int(os.environ.get(NUM_PROCESSES, "1")) > 1 and not distributed.is_initialized():
        started = launch()
        backend = "nccl" if kind == "cuda" else "gloo"
        distributed.init_process_group(backend, **({} if started is None else started.connection))
        atexit.register(disconnect)
    return selected


def disconnect() -> None:
    """End the connection of the processes, if there is one."""
    if processes()[1] > 1:
        distributed.destroy_process_group()


def is_lost_connection(error: BaseException) -> bool:
    """Whether another process of the training has stopped, or cannot be reached."""
    return isinstance(error, distributed.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )


# What the processes exchange. NCCL sends only tensors on the GPU.


def is_any(value: bool, device: torch.device) -> bool:
    """Return whether a value is true in any of the processes."""
    if processes()[1] == 1:
        return value
    count = torch.tensor(float(value), device=device)
    distributed.all_reduce(count)
    return bool(count > 0)


def gather(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return tensors of this process with those of all P processes, (P, ...) each, on the CPU."""
    num_processes = processes()[1]
    if num_processes == 1:
        return {name: tensor[None].cpu() for name, tensor in tensors.items()}
    gathered: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        sent = tensor.to(device)
        received = [torch.empty_like(sent) for _ in range(num_processes)]
        distributed.all_gather(received, sent)
        gathered[name] = torch.stack(received).cpu()
    return gathered


@torch.no_grad()
def use_first(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Replace tensors, in place, by those of the first process. All processes must call this."""
    if processes()[1] == 1:
        return
    for tensor in tensors:
        sent = tensor.to(device).contiguous()
        distributed.broadcast(sent, src=0)
        tensor.copy_(sent)


# The model


class Replicated:
    """A model of which each process has a copy. The processes exchange gradients (DDP).

    Args:
        model: The model. It is moved to the device, and gets the weights of the first process.
        device: Device of this process.
        task: Task that created the head of the model.
        train: Samples of the training split.

    Attributes:
        trained: The module whose parameters the optimizer changes.
        wrapped: The module whose forward and backward passes exchange gradients.
        whole, divided: Functions that return a tensor of the trained model as it is.
    """

    whole = staticmethod(unchanged)
    divided = staticmethod(unchanged)

    def __init__(self, model: MultimodalModel, device: torch.device, *, task: Task, train: Samples):
        self.device = device
        self.model = model.to(device)
        self.trained: nn.Module = model
        self.wrapped: nn.Module = model
        # Only the first process has fitted the statistics of the inputs.
        use_first((tensor for _, tensor in weights_and_buffers(model)), device)
        if processes()[1] > 1:
            with warnings.catch_warnings():
                # The new name does not exist in torch 2.11.
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
                self.wrapped = DistributedDataParallel(
                    model,
                    device_ids=None if device.type == "cpu" else [device],
                    # DDP must look for such parameters in each step, or it raises an error.
                    find_unused_parameters=_lacks_gradients(model, task, train, device),
                    # `use_first` has sent weights and buffers. With the defaults, each step would
                    # wait for the buffers of the first process.
                    init_sync=False,
                    broadcast_buffers=False,
                )

    def not_synchronized(self) -> AbstractContextManager[Any]:
        """Let the backward passes of this context add up the gradients of this process only."""
        if isinstance(self.wrapped, DistributedDataParallel):
            return self.wrapped.no_sync()
        return nullcontext()

    @contextmanager
    def kept_weights(self, average: Average | None) -> Iterator[None]:
        """Let the model have the weights that are validated and kept: the averaged ones, if any."""
        with nullcontext() if average is None else average.in_use():
            # A module of the user can have buffers that change, such as those of a batch norm. The
            # weights that are kept are those of the first process.
            use_first(self.model.buffers(), self.device)
            yield


class Sharded:
    """A model whose weights, gradients and optimizer state are divided over processes (FSDP2).

    Each process stores a part of each weight. The blocks of the backbone are gathered one at a time
    for their forward and backward pass.

    Args:
        model: The model, which is validated and kept. It gets the trained weights for that, and is
            on the CPU otherwise.
        device: Device of this process.
        optimizer: Optimizer of the model's parameters, without a state. It gets those of `trained`.

    Attributes:
        trained: A copy of the model whose parameters are divided. The optimizer changes them.
        wrapped: The same, because its forward and backward passes exchange weights and gradients.

    Raises:
        UserError: If a parameter has no dimension that can be divided.
    """

    def __init__(
        self, model: MultimodalModel, device: torch.device, optimizer: torch.optim.Optimizer
    ):
        # These take a second to import.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        for name, parameter in model.named_parameters():
            if not parameter.ndim:
                raise UserError(
                    f"trainer.shard: the parameter {name} is a single number, which cannot be "
                    "divided; set trainer.shard=false"
                )
        self.device = device
        self.model = model.to("cpu")
        use_first((tensor for _, tensor in weights_and_buffers(model)), device)
        mesh = init_device_mesh(device.type, (processes()[1],))
        trained = copy.deepcopy(model)
        # All processes must gather a block at the same time. With another fusion, the backbone runs
        # once per input, and the samples of a process can lack an input.
        if isinstance(trained.fusion, EarlyFusion):
            for block in trained.blocks:
                fully_shard(block, mesh=mesh)
        fully_shard(trained, mesh=mesh)
        self.trained: nn.Module = trained
        self.wrapped: nn.Module = trained
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        parameters = dict(trained.named_parameters())
        if isinstance(optimizer, Muon):  # which computes with whole matrices
            optimizer.whole, optimizer.divided = self.whole, self.divided
        for group in optimizer.param_groups:
            group["params"] = [parameters[names[id(old)]] for old in group["params"]]

    @contextmanager
    def not_synchronized(self) -> Iterator[None]:
        """Let the backward passes of this context add up the gradients of this process only."""
        trained = cast("Any", self.trained)  # importing the class of FSDP2 takes a second
        trained.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            trained.set_requires_gradient_sync(True)

    @contextmanager
    def kept_weights(self, average: Average | None) -> Iterator[None]:
        """Let the model have the weights that are validated and kept: the averaged ones, if any."""
        weights = dict(weights_and_buffers(self.trained))
        if average is not None:
            weights |= average.tensors
        for name, tensor in weights_and_buffers(self.model):
            tensor.detach().copy_(self.whole(weights[name].detach()))
        self.model.to(self.device)
        try:
            use_first(self.model.buffers(), self.device)
            yield
        finally:
            self.model.to("cpu")

    def whole(self, tensor: Tensor) -> Tensor:
        """Return the whole tensor of one that is divided. All processes must call this."""
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def divided(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Divide a tensor, which all processes have, as another one is divided."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or not tensor.ndim:
            return tensor
        on_device = tensor.to(like.device)
        return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def _lacks_gradients(
    model: MultimodalModel, task: Task, train: Samples, device: torch.device
) -> bool:
    """Return whether parameters can get no gradient in a step.

    That is the case if samples can lack an input, or the loss does not depend on a parameter,
    which one backward pass shows.
    """
    # What a masked sample predicts is random, and samples are compared by pairs of inputs.
    if train.may_lack_inputs or task.target.random or task.separates_inputs:
        return True
    # Without dropout and without statistics of batches, so that the training does not change.
    model.eval()
    batch = to_device(train.batch(0, [0]), device)
    task.loss(as_float(model(batch)), batch).total.backward()
    lacks = any(p.grad is None for p in model.parameters() if p.requires_grad)
    model.zero_grad(set_to_none=True)
    return lacks


# Signals


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
