"""The optimizer steps of a training, with every decision in the place where it is made."""

from __future__ import annotations

import gc
import math
import random
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dxn.core.dropout import MAX_SEED, Noise, keyed, number_layers, selected
from dxn.core.errors import UserError
from dxn.core.runtime import release_memory
from dxn.data.dataset import Samples
from dxn.models import Model
from dxn.tasks.loss import LossSum
from dxn.tasks.task import Task
from dxn.tokenize.spaced import spaced_rows
from dxn.training.compiling import Compiling
from dxn.training.ema import make_ema, use_ema
from dxn.training.evaluate import as_float
from dxn.training.options import Options
from dxn.training.state import State
from dxn.training.step import BatchLoss, Start, is_out_of_memory, name_rows, statistics_of

# Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
Schedule = Callable[[float], float]
# Number of the dropout masks of a second pass. `Model.embed` numbers its selections from 0.
SECOND_PASS = 2**20
MAX_BALANCED = 64  # samples from which a task computes constants of its loss


@dataclass(kw_only=True, eq=False)
class Stepper:
    """Accumulates the gradients of batches, and takes optimizer steps with them.

    Args:
        settings: Options of the training.
        model: Model to train. It is moved to the device of the accelerator.
        task: Task that computes the loss.
        optimizer: Optimizer of the model's parameters.
        schedule: Multiplier of the learning rate.
        samples: Samples of the training split.
        batch_size: Number of samples per batch, over all processes.
        state: State of the training, which this class updates.
        report: Function that prints a line.
    """

    settings: Options
    model: Model
    task: Task
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    samples: Samples
    batch_size: int
    state: State
    report: Callable[[str], None]

    def __post_init__(self):
        accelerator = self.settings.accelerator
        self.device = accelerator.device
        self.rank = accelerator.process_index
        self.num_processes = accelerator.num_processes
        # The optimizer and the average refer to the parameters, so these must be on the device.
        self.model.to(self.device)
        # The average is a deep copy of the model, so it is made before `prepare` replaces
        # `model.forward` for bf16: a copied wrapper would still refer to the original model.
        decay = self.settings.ema_decay
        self.ema = make_ema(self.model, decay) if decay else None
        # The schedule multiplies these. `step` overwrites the rates in the groups, so they are
        # stored before the first step, and before a checkpoint restores overwritten ones.
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        # The annotation of `prepare` does not say that it returns as many objects as it gets.
        prepared = typing.cast("tuple[Any, Any]", accelerator.prepare(self.model, self.optimizer))
        # With several processes, `wrapped` is the model in DDP; only its forward synchronizes the
        # gradients. `model` is used for everything else, such as saving and validation.
        self.wrapped, self.optimizer = prepared
        number_layers(self.model)
        rows = spaced_rows(len(self.samples), MAX_BALANCED)
        self.task.prepare_loss(self.samples[0, row] for row in rows)
        self.compiling = Compiling(self.model, self.settings, report=self.report)
        # Collecting these in each step would take as long as clipping the gradients.
        self.parameters = list(self.wrapped.parameters())
        self.statistics = statistics_of(self.model)
        # The batches since the last step, and the state before the first of them.
        self.group: list[BatchLoss] = []
        self.start: Start | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether several batches make one step, so each counts by the weight of its targets."""
        return self.num_processes * self.settings.grad_accum_steps * self.state.parts > 1

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group, which is the one that is logged."""
        return self.optimizer.param_groups[0]["lr"]

    def backward(self, batch: dict[str, Any]) -> BatchLoss:
        """Add the gradients of one batch, or of a part of one."""
        if self.start is None:
            self.start = Start.of(self.statistics, self.device, self.state.batch)
        mixing = None
        if self.settings.mixup and self.state.is_past_chance(self.settings.mixup_below):
            # The model mixes the tokens and the task mixes the targets, with the same permutation
            # and the same share of the partner.
            alpha = self.settings.mixup
            share = float(torch.distributions.Beta(alpha, alpha).sample())
            order = torch.randperm(batch["#size"]).to(self.device)
            mixing = (order, share)
            batch = {**batch, "target": self.task.mix_targets(batch["target"], order, share)}
        self.compiling.before_batch(self.state)
        with keyed(self._noise(batch)):
            return self._backward(batch, mixing)

    def _noise(self, batch: dict[str, Any]) -> Noise:
        """Return the random numbers of the dropouts. They depend on the step and the samples."""
        text = f"{self.settings.seed}/{self.state.epoch}/{self.state.step}"
        rows = torch.tensor(batch["#index"], device=self.device)
        return Noise.of_step(rows, random.Random(text).randrange(MAX_SEED))

    def _backward(self, batch: dict[str, Any], mixing: tuple[Tensor, float] | None) -> BatchLoss:
        """Compute the loss of a batch, and add its gradients."""
        loss = self._loss(batch, mixing)
        size, weight, rows = batch["#size"], 1.0, batch["#index"]
        if batch.get("#filler"):
            # It only keeps this process in step with the others, which have one more sample.
            size, weight, rows, total = 0, 0.0, [], 0 * loss.total
        elif self.is_weighted:
            # `step` divides the gradients by the weight of all targets, so the step is that of one
            # large batch, however many batches and processes it is divided into.
            total, weight = loss.total, float(loss.weight)
        else:
            # On the device: to read the weight would wait for it in every step.
            total = loss.mean
        self.settings.accelerator.backward(total)
        return BatchLoss(total.detach(), weight, size, rows)

    def _loss(self, batch: dict[str, Any], mixing: tuple[Tensor, float] | None) -> LossSum:
        """Return the loss of a batch, with R-Drop if set (arXiv:2106.14448)."""
        # Losses are computed in float32 even if the model runs in bf16, which has too few digits
        # for sums over many terms.
        weight = self.settings.r_drop
        if not weight:
            return self.task.loss(as_float(self.wrapped(batch, mixing)), batch)
        # DDP prepares each forward pass that synchronizes gradients for a backward pass of its own.
        # Both passes have the same one, so only the second pass is prepared.
        with self.settings.accelerator.no_sync(self.wrapped):
            output = as_float(self.wrapped(batch, mixing))
        with selected(torch.arange(batch["#size"], device=self.device), SECOND_PASS):
            other = as_float(self.wrapped(batch, mixing))
        # The mean of the two losses instead of their sum, so that the weight of the target does not
        # depend on this option. The paper's code does the same.
        loss, second = self.task.loss(output, batch), self.task.loss(other, batch)
        divergence = self.task.divergence(output, other, batch) * loss.weight
        return LossSum((loss.total + second.total) / 2 + weight * divergence, loss.weight)

    def step(self, progress: float, num_steps: int) -> Sequence[BatchLoss]:
        """Take one optimizer step with the accumulated gradients, if they are finite.

        Args:
            progress: Progress of the training, 0 to 1, which determines the learning rate.
            num_steps: Number of steps of the whole training.

        Returns:
            The losses of the batches of this step.

        Raises:
            UserError: If too many steps in a row were skipped, or the memory is too small for the
                state of the optimizer.
        """
        state = self.state
        factor = self.schedule(progress)
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * factor
        parameters = [p for p in self.parameters if p.grad is not None]
        gradients = [typing.cast("Tensor", p.grad) for p in parameters]
        batches = BatchLoss.sum(self.group)
        if self.is_weighted and batches.weight:
            # DDP has already divided the sum over the processes by their number.
            for gradient in gradients:
                gradient.div_(batches.weight / self.num_processes)
        # Of the accumulated gradient, not of each batch: accumulated batches must make the same
        # step as one large batch.
        norm = get_total_norm(gradients)
        state.step += 1
        # In one number, because each comparison on the CPU waits for the GPU.
        if bool((norm + batches.total).isfinite()):
            if self.settings.max_grad_norm:
                clip_grads_with_norm_(parameters, self.settings.max_grad_norm, norm)
            self._update()
            state.skipped_in_row = 0
        else:
            self._skip(batches)
        passes = 2 if self.settings.r_drop else 1
        num_batches = passes * len(self.group) * state.parts
        self.compiling.after_step(state, num_steps, num_batches=num_batches)
        losses = self.group
        self.clear()
        return losses

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Prepare the model for a validation: it has the averaged weights, if they are averaged."""
        average = nullcontext() if self.ema is None else use_ema(self.model, self.ema)
        with self.compiling.paused(), average:
            yield

    def clear(self) -> None:
        """Remove the accumulated gradients."""
        # None instead of zeros: AdamW then skips parameters that received no gradient.
        self.optimizer.zero_grad(set_to_none=True)
        self.group = []
        self.start = None

    def rewind(self) -> None:
        """Return to the state before the optimizer step that is in progress."""
        if self.start is not None:
            self.start.restore(self.device)
            self.state.batch = self.start.batch
        self.clear()

    def divide_batches(self) -> None:
        """Return to the start of the step, and compute its batches in twice as many parts.

        Raises:
            UserError: If the batches cannot be divided.
        """
        parts = 2 * self.state.parts
        self.rewind()
        # The failed iterator of the loader too: new data workers must not inherit it.
        gc.collect()
        release_memory()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        advice = "use a smaller model, shorter inputs or a smaller batch_size"
        if self.num_processes > 1:
            # The other processes wait for the gradients of this one, and cannot go back.
            raise UserError(f"out of memory in process {self.rank}; {advice}")
        if self.task.compares_rows:
            raise UserError(
                f"out of memory with {self.batch_size} samples per batch; this task compares all "
                f"samples of a batch, so batches cannot be divided; {advice}"
            )
        if parts > self.batch_size:
            raise UserError(f"out of memory with a single sample; {advice}")
        self.state.parts = parts
        self.report(
            f"note: out of memory; each batch of {self.batch_size} samples is now computed in "
            f"{parts} parts of at most {math.ceil(self.batch_size / parts)} samples, whose "
            "gradients are added up"
        )

    def close(self) -> None:
        """Undo the changes that accelerate made to the model."""
        # `prepare` replaced model.forward for bf16. A second training would wrap it again.
        self.compiling.close()
        accelerator = self.settings.accelerator
        accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        # Otherwise the accelerator keeps references to the model and the optimizer.
        accelerator.free_memory()

    def _update(self) -> None:
        """Change the weights and their average."""
        try:
            self.optimizer.step()
            if self.ema is not None:
                self.ema.update_parameters(self.model)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # Some weights may have changed already, so the step cannot be repeated. It needs the
            # same memory for smaller batches.
            raise UserError(
                "out of memory for the state of the optimizer, whose size does not depend on the "
                "batch size; use a smaller model"
            ) from error

    def _skip(self, batches: BatchLoss) -> None:
        """Say that a step is not taken because its loss or gradient is not finite."""
        state = self.state
        if self.start is not None:
            self.start.restore_statistics()
        state.skipped += 1
        state.skipped_in_row += 1
        what = "gradient" if math.isfinite(float(batches.total)) else "loss"
        rows = name_rows(self.samples, state.epoch, batches.rows)
        where = f"step {state.step} (epoch {state.epoch + 1}), where the {what} is not finite"
        limit = self.settings.max_skipped_steps
        if limit and state.skipped_in_row >= limit:
            raise UserError(
                f"training stopped: {limit} optimizer steps in a row were not possible; the last "
                f"one was {where} ({rows}); lower optimizer.lr, or look for extreme values with "
                "dxn check"
            )
        self.report(f"warning: no optimizer step at {where} ({rows})")
