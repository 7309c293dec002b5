"""The map-style data set that prepares opened rows as samples and collates them into batches."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor
from torch.utils.data import Dataset

from dxn.core.randomness import evenly_spaced
from dxn.data.raws import CACHE_GB, RawColumn, digest_of, is_present, num_tokens_of
from dxn.data.reading import TIMEOUT, Opened
from dxn.data.rows import TARGET
from dxn.tasks.task import Task
from dxn.tokenize.base import Tokenizer

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


class Keys(NamedTuple):
    """The samples of one batch, which the data set prepares together.

    Args:
        epoch: Number of the epoch.
        samples: Indices of the samples.
        drop_inputs: Whether inputs are dropped, see `InputDropout`.
        filler: Whether the batch only keeps the processes in step, so that its loss does not count.
    """

    epoch: int
    samples: Sequence[int]
    drop_inputs: bool = True
    filler: bool = False


@dataclass(frozen=True)
class Draft:
    """A sample without its target.

    Args:
        sample: Prepared inputs by name, and the raw values of those that are prepared later.
        index: Value of "#index" in the batch.
        row: The row, or the first token of a window.
        rand: Random generator of the sample; None without augmentation.
        hidden: Seed for a task that is random in validation.
    """

    sample: dict[str, Any]
    index: int
    row: int
    rand: random.Random | None
    hidden: str


class Samples(Dataset):
    """A map-style data set of opened rows. Item (epoch, i) is sample i, prepared for this epoch.

    An item depends only on (seed, epoch, row, copy), not on its batch or on the worker that
    prepares it. It contains "#index" (see `rows`), "target" if there are targets, and a dict of
    tensors for each input that the row has.

    Attributes:
        rows: Row of each sample. With `repeats`, the number of rows times c is added for copy c.
        num_workers: Number of processes that prepare batches. None: see `dxn.data.loader.Loader`.
        timeout: Number of seconds to wait for a batch of these processes. None: no limit.

    Args:
        opened: Opened rows.
        preprocessors: Tokenizer of each input, by input name.
        task: Task that encodes the targets. Default: samples have no targets.
        seed: Seed of all random choices.
        augment: Whether to augment samples, as in training.
        input_dropout: Which inputs are dropped, if `augment` is set.
        repeats: Number of copies of each row, if `augment` is set.
        only: Names of the inputs to use. Default: all inputs.
    """

    def __init__(
        self,
        opened: Opened,
        preprocessors: Mapping[str, Tokenizer],
        *,
        task: Task | None = None,
        seed: int = 0,
        augment: bool = False,
        input_dropout: InputDropout = InputDropout(),
        repeats: int = 1,
        only: Sequence[str] | None = None,
    ):
        self.opened = opened
        self.preprocessors = preprocessors
        # Without the rest of the task, which data workers do not need.
        self.target = None if task is None else task.target
        self.seed = seed
        self.augment = augment
        self.input_dropout = input_dropout
        self.inputs = [
            name for name in preprocessors if name in opened.raws and (only is None or name in only)
        ]
        # Inputs that the task needs in every sample, such as the words that it tags.
        self.required = () if task is None else tuple(task.target.required)
        # All samples of a batch must have a target, or none. New data for prediction may have a
        # target in some rows only; these targets are not used.
        targets = opened.targets
        self.targets = None if targets is None or any(t is None for t in targets) else targets
        usable = [row for row in range(len(opened)) if self._is_usable(row)]
        copies = range(repeats if augment else 1)
        self.rows = [row + copy * len(opened) for copy in copies for row in usable]
        self.num_workers = opened.num_workers
        self.timeout = opened.timeout
        # Copies of a row share its length: that of a text takes as long as encoding it.
        self._lengths: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def reads_files(self) -> bool:
        """Whether samples read files, because not all raw values are in memory."""
        columns = [self.opened.raws[name] for name in self.inputs]
        return any(isinstance(column, RawColumn) and not column.is_complete for column in columns)

    def keep(self, count: int) -> None:
        """Remove all but `count` samples, which are spread over all of them."""
        self.rows = list(evenly_spaced(self.rows, count))

    def num_tokens(self, i: int) -> float:
        """Return the approximate length of sample i: that of its inputs together, or of its target.

        It is used to batch samples of similar length, which need less padding.
        """
        row = self.rows[i] % len(self.opened)
        if row not in self._lengths:
            self._lengths[row] = self._num_tokens(row)
        return self._lengths[row]

    def _num_tokens(self, row: int) -> float:
        length = 0.0
        for name in self._present(row):
            length += num_tokens_of(self.opened.raws[name], row, self.preprocessors[name])
        if self.target is None or self.targets is None:
            return length
        return max(length, self.target.length(self.targets[row]))

    def describe(self, i: int) -> str:
        """Return the origin and the files of sample i, such as "train.csv row 17 (17.png)"."""
        return self.describe_index(self.rows[i])

    def describe_index(self, row: int) -> str:
        """Return the same for a value of "#index" in a batch."""
        row %= len(self.opened)
        cells = self.opened.cells
        inputs = [name for name in self.inputs if name in cells]
        values = [(cells[name][row], self.preprocessors[name]) for name in inputs]
        files = [value for value, prepare in values if prepare.reader.is_path(value)]
        return self.opened.origin[row] + (f" ({', '.join(files)})" if files else "")

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        return self._finished(self._draft(key))

    def batch(self, keys: Keys) -> dict[str, Any]:
        """Return the collated batch of these samples, with "#filler" if it is a filler.

        It equals `collate` of the samples, but texts are encoded together, without coordinates.
        """
        together = [name for name in self.inputs if not self._is_alone(name)]
        drafts = [
            self._draft((keys.epoch, i), together, drop_inputs=keys.drop_inputs)
            for i in keys.samples
        ]
        encoded: dict[str, dict[str, Tensor]] = {}
        for name in together:
            having = [draft for draft in drafts if name in draft.sample]
            if having:
                raws = [draft.sample[name] for draft in having]
                rands = [draft.rand for draft in having]
                encoded[name] = self.preprocessors[name].batch(raws, rands)
        batch = self.collate([self._finished(draft) for draft in drafts], encoded)
        return {**batch, "#filler": True} if keys.filler else batch

    def _is_alone(self, name: str) -> bool:
        """Whether an input is prepared for each sample alone: it has files, or the target reads it.

        The target can also change it.
        """
        read = () if self.target is None else self.target.reads
        return bool(self.preprocessors[name].reader.files) or name in read

    def _draft(
        self, key: tuple[int, int], together: Container[str] = (), *, drop_inputs: bool = True
    ) -> Draft:
        """Prepare the inputs of a sample, except for those in `together`."""
        epoch, i = key
        copy, row = divmod(self.rows[i], len(self.opened))
        # Seed with the row index, not with i, which changes if other rows are left out. The first
        # copy is the sample that there is without repeats.
        number = f"{row}/{copy}" if copy else f"{row}"
        rand = random.Random(f"{self.seed}/{epoch}/{number}") if self.augment else None
        present = self._present(row)
        if rand is not None and drop_inputs and self.input_dropout.probability:
            kept = self.input_dropout.kept(present, rand)
            present = [name for name in present if name in kept or name in self.required]
        # All inputs and the target draw from one generator. Their order is fixed, so that a sample
        # is reproducible.
        sample: dict[str, Any] = {}
        # These come first, because `batch` prepares all other inputs together.
        for name in sorted(present, key=lambda name: not self._is_alone(name)):
            raw = self.opened.raws[name][row]
            sample[name] = raw if name in together else self.preprocessors[name](raw, rand)
        # For a task that is random in validation, where `rand` is None. There the seed is the same
        # in every epoch, so that metrics of different epochs are comparable.
        hidden = f"{self.seed}/{epoch if self.augment else 'always'}/{number}/hidden"
        return Draft(sample, self.rows[i], row, rand, hidden)

    def _finished(self, draft: Draft) -> dict[str, Any]:
        """Return a sample with its target, if there is one, and its index."""
        sample, target = draft.sample, self.target
        if target is not None and (target.source != "column" or self.targets is not None):
            rand = random.Random(draft.hidden) if target.random else draft.rand
            encoded = target.encode(self._value(draft.row), sample, rand)
            if encoded is not None:
                sample[TARGET] = encoded
        return {**sample, "#index": draft.index}

    def collate(
        self,
        samples: Sequence[Mapping[str, Any]],
        encoded: Mapping[str, dict[str, Tensor]] | None = None,
    ) -> dict[str, Any]:
        """Collate samples into the batch format of `dxn.models.Model`.

        Args:
            samples: The samples.
            encoded: Collated dicts of inputs that have been prepared together, by input name.

        Returns:
            A dict with "#size" (number of samples), "#index" (list of `rows`), "target" if there
            are targets, and one key per input. The value of an input is the collated dict of the
            samples that have this input, together with "rows", the indices of these samples in the
            batch. An input that no sample has is left out.
        """
        batch: dict[str, Any] = {
            "#size": len(samples),
            "#index": [sample["#index"] for sample in samples],
        }
        for name in self.inputs:
            rows = [i for i, sample in enumerate(samples) if name in sample]
            # Missing inputs are not padded, so they need neither memory nor computation.
            if rows:
                collate = self.preprocessors[name].collate
                done = None if encoded is None else encoded.get(name)
                batch[name] = collate([samples[i][name] for i in rows]) if done is None else done
                batch[name]["rows"] = torch.tensor(rows)
        if self.target is not None and TARGET in samples[0]:
            batch[TARGET] = self.target.collate([sample[TARGET] for sample in samples])
        return batch

    def _present(self, row: int) -> list[str]:
        return [name for name in self.inputs if is_present(self.opened.raws[name], row)]

    def _is_usable(self, row: int) -> bool:
        present = self._present(row)
        return bool(present) and all(name in present for name in self.required)

    def _value(self, row: int) -> Any:
        """Return the value of a row from which the target is encoded, see `Target.source`."""
        assert self.target is not None
        if self.target.source == "hashes":
            return self._hashes(row)
        return None if self.targets is None else self.targets[row]

    def _hashes(self, row: int) -> dict[str, bytes]:
        """Return a hash of each raw input of a row."""
        # Of the raw values, because augmentation makes equal inputs different. Hashing a photo in
        # each epoch takes much less time than preparing it.
        return {name: digest_of(self.opened.raws[name], row) for name in self._present(row)}
