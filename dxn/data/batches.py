"""The batch sampler, which groups samples of similar length, and the data loader."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from dxn.errors import UserError

Item = TypeVar("Item")

# Number of batches per pool. Samples are sorted by length within a pool, so a larger pool has less
# padding but less random batches.
POOL = 50


class Sized(Protocol):
    """The methods of a data set that `BatchOrder` calls."""

    def __len__(self) -> int: ...

    def num_tokens(self, i: int) -> float: ...


class BatchOrder(Sampler):
    """A batch sampler that yields lists of keys (epoch, i).

    The order depends only on the seed and the epoch. Shuffled batches contain samples of similar
    length: random samples are collected in pools of 50 batches, sorted by length within a pool, and
    cut into batches. Then the batches are shuffled.

    Set the attribute `epoch` before each epoch. Set the attribute `skip` to leave out the first
    batches, to resume in the middle of an epoch.

    Args:
        samples: Data set with items by key (epoch, i).
        batch_size: Number of samples per batch. The last batch may be smaller.
        seed: Random seed of the order.
        shuffle: Whether to shuffle. Default: samples in order.
        shard: Index of this process and number of processes, (i, n). This process gets every n-th
            batch, starting with the i-th. All processes get the same number of batches, so the last
            few batches may be left out. The n batches of one training step have similar lengths,
            because each step waits for the slowest process.
    """

    def __init__(
        self,
        samples: Sized,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        shard: tuple[int, int] = (0, 1),
    ):
        self.samples: Any = samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.shard = shard
        self.epoch = 0
        self.skip = 0
        lengths = [samples.num_tokens(i) for i in range(len(samples))] if shuffle else []
        # Samples of equal length do not need pools.
        self.lengths = lengths if len(set(lengths)) > 1 else []

    def __len__(self) -> int:
        num_batches = math.ceil(len(self.samples) / self.batch_size)
        return num_batches // self.shard[1]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        own = self._batches()[self.shard[0] :: self.shard[1]][: len(self)]
        for batch in own[self.skip :]:
            yield [(self.epoch, i) for i in batch]

    def _batches(self) -> list[list[int]]:
        order = list(range(len(self.samples)))
        if not self.shuffle:
            return _chunks(order, self.batch_size)
        rand = random.Random(f"{self.seed}/{self.epoch}")
        rand.shuffle(order)
        if not self.lengths:
            return _chunks(order, self.batch_size)
        batches: list[list[int]] = []
        for pool in _chunks(order, POOL * self.batch_size):
            batches += _chunks(sorted(pool, key=self.lengths.__getitem__), self.batch_size)
        # If the last step has fewer batches than processes, __iter__ drops its batches. Move random
        # batches there, so that the dropped samples are not always the longest ones of a pool.
        num_dropped = len(batches) % self.shard[1]
        dropped = [batches.pop(rand.randrange(len(batches))) for _ in range(num_dropped)]
        # Shuffle whole steps, not batches: the batches of one step must keep similar lengths.
        steps = _chunks(batches, self.shard[1])
        rand.shuffle(steps)
        return [*chain.from_iterable(steps), *dropped]


class Loader:
    """Iterates over batches.

    It raises a UserError of a worker process as it is: torch would add the traceback of the worker
    to its message.

    Args:
        batches: Loader that yields a UserError in place of a batch that cannot be prepared.
    """

    def __init__(self, batches: DataLoader):
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch


def make_loader(order: BatchOrder, *, num_workers: int | None = None) -> Loader:
    """Create a data loader. The content of the batches does not depend on `num_workers`.

    Args:
        order: Batch sampler. Its `samples` are the data set and define how to collate.
        num_workers: Number of processes that prepare batches. 0: the main process prepares them.
            Default: 0, or one per processor core if the samples read files.
    """
    if num_workers is None:
        num_workers = default_workers(order)
    items = _Items(order.samples)
    batches = DataLoader(
        items,
        batch_sampler=order,
        collate_fn=items.collate,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        # A DataLoader draws a base seed for its workers. With the global generator, this draw would
        # change the dropout of a resumed run.
        generator=torch.Generator(),
    )
    return Loader(batches)


def default_workers(order: BatchOrder) -> int:
    """Return the number of processes that read the files of the samples; 0 if they read none."""
    # A data set of a test may have only the methods of `Sized`.
    if not getattr(order.samples, "reads_files", False):
        return 0
    # Without fork, each process would start with an import of torch and a copy of all samples.
    if _start_method() != "fork":
        return 0
    # torchrun starts several training processes per machine, which share its cores.
    cores = num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # A single worker would only take turns with the training process.
    return min(cores, len(order)) if cores > 1 else 0


def _start_method() -> str:
    # allow_none: otherwise the call would set the method, and the application could not choose one.
    method = multiprocessing.get_start_method(allow_none=True)
    return method or multiprocessing.get_all_start_methods()[0]  # the first one is the default


def num_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # it does not exist on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Items(Dataset):
    """The samples, with a UserError as the only item of its batch.

    Args:
        samples: The data set, whose items can raise a UserError.
    """

    def __init__(self, samples: Any):
        self.samples = samples

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        try:
            return [self.samples[key] for key in keys]
        except UserError as error:
            return [error]

    def collate(self, items: Sequence[Any]) -> Any:
        return items[0] if isinstance(items[0], UserError) else self.samples.collate(items)


def _chunks(items: Sequence[Item], size: int) -> list[list[Item]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
