"""The model of a training in one process, or in several that exchange gradients (DDP, FSDP2)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dxn.data.dataset import Samples
from dxn.models.model import MultimodalModel, as_float
from dxn.tasks.task import Task
from dxn.training import checkpoint
from dxn.training.average import Average, weights_and_buffers
from dxn.training.predict import to_device


class Parallel:
    """A model that the processes of a command train together, and its moving average.

    Args:
        model: The model. It is moved to the device, or to the CPU if it is sharded, and gets the
            weights of the first process.
        optimizer: Optimizer of the model's parameters. With `shard`, it gets those of `trained`.
        accelerator: The processes.
        task: Task that created the head of the model.
        train: Samples of the training split.
        ema_decay: Decay of the moving average. 0: there is none.
        shard: Whether the processes divide the weights (FSDP2).

    Attributes:
        model: The model of the caller, which is validated and kept.
        trained: The module whose parameters the optimizer changes: the model, or a sharded copy.
        wrapped: The module that exchanges gradients: the model in DDP, or the sharded copy. Only
            its forward and backward passes do so.
        average: Moving average of the weights, or None.
        whole: Function that returns the whole tensor of one that may be divided.
        divided: Function that divides a whole tensor as another one is divided.
    """

    def __init__(
        self,
        model: MultimodalModel,
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        *,
        task: Task,
        train: Samples,
        ema_decay: float,
        shard: bool,
    ):
        self.accelerator, self.shard = accelerator, shard
        device = accelerator.device
        # The optimizer and the average refer to the parameters, so these must be on the device.
        # The whole weights of a sharded model are on the CPU, except for validation.
        self.model = model.to("cpu" if shard else device)
        # Only the first process has fitted the statistics of the inputs.
        self.use_first(chain(model.parameters(), model.buffers()))
        self.trained: nn.Module = model
        self.wrapped: nn.Module = model
        self.whole, self.divided = checkpoint.unchanged, checkpoint.unchanged
        if shard:
            from dxn.training import sharding  # takes a second to import

            self.whole, self.divided = sharding.whole, sharding.divided_like
            self.wrapped = self.trained = sharding.sharded(model, device)
            sharding.move_optimizer(optimizer, model, self.trained)
        elif accelerator.num_processes > 1:
            with warnings.catch_warnings():
                # The new name does not exist in torch 2.11.
                warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
                self.wrapped = DistributedDataParallel(
                    model,
                    device_ids=None if device.type == "cpu" else [accelerator.local_process_index],
                    # DDP must look for such parameters in each step, or it raises an error.
                    find_unused_parameters=_lacks_gradients(model, task, train, device),
                    # `use_first` has sent weights and buffers. With the defaults, each step would
                    # wait for the buffers of the first process.
                    init_sync=False,
                    broadcast_buffers=False,
                )
        self.average = Average(self.trained, ema_decay) if ema_decay else None

    @torch.no_grad()
    def use_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors, in place, by those of the first process. All processes must call it."""
        if self.accelerator.num_processes == 1:
            return
        for tensor in tensors:
            # NCCL can only send tensors on the GPU.
            sent = tensor.to(self.accelerator.device).contiguous()
            torch.distributed.broadcast(sent, src=0)
            tensor.copy_(sent)

    @contextmanager
    def not_synchronized(self) -> Iterator[None]:
        """Let the backward passes of this context add up the gradients of this process only."""
        if isinstance(self.wrapped, DistributedDataParallel):
            with self.wrapped.no_sync():
                yield
            return
        if not self.shard:
            yield
            return
        sharded = cast("Any", self.wrapped)  # importing the class of FSDP2 takes a second
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    @contextmanager
    def kept_weights(self) -> Iterator[None]:
        """Let the model have the weights that are validated and kept: the averaged ones, if any."""
        # A module of the user can have buffers that change, such as those of a batch norm. The
        # weights that are kept are those of the first process.
        if not self.shard:
            with nullcontext() if self.average is None else self.average.in_use():
                self.use_first(self.model.buffers())
                yield
            return
        weights = dict(weights_and_buffers(self.trained))
        if self.average is not None:
            weights |= self.average.tensors
        for name, tensor in weights_and_buffers(self.model):
            tensor.detach().copy_(self.whole(weights[name].detach()))
        self.model.to(self.accelerator.device)
        try:
            self.use_first(self.model.buffers())
            yield
        finally:
            self.model.to("cpu")

    def of_all(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of this process with those of all P processes, (P, ...) each."""
        rows: dict[str, Tensor] = {}
        for name, tensor in own.items():
            # NCCL can only gather tensors on the GPU.
            gathered = self.accelerator.gather(tensor[None].to(self.accelerator.device))
            rows[name] = cast("Tensor", gathered).cpu()
        return rows


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
    lacks = any(each.grad is None for each in model.parameters() if each.requires_grad)
    model.zero_grad(set_to_none=True)
    return lacks
