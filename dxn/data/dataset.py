"""The map-style data set that prepares opened rows as samples and collates them into batches."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dxn.core.errors import UserError
from dxn.core.randomness import evenly_spaced
from dxn.data.loader import BAD, TIMEOUT, BatchOrder, Loader, remaining_inputs
from dxn.data.raws import RawFiles, digest_of, lengths_of
from dxn.data.rows import TARGET, Column
from dxn.tokenize.base import VALUES, BadMedia, Tokenizer

if TYPE_CHECKING:
    from dxn.data.encoded import EncodedColumn
    from dxn.data.reading import Issue
    from dxn.tasks.task import Task


@dataclass(frozen=True)
class Opened:
    """One split, with its files read and its targets parsed.

    Args:
        raws: Raw values by input name, one per row, which become columns. None where a row does not
            have the input. A value that is not in memory is read when it is used.
        targets: Parsed targets, one per row. None if there are no targets.
        origin: Origin of each row, such as "train.csv row 17".
        present: Whether each row has the input, bool, by input name. Default: found in `raws`.
        skipped: Number of rows that were left out.
        bad: Problems of rows and inputs, including those of rows that were left out.
        kept: Index of each row in the original split, which includes the rows that were left out.
        ids: Values that identify the rows, by column name, see `Rows.ids`.
        cells: What the inputs were read from, by input name, one per row: a text, a path, a number
            or a list. None where it is missing, or cannot be printed, such as bytes and arrays.
        num_workers: Number of processes that read files again for an evaluation of these rows.
            None: see `dxn.data.loader.default_workers`.
        timeout: Number of seconds to wait for a batch of these processes. None: no limit.
        batch_tokens: Maximum number of tokens of a batch of an evaluation of these rows. None: no
            limit.
        bad_later: Why files that were not decoded at first turned out to be bad, by origin of their
            row. `dxn.data.loader.Loader` fills it.
        row_ids: Number of each row in the stream that it is from, from which its samples draw.
            None: its index.
        groups: Group of each row, see `Rows.groups`. None: there are no groups.
        encoded: Output vectors of the frozen encoder of inputs, which batches contain instead of
            their values.
        keeps_values: Whether batches contain these values, too, under the key VALUES of the input.
    """

    raws: Mapping[str, Column]
    targets: Sequence[Any] | None
    origin: Sequence[str]
    present: Mapping[str, np.ndarray] = field(default_factory=dict)
    skipped: int = 0
    bad: Sequence[Issue] = ()
    kept: Sequence[int] | np.ndarray = ()
    ids: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    cells: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    num_workers: int | None = None
    timeout: float | None = TIMEOUT
    batch_tokens: int | None = None
    bad_later: dict[str, str] = field(default_factory=dict)
    row_ids: np.ndarray | None = None
    groups: Sequence[Any] | None = None
    encoded: Mapping[str, EncodedColumn] = field(default_factory=dict)
    keeps_values: bool = False

    def __post_init__(self):
        # The dataclass is frozen.
        raws = {name: Column.of(column) for name, column in self.raws.items()}
        object.__setattr__(self, "raws", raws)
        if self.present.keys() != raws.keys():
            present = {n: np.array([v is not None for v in column]) for n, column in raws.items()}
            object.__setattr__(self, "present", present)

    def __len__(self) -> int:
        return len(self.origin)

    @property
    def with_values(self) -> Opened:
        """The same rows, with values beside the output vectors of encoders."""
        return replace(self, keeps_values=True)

    @property
    def replaced(self) -> Mapping[str, EncodedColumn]:
        """The output vectors of the inputs of which batches contain no values."""
        return {} if self.keeps_values else self.encoded

    @property
    def missing(self) -> dict[str, int]:
        """Number of rows without the input, by input name."""
        return {name: int((~present).sum()) for name, present in self.present.items()}


class Samples(Dataset):
    """A map-style data set of opened rows. Item (epoch, i) is sample i, prepared for this epoch.

    An item depends only on (seed, epoch, row, copy), not on its batch or on the worker that
    prepares it. It contains "#index" (see `rows`), "target" if there are targets, and a dict of
    tensors for each input that the row has.

    Four numbers tell what a sample is:

    | number | counts | where |
    |---|---|---|
    | sample | the samples, 0 to `len(self)` - 1 | `i` |
    | row | the opened rows | `rows[i]` modulo the number of rows |
    | copy | the copies of a row with `repeats`, from 0 | `rows[i]` divided by the number of rows |
    | row id | the rows of a stream; without one, it is the row | `opened.row_ids` |

    Random draws depend on the row id and the copy.

    Attributes:
        rows: Row of each sample, int64. With `repeats`, the number of rows times c is added for
            copy c.
        num_workers: Number of processes that prepare batches. None: see `dxn.data.loader.Loader`.
        timeout: Number of seconds to wait for a batch of these processes. None: no limit.
        batch_tokens: Maximum number of tokens of a batch of samples in order. A batch with more of
            them is divided, so that one long sample does not make all batches small. None: no
            limit.

    Args:
        opened: Opened rows.
        tokenizers: Tokenizer of each input, by input name.
        task: Task that encodes the targets. Default: samples have no targets.
        seed: Seed of all random choices.
        augment: Whether to augment samples, as in training.
        input_dropout: Probability of dropping each input, if `augment` is set. One is kept.
        repeats: Number of copies of each row, if `augment` is set.
        only: Names of the inputs to use. Default: all inputs.
    """

    def __init__(
        self,
        opened: Opened,
        tokenizers: Mapping[str, Tokenizer],
        *,
        task: Task | None = None,
        seed: int = 0,
        augment: bool = False,
        input_dropout: float = 0.0,
        repeats: int = 1,
        only: Sequence[str] | None = None,
    ):
        self.opened = opened
        self.tokenizers = tokenizers
        # Without the rest of the task, which data workers do not need.
        self.target = None if task is None else task.target
        self.seed = seed
        self.augment = augment
        self.input_dropout = input_dropout
        self.inputs = [
            name for name in tokenizers if name in opened.raws and (only is None or name in only)
        ]
        # Of those that the target reads, such as the words that it tags, batches have both.
        self.read = () if task is None else tuple(task.target.prepared_inputs)
        columns = opened.replaced.items()
        self.replaced = {name: column for name, column in columns if name not in self.read}
        # Inputs that the task needs in every sample.
        self.required = () if task is None else tuple(task.target.required)
        # All samples of a batch must have a target, or none. New data for prediction may have a
        # target in some rows only; these targets are not used.
        targets = opened.targets
        self.targets = None if targets is None or any(t is None for t in targets) else targets
        is_usable = np.zeros(len(opened), bool)
        for name in self.inputs:
            is_usable |= opened.present[name]
        for name in self.required:
            is_usable &= opened.present[name] if name in self.inputs else False
        usable = np.flatnonzero(is_usable)
        copies = range(repeats if augment else 1)
        self.rows = np.concatenate([usable + copy * len(opened) for copy in copies])
        self.num_rows = len(opened)  # asked for each sample
        self.num_workers = opened.num_workers
        self.timeout = opened.timeout
        self.batch_tokens = opened.batch_tokens

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def reads_files(self) -> bool:
        """Whether samples read files, because not all raw values are in memory."""
        for name in self.inputs:
            if name in self.replaced:
                continue
            files, file_of = self.opened.raws[name].values, self.opened.raws[name].rows
            if isinstance(files, RawFiles) and not files.are_in_memory(file_of):
                return True
        return False

    def loader(
        self,
        batch_size: int,
        *,
        batch_tokens: int | None = None,
        seed: int,
        shard: tuple[int, int],
        pin_memory: bool,
        ahead: int,
        is_any: Callable[[bool], bool],
    ) -> Loader:
        """Return the loader of a training.

        `ahead` and `is_any` are for streams, whose number of batches is not known, see
        `dxn.data.streaming.StreamLoader`.

        Args:
            batch_size: Number of samples per batch, over all processes.
            batch_tokens: Maximum number of tokens per batch, over all processes. None: any number.
            seed: Random seed of the order.
            shard: Index of this process and number of processes, (i, n).
            pin_memory: Whether to copy batches to page-locked memory.
            ahead: Number of batches per optimizer step.
            is_any: Function that returns whether a value is true in any of the processes.
        """
        order = BatchOrder(
            self, batch_size, batch_tokens=batch_tokens, seed=seed, shuffle=True, shard=shard
        )
        return Loader(order, pin_memory=pin_memory)

    @property
    def may_lack_inputs(self) -> bool:
        """Whether a sample can lack an input that others have."""
        if len(self.inputs) < 2:  # a sample without its only input is left out
            return False
        is_missing = any(self.opened.missing[name] for name in self.inputs)
        # A file that is read later can turn out to be bad.
        return self.input_dropout > 0 or is_missing or self.reads_files

    def keep(self, count: int) -> None:
        """Remove all but `count` samples, which are spread over all of them."""
        self.rows = self.rows[list(evenly_spaced(range(len(self)), count))]

    def lengths(self) -> np.ndarray:
        """Return the approximate length of each sample: of its inputs together, or of its target.

        It is used to batch samples of similar length, which need less padding.
        """
        from dxn.tasks.target import Target

        # Copies of a row share its length: that of a text takes as long as encoding it.
        rows, copies = np.unique(self.rows % max(len(self.opened), 1), return_inverse=True)
        lengths = np.zeros(len(rows))
        for name in self.inputs:
            present = self.opened.present[name][rows]
            column = self.opened.raws[name]
            lengths[present] += lengths_of(column, rows[present], self.tokenizers[name])
        target = self.target
        has_lengths = target is not None and type(target).length is not Target.length
        if target is not None and has_lengths and self.targets is not None:
            targets = (target.length(self.targets[row]) for row in rows.tolist())
            lengths = np.maximum(lengths, np.fromiter(targets, np.float64, len(rows)))
        return lengths[copies]

    def describe(self, i: int) -> str:
        """Return the origin and the files of sample i, such as "train.csv row 17 (17.png)"."""
        return self.describe_index(int(self.rows[i]))

    def describe_index(self, row: int) -> str:
        """Return the same for a value of "#index" in a batch."""
        row %= len(self.opened)
        cells = self.opened.cells
        inputs = [name for name in self.inputs if name in cells]
        values = [(cells[name][row], self.tokenizers[name]) for name in inputs]
        files = [value for value, tokenizer in values if tokenizer.reader.is_path(value)]
        return self.opened.origin[row] + (f" ({', '.join(files)})" if files else "")

    def sample_of(self, epoch: int, row: int) -> dict[str, Any] | None:
        """Return the sample of a value of "#index" in a batch. None: it cannot be read again."""
        (i,) = np.flatnonzero(self.rows == row)
        return self[epoch, int(i)]

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        epoch, i = key
        rand, sample = self._inputs(epoch, i, self._order())
        return self._with_target(epoch, i, rand, sample)

    def batch(
        self, epoch: int, indices: Sequence[int], *, drop_inputs: bool = True
    ) -> dict[str, Any]:
        """Return the collated batch of some samples.

        It equals `collate` of the samples, but texts are encoded together, without coordinates, and
        inputs whose values have been encoded have these vectors. If the files of all samples turn
        out to be bad, its size is 0.

        Args:
            epoch: Number of the epoch.
            indices: Indices of the samples.
            drop_inputs: Whether inputs are dropped, see `input_dropout`.
        """
        together, order, encoded_inputs = self._together, self._order(), self.replaced
        prepared = [
            self._inputs(epoch, i, order, together, encoded_inputs, drop_inputs=drop_inputs)
            for i in indices
        ]
        bad = self._bad_files(indices)
        if bad:
            is_left = [s.keys() >= set(self.required) and len(s) > 0 for _, s in prepared]
            if not any(is_left):
                return {"#size": 0, "#index": [], BAD: bad}
            indices = [i for i, left in zip(indices, is_left, strict=True) if left]
            prepared = [pair for pair, left in zip(prepared, is_left, strict=True) if left]
        encoded: dict[str, dict[str, Tensor]] = {}
        for name in self.inputs:
            having = [(rand, sample[name]) for rand, sample in prepared if name in sample]
            if name in together and having:
                rands, raws = zip(*having, strict=True)
                encoded[name] = self.tokenizers[name].batch(raws, rands)
            elif name in encoded_inputs and having:
                encoded[name] = self.opened.encoded[name].batch(row for _, row in having)
        pairs = zip(indices, prepared, strict=True)
        samples = [self._with_target(epoch, i, rand, sample) for i, (rand, sample) in pairs]
        batch = self.collate(samples, encoded)
        for name, column in self.opened.encoded.items():
            if name not in self.replaced and name in batch:
                values, index = batch[name], self.rows[list(indices)] % len(self.opened)
                vectors = column.batch(index[values["rows"].numpy()])
                kept = values if name in self.read else {VALUES: values}
                batch[name] = {**kept, **vectors, "rows": values["rows"]}
        return {**batch, BAD: bad} if bad else batch

    @property
    def _together(self) -> set[str]:
        """Names of the inputs that are prepared for all samples of a batch together."""
        # An input is prepared for each sample alone if it has files, or if the target reads it,
        # which can also change it.
        return {
            name
            for name in self.inputs
            if not self.tokenizers[name].reader.files
            and name not in self.read
            and name not in self.replaced
        }

    def item(self, i: int) -> dict[str, Any]:
        """Return sample i as `batch_of` needs it, without augmentation.

        Its files are decoded and prepared, but a text is still a text.
        """
        rand, sample = self._inputs(0, i, self._order(), self._together)
        return self._with_target(0, i, rand, sample)

    def batch_of(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the batch of items, which can be those of other samples of the same model.

        See `item`. The result equals that of `batch` for the same samples.
        """
        encoded: dict[str, dict[str, Tensor]] = {}
        for name in self._together:
            raws = [item[name] for item in items if name in item]
            if raws:
                encoded[name] = self.tokenizers[name].batch(raws)
        return self.collate(items, encoded)

    def _bad_files(self, indices: Sequence[int]) -> dict[str, str]:
        """Return why files of samples, which were not decoded before, are bad, by origin."""
        reasons: dict[str, str] = {}
        for column in (self.opened.raws[name] for name in self.inputs):
            files, file_of = column.values, column.rows
            if isinstance(files, RawFiles) and files.bad and file_of is not None:
                for i in indices:
                    row = int(self.rows[i]) % len(self.opened)
                    reason = files.bad.get(int(file_of[row]))
                    if reason is not None:
                        reasons[self.opened.origin[row]] = reason
        return reasons

    def _order(self) -> list[str]:
        """Return the inputs in the order in which those of a sample are prepared.

        All inputs and the target draw from one generator. The order is fixed, so that a sample is
        reproducible: `batch` prepares the inputs last that are prepared together.
        """
        last = [
            n for n in self.inputs if not self.tokenizers[n].reader.files and n not in self.read
        ]
        return [*(name for name in self.inputs if name not in last), *last]

    def _inputs(
        self,
        epoch: int,
        i: int,
        order: Sequence[str],
        together: Container[str] = (),
        encoded: Mapping[str, EncodedColumn] = MappingProxyType({}),
        *,
        drop_inputs: bool = True,
    ) -> tuple[random.Random | None, dict[str, Any]]:
        """Prepare the inputs of a sample, except for those in `together`, which stay raw values.

        Those in `encoded` become the number of the row.

        Returns:
            The random generator of the sample, None without augmentation; and its inputs by name.
        """
        row = int(self.rows[i]) % self.num_rows
        rand = random.Random(f"{self.seed}/{epoch}/{self._id(i)}") if self.augment else None
        present = [name for name in self.inputs if self.opened.present[name][row]]
        if rand is not None and drop_inputs and self.input_dropout:
            rest = remaining_inputs(present, self.input_dropout, rand)
            present = [name for name in present if name in rest or name in self.required]
        sample: dict[str, Any] = {}
        for name in order:
            if name not in present:
                continue
            if name in encoded and encoded[name].has(row):
                sample[name] = row
                continue
            raw = self.opened.raws[name][row]
            if raw is None:  # its file was not decoded before, and is bad
                continue
            if name in encoded:  # its encoder has no vectors for it
                sample[name] = row
                continue
            sample[name] = raw if name in together else self.tokenizers[name](raw, rand)
        return rand, sample

    def _with_target(
        self, epoch: int, i: int, rand: random.Random | None, sample: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a sample with its target, if there is one, and its index."""
        index, target = int(self.rows[i]), self.target
        if target is not None and (target.source != "column" or self.targets is not None):
            row = index % self.num_rows
            if target.random:
                # In validation, the seed is the same in every epoch, so that metrics of different
                # epochs are comparable.
                epoch_of = epoch if self.augment else "always"
                rand = random.Random(f"{self.seed}/{epoch_of}/{self._id(i)}/hidden")
            value = None if self.targets is None else self.targets[row]
            if target.source == "hashes":
                # Of the raw values, because augmentation makes equal inputs different. Hashing a
                # photo in each epoch takes much less time than preparing it.
                names = [name for name in self.inputs if self.opened.present[name][row]]
                value = {name: digest_of(self.opened.raws[name], row) for name in names}
            try:
                encoded = target.encode(value, sample, rand)
            except BadMedia as error:
                raise UserError(f"{self.describe(i)}: {error}") from error
            if encoded is not None:
                sample[TARGET] = encoded
        row_ids = self.opened.row_ids
        return {**sample, "#index": index if row_ids is None else int(row_ids[index])}

    def collate(
        self,
        samples: Sequence[Mapping[str, Any]],
        encoded: Mapping[str, dict[str, Tensor]] | None = None,
    ) -> dict[str, Any]:
        """Collate samples into the batch format of `dxn.models.MultimodalModel`.

        Args:
            samples: The samples.
            encoded: Collated dicts of inputs that have been prepared together, by input name.

        Returns:
            A dict with "#size" (number of samples), "#index" (list of `rows`), "target" if there
            are targets, and one key per input. The value of an input is the collated dict of the
            samples that have this input, together with "rows", the indices of these samples in the
            batch. An input that no sample has is left out.

        Raises:
            UserError: If no input of a sample has a token.
        """
        batch: dict[str, Any] = {
            "#size": len(samples),
            "#index": [sample["#index"] for sample in samples],
        }
        has_tokens = np.zeros(len(samples), bool)
        for name in self.inputs:
            rows = [i for i, sample in enumerate(samples) if name in sample]
            # Missing inputs are not padded, so they need neither memory nor computation.
            if rows:
                part = None if encoded is None else encoded.get(name)
                if part is None:
                    part = self.tokenizers[name].collate([samples[i][name] for i in rows])
                batch[name] = {**part, "rows": torch.tensor(rows)}
                mask = part.get("mask")  # only texts and categories can be without tokens
                has_tokens[rows] |= True if mask is None else mask.any(1).numpy()
        # The vector of a sample without a token would silently be zeros.
        if not has_tokens.all():
            row = batch["#index"][int(has_tokens.argmin())]
            raise UserError(
                f"{self.describe_index(row)}: its inputs have no tokens, such as a text whose "
                "characters the tokenizer does not know; leave the row out"
            )
        if self.target is not None and TARGET in samples[0]:
            batch[TARGET] = self.target.collate([sample[TARGET] for sample in samples])
        return batch

    def _id(self, i: int) -> str:
        """Return what the random draws of sample i depend on, besides seed and epoch.

        Not on i, which changes if other rows are left out.
        """
        copy, row = divmod(int(self.rows[i]), self.num_rows)
        row_ids = self.opened.row_ids
        row_id = row if row_ids is None else int(row_ids[row])
        # The first copy is the sample that there is without repeats.
        return f"{row_id}/{copy}" if copy else f"{row_id}"


def printable(cell: Any) -> Any:
    """Return a cell as it can be printed in a table, or None."""
    if isinstance(cell, Path):
        return str(cell)
    is_date = isinstance(cell, datetime.date | datetime.time)
    return cell if is_date or isinstance(cell, str | int | float | list) else None
