"""Batches of a stream: its division over processes and workers, its order, and its position."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dxn.core.errors import UserError
from dxn.core.processes import from_first
from dxn.data.dataset import Opened, Samples
from dxn.data.loader import BAD, BatchOrder, Loader, default_workers, widened
from dxn.data.raws import CacheBudget
from dxn.data.reading import refuse_bad, survey_rows
from dxn.data.rows import as_column
from dxn.data.sources.shards import StreamedSplit
from dxn.data.sources.table import rows_of_table
from dxn.data.tables.read import Table

if TYPE_CHECKING:
    from dxn.data.rows import Source
    from dxn.tasks.task import Task
    from dxn.tokenize.base import Tokenizer

BATCH_PARTS, POSITION = "#parts", "#position"  # keys of what a reader returns for each key
# Bytes of a position in a checkpoint, because tensors of all processes must have the same size. A
# position in ten shards, the most that `datasets` reads at the same time, has about 1,500 bytes.
POSITION_BYTES = 4096


class ReaderKey(NamedTuple):
    """A request for the next batch of one of the readers of a process, which are its workers.

    Attributes:
        epoch: Number of the epoch.
        reader: Number of the reader in its process.
        position: JSON of the position from which the reader starts. Empty: from the first row.
        is_first: Whether the reader starts here. Otherwise it continues, wherever it is.
        drop_inputs: Whether inputs are dropped.
        parts: Number of parts of the batch.
    """

    epoch: int
    reader: int
    position: str
    is_first: bool
    drop_inputs: bool
    parts: int


class StreamedSamples(Samples):
    """The training rows of a stream. As a data set, it contains only those of the sample.

    Args:
        opened: The training rows of the sample.
        tokenizers: Tokenizer of each input, by input name.
        task: Task that encodes the targets.
        source: The data source.
        options: Further options of `Samples`.
    """

    def __init__(
        self,
        opened: Opened,
        tokenizers: Mapping[str, Tokenizer],
        *,
        task: Task,
        source: Source,
        **options: Any,
    ):
        super().__init__(opened, tokenizers, task=task, **options)
        assert source.stream is not None
        self.stream: StreamedSplit = source.stream
        self.source = source
        self.task = task
        self.options = options

    @property
    def reads_files(self) -> bool:
        """Always, so that worker processes read the stream by default."""
        return True

    def describe_index(self, row: int) -> str:
        """Return the shard and the row of a value of "#index" in a batch."""
        return self.stream.shards.origins(np.array([row]))[0]

    def sample_of(self, epoch: int, row: int) -> None:
        """Return None, because a stream is not read twice for a single row."""

    def loader(
        self,
        batch_size: int,
        *,
        batch_tokens: int | None = None,
        seed: int,
        shard: tuple[int, int],
        **options: Any,
    ) -> Loader:
        assert batch_tokens is None  # see dxn.runs.decide: the lengths are not known
        return StreamLoader(StreamOrder(self, batch_size, seed=seed, shard=shard), **options)

    def open(self, numbers: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> Samples:
        """Open some rows of the stream, see `StreamedSplit.rows`.

        Args:
            numbers: Their numbers in the stream.
            rows: Their cells, by the name of the column.
        """
        row_numbers = np.array(numbers, np.int64)
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: as_column([row.get(name) for row in rows]) for name in names}
        table = Table(columns, self.stream.shards.origins(row_numbers))
        inputs = {name: self.source.inputs[name] for name in self.tokenizers}
        readers = {spec.modality: self.tokenizers[name].reader for name, spec in inputs.items()}
        target = self.source.target if self.task.is_supervised else None
        opened = survey_rows(
            rows_of_table(table, inputs, readers, target=target),
            self.tokenizers,
            task=self.task,
            on_bad=self.source.on_bad,
            budget=CacheBudget(math.inf),  # they are used once, at once
        )
        if self.source.on_bad == "error":
            refuse_bad(opened)
        opened = replace(opened, row_ids=row_numbers[np.asarray(opened.kept)])
        samples = Samples(opened, self.tokenizers, task=self.task, **self.options)
        unknown = [] if opened.targets is None else self.task.target.unknown(opened.targets)
        return self._without_unknown(samples) if unknown else samples

    def _without_unknown(self, samples: Samples) -> Samples:
        """Handle rows with a class that is not in the sample as bad rows."""
        opened, unknown = samples.opened, self.task.target.unknown
        assert opened.targets is not None
        names = [next(iter(unknown([target])), None) for target in opened.targets]
        reasons: dict[str, str] = {}
        for row, name in enumerate(names):
            if name is not None:
                reasons[opened.origin[row]] = (
                    f"the target {name!r} is in no row of the sample, from which the classes are "
                    "known; raise data.sample_rows or data.sample_shards"
                )
        if self.source.on_bad == "error":
            origin, reason = next(iter(reasons.items()))
            raise UserError(f"{origin}: {reason}, or set data.on_bad=skip")
        samples.rows = np.array([row for row in samples.rows if names[row] is None], np.int64)
        opened.bad_later.update(reasons)
        return samples


class StreamOrder(BatchOrder):
    """The batches of a stream. The readers of a process, which are its workers, take turns.

    The library `datasets` shuffles the shards and the rows of each reader, and knows its position.

    Args:
        samples: The stream.
        batch_size: Number of samples per batch, over all processes.
        seed: Random seed of the order.
        shard: Index of this process and number of processes, (i, n).
    """

    samples: StreamedSamples

    def __init__(
        self, samples: StreamedSamples, batch_size: int, *, seed: int, shard: tuple[int, int]
    ):
        super().__init__(samples, batch_size, seed=seed, shard=shard)
        process, num_processes = shard
        size, num_larger = divmod(batch_size, num_processes)
        self.size = max(size + (process < num_larger), 1)  # samples per batch of this process
        self.count = 0  # batches of the epoch that are done or ready
        self.end: int | None = None  # number of batches of the epoch, once it is known
        self.is_over = False  # whether no reader has further rows
        # All processes must divide the rows in the same way, and machines can have other cores.
        self.num_workers = from_first(lambda: default_workers(self))
        self.num_readers = max(self.num_workers, 1)
        self.positions = [""] * self.num_readers  # where the readers start
        self._done: dict[int, list[str]] = {}  # positions after the last batches
        self._readers: dict[int, Iterator[dict[str, Any]]] = {}  # in the process that reads

    def __len__(self) -> int:
        """Return the number of batches of the epoch: an estimate, until its end is near."""
        estimate = math.ceil(self.samples.stream.num_rows / self.batch_size)
        return max(estimate, self.count, 1) if self.end is None else self.end

    def __iter__(self) -> Iterator[ReaderKey]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # The caller can change these while it iterates, which is for the next iteration.
        epoch, drop_inputs, parts = self.epoch, self.drop_inputs, self.parts
        positions = self.positions
        is_first = True
        while not self.is_over:
            # Also readers that have no further rows: torch gives the keys to its workers in turn.
            for reader, position in enumerate(positions):
                yield ReaderKey(epoch, reader, position, is_first, drop_inputs, parts)
            is_first = False

    def begin(self) -> None:
        """Start from `skip` batches of the epoch."""
        start = [""] * self.num_readers
        self.positions = self._done.get(self.skip, start) if self.skip else start
        self._done = {self.skip: self.positions}
        self.count, self.end, self.is_over = self.skip, None, False

    def position(self, batch: int) -> dict[str, Tensor]:
        positions = self._done[batch] if batch else [""] * self.num_readers
        texts = [text.encode().ljust(POSITION_BYTES) for text in positions]
        assert {len(text) for text in texts} == {POSITION_BYTES}
        return {
            "readers": torch.tensor([[*text] for text in texts], dtype=torch.uint8),
            "is_over": torch.tensor(self.end == batch),
        }

    def restore(self, batch: int, position: Mapping[str, Tensor]) -> bool:
        saved = position.get("readers")
        process, num_processes = self.shard
        shape = (num_processes, self.num_readers, POSITION_BYTES)
        if saved is None or saved.shape != shape:
            return False
        texts = [text.tobytes().decode().strip() for text in saved[process].numpy()]
        self._done = {batch: texts}
        if bool(position["is_over"].all()):  # saved between the last batch and the validation
            self.end = batch
        else:
            # The epoch goes on, also if the stream already had more batches than estimated.
            self.count = batch + 1
        return True

    def remember(self, batch: int, positions: Sequence[str], ahead: int) -> None:
        """Store the positions after so many batches, and forget those that are not needed."""
        self._done[batch] = list(positions)
        self._done.pop(batch - ahead - 2, None)

    def prepare(self, key: ReaderKey) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next batch of a reader, in parts; none if it has no further rows."""
        if key.is_first:
            self._readers[key.reader] = self._read(key)
        end = {BATCH_PARTS: [], POSITION: (key.reader, None), "#size": 0}
        return next(self._readers[key.reader], end)

    def _read(self, key: ReaderKey) -> Iterator[dict[str, Any]]:
        process, num_processes = self.shard
        reader = process * self.num_readers + key.reader
        rows = self.samples.stream.rows(self.seed, reader, num_processes * self.num_readers)
        return batches_of(rows, key, self.samples, size=self.size, widen=self.widen)


def batches_of(
    rows: Any, key: ReaderKey, samples: StreamedSamples, *, size: int, widen: bool
) -> Iterator[dict[str, Any]]:
    """Yield the batches of a reader, and its position after each.

    No method of the order: its iterator would be part of a cycle, and the threads of `datasets`
    would be joined where the garbage collector finds it, such as while another thread starts.

    Args:
        rows: The rows of the reader, of the library `datasets`.
        key: The reader.
        samples: The stream.
        size: Number of samples per batch.
        widen: See `BatchOrder`.
    """
    from datasets import logging

    rows.set_epoch(key.epoch)
    if key.position:
        # It warns about the lost rows of the shuffle buffer, which docs/streaming.md explains.
        logging.set_verbosity_error()
        rows.load_state_dict(json.loads(key.position))
    bad: dict[str, str] = {}
    # Not `iter(rows)`, which would divide the rows over the workers of torch again.
    for batch in rows.iter(size):
        opened = samples.open(batch["row_id"], batch["cells"])
        bad |= {issue.origin: str(issue) for issue in opened.opened.bad}
        bad |= opened.opened.bad_later
        if not len(opened):
            continue
        parts: list[dict[str, Any]] = []
        for indices in np.array_split(np.arange(len(opened)), key.parts):
            part = opened.batch(key.epoch, indices.tolist() or [0], drop_inputs=key.drop_inputs)
            if widen:
                part = widened(part, opened.tokenizers)
            parts.append(part if len(indices) else {**part, "#filler": True})
        position = key.reader, json.dumps(rows.state_dict())
        # `Loader` prints the reasons, and needs the size.
        yield {BATCH_PARTS: parts, POSITION: position, "#size": len(opened), BAD: bad}
        bad = {}


class StreamLoader(Loader):
    """Iterates over the batches of a stream, some steps behind the readers.

    Args:
        order: Order of the batches.
        pin_memory: Whether to copy batches to page-locked memory.
        ahead: Number of batches that are ready before they are needed, so that the end of the epoch
            is known before its last step.
        is_any: Function that returns whether a value is true in any of the processes.
    """

    order: StreamOrder

    def __init__(
        self,
        order: StreamOrder,
        *,
        pin_memory: bool,
        ahead: int,
        is_any: Callable[[bool], bool],
    ):
        super().__init__(order, num_workers=order.num_workers, pin_memory=pin_memory)
        self.ahead = ahead
        self.is_any = is_any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.order.begin()
        batches = self._batches_of_process()
        ready: deque[tuple[list[dict[str, Any]], list[str]] | None] = deque()
        self._fill(ready, batches)
        return self._yield(ready, batches)

    def _yield(self, ready: deque[Any], batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
        order, count, positions = self.order, self.order.skip, self.order.positions
        while ready:
            item = ready.popleft()
            count += 1
            if item is None:
                # Another process has one more batch, which this one only keeps in step with.
                batch = order.samples.batch(order.epoch, [0])
                parts = [{**batch, "#filler": True}] * order.parts
            else:
                parts, positions = item
            order.remember(count, positions, self.ahead)
            yield from parts
            self._fill(ready, batches)

    def _fill(self, ready: deque[Any], batches: Iterator[Any]) -> None:
        order = self.order
        while order.end is None and len(ready) <= self.ahead:
            item = next(batches, None)
            if self.is_any(item is not None):
                ready.append(item)
                order.count += 1
            else:
                order.end = order.count

    def _batches_of_process(self) -> Iterator[tuple[list[dict[str, Any]], list[str]]]:
        """Yield the batches of this process in parts, and the positions after each."""
        order = self.order
        positions = list(order.positions)
        with_rows = {*range(order.num_readers)}
        for item in super().__iter__():
            reader, position = item[POSITION]
            if position is None:
                with_rows.discard(reader)
                order.is_over = not with_rows
            else:
                positions[reader] = position
                yield item[BATCH_PARTS], list(positions)
