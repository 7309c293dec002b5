"""The batch sampler, which groups samples of similar length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dxn.data.dataset import Samples

# A batch: the epoch, the indices of its samples, whether inputs are dropped, and whether it is a
# filler, which only keeps the processes in step, so that its loss does not count.
BatchKey = tuple[int, Sequence[int], bool, bool]

# Number of batches per pool. Samples are sorted by length within a pool, so a larger pool has less
# padding but less random batches.
POOL = 50


class BatchOrder:
    """The batches of each epoch, as a batch sampler of torch.

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
        count = len(samples) if shuffle else 0
        lengths = np.fromiter((samples.num_tokens(i) for i in range(count)), np.float64, count)
        # Samples of equal length do not need pools.
        self.lengths = lengths if len(np.unique(lengths)) > 1 else None

    def __len__(self) -> int:
        """Return the number of batches of an epoch, not of their parts."""
        return math.ceil(len(self.samples) / self.batch_size)

    def __iter__(self) -> Iterator[BatchKey]:
        process, num_processes = self.shard
        # The caller can change the position while it iterates, which is for the next iteration.
        epoch, drop_inputs, parts = self.epoch, self.drop_inputs, self.parts
        for batch in self._batches()[self.skip :]:
            # Every n-th sample, because the batch may be sorted by length: each step waits for the
            # slowest process.
            own = batch[process::num_processes].tolist()
            size, num_longer = divmod(len(own), parts)
            end = 0
            for i in range(parts):
                start, end = end, end + size + (i < num_longer)
                part = own[start:end]
                yield epoch, part or batch[:1].tolist(), drop_inputs, not part

    def _batches(self) -> list[np.ndarray]:
        """Return the samples of the batches of an epoch, int64."""
        size = self.batch_size
        indices = list(range(len(self.samples)))
        rand = random.Random(f"{self.seed}/{self.epoch}")
        if self.shuffle:
            rand.shuffle(indices)
        order = np.array(indices, np.int64)
        if self.lengths is not None:
            for start in range(0, len(order), POOL * size):
                pool = order[start : start + POOL * size]
                pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if self.lengths is not None:
            rand.shuffle(batches)
        return batches
