"""The options of a training. `dxn.training.loop.Fit` is the training itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

from dxn.core.errors import UserError
from dxn.core.schema import options
from dxn.tasks.metric import check_own_metrics
from dxn.training.log import Tracker
from dxn.training.parallel import Hardware, Precision, find_hardware

# What can wait until a model has learned something, see `Trainer`.
Waiting = Literal["patience", "mixup", "input_dropout"]


@options
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
        once_learning: Options that wait until the model has learned something: patience, mixup,
            input_dropout. A model that must combine its inputs can be at chance for many epochs.
            It has learned something when its validation loss is below half of that of the first
            epoch, or has risen above its lowest value by 10% of that of the first epoch. Inputs
            are then dropped in the first half of the training only. Needs a validation split.
        max_minutes: Time limit of the command in minutes: reading, pretraining, training,
            baseline and evaluation. Reading is counted, at most a quarter of the rest and a minute
            are kept for the baseline, and the time of the evaluation is estimated from that of a
            validation; the training has the rest, at least a quarter of the limit. If the epochs
            do not fit, the learning rate follows the clock, and the last epoch ends early. null:
            no limit.
        ema_decay: Decay of an exponential moving average of the weights. The averaged weights are
            evaluated and saved. 0 turns averaging off.
        mixup: Parameter alpha of the Beta distribution of mixup (arXiv:1710.09412). 0 turns mixup
            off.
        log_every: Number of optimizer steps between two lines of metrics.jsonl.
        checkpoint_minutes: Minutes between two checkpoints within an epoch. There is also one at
            the end of each epoch. 0: only these.
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
        ValueError: If an option is out of range.
    """

    epochs: Annotated[int, Ge(1)] = 20
    batch_size: Annotated[int, Ge(1)] = 64
    batch_tokens: Annotated[int, Ge(1)] | None = None
    seed: int = 0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Precision = "auto"
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    grad_accum_steps: Annotated[int, Ge(1)] = 1
    patience: Annotated[float, Ge(0)] = 5
    once_learning: Sequence[Waiting] = ()
    max_minutes: Annotated[float, Gt(0)] | None = None
    ema_decay: Annotated[float, Ge(0), Lt(1)] = 0.0
    mixup: Annotated[float, Ge(0)] = 0.0
    log_every: Annotated[int, Ge(1)] = 10
    checkpoint_minutes: Annotated[float, Ge(0)] = 10.0
    compile: bool = False
    monitor: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    tracker: Tracker | Sequence[Tracker] = ()
    shard: bool = False

    def __post_init__(self):
        if self.patience > 1 and self.patience != int(self.patience):
            raise ValueError(
                "patience must be a whole number of epochs or a fraction below 1, got "
                f"{self.patience}"
            )
        if self.metrics:
            check_own_metrics(self.metrics)
        if self.trackers:
            from dxn.training.trackers import check_trackers

            check_trackers(self.trackers)

    @property
    def trackers(self) -> Sequence[Tracker]:
        """The trackers as a list."""
        return [self.tracker] if isinstance(self.tracker, str) else self.tracker

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
