"""Batches of a stream: its division over processes and workers, its order, and its position."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from dxn.data.sources.shards import SHARD_ROWS, Stream
from dxn.data.sources.table import rows_of_table
from dxn.data.tables.read import Table, concatenate

if TYPE_CHECKING:
    from dxn.data.rows import Source
    from dxn.tasks.task import Task
    from dxn.tokenize.base import Tokenizer

PARTS, LANE = "#parts", "#lane"  # keys of what a lane returns for each key


class Lane(NamedTuple):
    """The position of one of the readers that share a stream.

    Attributes:
        number: Number of the lane in its process.
        turn: Index of the next file among those that the lane reads in the epoch.
        row: Index of the first row of the current block in this file.
        done: Number of rows of the block that are done.
        is_over: Whether the lane has no more rows in this epoch, 0 or 1.
    """

    number: int
    turn: int = 0
    row: int = 0
    done: int = 0
    is_over: int = 0


class LaneKey(NamedTuple):
    """A request for the next batch of a lane.

    Attributes:
        epoch: Number of the epoch.
        lane: The lane, with the position from which it starts.
        is_first: Whether the lane starts here. Otherwise it continues, wherever it is.
        drop_inputs: Whether inputs are dropped.
        parts: Number of parts of the batch.
    """

    epoch: int
    lane: Lane
    is_first: bool
    drop_inputs: bool
    parts: int


@dataclass(frozen=True)
class Block:
    """Rows that are shuffled together.

    Args:
        table: The rows.
        numbers: Numbers of the rows in the stream.
        turn: Index of the file of the first row among those that the lane reads.
        row: Index of the first row in its file.
        next_turn: The same for the row after the block.
        next_row: The same for the row after the block.
    """

    table: Table
    numbers: np.ndarray
    turn: int
    row: int
    next_turn: int
    next_row: int


class StreamSamples(Samples):
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
        self.stream: Stream = source.stream
        self.source = source
        self.task = task
        self.options = options

    @property
    def reads_files(self) -> bool:
        """Always, so that worker processes read the stream by default."""
        return True

    def describe_index(self, row: int) -> str:
        """Return the shard and the row of a value of "#index" in a batch."""
        return self.stream.shards.describe(row)

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
        assert batch_tokens is None  # see dxn.runs.plan: the lengths are not known
        return StreamLoader(StreamOrder(self, batch_size, seed=seed, shard=shard), **options)

    def prepare(self, table: Table, numbers: np.ndarray) -> Callable[[np.ndarray], Samples]:
        """Return the function that opens some rows of a block.

        Args:
            table: The rows of the block.
            numbers: Their numbers in the stream.
        """
        inputs = {name: self.source.inputs[name] for name in self.tokenizers}
        readers = {spec.modality: self.tokenizers[name].reader for name, spec in inputs.items()}
        target = self.source.target if self.task.is_supervised else None
        rows = rows_of_table(table, inputs, readers, target=target)

        def open_some(chosen: np.ndarray) -> Samples:
            opened = survey_rows(
                rows.take(chosen),
                self.tokenizers,
                task=self.task,
                on_bad=self.source.on_bad,
                budget=CacheBudget(math.inf),  # they are used once, at once
            )
            if self.source.on_bad == "error":
                refuse_bad(opened)
            opened = replace(opened, row_ids=numbers[chosen][np.asarray(opened.kept)])
            samples = Samples(opened, self.tokenizers, task=self.task, **self.options)
            unknown = [] if opened.targets is None else self.task.target.unknown(opened.targets)
            return self._without_unknown(samples) if unknown else samples

        return open_some

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
    """The batches of a stream. Lanes, which are one per worker of each process, take turns.

    The files of an epoch are in random order. As many of them as possible are divided evenly over
    all lanes; of each of the others, a lane reads every n-th row. So every row is read once, and
    all lanes have about the same number of rows. A lane shuffles blocks of rows.

    Args:
        samples: The stream.
        batch_size: Number of samples per batch, over all processes.
        seed: Random seed of the order.
        shard: Index of this process and number of processes, (i, n).
    """

    samples: StreamSamples

    def __init__(
        self, samples: StreamSamples, batch_size: int, *, seed: int, shard: tuple[int, int]
    ):
        super().__init__(samples, batch_size, seed=seed, shard=shard)
        process, num_processes = shard
        size, num_larger = divmod(batch_size, num_processes)
        self.size = max(size + (process < num_larger), 1)  # samples per batch of this process
        self.count = 0  # batches of the epoch that are done or ready
        self.end: int | None = None  # number of batches of the epoch, once it is known
        self.is_over = False  # whether all lanes are over
        # All processes must divide the rows in the same way, and machines can have other cores.
        self.num_workers = from_first(lambda: default_workers(self))
        self.num_lanes = max(self.num_workers, 1)
        self.lanes = self._start()
        self._done: dict[int, list[Lane]] = {}  # positions after the last batches
        self._readers: dict[int, Iterator[dict[str, Any]]] = {}  # in the process that reads

    def __len__(self) -> int:
        """Return the number of batches of the epoch: an estimate, until its end is near."""
        estimate = math.ceil(self.samples.stream.num_rows / self.batch_size)
        return max(estimate, self.count, 1) if self.end is None else self.end

    def __iter__(self) -> Iterator[LaneKey]:  # pyright: ignore[reportIncompatibleMethodOverride]
        epoch, drop_inputs, parts, lanes = self.epoch, self.drop_inputs, self.parts, [*self.lanes]
        is_first = True
        while not self.is_over:
            # Also lanes that are over: torch gives the keys to its workers in turn.
            for lane in lanes:
                yield LaneKey(epoch, lane, is_first, drop_inputs, parts)
            is_first = False

    def begin(self) -> None:
        """Start from `skip` batches of the epoch."""
        self.lanes = self._done.get(self.skip, []) if self.skip else self._start()
        self._done = {self.skip: self.lanes}
        self.count, self.end, self.is_over = self.skip, None, False

    def position(self, batch: int) -> dict[str, Tensor]:
        lanes = self._done.get(batch) if batch else self._start()
        return {"lanes": torch.tensor(lanes)}

    def restore(self, batch: int, position: Mapping[str, Tensor]) -> bool:
        saved = position.get("lanes")
        process, num_processes = self.shard
        shape = (num_processes, self.num_lanes, len(Lane._fields))
        if saved is None or saved.shape != shape:
            return False
        self._done = {batch: [Lane(*values) for values in saved[process].tolist()]}
        if bool(saved[:, :, -1].all()):  # it was saved between the last batch and the validation
            self.end = batch
        return True

    def remember(self, batch: int, lanes: Sequence[Lane], ahead: int) -> None:
        """Store the position after so many batches, and forget those that are not needed."""
        self._done[batch] = list(lanes)
        self._done.pop(batch - ahead - 2, None)

    def prepare(self, key: LaneKey) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next batch of a lane, in parts; none if the lane is over."""
        number = key.lane.number
        if key.is_first:
            self._readers[number] = self._read(key)
        over = {PARTS: [], LANE: key.lane._replace(is_over=1), "#size": 0}
        return next(self._readers[number], over)

    def _start(self) -> list[Lane]:
        return [Lane(number) for number in range(self.num_lanes)]

    def _read(self, key: LaneKey) -> Iterator[dict[str, Any]]:
        """Yield the batches of a lane, and its position after each."""
        lane = key.lane
        if lane.is_over:
            return
        done, bad = lane.done, {}
        for block in self._blocks(key.epoch, lane):
            draws = np.random.default_rng([self.seed, key.epoch, int(block.numbers[0])])
            order = draws.permutation(len(block.numbers))
            open_rows_of = self.samples.prepare(block.table, block.numbers)
            for start in range(done, len(order), self.size):
                samples = open_rows_of(order[start : start + self.size])
                bad |= {issue.origin: str(issue) for issue in samples.opened.bad}
                bad |= samples.opened.bad_later
                if not len(samples):
                    continue
                parts: list[dict[str, Any]] = []
                for rows in np.array_split(np.arange(len(samples)), key.parts):
                    part = samples.batch(
                        key.epoch, rows.tolist() or [0], drop_inputs=key.drop_inputs
                    )
                    if self.widen:
                        part = widened(part, samples.tokenizers)
                    parts.append(part if len(rows) else {**part, "#filler": True})
                end = start + self.size
                lane = lane._replace(turn=block.turn, row=block.row, done=end)
                if end >= len(order):
                    lane = lane._replace(turn=block.next_turn, row=block.next_row, done=0)
                # `Loader` prints the reasons, and needs the size.
                yield {PARTS: parts, LANE: lane, "#size": len(samples), BAD: bad}
                bad = {}
            done = 0

    def _blocks(self, epoch: int, lane: Lane) -> Iterator[Block]:
        """Yield the rows of a lane, from its position on."""
        stream = self.samples.stream
        # All blocks but the last one consist of full batches.
        size = math.ceil(stream.shuffle_buffer / self.size) * self.size
        tables: list[Table] = []
        numbers: list[np.ndarray] = []
        count, turn, row = 0, lane.turn, lane.row
        for i, (shard, step, offset) in enumerate(self._files(epoch, lane.number)):
            if i < lane.turn:
                continue
            for piece in stream.shards.pieces(shard, lane.row if i == lane.turn else 0):
                rows = piece.origins.lines - 1
                own = shard * SHARD_ROWS + rows
                left = np.flatnonzero((rows % step == offset) & ~np.isin(own, stream.held_out))
                while len(left):
                    chosen, left = left[: size - count], left[size - count :]
                    tables.append(piece.take(chosen))
                    numbers.append(own[chosen])
                    count += len(chosen)
                    if count == size:
                        after = i, int(rows[chosen[-1]]) + 1
                        yield Block(concatenate(tables), np.concatenate(numbers), turn, row, *after)
                        tables, numbers, count = [], [], 0
                        turn, row = after
        if count:
            end = len(stream.shards) * self.shard[1], 0
            yield Block(concatenate(tables), np.concatenate(numbers), turn, row, *end)

    def _files(self, epoch: int, number: int) -> list[tuple[int, int, int]]:
        """Return the files of a lane in order: each with n and i.

        The rows of a file whose index divided by n leaves i belong to the lane.
        """
        process, num_processes = self.shard
        lanes = num_processes * self.num_lanes
        own = process * self.num_lanes + number
        count = len(self.samples.stream.shards)
        order = np.random.default_rng([self.seed, epoch]).permutation(count).tolist()
        whole = count // lanes * lanes
        files = [(shard, 1, 0) for shard in order[own:whole:lanes]]
        return files + [(shard, lanes, own) for shard in order[whole:]]


class StreamLoader(Loader):
    """Iterates over the batches of a stream, some steps behind the lanes.

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
        order = self.order
        order.begin()
        own = self._own()
        ready: deque[tuple[list[dict[str, Any]], list[Lane]] | None] = deque()
        self._fill(ready, own)
        return self._yield(ready, own)

    def _yield(self, ready: deque[Any], own: Iterator[Any]) -> Iterator[dict[str, Any]]:
        order, count, lanes = self.order, self.order.skip, self.order.lanes
        while ready:
            item = ready.popleft()
            count += 1
            if item is None:
                # Another process has one more batch, which this one only keeps in step with.
                batch = order.samples.batch(order.epoch, [0])
                parts = [{**batch, "#filler": True}] * order.parts
            else:
                parts, lanes = item
            if order.end == count:
                lanes = [lane._replace(is_over=1) for lane in lanes]
            order.remember(count, lanes, self.ahead)
            yield from parts
            self._fill(ready, own)

    def _fill(self, ready: deque[Any], own: Iterator[Any]) -> None:
        order = self.order
        while order.end is None and len(ready) <= self.ahead:
            item = next(own, None)
            if self.is_any(item is not None):
                ready.append(item)
                order.count += 1
            else:
                order.end = order.count

    def _own(self) -> Iterator[tuple[list[dict[str, Any]], list[Lane]]]:
        """Yield the batches of this process in parts, and the lanes after each, in turn."""
        order = self.order
        lanes = deque(order.lanes)
        for item in super().__iter__():
            lanes.rotate(-1)
            lanes[-1] = Lane(*item[LANE])
            if item[PARTS]:
                yield item[PARTS], list(lanes)
            order.is_over = all(lane.is_over for lane in lanes)
