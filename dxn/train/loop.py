"""The loop over epochs and batches, with every decision in the place where it is made."""

from __future__ import annotations

import math
import random
import time
import typing
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor

from dxn.data.batches import BatchOrder, make_loader
from dxn.data.samples import Samples
from dxn.display import duration
from dxn.models import Model
from dxn.tasks.task import Task
from dxn.train import checkpoint
from dxn.train.ema import make_ema, use_ema
from dxn.train.evaluate import as_float, predict, score, to_device
from dxn.train.progress import Progress
from dxn.train.state import State

# Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
Schedule = Callable[[float], float]


class Options(Protocol):
    """The options of a training. `Trainer` describes them."""

    epochs: int
    batch_size: int
    seed: int
    max_grad_norm: float
    grad_accum_steps: int
    patience: int
    max_minutes: float | None
    ema_decay: float
    mixup: float
    log_every: int
    checkpoint_every: int
    accelerator: Accelerator
    bf16: bool
    main: bool


@dataclass(kw_only=True, eq=False)
class Run:
    """One training in progress. `Trainer.fit` describes the fields."""

    settings: Options
    model: Model
    task: Task
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    train: Samples
    validation: Samples | None
    folder: Path
    keep: Callable[[dict[str, float]], None]
    num_workers: int | None
    name: str

    def __post_init__(self):
        settings = self.settings
        accelerator = settings.accelerator
        self.device = accelerator.device
        self.state = State()
        # The optimizer and the average refer to the parameters, so these must be on the device.
        self.model.to(self.device)
        # The average is a deep copy of the model, so it is made before `prepare` replaces
        # `model.forward` for bf16: a copied wrapper would still refer to the original model.
        self.ema = make_ema(self.model, settings.ema_decay) if settings.ema_decay else None
        # The schedule multiplies these. `step` overwrites the rates in the groups, so they are
        # stored before the first step, and before a checkpoint restores overwritten ones.
        self.base_lrs = [group["lr"] for group in self.optimizer.param_groups]
        # The annotation of `prepare` does not say that it returns as many objects as it gets.
        prepared = typing.cast("tuple[Any, Any]", accelerator.prepare(self.model, self.optimizer))
        # With several processes, `wrapped` is the model in DDP; only its forward synchronizes the
        # gradients. `model` is used for everything else, such as saving and validation.
        self.wrapped, self.optimizer = prepared
        self.shard = (accelerator.process_index, accelerator.num_processes)
        # BatchOrder also distributes the batches over the processes, so the loader does not go
        # through `prepare`.
        self.order = BatchOrder(
            self.train, settings.batch_size, seed=settings.seed, shuffle=True, shard=self.shard
        )
        self.loader = make_loader(self.order, num_workers=self.num_workers)
        self.steps_per_epoch = math.ceil(len(self.order) / settings.grad_accum_steps)
        self.progress = Progress(
            self.folder,
            batches=len(self.order),
            epochs=self.epochs,
            main=settings.main,
            name=self.name,
        )

    @property
    def epochs(self) -> int:
        """Number of epochs: that of the configuration, or fewer with a time limit."""
        limit = self.settings.max_minutes
        # The duration of an epoch is known only after the first one.
        if limit is None or not self.state.epoch:
            return self.settings.epochs
        return min(self.settings.epochs, self.state.epochs_within(60 * limit))

    @property
    def has_lost_patience(self) -> bool:
        """Whether the validation has not improved for too many epochs."""
        return 0 < self.settings.patience <= self.state.worse

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        return self.state.epoch >= self.epochs or self.has_lost_patience

    @property
    def lr(self) -> float:
        """Learning rate of the first parameter group, which is the one that is logged."""
        return self.optimizer.param_groups[0]["lr"]

    def restore(self) -> None:
        """Continue from the last checkpoint."""
        restored = checkpoint.load(
            self.folder / "checkpoints",
            model=self.model,
            optimizer=self.optimizer,
            ema=self.ema,
            process=self.shard[0],
        )
        self.state = State(**restored.state)
        self.progress.epochs = self.epochs
        self.progress.restore(self.state, restored.log)

    def save(self) -> None:
        """Write a checkpoint. Every process must call this, because generator states are gathered.

        Only the main process writes the file.
        """
        generators = checkpoint.generator_states(self.settings.accelerator)
        if self.settings.main:
            checkpoint.save(
                self.folder / "checkpoints",
                model=self.model,
                optimizer=self.optimizer,
                ema=self.ema,
                state=asdict(self.state),
                generators=generators,
                log=self.progress.pending(),
            )

    def epoch(self) -> None:
        """Train for the rest of this epoch, validate, and save a checkpoint."""
        state = self.state
        settings = self.settings
        started = time.perf_counter()
        # The order of the samples depends only on the seed and the epoch, so a resumed training
        # can skip the batches that are done.
        self.order.epoch = state.epoch
        self.order.skip = state.batch
        if self.shard[1] > 1 and not state.batch:
            # Processes that share a seed would draw the same dropout masks for different samples,
            # so each process has its own seed. When a training resumes in the middle of an epoch,
            # the checkpoint has already restored the generator of this process.
            seed = random.Random(f"{settings.seed}/{state.epoch}/{self.shard[0]}").getrandbits(63)
            torch.manual_seed(seed)
        self.wrapped.train()
        for batch in self.loader:
            loss = self.backward(to_device(batch, self.device))
            state.batch += 1
            # The last batches of an epoch also make a step, even if they are fewer than
            # grad_accum_steps: gradients must not leak into the next epoch.
            if state.batch % settings.grad_accum_steps == 0 or state.batch == len(self.order):
                self.step()
            self.progress.batch(
                loss, batch["size"], lr=self.lr, state=state, log_every=settings.log_every
            )
            if self._is_checkpoint_due():
                self.save()
        state.epoch += 1
        state.batch = 0
        state.seconds += time.perf_counter() - started
        metrics = self.validate()
        elapsed = state.elapsed + time.perf_counter() - started
        # The number of epochs depends on the time, and all processes must agree on it, so the clock
        # of the first process decides.
        (state.elapsed,) = broadcast_object_list([elapsed])
        self.progress.epochs = self.epochs
        self.progress.epoch(metrics, state, last=self.is_finished)
        self.save()

    def backward(self, batch: dict[str, Any]) -> Tensor:
        """Add the gradients of one batch.

        Returns:
            The loss (), detached.
        """
        mixing = None
        if self.settings.mixup:
            # The model mixes the tokens and the task mixes the targets, with the same permutation
            # and the same share of the partner.
            alpha = self.settings.mixup
            share = float(torch.distributions.Beta(alpha, alpha).sample())
            order = torch.randperm(batch["size"]).to(self.device)
            mixing = (order, share)
            batch = {**batch, "target": self.task.mix_targets(batch["target"], order, share)}
        output = self.wrapped(batch, mixing)
        # The loss is computed in float32 even if the model runs in bf16, which has too few digits
        # for sums over many terms.
        loss = self.task.loss(as_float(output), batch)
        # The division makes the sum of the gradients the mean over the batches. A shorter group at
        # the end of an epoch therefore makes a smaller step.
        self.settings.accelerator.backward(loss / self.settings.grad_accum_steps)
        return loss.detach()

    def step(self) -> None:
        """Take one optimizer step with the accumulated gradients."""
        # N steps divide the schedule, which spans all epochs, into N + 1 equal parts. Neither the
        # first step (of a warm-up) nor the last one (of a decay to 0) has a learning rate of 0, so
        # none is lost even if there are only a few.
        steps = self.epochs * self.steps_per_epoch
        factor = self.schedule((self.state.step + 1) / (steps + 1))
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * factor
        max_norm = self.settings.max_grad_norm
        if max_norm:
            # Clip the accumulated gradient, not that of each batch: accumulated batches must make
            # the same step as one large batch.
            self.settings.accelerator.clip_grad_norm_(self.wrapped.parameters(), max_norm)
        self.optimizer.step()
        # None instead of zeros: AdamW then skips parameters that received no gradient.
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step += 1
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def validate(self) -> dict[str, float]:
        """Compute the validation metrics, and keep the weights if they are the best so far.

        Returns:
            The metrics by name. Empty without a validation split.
        """
        # The averaged weights are validated, because they are the ones that are kept.
        with nullcontext() if self.ema is None else use_ema(self.model, self.ema):
            metrics = self._validation_metrics()
            if self.validation is None:
                # Nothing tells which epoch is the best.
                self.state.best_epoch = self.state.epoch
                self.keep({})
            elif self.state.record(metrics, self.task):
                self.keep(metrics)
        return metrics

    def say_why_it_stopped(self) -> None:
        """Print the reason if the training ended before the configured number of epochs."""
        settings = self.settings
        if self.has_lost_patience:
            figure = self.task.monitored
            # A task without a loss has no best loss.
            if figure != "loss" and self.state.best_loss is not None:
                figure += " or loss"
            self.progress.print(f"stopped early: no better {figure} in {settings.patience} epochs")
        elif self.state.epoch < settings.epochs:
            limit = duration(60 * (settings.max_minutes or 0))
            epochs = f"{self.state.epoch} of {settings.epochs} epochs"
            self.progress.print(f"stopped early: {epochs} fit into the time limit of {limit}")

    def close(self) -> None:
        """Remove the progress bar, and undo the changes that accelerate made to the model."""
        self.progress.close()
        # `prepare` replaced model.forward for bf16. A second training would wrap it again.
        accelerator = self.settings.accelerator
        accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        # Otherwise the accelerator keeps references to the model and the optimizer.
        accelerator.free_memory()

    def _validation_metrics(self) -> dict[str, float]:
        samples = self.validation
        if samples is None:
            return {}

        def show(done: int) -> None:
            self.progress.validation(done, len(samples), self.state)

        # Every process validates on all samples, so all of them agree on the best epoch without
        # communication.
        predictions = predict(
            self.model,
            self.task,
            samples,
            # Without gradients there is enough memory for twice the batch size.
            batch_size=2 * self.settings.batch_size,
            device=self.device,
            bf16=self.settings.bf16,
            # Fast decoding is enough to compare epochs.
            draft=True,
            on_batch=show,
        )
        return score(predictions, samples, self.task)

    def _is_checkpoint_due(self) -> bool:
        # Only after an optimizer step: a checkpoint does not contain accumulated gradients.
        every = self.settings.checkpoint_every * self.settings.grad_accum_steps
        return bool(every) and self.state.batch % every == 0
