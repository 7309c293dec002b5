"""The batch sampler, which groups samples of similar length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from torch.utils.data import Sampler

from dxn.data.dataset import Keys, Samples

Item = TypeVar("Item")

# Number of batches per pool. Samples are sorted by length within a pool, so a larger pool has less
# padding but less random batches.
POOL = 50


class BatchOrder(Sampler):
    """A batch sampler that yields the `Keys` of batches.

    The samples of each batch depend only on the seed, the epoch and the batch size. Shuffled
    batches contain samples of similar length: random samples are collected in pools of 50 batches,
    sorted by length within a pool, and cut into batches. Then the batches are shuffled.

    Several processes share each batch, so a training can continue with another number of processes
    at the same position. Every process gets the same number of batches. No sample is lost or
    repeated, except as a filler.

    Attributes:
        epoch: Number of the epoch. Set it before each epoch.
        drop_inputs: Whether inputs of samples are dropped. Set it before each epoch.
        skip: Number of batches to leave out, to resume in the middle of an epoch.
        parts: Number of parts of each batch that are yielded one after another, because the batch
            is too large for the memory. If a process has fewer samples than parts, the missing
            parts are fillers: a sample of the batch whose loss must not count.

    Args:
        samples: The data set.
        batch_size: Number of samples per batch, over all processes. The last batch may be smaller.
        seed: Random seed of the order.
        shuffle: Whether to shuffle. Default: samples in order.
        shard: Index of this process and number of processes, (i, n). This process gets every n-th
            sample of each batch, starting with the i-th.
    """

    def __init__(
        self,
        samples: Samples,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        shard: tuple[int, int] = (0, 1),
    ):
        self.samples = samples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.shard = shard
        self.epoch = 0
        self.drop_inputs = True
        self.skip = 0
        self.parts = 1
        lengths = [samples.num_tokens(i) for i in range(len(samples))] if shuffle else []
        # Samples of equal length do not need pools.
        self.lengths = lengths if len(set(lengths)) > 1 else []

    def __len__(self) -> int:
        """Return the number of batches of an epoch, not of their parts."""
        return math.ceil(len(self.samples) / self.batch_size)

    def __iter__(self) -> Iterator[Keys]:
        process, num_processes = self.shard
        # The caller can change the position while it iterates, which is for the next iteration.
        epoch, drop_inputs, parts = self.epoch, self.drop_inputs, self.parts
        for batch in self._batches()[self.skip :]:
            # Every n-th sample, because the batch may be sorted by length: each step waits for the
            # slowest process.
            own = batch[process::num_processes]
            for part in _split(own, parts):
                yield Keys(epoch, part or batch[:1], drop_inputs, filler=not part)

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
        rand.shuffle(batches)
        return batches


def _split(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Cut a list into `count` lists whose lengths differ by at most one; the longest come first."""
    size, num_longer = divmod(len(items), count)
    ends = [size * i + min(i, num_longer) for i in range(count + 1)]
    return [items[start:end] for start, end in pairwise(ends)]


def _chunks(items: Sequence[Item], size: int) -> list[list[Item]]:
    return [list(items[start : start + size]) for start in range(0, len(items), size)]
