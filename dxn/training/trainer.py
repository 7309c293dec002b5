"""The trainer: the options of a training, and the call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from dxn.core.errors import Interrupted, UserError
from dxn.core.files import remove_unfinished
from dxn.data.dataset import Samples
from dxn.models import Model
from dxn.tasks.figures import check_own_metrics
from dxn.tasks.task import Task
from dxn.training.accelerator import make_accelerator
from dxn.training.loop import Run
from dxn.training.options import Compile
from dxn.training.precision import Precision
from dxn.training.signals import StopSignals
from dxn.training.state import State
from dxn.training.stepper import Schedule
from dxn.training.trackers import Tracker, Trackers, as_names, check_trackers

__all__ = ["Run", "Schedule", "State", "Trainer"]


@dataclass(kw_only=True, eq=False)
class Trainer:
    """Trains a model and keeps the weights of its best epoch.

    Args:
        epochs: Number of passes over the training split.
        batch_size: Number of samples per batch and process. Each optimizer step averages over all
            targets in the batches of all processes.
        seed: Seed of the order of the samples, of augmentation and of dropout.
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32 or bf16. auto measures both on this
            machine and uses bf16 if it is clearly faster.
        max_grad_norm: Maximum norm of the gradient; a larger gradient is scaled down to this norm.
            0 turns clipping off.
        grad_accum_steps: Number of batches whose gradients are added up before an optimizer step.
        patience: Number of epochs without a better validation metric or a lower validation loss
            before training stops early. A number below 1 is a fraction of the epochs, or of those
            that fit into max_minutes, but at least five epochs. 0 never stops early.
        patience_below: Training does not stop early before the validation loss is below this
            fraction of that of the first epoch, or has risen above its lowest value by 10% of that
            of the first epoch. Until then, the model can be at chance. null: it may stop at any
            loss.
        max_minutes: Time limit of the training in minutes, with validation. If the epochs do not
            fit, the learning rate follows the clock, and the last epoch ends early. The first epoch
            is always complete. null: no limit.
        ema_decay: Decay of an exponential moving average of the weights. The averaged weights are
            evaluated and saved. 0 turns averaging off.
        mixup: Parameter alpha of the Beta distribution of mixup (arXiv:1710.09412). 0 turns mixup
            off.
        mixup_below: Mixup begins when the validation loss is below this fraction of that of the
            first epoch, or has risen above its lowest value by 10% of that of the first epoch.
            Until then, the model can be at chance, and learns from samples as they are. It needs a
            validation split. null: mixup is used from the first epoch.
        r_drop: Weight of the R-Drop loss (arXiv:2106.14448). Each batch is computed twice with
            different dropout, and the loss includes the divergence of the two outputs. A step then
            takes twice the time. 0 turns it off.
        log_every: Number of batches between two lines of metrics.jsonl.
        checkpoint_minutes: Minutes between two checkpoints within an epoch. There is also one at
            the start, and one at the end of each epoch. 0: only these.
        checkpoint_every: Number of optimizer steps between two checkpoints within an epoch, in
            addition to those by time. 0: only by time.
        max_skipped_steps: Number of optimizer steps in a row that may be skipped because the loss
            or a gradient is not finite, before the training stops. 0: never stop.
        compile: Use torch.compile: true, false or auto. auto measures the gain if the training
            takes more than an hour, and compiles if this saves time.
        monitor: Name of the metric that selects the best epoch and decides about patience. null:
            that of the task, such as accuracy.
        metrics: Metrics of your own by name: objects that are called with predictions and targets,
            see docs/extend.md.
        tracker: Trackers that get the lines of metrics.jsonl too: tensorboard, mlflow, wandb.

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
    patience: float = 5
    patience_below: float | None = None
    max_minutes: float | None = None
    ema_decay: float = 0.0
    mixup: float = 0.0
    mixup_below: float | None = None
    r_drop: float = 0.0
    log_every: int = 10
    checkpoint_minutes: float = 10.0
    checkpoint_every: int = 0
    max_skipped_steps: int = 10
    compile: Compile = "auto"
    monitor: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    tracker: Tracker | Sequence[Tracker] = ()

    def __post_init__(self):
        for name in ("epochs", "batch_size", "grad_accum_steps", "log_every"):
            if not getattr(self, name) >= 1:  # NaN is out of range too
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            *("max_grad_norm", "patience", "mixup", "r_drop"),
            *("checkpoint_minutes", "checkpoint_every", "max_skipped_steps"),
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.patience > 1 and self.patience != int(self.patience):
            raise ValueError(
                "patience must be a whole number of epochs or a fraction below 1, got "
                f"{self.patience}"
            )
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max_minutes must be above 0 or null, got {self.max_minutes}")
        for name in ("patience_below", "mixup_below"):
            fraction = getattr(self, name)
            if fraction is not None and not 0 < fraction <= 1:
                raise ValueError(f"{name} must be in (0, 1] or null, got {fraction}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be at least 0 and less than 1, got {self.ema_decay}")
        if self.compile not in (True, False, "auto"):
            raise ValueError(f"compile must be true, false or auto, got {self.compile}")
        check_own_metrics(self.metrics)
        check_trackers(as_names(self.tracker))
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
        batch_size: int | None = None,
        num_workers: int | None = None,
        timeout: float | None = None,
        name: str = "",
        options: Mapping[str, Any] | None = None,
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
            folder: Folder of the run. It is created if necessary.
            keep: Callback that saves the model. It is called with the validation metrics after each
                epoch that is the best so far; the model then holds the weights to save.
            resume: Continue from the last checkpoint in `folder`.
            batch_size: Number of samples per batch over all processes, which a resumed training
                takes from its start. Default: the option batch_size times the number of processes.
            num_workers: Number of processes that prepare batches. 0: the training process itself.
                Default: see `make_loader`.
            timeout: Time limit for the preparation of one sample in seconds. Default: none.
            name: Word that is printed before each epoch, such as "pretraining".
            options: Options of the run, which trackers show beside the figures.

        Returns:
            The state at the end of the training.

        Raises:
            UserError: If there is no intact checkpoint to resume from, the loss or the gradients
                are not finite, or the memory or the disk space is too small.
            Interrupted: After SIGTERM, SIGUSR1, SIGHUP or Ctrl+C. A checkpoint has been saved.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.main:
            for each in (folder, folder / "checkpoints"):
                remove_unfinished(each)
        with StopSignals() as signals:
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
                batch_size=batch_size or self.batch_size * self.accelerator.num_processes,
                num_workers=num_workers,
                timeout=timeout,
                name=name,
                signals=signals,
                options=options,
                resume=resume,
            )
            # An interrupted training must also remove its progress bar and unwrap the model.
            try:
                if resume:
                    run.restore()
                else:
                    run.progress.clear_log()
                    run.save()
                run.start_trackers()
                while not run.is_finished:
                    run.epoch()
                # It arrived after the last batch. Everything is in the checkpoint of the epoch.
                if signals.received is not None:
                    raise Interrupted.by(signals.received)
                run.say_why_it_stopped()
            finally:
                run.close()
        return run.state

    def track(self, folder: Path, metrics: Mapping[str, Any], step: int) -> None:
        """Send the final metrics of a run to the trackers.

        Args:
            folder: The run folder, after `fit`.
            metrics: Metrics by name.
            step: Number of optimizer steps of the training.
        """
        for name in as_names(self.tracker) if self.main else ():
            try:
                trackers = Trackers([name], folder, resumed_at=step)
            except UserError as error:
                # The training is finished, and its report must still be written.
                print(f"warning: {name} does not get the final metrics: {error}")
                continue
            trackers.log({**metrics, "step": step})
            trackers.close()
