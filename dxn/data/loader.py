"""The order of the samples, the options of loading them, and the loader of batches."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dxn.core.display import print_line
from dxn.core.errors import UserError
from dxn.core.runtime import release_memory, spare_processes
from dxn.core.schema import options
from dxn.data.raws import CACHE_GB
from dxn.tokenize.base import Tokenizer, rounded

if TYPE_CHECKING:
    from dxn.data.dataset import Samples
    from dxn.data.workers import Workers

# A batch: the epoch, the indices of its samples, whether inputs are dropped, and whether it is a
# filler, which only keeps the processes in step, so that its loss does not count.
BatchKey = tuple[int, Sequence[int], bool, bool]

# Number of batches per pool. Samples are sorted by length within a pool, so a larger pool has less
# padding but less random batches.
POOL = 50
BAD = "#bad"  # key of the reasons why files of a batch are bad, by origin of their row
TIMEOUT = 300.0  # default number of seconds to wait for a batch of the data workers
MAX_TIMEOUT = 2_000_000  # seconds; the operating system counts milliseconds with 32 bits

DropRate = Annotated[float, Ge(0), Lt(1)]


@options
class LoaderOptions:
    """Options for loading training samples.

    Args:
        input_dropout: Probability of dropping each input of a training sample. At least one input
            is kept.
        repeats: Number of times that each training row occurs per epoch, each time with other
            augmentation.
        num_workers: Number of processes that prepare batches. 0: the training process prepares
            them. Default: 0 if all decoded files are in memory, otherwise one per processor core.
        timeout: Number of seconds to wait for a batch of the worker processes, for example on a
            network drive that no longer answers. null: no limit.
        cache_gb: Maximum number of gigabytes of decoded images, clips and other files that are kept
            in memory, over all splits. The files of a data set that needs more are read again in
            each epoch. The default is enough for 8,000 photos with image_size=224.
        encoded_gb: Maximum number of gigabytes of output vectors of frozen encoders, which are
            computed once and kept in ~/.cache/dxn for later trainings. 0: computed in each epoch.
        overfit: Number of training samples to overfit without augmentation, to check that the model
            can learn. 0: train on all samples.
    """

    input_dropout: DropRate = 0.0
    repeats: Annotated[int, Ge(1)] = 1
    num_workers: Annotated[int, Ge(0)] | None = None
    timeout: Annotated[float, Gt(0), Le(MAX_TIMEOUT)] | None = TIMEOUT
    cache_gb: Annotated[float, Ge(0)] = CACHE_GB
    encoded_gb: Annotated[float, Ge(0)] = 10.0
    overfit: Annotated[int, Ge(0)] = 0


class BatchOrder:
    """The batches of each epoch, as a batch sampler of torch.

    The samples of each batch depend only on the seed, the epoch and the batch size. Shuffled
    batches contain samples of similar length: random samples are collected in pools of 50 batches,
    sorted by length within a pool, and cut into batches. Then the batches are shuffled.

    With `batch_tokens`, a batch has as many samples as fit into so many tokens, with padding. Then
    the pool is the whole data set, and samples are sorted by their rounded lengths, see
    `dxn.tokenize.base.rounded`: all epochs have the same number of batches, and among samples of
    equal rounded length, those of a batch are random.

    Several processes share each batch, so a training can continue with another number of processes
    at the same position. Every process gets the same number of batches. No sample is lost or
    repeated, except as a filler.

    Attributes:
        epoch: Number of the epoch. Set it before each epoch.
        drop_inputs: Whether inputs of samples may be dropped. Set it before each epoch.
        widen: Whether batches get padding so that they have few shapes, see `Tokenizer.widen`.
        skip: Number of batches to leave out, to resume in the middle of an epoch.
        fewest: Number of samples in a batch with the longest sample.
        parts: Number of parts of each batch that are yielded one after another, because the batch
            is too large for the memory. If a process has fewer samples than parts, the missing
            parts are fillers: a sample of the batch whose loss must not count.

    Args:
        samples: The data set.
        batch_size: Number of samples per batch, over all processes. The last batch may be smaller.
        batch_tokens: Maximum number of tokens of a shuffled batch, over all processes: its number
            of samples times the length of the longest one, see `Samples.lengths`. A longer sample
            is a batch of its own. None: any number. Samples in order have their own limit, see
            `Samples`.
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
        batch_tokens: int | None = None,
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
        self.widen = False
        self.skip = 0
        self.parts = 1
        self.pool = POOL * batch_size
        # Where the batches end in the sorted samples; the last one may end earlier.
        self.ends: Sequence[int] = range(batch_size, len(samples) + batch_size, batch_size)
        lengths = np.empty(0)
        if shuffle or samples.batch_tokens is not None:
            lengths = samples.lengths()
        if not shuffle and samples.batch_tokens is not None:
            self.ends = _ends_in_order(rounded(lengths), batch_size, samples.batch_tokens)
            lengths = np.empty(0)
        elif batch_tokens is not None:
            # The longest samples come first: the first one of a batch decides how many it has.
            self.pool, lengths = max(len(samples), 1), -rounded(lengths)
            self.ends = _ends(-np.sort(lengths), batch_size, batch_tokens)
        self.fewest = min(self.ends[0], batch_size) if self.ends else batch_size
        # Samples of equal length do not need pools.
        self.lengths = lengths if len(np.unique(lengths)) > 1 else None

    def __len__(self) -> int:
        """Return the number of batches of an epoch, not of their parts."""
        return len(self.ends)

    def __iter__(self) -> Iterator[BatchKey]:
        process, num_processes = self.shard
        # The caller can change the position while it iterates, which is for the next iteration.
        epoch, drop_inputs, parts = self.epoch, self.drop_inputs, self.parts
        for batch in self._batches()[self.skip :]:
            # Every n-th sample, because the batch may be sorted by length: each step waits for the
            # slowest process.
            shard = batch[process::num_processes].tolist()
            size, num_longer = divmod(len(shard), parts)
            end = 0
            for i in range(parts):
                start, end = end, end + size + (i < num_longer)
                part = shard[start:end]
                yield epoch, part or batch[:1].tolist(), drop_inputs, not part

    def prepare(self, key: BatchKey) -> dict[str, Any]:
        """Return the batch of a key, with "#filler" if it is a filler."""
        epoch, indices, drop_inputs, is_filler = key
        batch = self.samples.batch(epoch, indices, drop_inputs=drop_inputs)
        if self.widen:
            batch = widened(batch, self.samples.tokenizers)
        return {**batch, "#filler": True} if is_filler else batch

    def position(self, batch: int) -> dict[str, Tensor]:
        """Return what a checkpoint needs to continue after so many batches of the epoch.

        Nothing, because the number of batches is enough.
        """
        return {}

    def restore(self, batch: int, position: Mapping[str, Tensor]) -> bool:
        """Use a position of a checkpoint, with one row per process; return whether it fits."""
        return True

    def _batches(self) -> list[np.ndarray]:
        """Return the samples of the batches of an epoch, int64."""
        indices = array("q", range(len(self.samples)))  # a list would need 40 bytes per sample
        rand = random.Random(f"{self.seed}/{self.epoch}")
        if self.shuffle:
            rand.shuffle(indices)
        order = np.array(indices, np.int64)
        if self.lengths is not None:
            for start in range(0, len(order), self.pool):
                pool = order[start : start + self.pool]
                pool[:] = pool[np.argsort(self.lengths[pool], kind="stable")]
        batches = [order[start:end] for start, end in pairwise([0, *self.ends])]
        if self.lengths is not None:
            rand.shuffle(batches)
        return batches


def remaining_inputs(present: Sequence[str], probability: float, rand: random.Random) -> list[str]:
    """Drop each input of a sample with a probability. If all are dropped, keep a random one."""
    names = [name for name in present if rand.random() >= probability]
    return names or [rand.choice(list(present))]


def widened(batch: dict[str, Any], tokenizers: Mapping[str, Tokenizer]) -> dict[str, Any]:
    """Return a batch whose inputs have few numbers of columns, see `Tokenizer.widen`."""
    parts = {name: tokenizers[name].widen(batch[name]) for name in tokenizers if name in batch}
    return {**batch, **parts}


def _ends(lengths: np.ndarray, batch_size: int, batch_tokens: int) -> list[int]:
    """Return the ends of batches of samples with these lengths, the longest one first."""
    ends: list[int] = []
    start = 0
    while start < len(lengths):
        start += max(min(batch_size, batch_tokens // int(lengths[start])), 1)
        ends.append(min(start, len(lengths)))
    return ends


def _ends_in_order(lengths: np.ndarray, batch_size: int, batch_tokens: int) -> list[int]:
    """Return the ends of batches of samples in order: every `batch_size`, and where one is full."""
    ends: list[int] = []
    start = longest = 0
    for i, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        is_full = i > start and (i - start + 1) * longest > batch_tokens
        if is_full or (i and i % batch_size == 0):
            ends.append(i)
            start, longest = i, length
    return [*ends, len(lengths)] if len(lengths) else ends


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

                # The forked processes would keep the pages of unused memory, and this one would
                # get copies of them as soon as it uses them again.
                release_memory()
                self.workers = Workers(self.order, self.num_workers, self.pin_memory)
            for batch in self.workers:
                if BAD in batch:
                    self._count_bad(batch)
                yield batch
            return
        for key in self.order:
            batch = self.order.prepare(key)
            if BAD in batch:
                self._count_bad(batch)
            yield tree_map_only(Tensor, Tensor.pin_memory, batch) if self.pin_memory else batch

    def _count_bad(self, batch: dict[str, Any]) -> None:
        """Remove the bad files from a batch, and print those that are new."""
        reasons = batch.pop(BAD)
        printed = self.order.samples.opened.bad_later
        for origin, reason in reasons.items():
            if origin not in printed:
                printed[origin] = reason
                print_line(f"warning: {origin}: {reason}; left out ({len(printed):,} so far)")
        if not batch["#size"] and self.order.shuffle:
            raise all_bad("a batch", reasons)

    def stop(self) -> None:
        """End the processes. The next iteration would start new ones."""
        if self.workers is not None:
            self.workers.stop()


def all_bad(what: str, reasons: Mapping[str, str]) -> UserError:
    """Return the error for a batch or a table without a usable row.

    Args:
        what: What has no usable row.
        reasons: Why its rows are bad, by origin.
    """
    origin, reason = next(iter(reasons.items()))
    return UserError(
        f"all rows of {what} are bad; correct the data; the first problem is {origin}: {reason}"
    )


def default_workers(order: BatchOrder) -> int:
    """Return the number of processes that prepare the samples of an order."""
    if order.samples.num_workers is not None:
        return order.samples.num_workers
    if not order.samples.reads_files:
        return 0
    return min(spare_processes(), len(order))
