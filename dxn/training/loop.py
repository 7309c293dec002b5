"""The training loop, read from top to bottom: epochs, steps, validation, checkpoints, the end.

What belongs to several processes is in `dxn.training.parallel`.
"""

from __future__ import annotations

import copy
import math
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import call
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dxn.core.display import duration
from dxn.core.dropout import MAX_SEED, keyed, number_layers
from dxn.core.errors import Interrupted, UserError
from dxn.core.files import (
    CHECKPOINTS,
    METRICS,
    MODEL,
    SUMS,
    WEIGHTS,
    read_sums,
    remove_unfinished,
)
from dxn.core.processes import from_first
from dxn.core.randomness import spaced_rows
from dxn.core.runtime import free_memory, is_out_of_memory
from dxn.data.dataset import Samples
from dxn.models import compiling
from dxn.models.blocks import set_compiled
from dxn.models.model import MultimodalModel, as_float
from dxn.tasks import LossSum
from dxn.tasks.task import Task
from dxn.training import checkpoint
from dxn.training.average import Average
from dxn.training.device import autocast, on_device
from dxn.training.limit import Limit, fitting, seconds_per_sample
from dxn.training.log import Log
from dxn.training.parallel import (
    Replicated,
    Sharded,
    UsedPrecision,
    gather,
    is_any,
    stop_signals,
)
from dxn.training.predict import Predictions, name_rows, predict, score
from dxn.training.state import State
from dxn.training.trainer import Trainer, Waiting

# Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
Schedule = Callable[[float], float]

# With a time limit, the learning rate follows the clock only if the training is later than planned
# by this fraction of the limit. Otherwise the first steps, which take longer, would make the
# weights of a training that fits into its limit depend on the clock.
GRACE = 0.05
STEP_WORK = 3  # operations of a training step for each operation of the forward pass alone
MIN_PATIENCE = 5  # epochs, if the patience is a fraction of all epochs
# Inputs are dropped in this fraction of the training, if that waits for the model to learn. The
# model then learns from all inputs together.
DROPPED = 0.5
# Skipped optimizer steps in a row after which a training stops. A rare batch with a gradient that
# is not finite does no harm; ten of them in a row show that the model cannot recover.
MAX_SKIPPED = 10
CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grads_with_norm_
MAX_BALANCED = 64  # samples from which a task computes constants of its loss


class Sums(NamedTuple):
    """Numbers of an optimizer step that are added up over the processes.

    Each one is a number, or a tensor () that has not been read yet.

    Args:
        loss: Sum of the loss.
        weight: Weight of the targets in this sum.
        samples: Number of samples.
        stops: Number of processes that have received a signal to stop.
        saves: 1 if the clock of the first process says that a checkpoint is due, otherwise 0.
        seconds: Duration of the step by the clock of the first process.
    """

    loss: Tensor
    weight: Tensor
    samples: Any
    stops: Any
    saves: Any
    seconds: Any

    def over_processes(self, device: torch.device) -> Sums:
        """Add up the numbers over all processes."""
        loss, weight, *numbers = self
        losses = torch.stack([loss, weight]).float()
        packed = torch.cat([losses, torch.tensor(numbers, device=device)])
        distributed.all_reduce(packed)
        return Sums(*packed)

    def read(self, is_finite: Tensor) -> tuple[Sums, bool]:
        """Read the numbers and a flag () in one transfer, because each one waits for the GPU."""
        numbers = self._asdict()
        unread = [n for n, value in numbers.items() if isinstance(value, Tensor)][2:]
        *values, flag = torch.stack([*(numbers[n] for n in unread), is_finite.float()]).tolist()
        return self._replace(**dict(zip(unread, values, strict=True))), bool(flag)


class Step(NamedTuple):
    """An optimizer step, of which it may not be known yet whether it was skipped.

    Args:
        number: Number of the step.
        epoch: Number of its epoch.
        loss: () Sum of the loss.
        rows: Rows of its batches, of this process only.
        is_finite: () bool. Whether the loss and the gradient are finite.
    """

    number: int
    epoch: int
    loss: Tensor
    rows: Sequence[int]
    is_finite: Tensor


class Fit:
    """A training of a model, which changes the model in place.

    The constructor makes everything that the training needs. `run` trains, and writes metrics.jsonl
    and checkpoints/ in the folder.

    Args:
        trainer: The options.
        model: Model to train. It is moved to the device.
        task: Task that created the head of the model. It computes the loss and the metrics.
        optimizer: Optimizer of the model's parameters.
        schedule: Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
        train: Samples of the training split.
        validation: Samples that select the best epoch. None: every epoch is kept.
        folder: Folder of the run. It is created if necessary.
        keep: Callback that saves the model. It is called with the validation metrics after each
            epoch that is the best so far; the model then holds the weights to save.
        batch_size: Number of samples per batch over all processes, which a resumed training takes
            from its start. Default: the option batch_size times the number of processes.
        name: Word that is printed before each epoch, such as "pretraining".
        options: Options of the run, which trackers show beside the metrics.

    Attributes:
        state: Position of the training.
    """

    def __init__(
        self,
        trainer: Trainer,
        model: MultimodalModel,
        task: Task,
        *,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        train: Samples,
        validation: Samples | None,
        folder: Path,
        keep: Callable[[dict[str, float]], None],
        batch_size: int | None = None,
        name: str = "",
        options: Mapping[str, Any] | None = None,
    ):
        self.trainer, self.hardware = trainer, trainer.hardware
        self.task, self.schedule, self.folder = task, schedule, folder
        self.train, self.validation = train, validation
        self.keep, self.options = keep, options
        device, num_processes = self.hardware.device, self.hardware.num_processes
        folder.mkdir(parents=True, exist_ok=True)
        if self.hardware.is_main:
            for path in (folder, folder / CHECKPOINTS):
                remove_unfinished(path)
        self.limit = Limit(trainer.max_minutes)
        self.state = State(batch_size=batch_size or trainer.batch_size * num_processes)
        if trainer.batch_tokens is not None:
            # For as many processes as batch_size, which a resumed training takes from its start.
            total = trainer.batch_tokens * self.state.batch_size
            self.state.batch_tokens = total // trainer.batch_size

        # The model. Its optimizer and its average refer to the parameters, so these must be on the
        # device.
        self.model = model
        number_layers(model)
        task.prepare_loss(train[0, row] for row in spaced_rows(len(train), MAX_BALANCED))
        self.optimizer = optimizer
        # The schedule multiplies these. Steps overwrite the rates in the groups, so they are stored
        # before the first step, and before a checkpoint restores overwritten ones.
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        self.parallel: Replicated | Sharded
        if trainer.shard:
            self.parallel = Sharded(model, device, optimizer)
        else:
            self.parallel = Replicated(model, device, task=task, train=train)
        trained = self.parallel.trained
        # Collecting these in each step would take as long as clipping the gradients.
        self.parameters = list(trained.parameters())
        self.average = Average(trained, trainer.ema_decay) if trainer.ema_decay else None
        # The smallest numbers of fp16 are too large for many gradients, so the loss has a factor.
        uses_fp16 = self.hardware.precision == "fp16"
        self.scaler = torch.amp.GradScaler(device.type, enabled=uses_fp16)

        # The data.
        self.loader = train.loader(
            self.state.batch_size,
            batch_tokens=self.state.batch_tokens,
            seed=trainer.seed,
            shard=(self.hardware.rank, num_processes),
            pin_memory=device.type == "cuda",
            ahead=trainer.grad_accum_steps,
            is_any=lambda value: is_any(value, device),
        )
        self.order = self.loader.order
        self.order.widen = self.compiles_model
        # That of a stream is an estimate.
        self.estimated_batches = len(self.order)
        # Samples per batch and process of an evaluation. Without gradients there is enough memory
        # for twice as many. `dxn.runs.build.open_splits` limits their tokens in the same way.
        self.evaluation_size = 2 * math.ceil(self.state.batch_size / num_processes)

        self.log = Log(
            folder,
            batches=len(self.order),
            epochs=trainer.epochs,
            log_every=trainer.log_every,
            main=self.hardware.is_main,
            name=name,
        )
        # Steps of which it has not been read yet whether they were skipped.
        self.unread: list[Step] = []
        # The batches and the seconds after the first step, which takes longer than the others.
        self.after_first: tuple[int, float] | None = None
        self.is_speed_known = False
        self.signals: Sequence[signal.Signals] = ()
        self.saved_at = monotonic()
        self.ticked = perf_counter()

    @property
    def compiles_model(self) -> bool:
        """Whether everything from the adapters to the loss is compiled, not the blocks alone."""
        return self.trainer.compile and self.hardware.device.type != "cpu"

    @property
    def skips_on_device(self) -> bool:
        """Whether the kernel of the optimizer itself skips a step that is not finite.

        The CPU then need not wait for the GPU in each step.
        """
        is_alone = self.hardware.num_processes == 1 and self.hardware.device.type != "cpu"
        # The next step in fp16 needs to know it. Kernels with this ability are those of GradScaler.
        has_kernel = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        return is_alone and has_kernel and not self.scaler.is_enabled()

    def run(
        self,
        *,
        limit: Limit | None = None,
        resume: bool = False,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    ) -> State:
        """Train for all epochs, or until there is no time or patience left.

        Args:
            limit: Time limit, and what of it is not for the training. Default: the training has all
                of max_minutes.
            resume: Continue from the last checkpoint in the folder.
            on_epoch: Callback with the number of each epoch but the last one and its validation
                metrics. It can end the training by an exception.

        Returns:
            The state at the end of the training.

        Raises:
            UserError: If there is no intact checkpoint to resume from, the loss or the gradients
                are not finite, or the memory or the disk space is too small.
            Interrupted: After SIGTERM, SIGUSR1, SIGHUP or Ctrl+C. A checkpoint has been saved.
        """
        self.limit = limit or self.limit
        self.state.before = self.limit.before
        with stop_signals() as self.signals:
            # An interrupted training must also remove its progress bar.
            try:
                if resume:
                    self.restore()
                    if self.hardware.is_main and not self.is_finished:
                        # With more epochs, a training that had finished has no results yet.
                        (self.folder / METRICS).unlink(missing_ok=True)
                elif self.hardware.is_main:
                    # That of a training that stopped before its first checkpoint.
                    self.log.path.unlink(missing_ok=True)
                if not math.isinf(self.limit.seconds) and not self.is_finished:
                    self._fit_validation()
                self.log.limit = self.limit.of_training(0.0)
                if self.trainer.trackers and self.hardware.is_main:
                    from dxn.training.trackers import TrackerSink

                    self.log.trackers = [
                        TrackerSink(name, self.folder, options=self.options, say=self.log.print)
                        for name in self.trainer.trackers
                    ]
                self.ticked = perf_counter()
                while not self.is_finished:
                    metrics = self.train_epoch()
                    if on_epoch is not None and not self.is_finished:
                        on_epoch(self.state.epoch, metrics)
                # It arrived after the last batch, maybe in another process. Everything is in the
                # checkpoint of the epoch.
                if is_any(bool(self.signals), self.hardware.device):
                    raise Interrupted.by(self.signals[-1] if self.signals else None)
                self._check_saved_weights()
                self._say_why_it_stopped()
            finally:
                self.log.close()
                self.loader.stop()
                set_compiled(self.parallel.trained, False)
                compiling.on_failure = None
        return self.state

    def train_epoch(self) -> dict[str, float]:
        """Train for the rest of this epoch, validate, and save a checkpoint.

        Returns:
            The validation metrics by name. Empty without a validation split.
        """
        state, device = self.state, self.hardware.device
        if self.hardware.num_processes > 1 and not state.batch:
            # Processes that share a seed would draw the same numbers for different samples. When a
            # training resumes in the middle of an epoch, the checkpoint has already restored the
            # generator of this process.
            key = f"{self.trainer.seed}/{state.epoch}/{self.hardware.rank}"
            torch.manual_seed(random.Random(key).getrandbits(63))
        self.parallel.wrapped.train()
        if self.trainer.compile:
            compiling.on_failure = lambda why: self.log.print(
                f"note: training without torch.compile: {why}"
            )
            set_compiled(self.parallel.trained, not self.compiles_model)
        micro_batches: Iterator[dict[str, Any]] | None = None
        while state.batch < len(self.order) and not self.is_out_of_time:
            if micro_batches is None:
                # The order of the samples depends only on the seed and the epoch, so a resumed
                # training can skip the batches that are done.
                self.order.epoch, self.order.skip = state.epoch, state.batch
                self.order.drop_inputs = self.drops_inputs
                self.order.parts = state.parts
                micro_batches = on_device(iter(self.loader), device)
                if state.batch == len(self.order):
                    # All rows that a resumed stream had left were in its shuffle buffers.
                    break
            start = checkpoint.generator_states(device)
            is_short = False
            try:
                self.train_step(micro_batches)
            except Exception as error:
                is_short = is_out_of_memory(error)
                if not is_short:
                    raise
            # Outside of `except`: the traceback keeps the tensors of the failed batch in memory.
            if is_short:
                # The step starts again. A new data worker must not inherit the failed iterator.
                micro_batches = None
                checkpoint.set_generator_states(start, device)
                self._divide_batches()
            self._say_if_too_slow()
        if micro_batches is not None and state.batch == len(self.order):
            # The end, after which the data workers wait for the next epoch.
            next(micro_batches, None)
        self._read_steps()
        state.epoch += 1
        batches, state.batch = state.batch, 0
        try:
            metrics = self.validate()
        except Interrupted:
            # The resumed training validates first, because no batch of the epoch is left.
            state.epoch -= 1
            state.batch = batches
            self.save()
            raise
        if batches == len(self.order):  # not if the time limit ended the epoch
            state.batches_per_epoch = batches
        self.log.write_epoch(metrics, state)
        # The learning rate and the number of epochs depend on the time, and all processes must
        # agree on it, so the clock of the first process decides.
        validated = from_first(self._seconds_since_last)
        state.elapsed += validated
        state.validation = max(state.validation, validated)
        self.save()
        # Only now the time limit can tell whether this is the last epoch, whose line is printed.
        saved = from_first(self._seconds_since_last)
        state.elapsed += saved
        # A checkpoint lacks its own time, which must not give a finished training further steps.
        state.validation = max(state.validation, validated + saved)
        self.log.epochs = self.num_epochs
        names = self.task.metric.shown(metrics)
        self.log.print_epoch(metrics, state, shown=names, last=self.is_finished)
        return metrics

    def train_step(self, micro_batches: Iterator[dict[str, Any]]) -> None:
        """Take one optimizer step with the gradients of the next batches, if they are finite.

        Args:
            micro_batches: The parts of the batches of the epoch that are left, `state.parts` per
                batch, on the device.

        Raises:
            UserError: If too many steps in a row were skipped, or the memory is too small for the
                state of the optimizer.
            Interrupted: After a signal.
        """
        state, device = self.state, self.hardware.device

        # 1. The gradients of the batches of this process.
        # None instead of zeros: AdamW then skips parameters that received no gradient.
        self.optimizer.zero_grad(set_to_none=True)
        # The last batches of an epoch also make a step, even if they are fewer than
        # grad_accum_steps: gradients must not leak into the next epoch.
        num_batches = min(self.trainer.grad_accum_steps, len(self.order) - state.batch)
        num_micro_batches = num_batches * state.parts
        # Several batches, or parts of one, make the step of one large batch: each counts by the
        # weight of its targets. So the gradients are first those of sums.
        as_sum = num_micro_batches * self.hardware.num_processes > 1
        losses: list[LossSum] = []
        rows: list[int] = []
        for i in range(num_micro_batches):
            micro_batch = next(micro_batches)
            # The processes exchange the gradients of all of them together.
            is_last = i == num_micro_batches - 1
            with nullcontext() if is_last else self.parallel.not_synchronized():
                losses.append(self.add_gradients(micro_batch, as_sum=as_sum))
            if not micro_batch.get("#filler"):
                rows += micro_batch["#index"]

        # 2. What the processes decide together. The first one has the clock.
        took = self._seconds_since_last()
        minutes = (monotonic() - self.saved_at) / 60
        is_due = minutes >= self.trainer.checkpoint_minutes > 0
        if not self.hardware.is_main:
            took, is_due = 0.0, False
        loss = sum(losses[1:], start=losses[0])
        sums = Sums(*loss, len(rows), bool(self.signals), is_due, took)
        if self.hardware.num_processes > 1:
            sums = sums.over_processes(device)
            loss = LossSum(sums.loss, sums.weight)
        norm = self._norm_of_gradients(loss, as_sum=as_sum)
        is_finite = (norm + loss.total).isfinite()
        takes_step = True
        if not self.skips_on_device:
            sums, takes_step = sums.read(is_finite)

        # 3. The learning rate of this step.
        state.batch += num_batches
        state.seconds += sums.seconds
        state.elapsed += sums.seconds
        state.last_step = sums.seconds
        factor = self.schedule(self.progress)
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * factor
        state.step += 1

        # 4. The step, with a gradient whose norm is limited.
        done = Step(state.step, state.epoch, loss.total, rows, is_finite)
        max_norm = self.trainer.max_grad_norm
        if self.skips_on_device:
            # Fused optimizers divide by the factor, and change nothing if there was an infinity.
            optimizer: Any = self.optimizer
            optimizer.found_inf = (~is_finite).float()
            if max_norm:
                optimizer.grad_scale = ((norm + CLIP_EPS) / max_norm).clamp(min=1)
            self._update(takes_step=True)
            self.unread.append(done)
            if state.step % self.trainer.log_every == 0:
                self._read_steps()
        else:
            if takes_step and max_norm:
                parameters = [p for p in self.parameters if p.grad is not None]
                clip_grads_with_norm_(parameters, max_norm, norm)
            self._update(takes_step=takes_step)
            self._count(done, is_finite=takes_step)
            self.scaler.update()

        # 5. What is written about it.
        # The learning rate of the first group is logged.
        lr = self.optimizer.param_groups[0]["lr"]
        self.log.step(loss.mean, int(sums.samples), num_batches, lr, state)
        if sums.stops or sums.saves:
            self.save()
        if sums.stops:
            raise Interrupted.by(self.signals[-1] if self.signals else None)

    def add_gradients(self, batch: dict[str, Any], *, as_sum: bool) -> LossSum:
        """Compute one batch, or a part of one, add up its gradients, and return its loss.

        Args:
            batch: The batch, on the device.
            as_sum: Whether the gradients are those of the sum of the losses, instead of their mean.
        """
        state, device = self.state, self.hardware.device
        alpha = self.trainer.mixup
        mixing = None
        if alpha and not self._waits("mixup"):
            # The model mixes the tokens and the task mixes the targets, with the same permutation
            # and the same share of the partner.
            share = float(torch.distributions.Beta(alpha, alpha).sample())
            order = torch.randperm(batch["#size"]).to(device)
            mixing = order, share
            assert self.task.space is not None  # see Task.check
            batch = {**batch, "target": self.task.space.mix(batch["target"], order, share)}
        # The random numbers of the dropouts depend on the step and the samples.
        key = f"{self.trainer.seed}/{state.epoch}/{state.step}"
        seed = random.Random(key).randrange(MAX_SEED)
        compute = call
        # A single sample that is left would need a compiled variant of its own.
        is_left_over = batch["#size"] == 1 < self.order.fewest // state.parts
        if self.compiles_model and not is_left_over:
            # DDP and FSDP2 exchange gradients and weights between several graphs.
            fullgraph = self.hardware.num_processes == 1
            compute = partial(compiling.call, fullgraph=fullgraph)
        with keyed(torch.tensor(batch["#index"]), seed, device):
            model, precision = self.parallel.wrapped, self.hardware.precision
            loss = compute(_loss, self.task, model, batch, mixing, device, precision)
            if batch.get("#filler"):
                # It only keeps this process in step with the others, which have one more sample.
                loss = LossSum(0 * loss.total, 0 * loss.weight)
            self.scaler.scale(loss.total if as_sum else loss.mean).backward()
        return LossSum(loss.total.detach(), loss.weight.detach())

    def _norm_of_gradients(self, loss: LossSum, *, as_sum: bool) -> Tensor:
        """Return the norm of the gradient of the mean loss, which replaces that of the sum.

        Args:
            loss: Loss of all batches of the step, over all processes.
            as_sum: Whether the gradients are those of the sum of the losses.
        """
        gradients = [cast("Tensor", p.grad) for p in self.parameters if p.grad is not None]
        if as_sum and gradients:
            # DDP has already divided the sum over the processes by their number.
            weight = torch.where(loss.weight > 0, loss.weight, 1.0) / self.hardware.num_processes
            torch._foreach_div_(gradients, weight)  # pyright: ignore
        self.scaler.unscale_(self.optimizer)
        # Of the accumulated gradient, not of each batch: accumulated batches must make the same
        # step as one large batch.
        norm = get_total_norm(gradients)
        return self.parallel.whole(norm)

    def _update(self, *, takes_step: bool) -> None:
        """Change the weights and their average.

        The average counts a skipped step, after which the weights are the same. A GPU that skips it
        itself does so too.
        """
        try:
            if takes_step:
                self.optimizer.step()
            if self.average is not None:
                self.average.update(self.state.step)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # Some weights may have changed already, so the step cannot be repeated. It needs
            # the same memory for smaller batches.
            raise UserError(
                "out of memory for the state of the optimizer, whose size does not depend on the "
                "batch size; use a smaller model"
            ) from error

    def _read_steps(self) -> None:
        """Count the steps that were taken and skipped since the last call."""
        steps, self.unread = self.unread, []
        if steps:
            flags = torch.stack([step.is_finite for step in steps]).tolist()
            for step, is_finite in zip(steps, flags, strict=True):
                self._count(step, is_finite=is_finite)

    def _count(self, step: Step, *, is_finite: bool) -> None:
        """Count a step, which was skipped if the loss or the gradient is not finite."""
        state = self.state
        if is_finite:
            state.skipped_in_row = 0
            return
        if self.scaler.is_enabled() and self.scaler.get_scale() > 1 and step.loss.isfinite():
            return  # the gradient may fit into fp16 with the next, smaller factor of the loss
        state.skipped += 1
        state.skipped_in_row += 1
        what = "gradient" if math.isfinite(float(step.loss)) else "loss"
        named = name_rows(self.train, step.epoch, step.rows)
        where = f"step {step.number} (epoch {step.epoch + 1}), where the {what} is not finite"
        if state.skipped_in_row >= MAX_SKIPPED:
            raise UserError(
                f"training stopped: {state.skipped_in_row} optimizer steps in a row were not "
                f"possible; the last one was {where} ({named}); lower optimizer.lr, or look for "
                "extreme values with dxn check"
            )
        self.log.print(f"warning: no optimizer step at {where} ({named})")

    def _divide_batches(self) -> None:
        """Compute batches in twice as many parts, because the memory is too small.

        Raises:
            UserError: If the batches cannot be divided.
        """
        self.optimizer.zero_grad(set_to_none=True)
        free_memory()
        state = self.state
        parts = 2 * state.parts
        advice = "use a smaller model, shorter inputs or a smaller batch_size"
        if self.hardware.num_processes > 1:
            # The other processes wait for the gradients of this one, and cannot go back.
            raise UserError(f"out of memory in process {self.hardware.rank}; {advice}")
        if self.task.target.source == "hashes":
            raise UserError(
                f"out of memory with {state.batch_size} samples per batch; this task compares all "
                f"samples of a batch, so batches cannot be divided; {advice}"
            )
        if parts > state.batch_size:
            raise UserError(f"out of memory with a single sample; {advice}")
        state.parts = parts
        self.log.print(
            f"note: out of memory; each batch of {state.batch_size} samples is now computed in "
            f"{parts} parts of at most {math.ceil(state.batch_size / parts)} samples, whose "
            "gradients are added up"
        )

    def validate(self) -> dict[str, float]:
        """Compute the validation metrics, and keep the weights if they are the best so far.

        Returns:
            The metrics by name. Empty without a validation split.
        """
        state, samples = self.state, self.validation
        # Without torch.compile: validation would need other variants of the kernels.
        set_compiled(self.parallel.trained, False)
        with self.parallel.kept_weights(self.average):
            if samples is None:
                # Nothing tells which epoch is the best.
                state.best_epoch = state.epoch
                self.keep({})
                state.kept = self._saved_weights()
                return {}

            def show(done: int) -> None:
                self.log.validation(done, len(samples), state)
                # Several processes would have to stop at the same sample, so they finish first.
                if self.hardware.num_processes == 1 and self.signals:
                    raise Interrupted.by(self.signals[-1])

            predictions = self._predict(samples, show)
            # Only the first process has the predictions, and all must agree on the best epoch.
            metrics = from_first(lambda: score(predictions, samples, self.task, calibrate=True))
            if state.record(metrics, self.task):
                self.keep(metrics)
                state.kept = self._saved_weights()
            return metrics

    def _predict(
        self, samples: Samples, on_batch: Callable[[int], None], *, may_be_bad: bool = False
    ) -> Predictions:
        return predict(
            self.model,
            self.task,
            samples,
            batch_size=self.evaluation_size,
            device=self.hardware.device,
            precision=self.hardware.precision,
            # Fast decoding is enough to compare epochs.
            draft=True,
            on_batch=on_batch,
            divided=True,
            may_be_bad=may_be_bad,
        )

    def _fit_validation(self) -> None:
        """Measure how long a validation takes, and leave out samples if it takes too long.

        The steps do not tell it: a model that writes takes much longer for an answer.
        """
        samples, state = self.validation, self.state
        # A resumed training has the same validation samples as before.
        if not samples or state.validation or state.per_sample:
            return
        start = checkpoint.generator_states(self.hardware.device)
        size, most = len(samples), self.limit.of_validation
        batch_size = self.evaluation_size * self.hardware.num_processes

        def run(part: Samples) -> None:
            with self.parallel.kept_weights(self.average):
                self._predict(part, lambda done: None, may_be_bad=True)

        state.per_sample, spent = seconds_per_sample(run, samples, batch_size, most)
        checkpoint.set_generator_states(start, self.hardware.device)
        kept = fitting(most, state.per_sample, size)
        if kept < size:
            self.log.print(
                f"note: each validation uses {kept:,} of {size:,} samples, because all of them "
                f"take about {duration(state.per_sample * size)} of the time limit of "
                f"{duration(self.limit.seconds)}"
            )
            state.validated = kept
            self._leave_out()
        self.limit = replace(self.limit, before=self.limit.before + spent)
        state.before = self.limit.before

    def _leave_out(self) -> None:
        """Keep as many validation samples as the state says, the same ones at each start."""
        count, size = self.state.validated, len(self.validation or ())
        if self.validation is None or not 0 < count < size:
            return
        self.validation = copy.copy(self.validation)
        self.validation.keep(count)
        self.limit = replace(self.limit, evaluations=self.limit.evaluations * size / count)

    def save(self) -> None:
        """Write a checkpoint. Every process must call this, because generator states are gathered.

        Only the main process writes the file.
        """
        self._read_steps()
        device = self.hardware.device
        generators = gather(checkpoint.generator_states(device), device)
        order = gather(self.order.position(self.state.batch), device)
        if self.hardware.is_main or self.trainer.shard:
            checkpoint.save(
                self.folder / CHECKPOINTS,
                model=self.parallel.trained,
                optimizer=self.optimizer,
                average=self.average,
                scaler=self.scaler,
                state=self.state,
                generators=generators,
                order=order,
                log=self.log.pending(),
                main=self.hardware.is_main,
                whole=self.parallel.whole,
            )
        self.saved_at = monotonic()

    def restore(self) -> None:
        """Continue from the last checkpoint."""
        sizes = self.state.batch_size, self.state.batch_tokens
        self.state, pending, order = checkpoint.load(
            self.folder / CHECKPOINTS,
            model=self.parallel.trained,
            optimizer=self.optimizer,
            average=self.average,
            scaler=self.scaler,
            process=self.hardware.rank,
            say=self.log.print,
            divided=self.parallel.divided,
        )
        self.saved_at = monotonic()
        state = self.state
        # Vectors of encoders are computed at the first start only. A training that the time limit
        # has ended must not go on because the next start takes less time.
        state.before = max(state.before, self.limit.before)
        self.limit = replace(self.limit, before=state.before)
        self._leave_out()
        # A resume with other options, such as a lower learning rate, gets all attempts again.
        state.skipped_in_row = 0
        reason = ""
        if (state.batch_size, state.batch_tokens) != sizes:
            # With resume.force. The batches that are done do not exist in the new order.
            state.batch_size, state.batch_tokens = sizes
            state.batches_per_epoch, state.parts = 0, 1
            reason = "with the new batch size"
        elif state.batch and not self.order.restore(state.batch, order):
            reason = (
                "because the number of processes, or of those that read the stream, has changed"
            )
        if reason:
            self.log.print(f"note: epoch {state.epoch + 1} starts again {reason}")
            # The number of the step only grows: checkpoints and rows of the log are named by it.
            state.batch = 0
        self.log.epochs = self.num_epochs
        self.log.restore(state, {} if reason else pending)
        self._say_what_is_left()

    @property
    def num_epochs(self) -> int:
        """Number of epochs: that of the configuration, or an estimate of those that fit."""
        # The duration of an epoch is known only after the first one.
        if math.isinf(self.limit.seconds) or not self.state.epoch:
            return self.trainer.epochs
        seconds = self.limit.of_training(self.seconds_of_validation)
        return min(self.trainer.epochs, self.state.epochs_within(seconds))

    @property
    def seconds_of_validation(self) -> float:
        """Duration of a validation. In the first epoch, `_fit_validation` estimates it."""
        return self.state.validation or self.state.per_sample * len(self.validation or ())

    @property
    def seconds_of_steps(self) -> float:
        """Time from the start of the training in which its steps must end."""
        validation = self.seconds_of_validation
        return self.limit.of_training(validation) - validation

    def _seconds_since_last(self) -> float:
        """Return the time since the last call."""
        before, self.ticked = self.ticked, perf_counter()
        return self.ticked - before

    @property
    def is_out_of_time(self) -> bool:
        """Whether less than half of a step fits into the time limit. The first step always does."""
        state = self.state
        has_begun = state.epoch > 0 or state.batch > 0
        # The first step can compile the model, and a model that writes is validated slowly, so the
        # smaller estimate counts.
        samples = state.batch_size * self.trainer.grad_accum_steps
        step = min(state.last_step, STEP_WORK * state.per_sample * samples)
        return has_begun and state.elapsed + step / 2 >= self.seconds_of_steps

    def _waits(self, option: Waiting) -> bool:
        """Whether an option has no effect yet, because the model can still be at chance."""
        return option in self.trainer.once_learning and not self.state.is_past_chance

    @property
    def drops_inputs(self) -> bool:
        """Whether inputs of samples may be dropped in this epoch."""
        if "input_dropout" not in self.trainer.once_learning:
            return True
        state = self.state
        return state.epoch / self.num_epochs < DROPPED and (
            state.has_learned_early or state.memorizes
        )

    @property
    def patience_left(self) -> float:
        """Number of epochs that may still bring no improvement before training stops early."""
        patience = self.trainer.patience
        if not patience or self._waits("patience"):
            return math.inf
        if patience < 1:
            patience = max(round(patience * self.num_epochs), MIN_PATIENCE)
        return patience - self.state.worse

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        has_epochs = self.state.epoch < self.trainer.epochs
        # An epoch that was interrupted is validated, even if none of its other steps fits.
        has_time = self.state.batch > 0 or not self.is_out_of_time
        return not (has_epochs and has_time) or self.patience_left <= 0

    @property
    def progress(self) -> float:
        """Progress of the training at the next step, which determines the learning rate.

        By the number of steps, or by the clock if not all of them fit into the time limit. `batch`
        already counts the batches of the step.
        """
        state = self.state
        batches = state.batches_per_epoch or self.estimated_batches
        steps_per_epoch = math.ceil(batches / self.trainer.grad_accum_steps)
        num_steps = self.trainer.epochs * steps_per_epoch
        # The first epoch of a stream can have more steps than estimated. The progress waits for
        # its end, so that the learning rate does not rise after it.
        steps = min(math.ceil(state.batch / self.trainer.grad_accum_steps), steps_per_epoch)
        # N steps divide the schedule into N + 1 equal parts. Neither the first step (of a warm-up)
        # nor the last one (of a decay to 0) has a learning rate of 0, so none is lost even if there
        # are only a few.
        by_steps = (state.epoch * steps_per_epoch + steps) / (num_steps + 1)
        seconds = self.seconds_of_steps
        if math.isinf(seconds):
            return by_steps
        grace = GRACE * seconds
        by_clock = (state.elapsed - grace) / max(seconds - grace, 1e-9)
        return max(by_steps, min(by_clock, num_steps / (num_steps + 1)))

    def _say_what_is_left(self) -> None:
        """Say how much of the time limit, or that no epoch, is left of a resumed training."""
        if self.state.epoch >= self.trainer.epochs:
            self.log.print(
                "note: the last epoch was trained before, so only the evaluation is left; to "
                "train longer, set a higher trainer.epochs"
            )
            return
        left = self.limit.of_training(self.seconds_of_validation) - self.state.elapsed
        if math.isinf(left) or self.patience_left <= 0:
            return
        if self.is_out_of_time:
            rest = "; to train longer, set a higher trainer.max_minutes"
        else:
            rest = f", and {duration(left)} are left"
        self.log.print(
            f"note: the training has used {duration(self.state.elapsed)} of the time limit of "
            f"{self.limit.about} before{rest}"
        )

    def _say_if_too_slow(self) -> None:
        """Say once that the time limit will end the first epoch, as soon as the speed is known."""
        state = self.state
        limit = self.limit.of_training(0.0)
        if state.epoch or self.is_speed_known or math.isinf(limit):
            return
        if self.after_first is None:
            self.after_first = state.batch, state.elapsed
            return
        batches, seconds = state.batch - self.after_first[0], state.elapsed - self.after_first[1]
        if not batches or seconds < GRACE * limit:
            return
        self.is_speed_known = True
        left = seconds / batches * (len(self.order) - state.batch)
        needed = state.elapsed + left
        if needed > limit:
            share = f"{limit / needed:.0%}"
            self.log.print(
                f"note: an epoch takes about {duration(needed)} at the measured speed, so the time "
                f"limit of {self.limit.about} will end the first one after {share} of its batches; "
                "raise trainer.max_minutes, or use a smaller model"
            )

    def _saved_weights(self) -> str:
        """Return the digest of the saved weights, in the first process. "" if there are none."""
        sums = self.folder / MODEL / SUMS
        return read_sums(sums).get(WEIGHTS, "") if self.hardware.is_main and sums.exists() else ""

    def _check_saved_weights(self) -> None:
        """Refuse to end with other saved weights than those of the best epoch.

        They can be those of an epoch whose checkpoint was lost, if the resumed training did not
        reach that epoch again.
        """
        state = self.state
        if from_first(lambda: state.best_epoch and state.kept != self._saved_weights()):
            raise UserError(
                f"resume: {self.folder / MODEL} has other weights than those of the best epoch "
                f"{state.best_epoch}, such as those of a later epoch whose checkpoint is missing; "
                "resume with more trainer.epochs and without other limits, or train a new run"
            )

    def _say_why_it_stopped(self) -> None:
        """Print the reason if the training ended before the configured number of epochs."""
        state = self.state
        if self.patience_left <= 0:
            figure = self.task.metric.monitored if state.best is not None else "loss"
            # A task without a loss has no best loss.
            if figure != "loss" and state.best_loss is not None:
                figure += " or loss"
            # At the end, as many epochs without improvement as the patience allows.
            epochs = round(self.patience_left + state.worse)
            self.log.print(f"stopped early: no better {figure} in {epochs} epochs")
        elif self.is_out_of_time and state.epoch == 1 and not state.batches_per_epoch:
            self.log.print(
                f"stopped early: the time limit of {self.limit.about} ended the first epoch; raise "
                "trainer.max_minutes, or use a smaller model"
            )
        elif state.epoch < self.trainer.epochs:
            epochs = f"{state.epoch} of {self.trainer.epochs} epochs"
            self.log.print(f"stopped early: {epochs} fit into the time limit of {self.limit.about}")


def _loss(
    task: Task,
    model: nn.Module,
    batch: dict[str, Any],
    mixing: tuple[Tensor, float] | None,
    device: torch.device,
    precision: UsedPrecision,
) -> LossSum:
    """Return the loss of a batch, whose matrix products have the precision."""
    with autocast(device, precision):
        # Losses are computed in float32, because bf16 has too few digits for sums over many terms.
        output = as_float(model(batch, mixing))
    return task.loss(output, batch)
