"""The loop over epochs and batches, with every decision in the place where it is made."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor

from dxn.core.display import duration
from dxn.core.errors import Interrupted
from dxn.data.dataset import Samples
from dxn.data.loader import make_loader
from dxn.data.order import BatchOrder
from dxn.models import Model
from dxn.tasks.task import Task
from dxn.training import checkpoint
from dxn.training.evaluate import predict, score, to_device
from dxn.training.options import Options
from dxn.training.progress import Progress
from dxn.training.signals import StopRequested, StopSignals
from dxn.training.state import State
from dxn.training.step import BatchLoss, is_out_of_memory
from dxn.training.stepper import Schedule, Stepper
from dxn.training.trackers import Trackers, as_names

# With a time limit, the learning rate follows the clock only if the training is later than planned
# by this fraction of the limit. Otherwise the first steps, which take longer, would make the
# weights of a training that fits into its limit depend on the clock.
GRACE = 0.05
MIN_PATIENCE = 5  # epochs, if the patience is a fraction of all epochs


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
    batch_size: int
    num_workers: int | None
    timeout: float | None
    name: str
    signals: StopSignals
    options: Mapping[str, Any] | None = None
    resume: bool = False

    def __post_init__(self):
        settings = self.settings
        self.state = State(batch_size=self.batch_size)
        self.stepper = Stepper(
            settings=settings,
            model=self.model,
            task=self.task,
            optimizer=self.optimizer,
            schedule=self.schedule,
            samples=self.train,
            batch_size=self.batch_size,
            state=self.state,
            report=self.print,
        )
        self.num_processes = self.stepper.num_processes
        # BatchOrder also distributes the samples of a batch over the processes, so the loader does
        # not go through the accelerator.
        self.order = BatchOrder(
            self.train,
            self.batch_size,
            seed=settings.seed,
            shuffle=True,
            shard=(self.stepper.rank, self.num_processes),
        )
        self.loader = make_loader(self.order, num_workers=self.num_workers, timeout=self.timeout)
        self.steps_per_epoch = math.ceil(len(self.order) / settings.grad_accum_steps)
        self.saved_at = time.monotonic()
        self.progress = Progress(
            self.folder,
            batches=len(self.order),
            epochs=self.epochs,
            limit=None if settings.max_minutes is None else 60 * settings.max_minutes,
            main=settings.main,
            name=self.name,
        )

    @property
    def epochs(self) -> int:
        """Number of epochs: that of the configuration, or an estimate of those that fit."""
        limit = self.settings.max_minutes
        # The duration of an epoch is known only after the first one.
        if limit is None or not self.state.epoch:
            return self.settings.epochs
        return min(self.settings.epochs, self.state.epochs_within(60 * limit))

    @property
    def patience(self) -> int:
        """Number of epochs without improvement before training stops early. 0: never."""
        patience = self.settings.patience
        if 0 < patience < 1:
            return max(round(patience * self.epochs), MIN_PATIENCE)
        return int(patience)

    @property
    def has_lost_patience(self) -> bool:
        """Whether the validation has not improved for too many epochs."""
        may_stop = self.state.is_past_chance(self.settings.patience_below)
        return may_stop and 0 < self.patience <= self.state.worse

    @property
    def seconds_for_training(self) -> float:
        """The time limit in seconds, without the time of the last validation."""
        limit = self.settings.max_minutes
        return math.inf if limit is None else 60 * limit - self.state.validation

    @property
    def is_out_of_time(self) -> bool:
        """Whether no batch fits into the time limit any more. The first epoch is completed."""
        return self.state.epoch > 0 and self.state.elapsed >= self.seconds_for_training

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        is_complete = self.state.epoch >= self.settings.epochs
        return is_complete or self.is_out_of_time or self.has_lost_patience

    @property
    def step_progress(self) -> float:
        """Progress of the training at the next step, which determines the learning rate.

        By the number of steps, or by the clock if not all of them fit into the time limit.
        """
        num_steps = self.settings.epochs * self.steps_per_epoch
        # N steps divide the schedule into N + 1 equal parts. Neither the first step (of a warm-up)
        # nor the last one (of a decay to 0) has a learning rate of 0, so none is lost even if there
        # are only a few.
        by_steps = (self.state.step + 1) / (num_steps + 1)
        seconds = self.seconds_for_training
        if math.isinf(seconds):
            return by_steps
        grace = GRACE * seconds
        by_clock = (self.state.elapsed - grace) / max(seconds - grace, 1e-9)
        return max(by_steps, min(by_clock, num_steps / (num_steps + 1)))

    def restore(self) -> None:
        """Continue from the last checkpoint."""
        restored = checkpoint.load(
            self.folder / "checkpoints",
            model=self.model,
            optimizer=self.stepper.optimizer,
            ema=self.stepper.ema,
            process=self.stepper.rank,
            main=self.settings.main,
        )
        for note in restored.notes:
            self.progress.print(note)
        vars(self.state).update(restored.state)
        # A resume with other options, such as a lower learning rate, gets all attempts again.
        self.state.skipped_in_row = 0
        if self.state.batch_size != self.batch_size:
            # With resume.force. The batches that are done do not exist in the new order.
            self.print(f"note: epoch {self.state.epoch + 1} starts again with the new batch size")
            self.state.batch_size = self.batch_size
            self.state.batch = 0
            self.state.step = self.state.epoch * self.steps_per_epoch
        self.progress.epochs = self.epochs
        self.progress.restore(self.state, restored.log)

    def start_trackers(self) -> None:
        """Start the trackers, after `restore` if the training is resumed.

        Raises:
            UserError: If one of them cannot start.
        """
        self.progress.trackers = Trackers(
            as_names(self.settings.tracker) if self.settings.main else (),
            self.folder,
            options=self.options,
            say=self.print,
            resumed_at=self.state.step if self.resume else None,
        )

    def save(self) -> None:
        """Write a checkpoint. Every process must call this, because generator states are gathered.

        Only the main process writes the file.
        """
        own = checkpoint.generator_states(self.stepper.device)
        generators = checkpoint.gather_states(own, self.settings.accelerator)
        if self.settings.main:
            checkpoint.save(
                self.folder / "checkpoints",
                model=self.model,
                optimizer=self.stepper.optimizer,
                ema=self.stepper.ema,
                state=asdict(self.state),
                generators=generators,
                log=self.progress.pending(),
            )
        self.saved_at = time.monotonic()

    def epoch(self) -> None:
        """Train for the rest of this epoch, validate, and save a checkpoint."""
        state = self.state
        self.ticked = time.perf_counter()
        self._seed_process()
        self.stepper.wrapped.train()
        while state.batch < len(self.order) and not self.is_out_of_time:
            is_short = False
            try:
                self._train_batches()
            except Exception as error:
                is_short = is_out_of_memory(error)
                if not is_short:
                    raise
            # Outside of `except`: the traceback keeps the tensors of the failed batch in memory.
            if is_short:
                self.stepper.divide_batches()
        state.epoch += 1
        state.batch = 0
        try:
            metrics = self.validate()
        except StopRequested:
            # The resumed training validates first, because no batch of the epoch is left.
            state.epoch -= 1
            state.batch = len(self.order)
            self._stop()
            raise
        # The learning rate and the number of epochs depend on the time, and all processes must
        # agree on it, so the clock of the first process decides.
        (took,) = broadcast_object_list([self._tick()])
        state.elapsed += took
        state.validation = max(state.validation, took)
        self.progress.epochs = self.epochs
        self.progress.epoch(metrics, state, shown=self.task.shown(metrics), last=self.is_finished)
        self.save()

    def validate(self) -> dict[str, float]:
        """Compute the validation metrics, and keep the weights if they are the best so far.

        Returns:
            The metrics by name. Empty without a validation split.
        """
        # The averaged weights are validated, because they are the ones that are kept.
        with self.stepper.averaged():
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
            figure = self.task.monitored if self.state.best is not None else "loss"
            # A task without a loss has no best loss.
            if figure != "loss" and self.state.best_loss is not None:
                figure += " or loss"
            self.progress.print(f"stopped early: no better {figure} in {self.patience} epochs")
        elif self.state.epoch < settings.epochs:
            limit = duration(60 * (settings.max_minutes or 0))
            epochs = f"{self.state.epoch} of {settings.epochs} epochs"
            self.progress.print(f"stopped early: {epochs} fit into the time limit of {limit}")

    def print(self, text: str) -> None:
        """Print a line above the progress bar."""
        self.progress.print(text)

    def close(self) -> None:
        """Remove the progress bar, and undo the changes that accelerate made to the model."""
        self.progress.close()
        self.stepper.close()

    def _log(self, losses: Sequence[BatchLoss]) -> None:
        for loss in losses:
            self.progress.batch(
                loss, lr=self.stepper.lr, state=self.state, log_every=self.settings.log_every
            )

    def _seed_process(self) -> None:
        """Give each of several processes its own random generator for this epoch."""
        # Processes that share a seed would draw the same dropout masks for different samples. When
        # a training resumes in the middle of an epoch, the checkpoint has already restored the
        # generator of this process.
        if self.num_processes > 1 and not self.state.batch:
            text = f"{self.settings.seed}/{self.state.epoch}/{self.stepper.rank}"
            torch.manual_seed(random.Random(text).getrandbits(63))

    def _train_batches(self) -> None:
        """Train on the batches of the epoch that are left."""
        state = self.state
        # The order of the samples depends only on the seed and the epoch, so a resumed training
        # can skip the batches that are done.
        self.order.epoch = state.epoch
        self.order.stage = state.stage(self.epochs)
        self.order.skip = state.batch
        self.order.parts = state.parts
        parts: list[BatchLoss] = []
        for part in self.loader:
            parts.append(self.stepper.backward(to_device(part, self.stepper.device)))
            if len(parts) < state.parts:
                continue
            state.batch += 1
            batch, must_stop, is_due, took = self._agree(BatchLoss.sum(parts))
            state.seconds += took
            state.elapsed += took
            self.stepper.group.append(batch)
            parts = []
            # The last batches of an epoch also make a step, even if they are fewer than
            # grad_accum_steps: gradients must not leak into the next epoch.
            is_last = state.batch == len(self.order) or self.is_out_of_time
            if state.batch % self.settings.grad_accum_steps == 0 or is_last:
                num_steps = self.epochs * self.steps_per_epoch
                losses = self.stepper.step(self.step_progress, num_steps)
                self._log(losses)
                if is_due or self._is_step_due():
                    self.save()
            if must_stop:
                self._stop()
            if is_last:
                return

    def _tick(self) -> float:
        """Return the time since the last call in seconds."""
        now = time.perf_counter()
        took, self.ticked = now - self.ticked, now
        return took

    def _agree(self, batch: BatchLoss) -> tuple[BatchLoss, bool, bool, float]:
        """Return the loss over all processes, whether one must stop or save, and the time.

        All processes must take these decisions at the same batch. The first one has the clock.
        """
        took = self._tick()
        must_stop = self.signals.received is not None
        minutes = (time.monotonic() - self.saved_at) / 60
        is_due = minutes >= self.settings.checkpoint_minutes > 0
        if self.num_processes == 1:
            return batch, must_stop, is_due, took
        main = self.settings.main
        flags = [batch.weight, batch.size, must_stop, is_due and main, took if main else 0.0]
        own = torch.tensor([float(batch.total), *map(float, flags)], device=self.stepper.device)
        summed = cast("Tensor", self.settings.accelerator.reduce(own))
        total, weight, size, stops, due, seconds = summed.unbind()
        all_processes = BatchLoss(total, float(weight), int(size), batch.rows)
        return all_processes, bool(stops), bool(due), float(seconds)

    def _stop(self) -> None:
        """Save a checkpoint, and end the training because of a signal."""
        # The batches since the last step are computed again when the training is resumed.
        if self.stepper.group:
            self.stepper.rewind()
        self.save()
        raise Interrupted.by(self.signals.received)

    def _validation_metrics(self) -> dict[str, float]:
        samples = self.validation
        if samples is None:
            return {}

        def show(done: int) -> None:
            self.progress.validation(done, len(samples), self.state)
            # Several processes would have to stop at the same sample, so they finish first.
            if self.num_processes == 1 and self.signals.received is not None:
                raise StopRequested

        # Every process validates on all samples, so all of them agree on the best epoch without
        # communication.
        predictions = predict(
            self.model,
            self.task,
            samples,
            # Without gradients there is enough memory for twice the batch size.
            batch_size=2 * math.ceil(self.batch_size / self.num_processes),
            device=self.stepper.device,
            bf16=self.settings.bf16,
            # Fast decoding is enough to compare epochs.
            draft=True,
            on_batch=show,
            timeout=self.timeout,
        )
        return score(predictions, samples, self.task)

    def _is_step_due(self) -> bool:
        every = self.settings.checkpoint_every * self.settings.grad_accum_steps
        return bool(every) and self.state.batch % every == 0
