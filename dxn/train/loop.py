"""The training loop: every step of it in one place."""

from __future__ import annotations

import math
import random
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from dxn.data.samples import BatchOrder, Samples, make_loader
from dxn.data.targets import Target
from dxn.errors import UserError
from dxn.models import Model
from dxn.train import checkpoint
from dxn.train.evaluate import figures, predict, to_device
from dxn.train.metrics import better, monitored
from dxn.train.precision import Precision, choose
from dxn.train.progress import Progress

Schedule = Callable[[float], float]


@dataclass
class State:
    """Where a run stands; with the weights, the optimizer and the generator it is all there is."""

    epoch: int = 0
    batch: int = 0  # of this epoch
    step: int = 0
    best: float | None = None
    best_epoch: int = 0
    worse: int = 0  # epochs since the best
    seconds: float = 0.0
    finished: bool = False


class Trainer:
    """Trains a model and keeps its best epoch.

    Args:
        epochs: passes over the training split.
        batch_size: samples a step and process.
        seed: of order, augmentation and dropout.
        precision: auto (bf16 where it is measured faster), float32 or bf16.
        device: auto, cpu, cuda, mps.
        accumulate: batches whose gradients are added before a step.
        clip: largest norm of the gradient, 0 for no limit.
        patience: epochs without a better validation figure before stopping early, 0 for never.
        average: decay of a running mean of the weights that is evaluated and kept instead, 0 for none.
        mixup: strength of mixup (alpha of its Beta distribution, arXiv:1710.09412), 0 for none.
        modality_dropout: probability that a training sample is shown without one of its modalities.
        balance: weigh rare classes up in the loss.
        num_workers: processes that prepare batches; 0 prepares them in the training process.
        log_every: steps from one line of metrics.jsonl to the next.
        checkpoint_every: steps from one checkpoint to the next within an epoch, 0 for one an epoch.
        overfit: train on this many samples only, over and over, to see that the model can learn; 0 for all.
    """

    def __init__(
        self,
        *,
        epochs: int = 20,
        batch_size: int = 64,
        seed: int = 0,
        precision: Precision = "auto",
        device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
        accumulate: int = 1,
        clip: float = 1.0,
        patience: int = 0,
        average: float = 0.0,
        mixup: float = 0.0,
        modality_dropout: float = 0.0,
        balance: bool = False,
        num_workers: int = 0,
        log_every: int = 10,
        checkpoint_every: int = 0,
        overfit: int = 0,
    ):
        for name, value in {"epochs": epochs, "batch_size": batch_size, "accumulate": accumulate}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= average < 1 or not 0 <= modality_dropout < 1:
            raise ValueError(f"average and modality_dropout are shares, got {average} and {modality_dropout}")
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed
        self.accumulate, self.clip, self.patience = accumulate, clip, patience
        self.average, self.mixup, self.modality_dropout = average, mixup, modality_dropout
        self.balance, self.num_workers, self.overfit = balance, num_workers, overfit
        self.log_every, self.checkpoint_every = log_every, checkpoint_every
        AcceleratorState._reset_state(reset_partial_state=True)  # a sweep trains more than once in this process
        # Told that there is only a CPU, it lets several processes train together on one; by itself it would not.
        on_cpu = device == "cpu" or (device == "auto" and not torch.accelerator.is_available())
        where = torch.device(PartialState(cpu=on_cpu).device or "cpu")
        self.bf16, self.precision_note = choose(precision, where)
        self.accelerator = Accelerator(
            cpu=on_cpu,
            mixed_precision="bf16" if self.bf16 else "no",
            # A batch may lack a modality, and then its adapter's weights have no gradient.
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
        )
        self.device, self.main = self.accelerator.device, self.accelerator.is_main_process

    def fit(
        self,
        model: Model,
        *,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        train: Samples,
        validation: Samples | None,
        target: Target,
        folder: Path,
        keep: Callable[[dict[str, float]], None],
        resume: bool = False,
    ) -> State:
        """Train, writing metrics.jsonl and checkpoints/ in folder; keep(figures) is called at each best epoch."""
        run = Run(self, model, optimizer, schedule, train, validation, target, folder, keep)
        if resume:
            run.restore()
        while run.state.epoch < self.epochs and not run.state.finished:
            run.epoch()
        run.progress.close()
        return run.state


class Run:
    """One training under way: the settings, the live objects and where it stands."""

    def __init__(
        self,
        settings: Trainer,
        model: Model,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        train: Samples,
        validation: Samples | None,
        target: Target,
        folder: Path,
        keep: Callable[[dict[str, float]], None],
    ):
        self.settings, self.model, self.schedule = settings, model, schedule
        self.validation, self.target, self.folder, self.keep = validation, target, folder, keep
        self.bases = [group["lr"] for group in optimizer.param_groups]
        model.to(settings.device)
        accelerator = settings.accelerator
        self.wrapped, self.optimizer = typing.cast("tuple[Any, Any]", accelerator.prepare(model, optimizer))
        self.shard = (accelerator.process_index, accelerator.num_processes)
        self.order = BatchOrder(train, settings.batch_size, seed=settings.seed, shuffle=True, shard=self.shard)
        self.loader = make_loader(self.order, num_workers=settings.num_workers)
        self.steps = settings.epochs * math.ceil(len(self.order) / settings.accumulate)
        self.state = State()
        self.averaged = {n: t.clone() for n, t in _floats(model).items()} if settings.average else {}
        self.progress = Progress(folder, batches=len(self.order), epochs=settings.epochs, main=settings.main)

    def restore(self) -> None:
        """Go on where the last checkpoint stands."""
        saved, self.averaged = checkpoint.load(self.folder / "checkpoints", model=self.model, optimizer=self.optimizer)
        self.state = State(**saved)
        self.progress.restore(self.state.step)

    def save(self) -> None:
        """A checkpoint to go on from."""
        if self.settings.main:
            checkpoint.save(
                self.folder / "checkpoints",
                model=self.model,
                optimizer=self.optimizer,
                averaged=self.averaged,
                state=asdict(self.state),
            )

    def epoch(self) -> None:
        """The rest of this epoch, its validation and its checkpoint."""
        state, settings = self.state, self.settings
        started = time.perf_counter()
        self.order.epoch, self.order.skip = state.epoch, state.batch
        if self.shard[1] > 1:  # each drops out of its own, and a checkpoint holds the first one's generator only
            torch.manual_seed(random.Random(f"{settings.seed}/{state.epoch}/{self.shard[0]}").getrandbits(63))
        self.wrapped.train()
        for batch in self.loader:
            loss = self.backward(to_device(batch, settings.device))
            state.batch += 1
            if state.batch % settings.accumulate == 0 or state.batch == len(self.order):
                self.step()
            self.progress.batch(loss, batch["size"], lr=self.lr, state=state, log_every=settings.log_every)
            if settings.checkpoint_every and state.batch % (settings.checkpoint_every * settings.accumulate) == 0:
                self.save()
        state.epoch, state.batch = state.epoch + 1, 0
        state.seconds += time.perf_counter() - started
        self.validate()
        self.save()

    @property
    def lr(self) -> float:
        """The rate of the first group of parameters."""
        return self.optimizer.param_groups[0]["lr"]

    def backward(self, batch: dict) -> Tensor:
        """Add one batch's gradients; its loss, detached."""
        settings, targets, mixing = self.settings, batch["target"], None
        if settings.mixup:
            share = float(torch.distributions.Beta(settings.mixup, settings.mixup).sample())
            mixing = torch.randperm(batch["size"]).to(settings.device), share
            targets = _mix_targets(targets, *mixing, self.target)
        logits = self.wrapped(batch, mixing)
        loss = self.model.head.loss(logits.float(), targets)
        settings.accelerator.backward(loss / settings.accumulate)
        return loss.detach()

    def step(self) -> None:
        """One step of the optimizer with the gradients there are."""
        factor = self.schedule((self.state.step + 1) / self.steps)
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * factor
        if self.settings.clip:
            self.settings.accelerator.clip_grad_norm_(self.wrapped.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step += 1
        if self.averaged:
            decay = min(self.settings.average, self.state.step / (self.state.step + 10))
            for name, now in _floats(self.model).items():
                self.averaged[name].lerp_(now, 1 - decay)

    def validate(self) -> None:
        """Figures of the validation split; keep the weights if they are the best so far."""
        state, settings = self.state, self.settings
        with _weights(self.model, self.averaged):
            if self.validation is None:
                self.keep({})
                self.progress.epoch({}, state)
                return
            predictions = predict(
                self.model,
                self.validation,
                self.target,
                batch_size=2 * settings.batch_size,
                device=settings.device,
                bf16=settings.bf16,
                beams=1,
            )
            found = figures(predictions, self.validation, self.target)
            metric = monitored(self.target)
            if better(metric, found[metric], state.best):
                state.best, state.best_epoch, state.worse = found[metric], state.epoch, 0
                self.keep(found)
            else:
                state.worse += 1
        state.finished = bool(settings.patience) and state.worse >= settings.patience
        self.progress.epoch(found, state)


def _floats(model: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach() for n, t in model.state_dict().items() if t.is_floating_point()}


@contextmanager
def _weights(model: nn.Module, averaged: dict[str, Tensor]) -> Iterator[None]:
    """The averaged weights inside, the model's own outside; nothing where none are averaged."""
    own = {n: t.clone() for n, t in _floats(model).items()} if averaged else {}
    model.load_state_dict(averaged, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(own, strict=False)


def _mix_targets(targets: Tensor, order: Tensor, share: float, target: Target) -> Tensor:
    if target.kind in ("tags", "text", "next"):
        raise UserError(f"trainer.mixup: {target.kind} cannot be mixed; set trainer.mixup=0")
    if target.kind == "class":
        targets = F.one_hot(targets, len(target.names)).float()
    return share * targets + (1 - share) * targets[order]
