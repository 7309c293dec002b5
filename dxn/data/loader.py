"""Options of loading samples, and the loader of the batches of a `BatchOrder`."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dxn.data.dataset import TIMEOUT, Samples
from dxn.data.order import BatchKey, BatchOrder
from dxn.data.raws import CACHE_GB

if TYPE_CHECKING:
    from dxn.data.workers import Workers

MAX_TIMEOUT = 2_000_000  # seconds; the operating system counts milliseconds with 32 bits


@dataclass(frozen=True)
class InputDropout:
    """Drops inputs of training samples, so that the model learns to work without them.

    Args:
        probability: Probability of dropping each input. At least one input is kept.
        until: Fraction of the training in which inputs are dropped.
        below: Inputs are dropped if the validation loss of the second epoch is below this fraction
            of that of the first one, or the model memorizes. None: they are dropped from the first
            epoch.
    """

    probability: float = 0.0
    until: float = 1.0
    below: float | None = None

    def __post_init__(self):
        if not 0 <= self.probability < 1:
            raise ValueError(f"input_dropout must be in [0, 1), got {self.probability}")
        if not 0 <= self.until <= 1:
            raise ValueError(f"input_dropout_until must be in [0, 1], got {self.until}")
        if self.below is not None and not 0 < self.below <= 1:
            raise ValueError(f"input_dropout_below must be in (0, 1], got {self.below}")

    def is_active(self, progress: float, loss_ratio: float, *, memorizes: bool) -> bool:
        """Return whether inputs are dropped in an epoch.

        Args:
            progress: Fraction of the training that is finished at the start of the epoch.
            loss_ratio: Validation loss of the second epoch, as a fraction of that of the first one.
            memorizes: Whether the validation loss has risen clearly above its lowest value.
        """
        is_needed = self.below is None or loss_ratio < self.below or memorizes
        return self.probability > 0 and progress < self.until and is_needed

    def kept(self, present: Sequence[str], rand: random.Random) -> list[str]:
        """Drop each input with the probability. If all are dropped, keep a random one."""
        kept = [name for name in present if rand.random() >= self.probability]
        return kept or [rand.choice(list(present))]


@dataclass(frozen=True)
class LoaderOptions:
    """Options for loading training samples.

    Args:
        input_dropout: Probability of dropping each input of a training sample. At least one input
            is kept.
        input_dropout_until: Fraction of the training in which inputs are dropped. 0.5: the model
            learns from all inputs in the second half.
        input_dropout_below: Inputs are dropped in two cases only: from the third epoch, if the
            validation loss of the second epoch is below this fraction of that of the first one; or
            once the validation loss has risen above its lowest value by 10% of that of the first
            epoch. A loss that falls later is a sign that only all inputs together tell the target.
            Default: inputs are dropped from the first epoch.
        repeats: Number of times that each training row occurs per epoch, each time with other
            augmentation.
        num_workers: Number of processes that prepare batches. 0: the training process prepares
            them. Default: 0 if all decoded files are in memory, otherwise one per processor core.
        timeout: Number of seconds to wait for a batch of the worker processes, for example on a
            network drive that no longer answers. null: no limit.
        cache_gb: Maximum number of gigabytes of decoded images, clips and other files that are kept
            in memory, over all splits. The files of a data set that needs more are read again in
            each epoch. The default is enough for 8,000 photos with image_size=224.
        overfit: Number of training samples to overfit without augmentation, to check that the model
            can learn. 0: train on all samples.
    """

    input_dropout: float = 0.0
    input_dropout_until: float = 1.0
    input_dropout_below: float | None = None
    repeats: int = 1
    num_workers: Annotated[int, Ge(0)] | None = None
    timeout: float | None = TIMEOUT
    cache_gb: float = CACHE_GB
    overfit: int = 0

    def __post_init__(self):
        self.dropped_inputs()  # checks its options
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        for name in ("num_workers", "cache_gb", "overfit"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.timeout is not None and not 0 < self.timeout <= MAX_TIMEOUT:
            raise ValueError(
                f"timeout must be null or in (0, {MAX_TIMEOUT:,}] seconds, got {self.timeout}"
            )

    def dropped_inputs(self) -> InputDropout:
        """Return the options of dropping inputs."""
        return InputDropout(self.input_dropout, self.input_dropout_until, self.input_dropout_below)


class Loader:
    """Iterates over the batches of an order, from its position at the start of each iteration.

    The content of the batches does not depend on the number of processes that prepare them.

    Args:
        order: Order of the batches. Its `samples` are the data set.
        num_workers: Number of processes that prepare batches. 0: the main process prepares them.
            Default: that of the samples. If they have none, one per processor core for samples that
            read files, otherwise 0.
        pin_memory: Whether to copy batches to page-locked memory, which a GPU reads faster.
    """

    def __init__(
        self,
        order: BatchOrder,
        *,
        num_workers: int | None = None,
        pin_memory: bool = False,
    ):
        self.order = order
        self.num_workers = default_workers(order) if num_workers is None else num_workers
        self.pin_memory = pin_memory
        self.workers: Workers | None = None  # from the first iteration on, if there are any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches.

        Raises:
            UserError: If a sample cannot be prepared, or the processes cannot be used.
        """
        if self.num_workers:
            if self.workers is None:
                from dxn.data.workers import Workers  # most data sets need no processes

                self.workers = Workers(self.order, self.num_workers, self.pin_memory)
            yield from self.workers
            return
        for key in self.order:
            batch = batch_of(self.order.samples, key)
            yield tree_map_only(Tensor, Tensor.pin_memory, batch) if self.pin_memory else batch

    def stop(self) -> None:
        """End the processes. The next iteration would start new ones."""
        if self.workers is not None:
            self.workers.stop()


def batch_of(samples: Samples, key: BatchKey) -> dict[str, Any]:
    """Return a batch of an order, with "#filler" if it is a filler."""
    epoch, indices, drop_inputs, is_filler = key
    batch = samples.batch(epoch, indices, drop_inputs=drop_inputs)
    return {**batch, "#filler": True} if is_filler else batch


def default_workers(order: BatchOrder) -> int:
    """Return the number of processes that prepare the samples of an order."""
    if order.samples.num_workers is not None:
        return order.samples.num_workers
    if not order.samples.reads_files:
        return 0
    # Without fork, each process would start with an import of torch and a copy of all samples.
    # allow_none: otherwise the call would set the method, and the application could not choose one.
    method = multiprocessing.get_start_method(allow_none=True)
    if (method or multiprocessing.get_all_start_methods()[0]) != "fork":
        return 0
    # torchrun starts several training processes per machine, which share its cores.
    cores = num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # A single worker would only take turns with the training process.
    return min(cores, len(order)) if cores > 1 else 0


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # it does not exist on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
