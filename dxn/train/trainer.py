"""The trainer: its options, and the loop over epochs and batches with every decision in place."""

from __future__ import annotations

import math
import random
import time
import typing
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dxn.data.batches import BatchOrder, make_loader
from dxn.data.samples import Samples
from dxn.models import Model
from dxn.tasks.task import Task
from dxn.train import checkpoint
from dxn.train.accelerator import make_accelerator
from dxn.train.ema import make_ema, use_ema
from dxn.train.evaluate import as_float, predict, score, to_device
from dxn.train.precision import Precision
from dxn.train.progress import Progress
from dxn.train.state import State

__all__ = ["Run", "Schedule", "State", "Trainer"]

# Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
Schedule = Callable[[float], float]


@dataclass(kw_only=True, eq=False)
class Trainer:
    """Trains a model and keeps the weights of its best epoch.

    Args:
        epochs: Number of passes over the training split.
        batch_size: Number of samples per batch and process.
        seed: Seed of the order of the samples, of augmentation and of dropout.
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32 or bf16. auto measures both on this
            machine and uses bf16 if it is clearly faster.
        max_grad_norm: Maximum norm of the gradient; a larger gradient is scaled down to this norm.
            0 turns clipping off.
        grad_accum_steps: Number of batches whose gradients are added up before an optimizer step.
        patience: Number of epochs without a better validation metric before training stops early.
            0 never stops early.
        ema_decay: Decay of an exponential moving average of the weights. The averaged weights are
            evaluated and saved. 0 turns averaging off.
        mixup: Parameter alpha of the Beta distribution of mixup (arXiv:1710.09412). 0 turns mixup
            off.
        log_every: Number of batches between two lines of metrics.jsonl.
        checkpoint_every: Number of optimizer steps between two checkpoints within an epoch. 0 saves
            one checkpoint per epoch.

    Raises:
        ValueError: If an option is out of range, or the device is not available.
    """

    epochs: int = 20
    batch_size: int = 64
    seed: int = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Precision = "auto"
    max_grad_norm: float = 1.0
    grad_accum_steps: int = 1
    patience: int = 0
    ema_decay: float = 0.0
    mixup: float = 0.0
    log_every: int = 10
    checkpoint_every: int = 0

    def __post_init__(self):
        for name in ("epochs", "batch_size", "grad_accum_steps", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_grad_norm", "patience", "mixup", "checkpoint_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be at least 0 and less than 1, got {self.ema_decay}")
        self.accelerator, self.precision_note = make_accelerator(self.device, self.precision)
        self.bf16 = self.accelerator.mixed_precision == "bf16"
        # Only the main process prints and writes files.
        self.main = self.accelerator.is_main_process

    def fit(
        self,
        model: Model,
        task: Task,
        *,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        train: Samples,
        validation: Samples | None,
        folder: Path,
        keep: Callable[[dict[str, float]], None],
        resume: bool = False,
        num_workers: int = 0,
        name: str = "",
    ) -> State:
        """Train `model` in place, and write metrics.jsonl and checkpoints/ in `folder`.

        Args:
            model: Model to train. It is moved to the device of the accelerator.
            task: Task that created the head of the model. It computes the loss and the metrics.
            optimizer: Optimizer of the model's parameters.
            schedule: Maps the progress of the training, 0 to 1, to the multiplier of the learning
                rate.
            train: Samples of the training split.
            validation: Samples that select the best epoch. None: every epoch is kept.
            folder: Folder of the run.
            keep: Callback that saves the model. It is called with the validation metrics after each
                epoch that is the best so far; the model then holds the weights to save.
            resume: Continue from the last checkpoint in `folder`.
            num_workers: Number of processes that prepare batches. 0: the training process itself.
            name: Word that is printed before each epoch, such as "pretraining".

        Returns:
            The state at the end of the training.

        Raises:
            UserError: If there is no checkpoint to resume from.
        """
        run = Run(
            settings=self,
            model=model,
            task=task,
            optimizer=optimizer,
            schedule=schedule,
            train=train,
            validation=validation,
            folder=folder,
            keep=keep,
            num_workers=num_workers,
            name=name,
        )
        # An interrupted training must also remove its progress bar and unwrap the model.
        try:
            if resume:
                run.restore()
            while run.state.epoch < self.epochs and not run.state.finished:
                run.epoch()
        finally:
            run.close()
        return run.state


@dataclass(kw_only=True, eq=False)
class Run:
    """One training in progress. `Trainer.fit` describes the fields."""

    settings: Trainer
    model: Model
    task: Task
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    train: Samples
    validation: Samples | None
    folder: Path
    keep: Callable[[dict[str, float]], None]
    num_workers: int
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
        # The schedule spans all epochs, and a resumed training continues at its old position.
        steps_per_epoch = math.ceil(len(self.order) / settings.grad_accum_steps)
        self.total_steps = settings.epochs * steps_per_epoch
        self.progress = Progress(
            self.folder,
            batches=len(self.order),
            epochs=settings.epochs,
            main=settings.main,
            name=self.name,
        )

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
        self.validate()
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
        # Counted from 1: the last step reaches the end of the schedule, and the first step of a
        # warm-up does not have a learning rate of 0.
        factor = self.schedule((self.state.step + 1) / self.total_steps)
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

    def validate(self) -> None:
        """Compute the validation metrics, and keep the weights if they are the best so far."""
        state = self.state
        # The averaged weights are validated, because they are the ones that are kept.
        with nullcontext() if self.ema is None else use_ema(self.model, self.ema):
            metrics = self._validation_metrics()
            if self.validation is None:
                self.keep({})
            elif self.task.is_better(metrics[self.task.monitored], state.best):
                state.best = metrics[self.task.monitored]
                state.best_epoch = state.epoch
                state.worse = 0
                self.keep(metrics)
            else:
                state.worse += 1
        state.finished = bool(self.settings.patience) and state.worse >= self.settings.patience
        self.progress.epoch(metrics, state)

    def close(self) -> None:
        """Remove the progress bar, and undo the changes that accelerate made to the model."""
        self.progress.close()
        # `prepare` replaced model.forward for bf16. A second training would wrap it again.
        accelerator = self.settings.accelerator
        accelerator.unwrap_model(self.wrapped, keep_fp32_wrapper=False)
        # Otherwise the accelerator keeps references to the model and the optimizer.
        accelerator.free_memory()

    def _validation_metrics(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        # Every process validates on all samples, so all of them agree on the best epoch without
        # communication.
        predictions = predict(
            self.model,
            self.task,
            self.validation,
            # Without gradients there is enough memory for twice the batch size.
            batch_size=2 * self.settings.batch_size,
            device=self.device,
            bf16=self.settings.bf16,
            # Fast decoding is enough to compare epochs.
            draft=True,
        )
        return score(predictions, self.validation, self.task)

    def _is_checkpoint_due(self) -> bool:
        # Only after an optimizer step: a checkpoint does not contain accumulated gradients.
        every = self.settings.checkpoint_every * self.settings.grad_accum_steps
        return bool(every) and self.state.batch % every == 0
