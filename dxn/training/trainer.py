"""The training loop, read from top to bottom: options, epochs, steps, validation, the end.

What belongs to several processes is in `dxn.training.parallel`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from operator import call
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from annotated_types import Ge
from torch import Tensor, distributed, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from dxn.core.display import duration
from dxn.core.dropout import MAX_SEED, keyed, number_layers
from dxn.core.errors import Interrupted, UserError
from dxn.core.files import CHECKPOINTS, remove_unfinished
from dxn.core.processes import from_first
from dxn.core.randomness import spaced_rows
from dxn.core.runtime import free_memory, is_out_of_memory
from dxn.data.dataset import Samples
from dxn.models import compiling
from dxn.models.blocks import set_compiled
from dxn.models.model import MultimodalModel, as_float
from dxn.tasks import LossSum
from dxn.tasks.metric import check_own_metrics
from dxn.tasks.task import Task
from dxn.training import checkpoint
from dxn.training.average import Average
from dxn.training.log import Log, Tracker
from dxn.training.parallel import (
    Hardware,
    Precision,
    Replicated,
    Sharded,
    UsedPrecision,
    find_hardware,
    gather,
    is_any,
    stop_signals,
)
from dxn.training.predict import autocast, name_rows, on_device, predict, score
from dxn.training.state import State

# Maps the progress of the training, 0 to 1, to the multiplier of the learning rate.
Schedule = Callable[[float], float]

# With a time limit, the learning rate follows the clock only if the training is later than planned
# by this fraction of the limit. Otherwise the first steps, which take longer, would make the
# weights of a training that fits into its limit depend on the clock.
GRACE = 0.05
MIN_PATIENCE = 5  # epochs, if the patience is a fraction of all epochs
CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grads_with_norm_
MAX_BALANCED = 64  # samples from which a task computes constants of its loss


class Step(NamedTuple):
    """A step of the optimizer, of which it may not be known yet whether it was skipped.

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


@dataclass(kw_only=True, eq=False)
class Trainer:
    """Trains a model and keeps the weights of its best epoch.

    Args:
        epochs: Number of passes over the training split.
        batch_size: Number of samples per batch and process. Each optimizer step averages over all
            targets in the batches of all processes.
        batch_tokens: Maximum number of tokens per batch and process, with padding: the number of
            samples times the length of the longest one. A batch then has at most batch_size
            samples, and more short samples than long ones, so raise batch_size too. The tokens of
            a text count exactly, those of clips and images of their own size approximately, time
            steps as one token each, and images that are resized to one size as one token. null:
            all batches have batch_size samples.
        seed: Seed of the order of the samples, of augmentation and of dropout.
        device: Device to train on: auto, cpu, cuda or mps.
        precision: Precision of matrix products: auto, float32, tf32 (NVIDIA GPUs since Ampere),
            bf16 or fp16 (for GPUs without bf16, such as T4 and V100; the loss is scaled). auto is
            bf16 on a GPU or a processor that has instructions for it, otherwise float32.
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
        log_every: Number of optimizer steps between two lines of metrics.jsonl.
        checkpoint_minutes: Minutes between two checkpoints within an epoch. There is also one at
            the start, and one at the end of each epoch. 0: only these.
        checkpoint_every: Number of optimizer steps between two checkpoints within an epoch, in
            addition to those by time. 0: only by time.
        max_skipped_steps: Number of optimizer steps in a row that may be skipped because the loss
            or a gradient is not finite, before the training stops. 0: never stop.
        compile: Whether to use torch.compile: on a GPU for everything from the adapters to the
            loss, on a CPU for the blocks of the backbone. The compilation takes about a minute.
        monitor: Name of the metric that selects the best epoch and decides about patience. null:
            that of the task, such as accuracy.
        metrics: Metrics of your own by name: objects that are called with predictions and targets,
            see docs/extend.md.
        tracker: Trackers that get the lines of metrics.jsonl too: tensorboard, mlflow, wandb.
        shard: Divide the weights, gradients and optimizer state over the processes that torchrun
            started (FSDP2), for a model that does not fit into one device.

    Raises:
        ValueError: If an option is out of range, or the device is not available.
    """

    epochs: Annotated[int, Ge(1)] = 20
    batch_size: int = 64
    batch_tokens: Annotated[int, Ge(1)] | None = None
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
    log_every: int = 10
    checkpoint_minutes: float = 10.0
    checkpoint_every: int = 0
    max_skipped_steps: int = 10
    compile: bool = False
    monitor: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    tracker: Tracker | Sequence[Tracker] = ()
    shard: bool = False

    def __post_init__(self):
        values = vars(self)
        for name in ("epochs", "batch_size", "grad_accum_steps", "log_every"):
            if not values[name] >= 1:  # NaN is out of range too
                raise ValueError(f"{name} must be at least 1, got {values[name]}")
        if self.batch_tokens is not None and not self.batch_tokens >= 1:
            raise ValueError(f"batch_tokens must be at least 1 or null, got {self.batch_tokens}")
        for name in (
            *("max_grad_norm", "patience", "mixup"),
            *("checkpoint_minutes", "checkpoint_every", "max_skipped_steps"),
        ):
            if not values[name] >= 0:
                raise ValueError(f"{name} must be at least 0, got {values[name]}")
        if self.patience > 1 and self.patience != int(self.patience):
            raise ValueError(
                "patience must be a whole number of epochs or a fraction below 1, got "
                f"{self.patience}"
            )
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max_minutes must be above 0 or null, got {self.max_minutes}")
        for name in ("patience_below", "mixup_below"):
            if values[name] is not None and not 0 < values[name] <= 1:
                raise ValueError(f"{name} must be in (0, 1] or null, got {values[name]}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be at least 0 and less than 1, got {self.ema_decay}")
        if self.metrics:
            check_own_metrics(self.metrics)
        self.trackers: list[Tracker] = (
            [self.tracker] if isinstance(self.tracker, str) else [*self.tracker]
        )
        if self.trackers:
            from dxn.training.trackers import check_trackers

            check_trackers(self.trackers)
        self.limit = math.inf if self.max_minutes is None else 60 * self.max_minutes  # seconds

    @cached_property
    def hardware(self) -> Hardware:
        """What this process computes with. The first use connects the processes.

        Raises:
            UserError: If the device is not available, or there are too few or too many processes.
        """
        try:
            hardware = find_hardware(self.device, self.precision)
        except ValueError as error:
            raise UserError(f"trainer.{error}") from error
        if self.shard and hardware.num_processes == 1:
            raise UserError("trainer.shard: needs several processes; start them with torchrun")
        return hardware

    def fit(
        self,
        model: MultimodalModel,
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
        name: str = "",
        options: Mapping[str, Any] | None = None,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    ) -> State:
        """Train `model` in place, and write metrics.jsonl and checkpoints/ in `folder`.

        Args:
            model: Model to train. It is moved to the device.
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
            name: Word that is printed before each epoch, such as "pretraining".
            options: Options of the run, which trackers show beside the metrics.
            on_epoch: Callback with the number of each epoch but the last one and its validation
                metrics. It can end the training by an exception.

        Returns:
            The state at the end of the training.

        Raises:
            UserError: If there is no intact checkpoint to resume from, the loss or the gradients
                are not finite, or the memory or the disk space is too small.
            Interrupted: After SIGTERM, SIGUSR1, SIGHUP or Ctrl+C. A checkpoint has been saved.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.hardware.is_main:
            for each in (folder, folder / CHECKPOINTS):
                remove_unfinished(each)
        self.task, self.schedule, self.keep = task, schedule, keep
        self.train, self.validation, self.folder = train, validation, folder
        hardware = self.hardware
        self.state = state = State(
            batch_size=batch_size or self.batch_size * hardware.num_processes
        )
        if self.batch_tokens is not None:
            # For as many processes as batch_size, which a resumed training takes from its start.
            state.batch_tokens = self.batch_tokens * state.batch_size // self.batch_size
        self.model = model
        number_layers(model)
        task.prepare_loss(train[0, row] for row in spaced_rows(len(train), MAX_BALANCED))
        # The schedule multiplies these. Steps overwrite the rates in the groups, so they are stored
        # before the first step, and before a checkpoint restores overwritten ones.
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]
        # The optimizer and the average refer to the parameters, so these must be on the device.
        self.parallel: Replicated | Sharded
        if self.shard:
            self.parallel = Sharded(model, hardware.device, optimizer)
        else:
            self.parallel = Replicated(model, hardware.device, task=task, train=train)
        self.average = Average(self.parallel.trained, self.ema_decay) if self.ema_decay else None
        self.optimizer = optimizer
        # The smallest numbers of fp16 are too large for many gradients, so the loss has a factor.
        self.scaler = torch.amp.GradScaler(
            hardware.device.type, enabled=self.hardware.precision == "fp16"
        )
        # Steps of which it is not known yet whether they were skipped.
        self.skips_on_device, self.unread = self._skips_on_device(), list[Step]()
        # Collecting these in each step would take as long as clipping the gradients.
        self.parameters = list(self.parallel.trained.parameters())
        self.loader = train.loader(
            state.batch_size,
            batch_tokens=state.batch_tokens,
            seed=self.seed,
            shard=(hardware.rank, hardware.num_processes),
            pin_memory=hardware.device.type == "cuda",
            ahead=self.grad_accum_steps,
            is_any=lambda value: is_any(value, hardware.device),
        )
        self.order = self.loader.order
        self.order.widen = self.compiles_model
        # Samples per batch and process of an evaluation. Without gradients there is enough memory
        # for twice as many, also of the longest ones.
        self.evaluation_size = 2 * math.ceil(self.order.fewest / hardware.num_processes)
        self.steps_per_epoch = math.ceil(len(self.order) / self.grad_accum_steps)
        self.log = Log(
            folder,
            batches=len(self.order),
            epochs=self.epochs,
            log_every=self.log_every,
            limit=self.limit,
            main=self.hardware.is_main,
            name=name,
        )
        with stop_signals() as self.signals:
            # An interrupted training must also remove its progress bar.
            try:
                if resume:
                    self.restore()
                else:
                    if self.hardware.is_main:
                        # That of a training that stopped before its first checkpoint.
                        self.log.path.unlink(missing_ok=True)
                    self.save()
                if self.trackers and self.hardware.is_main:
                    from dxn.training.trackers import TrackerSink

                    self.log.trackers = [
                        TrackerSink(name, folder, options=options, say=self.log.print)
                        for name in self.trackers
                    ]
                while not self.is_finished:
                    metrics = self.train_epoch()
                    if on_epoch is not None and not self.is_finished:
                        on_epoch(self.state.epoch, metrics)
                # It arrived after the last batch. Everything is in the checkpoint of the epoch.
                if self.signals:
                    raise Interrupted.by(self.signals[-1])
                self._say_why_it_stopped()
            finally:
                self.log.close()
                self.loader.stop()
                set_compiled(self.parallel.trained, False)
                compiling.on_failure = None
                # The evaluation needs their memory.
                del self.optimizer, self.parallel, self.parameters, self.loader
        return self.state

    @property
    def compiles_model(self) -> bool:
        """Whether everything from the adapters to the loss is compiled, not the blocks alone."""
        return self.compile and self.hardware.device.type != "cpu"

    def _skips_on_device(self) -> bool:
        """Whether the kernel of the optimizer decides about a step, which a GPU need not report."""
        is_alone = self.hardware.num_processes == 1 and self.hardware.device.type != "cpu"
        # The next step in fp16 needs to know it. Kernels with this ability are those of GradScaler.
        has_kernel = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        return is_alone and has_kernel and self.hardware.precision != "fp16"

    def train_epoch(self) -> dict[str, float]:
        """Train for the rest of this epoch, validate, and save a checkpoint.

        Returns:
            The validation metrics by name. Empty without a validation split.
        """
        state = self.state
        self.ticked = time.perf_counter()
        if self.hardware.num_processes > 1 and not state.batch:
            # Processes that share a seed would draw the same numbers for different samples. When a
            # training resumes in the middle of an epoch, the checkpoint has already restored the
            # generator of this process.
            key = f"{self.seed}/{state.epoch}/{self.hardware.rank}"
            torch.manual_seed(random.Random(key).getrandbits(63))
        self.parallel.wrapped.train()
        if self.compile:
            compiling.on_failure = lambda why: self.log.print(
                f"note: training without torch.compile: {why}"
            )
            set_compiled(self.parallel.trained, not self.compiles_model)
        parts: Iterator[dict[str, Any]] | None = None
        while state.batch < len(self.order) and not self.is_out_of_time:
            if parts is None:
                # The order of the samples depends only on the seed and the epoch, so a resumed
                # training can skip the batches that are done.
                self.order.epoch, self.order.skip = state.epoch, state.batch
                dropout = self.train.input_dropout
                self.order.drop_inputs = dropout is not None and dropout.is_active(
                    state.epoch / self.num_epochs, state.loss_ratio, memorizes=state.memorizes
                )
                self.order.parts = state.parts
                parts = on_device(iter(self.loader), self.hardware.device)
            start = checkpoint.generator_states(self.hardware.device)
            is_short = False
            try:
                self.train_step(parts)
            except Exception as error:
                is_short = is_out_of_memory(error)
                if not is_short:
                    raise
            # Outside of `except`: the traceback keeps the tensors of the failed batch in memory.
            if is_short:
                # The step starts again. A new data worker must not inherit the failed iterator.
                parts = None
                checkpoint.set_generator_states(start, self.hardware.device)
                self._divide_batches()
        if parts is not None and state.batch == len(self.order):
            next(parts, None)  # the end, after which the data workers wait for the next epoch
        self._read_steps()
        state.epoch += 1
        state.batch = 0
        try:
            metrics = self.validate()
        except Interrupted:
            # The resumed training validates first, because no batch of the epoch is left.
            state.epoch -= 1
            state.batch = len(self.order)
            self.save()
            raise
        # The learning rate and the number of epochs depend on the time, and all processes must
        # agree on it, so the clock of the first process decides.
        took = from_first(lambda: time.perf_counter() - self.ticked)
        state.elapsed += took
        state.validation = max(state.validation, took)
        self.log.epochs = self.num_epochs
        self.log.epoch(metrics, state, shown=self.task.metric.shown(metrics), last=self.is_finished)
        self.save()
        return metrics

    def train_step(self, parts: Iterator[dict[str, Any]]) -> None:
        """Take one optimizer step with the gradients of the next batches, if they are finite.

        Args:
            parts: The parts of the batches of the epoch that are left, `state.parts` per batch, on
                the device.

        Raises:
            UserError: If too many steps in a row were skipped, or the memory is too small for the
                state of the optimizer.
            Interrupted: After a signal.
        """
        state = self.state
        # None instead of zeros: AdamW then skips parameters that received no gradient.
        self.optimizer.zero_grad(set_to_none=True)
        # The last batches of an epoch also make a step, even if they are fewer than
        # grad_accum_steps: gradients must not leak into the next epoch.
        num_batches = min(self.grad_accum_steps, len(self.order) - state.batch)
        num_parts = num_batches * state.parts
        # Several batches, or parts of one, make the step of one large batch: each counts by the
        # weight of its targets. So the gradients are first those of sums.
        as_sum = num_parts * self.hardware.num_processes > 1
        losses: list[LossSum] = []
        rows: list[int] = []
        for i in range(num_parts):
            part = next(parts)
            # The processes exchange the gradients of all parts together.
            is_last = i == num_parts - 1
            with nullcontext() if is_last else self.parallel.not_synchronized():
                losses.append(self.add_gradients(part, as_sum=as_sum))
            if not part.get("#filler"):
                rows += part["#index"]
        loss, size = sum(losses[1:], start=losses[0]), len(rows)
        must_stop = bool(self.signals)
        minutes = (time.monotonic() - self.saved_at) / 60
        must_save = minutes >= self.checkpoint_minutes > 0
        now = time.perf_counter()
        took, self.ticked = now - self.ticked, now
        # All processes take these decisions at the same step. The first one has the clock.
        if not self.hardware.is_main:
            must_save, took = False, 0.0
        numbers: list[Any] = [size, must_stop, must_save, took]
        counts: list[Tensor] = []
        if self.hardware.num_processes > 1:
            summed = torch.tensor(numbers, device=self.hardware.device)
            summed = torch.cat([torch.stack(loss).float(), summed])
            distributed.all_reduce(summed)
            loss, counts = LossSum(summed[0], summed[1]), [summed[2:]]
        norm = self._norm_of_gradients(loss, as_sum=as_sum)
        is_finite = (norm + loss.total).isfinite()
        finite = True
        if not self.skips_on_device:
            # In one transfer, because each of them waits for the GPU.
            *known, finite = torch.cat([*counts, is_finite[None]]).tolist()
            numbers = known or numbers
        size, must_stop, must_save, took = numbers
        state.batch += num_batches
        state.seconds += took
        state.elapsed += took
        factor = self.schedule(self.progress)
        for group, base_lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = base_lr * factor
        state.step += 1
        done = Step(state.step, state.epoch, loss.total, rows, is_finite)
        if self.skips_on_device:
            # Fused optimizers divide by the factor, and change nothing if there was an infinity.
            optimizer: Any = self.optimizer
            optimizer.found_inf = (~is_finite).float()
            if self.max_grad_norm:
                optimizer.grad_scale = ((norm + CLIP_EPS) / self.max_grad_norm).clamp(min=1)
            self._update()
            self.unread.append(done)
            if state.step % self.log_every == 0:
                self._read_steps()
        else:
            if finite and self.max_grad_norm:
                parameters = [p for p in self.parameters if p.grad is not None]
                clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
            if finite:
                self._update()
            self._count(done, is_finite=bool(finite))
            self.scaler.update()
        # The learning rate of the first group is logged.
        lr = self.optimizer.param_groups[0]["lr"]
        self.log.step(loss.mean, int(size), num_batches, lr, state)
        is_due = self.checkpoint_every and state.step % self.checkpoint_every == 0
        if must_stop or must_save or is_due:
            self.save()
        if must_stop:
            raise Interrupted.by(self.signals[-1] if self.signals else None)

    def add_gradients(self, batch: dict[str, Any], *, as_sum: bool) -> LossSum:
        """Compute one batch, or a part of one, add up its gradients, and return its loss.

        Args:
            batch: The batch, on the device.
            as_sum: Whether the gradients are those of the sum of the losses, instead of their mean.
        """
        state, device = self.state, self.hardware.device
        mixing = None
        if self.mixup and state.is_past_chance(self.mixup_below):
            # The model mixes the tokens and the task mixes the targets, with the same permutation
            # and the same share of the partner.
            share = float(torch.distributions.Beta(self.mixup, self.mixup).sample())
            order = torch.randperm(batch["#size"]).to(device)
            mixing = order, share
            assert self.task.space is not None  # see Task.check
            batch = {**batch, "target": self.task.space.mix(batch["target"], order, share)}
        # The random numbers of the dropouts depend on the step and the samples.
        seed = random.Random(f"{self.seed}/{state.epoch}/{state.step}").randrange(MAX_SEED)
        with keyed(torch.tensor(batch["#index"]), seed, device):
            model, precision = self.parallel.wrapped, self.hardware.precision
            run = self._run
            if batch["#size"] == 1 < self.order.fewest // state.parts:
                run = call  # a single sample that is left would need a variant of its own
            loss = run(_loss, self.task, model, batch, mixing, device, precision)
            if batch.get("#filler"):
                # It only keeps this process in step with the others, which have one more sample.
                loss = LossSum(0 * loss.total, 0 * loss.weight)
            objective = loss.total if as_sum else loss.mean
            self.scaler.scale(objective).backward()
        return LossSum(loss.total.detach(), loss.weight.detach())

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Compute function(*args), as one graph if the model is compiled."""
        if not self.compiles_model:
            return function(*args)
        # DDP and FSDP2 exchange gradients and weights between several graphs.
        return compiling.call(function, *args, fullgraph=self.hardware.num_processes == 1)

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

    def _update(self) -> None:
        """Change the weights and their average."""
        try:
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
            answers = torch.stack([step.is_finite for step in steps]).tolist()
            for step, is_finite in zip(steps, answers, strict=True):
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
        if self.max_skipped_steps and state.skipped_in_row >= self.max_skipped_steps:
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
                return {}

            def show(done: int) -> None:
                self.log.validation(done, len(samples), state)
                # Several processes would have to stop at the same sample, so they finish first.
                if self.hardware.num_processes == 1 and self.signals:
                    raise Interrupted.by(self.signals[-1])

            predictions = predict(
                self.model,
                self.task,
                samples,
                batch_size=self.evaluation_size,
                device=self.hardware.device,
                precision=self.hardware.precision,
                # Fast decoding is enough to compare epochs.
                draft=True,
                on_batch=show,
                divided=True,
            )
            # Only the first process has the predictions, and all must agree on the best epoch.
            metrics = from_first(lambda: score(predictions, samples, self.task, calibrate=True))
            if state.record(metrics, self.task):
                self.keep(metrics)
            return metrics

    def save(self) -> None:
        """Write a checkpoint. Every process must call this, because generator states are gathered.

        Only the main process writes the file.
        """
        self._read_steps()
        device = self.hardware.device
        generators = gather(checkpoint.generator_states(device), device)
        order = gather(self.order.position(self.state.batch), device)
        if self.hardware.is_main or self.shard:
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
        self.saved_at = time.monotonic()

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
        self.saved_at = time.monotonic()
        state = self.state
        # A resume with other options, such as a lower learning rate, gets all attempts again.
        state.skipped_in_row = 0
        if (state.batch_size, state.batch_tokens) != sizes:
            # With resume.force. The batches that are done do not exist in the new order.
            self.log.print(f"note: epoch {state.epoch + 1} starts again with the new batch size")
            state.batch_size, state.batch_tokens = sizes
            state.batch = 0
            state.step = state.epoch * self.steps_per_epoch
        elif state.batch and not self.order.restore(state.batch, order):
            self.log.print(
                f"note: epoch {state.epoch + 1} starts again, because the number of processes, or "
                "of those that read the stream, has changed"
            )
            state.step -= math.ceil(state.batch / self.grad_accum_steps)
            state.batch = 0
        self.log.epochs = self.num_epochs
        self.log.restore(state, pending)

    @property
    def num_epochs(self) -> int:
        """Number of epochs: that of the configuration, or an estimate of those that fit."""
        # The duration of an epoch is known only after the first one.
        if math.isinf(self.limit) or not self.state.epoch:
            return self.epochs
        return min(self.epochs, self.state.epochs_within(self.limit))

    @property
    def is_out_of_time(self) -> bool:
        """Whether no step fits into the time limit any more. The first epoch is completed."""
        return self.state.epoch > 0 and self.state.elapsed >= self.limit - self.state.validation

    @property
    def patience_left(self) -> float:
        """Number of epochs that may still bring no improvement before training stops early."""
        patience = self.patience
        if not patience or not self.state.is_past_chance(self.patience_below):
            return math.inf
        if patience < 1:
            patience = max(round(patience * self.num_epochs), MIN_PATIENCE)
        return patience - self.state.worse

    @property
    def is_finished(self) -> bool:
        """Whether no epoch is left."""
        return self.state.epoch >= self.epochs or self.is_out_of_time or self.patience_left <= 0

    @property
    def progress(self) -> float:
        """Progress of the training at the next step, which determines the learning rate.

        By the number of steps, or by the clock if not all of them fit into the time limit.
        """
        num_steps = self.epochs * self.steps_per_epoch
        # N steps divide the schedule into N + 1 equal parts. Neither the first step (of a warm-up)
        # nor the last one (of a decay to 0) has a learning rate of 0, so none is lost even if there
        # are only a few.
        by_steps = (self.state.step + 1) / (num_steps + 1)
        if math.isinf(self.limit):
            return by_steps
        seconds = self.limit - self.state.validation
        grace = GRACE * seconds
        by_clock = (self.state.elapsed - grace) / max(seconds - grace, 1e-9)
        return max(by_steps, min(by_clock, num_steps / (num_steps + 1)))

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
        elif state.epoch < self.epochs:
            epochs = f"{state.epoch} of {self.epochs} epochs"
            limit = duration(self.limit)
            self.log.print(f"stopped early: {epochs} fit into the time limit of {limit}")


def _output(
    model: nn.Module,
    batch: dict[str, Any],
    mixing: tuple[Tensor, float] | None,
    device: torch.device,
    precision: UsedPrecision,
) -> Any:
    """Return the output of a model for a batch, whose matrix products have the precision."""
    with autocast(device, precision):
        # Losses are computed in float32, because bf16 has too few digits for sums over many terms.
        return as_float(model(batch, mixing))


def _loss(task: Task, model: nn.Module, batch: dict[str, Any], *args: Any) -> LossSum:
    """Return the loss of a batch. For the arguments, see `_output`."""
    return task.loss(_output(model, batch, *args), batch)
