"""The base classes of a modality: `Reader`, `Tokenizer` and `Adapter`.

A reader turns a cell of a table into a raw value, a tokenizer turns a raw value into tensors, and
an adapter turns a batch of these tensors into `Tokens`. A new modality defines one of each. All
members have a default except `Reader.read`, `Tokenizer.__call__` and `Adapter.forward`.
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor, nn

from dxn.core.errors import UserError
from dxn.core.parts import Recorded
from dxn.core.schema import CheckedMembers
from dxn.core.tokens import Tokens
from dxn.core.untrusted import shortened

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Vocabulary

    from dxn.tokenize.masking import Masking
    from dxn.tokenize.patch_contents import PatchContents
    from dxn.tokenize.text.chat import ChatTemplate

# Import paths instead of classes: a command imports only the adapters that it uses.
ADAPTERS: dict[str, str] = {
    "text": "dxn.tokenize.TextAdapter",
    "image": "dxn.tokenize.ImageAdapter",
    "audio": "dxn.tokenize.AudioAdapter",
    "video": "dxn.tokenize.VideoAdapter",
    "series": "dxn.tokenize.SeriesAdapter",
    "number": "dxn.tokenize.NumberAdapter",
    "category": "dxn.tokenize.CategoryAdapter",
    "date": "dxn.tokenize.DateAdapter",
}

READERS: dict[str, str] = {
    "text": "dxn.tokenize.text.tokenizer.TextReader",
    "image": "dxn.tokenize.image.reader.ImageReader",
    "audio": "dxn.tokenize.audio.reader.AudioReader",
    "video": "dxn.tokenize.video.reader.VideoReader",
    "series": "dxn.tokenize.series.reader.SeriesReader",
    "number": "dxn.tokenize.cells.number.NumberReader",
    "category": "dxn.tokenize.cells.category.CategoryReader",
    "date": "dxn.tokenize.cells.date.DateReader",
}

# Key of samples and batches: the start of a value in the original one, and the original length of a
# step, after augmentation that moves the time.
TIME_MAP = "time_map"
# Key of batches: output vectors of an encoder that were computed before, see `EncodedAdapter`.
ENCODED = "encoded"
# Key of the batch of an input that has such vectors: the batch of its values, for a baseline.
VALUES = "values_of"
ADDED = "added"  # key of a text: vectors (B, N, D) for its tokens, such as the segments of BERT
MASKED = "masked"  # key of samples and batches: True at the columns to predict
# Keys of a batch that say what a GPU would have to be asked for: whether no sample was padded, and
# the number of real tokens of all samples, if it is known and does not follow from the shapes.
FULL, NUM_REAL = "#full", "#real"
# Keys of a masked sample that are concatenated over the masked columns of all samples of a batch.
JOINED = ("masked_target", "masked_valid")
# What the adapters have learned besides their weights. One file for all of them: a table can have
# thousands of columns. It has one line per adapter, so that it can be appended to.
STATE_FILE = "adapters.jsonl"
MAX_FILE_NAME = 200  # bytes of the key of an adapter in the name of its file

# Tensors, and texts as they are.
Sample = dict[str, Any]
Batch = dict[str, Any]


class Placement(NamedTuple):
    """Where prepared values lie in the raw ones. Of A axes, a picture has height and width.

    Coordinates of tokens are origin + scale * fraction, where the fraction is from 0 to 1 along the
    prepared value. Places in a table are coordinates divided by the unit.

    Args:
        origin: (..., A). Coordinates of the start.
        scale: (..., A). Length of the prepared value in the same units; negative if it is mirrored.
        unit: (..., A). Length of the raw value, if places are fractions of it, or else 1.
    """

    origin: Tensor
    scale: Tensor
    unit: Tensor


class BadMedia(ValueError):
    """An image, clip or text is invalid or exceeds a limit. The message is the reason."""


class Reader(CheckedMembers):
    """Turns a cell of a table into a raw value. It has no weights.

    A reader is also asked what is in a column, before there is a model. So the class can be
    instantiated without arguments.

    Attributes:
        modality: Name of the modality, such as "text".
        files: Whether a str is the path of a file, relative to the folder of the table.
        media: Kind of these files, as HTML forms name it, such as "image/*".
        words: Whether a cell can be a list of words.
        template: What writes a conversation as a text. None: cells are no conversations.
        steps: Whether raw values are series: float tensors (T, C), NaN where a value is missing.
        axes: Number A of axes along which parts of a raw value have places: 2 for pictures, 1 for
            what has only a time. 0: there are none.
        relative: Whether places are fractions of the `extent`.
        formats: Suffixes of the files that `write` writes, the usual one first.
        tabular: Whether it reads cells of a table, such as numbers. Each of these inputs has an
            adapter of its own, because columns have different units. They are also printed and
            evaluated together.
    """

    modality: ClassVar[str]
    files: ClassVar[bool] = False
    media: ClassVar[str] = ""
    words: ClassVar[bool] = False
    template: ChatTemplate | None = None
    steps: ClassVar[bool] = False
    axes: ClassVar[int] = 0
    relative: ClassVar[bool] = False
    formats: ClassVar[Sequence[str]] = ()
    tabular: ClassVar[bool] = False

    def read(self, cell: Any) -> Any:
        """Read a cell (path, bytes, array or str) as a raw value.

        None means that there is no value: the cell says so, such as "N/A", or it is a video without
        the sound track that is to be read.

        Raises:
            BadMedia: If the cell is invalid or exceeds a limit. The message is the reason.
        """
        raise NotImplementedError

    def write(self, raw: Any, path: Path) -> None:
        """Write a raw value to a file, whose suffix is one of `formats`."""
        raise NotImplementedError(f"a value of {self.modality} is no file")

    def extent(self, cell: Any) -> tuple[float, ...]:
        """Return the length of a raw value along its `axes`, in the units of places in a table.

        Default: infinity, which says that it is not known.

        Raises:
            BadMedia: If the cell cannot be read.
        """
        return (math.inf,) * self.axes

    def score(self, cells: Sequence[Any]) -> float:
        """Score from 0 to 1 how likely a column of non-missing cells has this modality.

        Cells that say that there is no value, such as "N/A", are left out. There is at least one
        cell. Default: 0. `dxn.tokenize.column_profile` knows the modalities of dxn.
        """
        return 0.0

    def is_path(self, cell: Any) -> bool:
        """Whether a cell is the path of a file."""
        return self.files and isinstance(cell, str)

    def learn(self, cells: Sequence[Any]) -> str:
        """Find out how the non-missing cells of a column are written, such as the decimal mark.

        It is called before the cells of a training are read, because a single cell can be
        ambiguous. The cells of new data are read in the format of the training.

        Returns:
            A sentence about cells that are read differently than they look; "" if there are none.
        """
        return ""

    def layout(self, cells: Sequence[Any]) -> Hashable:
        """Return what the non-missing cells of all inputs of an adapter must have in common.

        Such as the number of channels. An input with another layout gets an adapter of its own.
        """
        return None

    def describe(self, raws: Sequence[Any], cells: Sequence[Any]) -> str:
        """Describe the values of a split in one line for `dxn check`. Default: "".

        Args:
            raws: Raw values. Getting one can read a file, so do not keep a list of all of them.
            cells: What the raw values were read from.
        """
        return ""


class Tokenizer(CheckedMembers):
    """Turns a raw value into tensors. It is picklable, runs in data workers, and has no weights.

    Attributes:
        reader: Reader of the raw values.
        fill: Value of the padding, by key of a sample. Default: 0.
        vocabulary: `tokenizers.Tokenizer`, if the tokens are from a vocabulary. It is empty until
            the adapter is fitted.
        max_len: Maximum number of tokens from the vocabulary.
        cut_unit: What `cut` counts. Empty: no value is cut, so none is read to count it.
        cut_option: Option of the adapter that limits the length.
        choices: Values that a user can choose from. Empty: any value is possible.
        is_random: Whether samples of a training depend on `rand`, as those with augmentation do.
        count_columns: Function that returns the number of columns of the samples (B,) of a batch.
            An adapter can set it, if the samples have no mask.
    """

    reader: Reader
    fill: ClassVar[Mapping[str, float]] = MappingProxyType({})
    vocabulary: Any = None
    max_len: int = 0
    cut_unit: str = "tokens"
    cut_option: str = "max_len"
    choices: Sequence[str] = ()
    is_random: bool = True
    count_columns: Callable[[Batch], Tensor] | None = None

    @property
    def modality(self) -> str:
        """Name of the modality."""
        return self.reader.modality

    @property
    def drawing(self) -> str:
        """Name of the drawer of its raw values. Default: the modality."""
        return self.modality

    @property
    def plain_values(self) -> Tokenizer:
        """Tokenizer of the raw values, from which a drawer reads options. Default: this one."""
        return self

    def __call__(self, raw: Any, rand: random.Random | None = None) -> Sample:
        """Convert a raw value to one sample.

        Args:
            raw: Value that the reader returned.
            rand: Random generator of the augmentation. None: no augmentation.
        """
        raise NotImplementedError

    def batch(
        self, raws: Sequence[Any], rands: Sequence[random.Random | None] | None = None
    ) -> Batch:
        """Convert raw values to a batch. Texts override it, because it is faster for all together.

        Args:
            raws: Raw values.
            rands: Random generator of each value. Default: no augmentation.
        """
        rands = [None] * len(raws) if rands is None else rands
        return self.collate([self(raw, rand) for raw, rand in zip(raws, rands, strict=True)])

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """Collate samples to a batch, see `pad`."""
        batch = pad(samples, self.fill)
        if self.count_columns is not None and not batch[FULL]:
            batch[NUM_REAL] = int(self.count_columns(batch).sum())
        return batch

    def count(self, raw: Any) -> int:
        """Return the number of columns of a raw value, if `count_columns` is set."""
        assert self.count_columns is not None
        return int(self.count_columns(self.collate([self(raw)])))

    def widen(self, batch: Batch) -> Batch:
        """Add padding to a batch, so that there are few numbers of columns. Default: unchanged."""
        return batch

    def length(self, raw: Any) -> float:
        """Return the approximate number of tokens, used to batch samples of similar length.

        It must not depend on `Adapter.fit` if files are read, because the length of a file that
        does not fit into memory is stored when it is read for the first time.
        """
        # A constant means that all samples have the same length.
        return 1.0

    def lengths(self, raws: Sequence[Any]) -> np.ndarray:
        """Return the `length` of each raw value."""
        if type(self).length is Tokenizer.length:
            return np.ones(len(raws))
        return np.fromiter(map(self.length, raws), np.float64, len(raws))

    def header(self, cell: Any) -> float | None:
        """Check a file without decoding it, and return its `length`. Default: decode it.

        None: the file has no value, see `Reader.read`.

        Raises:
            BadMedia: If the header is invalid, or announces more than a limit.
        """
        raw = self.reader.read(cell)
        return None if raw is None else self.length(raw)

    def placement(self, sample: Mapping[str, Tensor]) -> Placement:
        """Return where a sample, or each of a batch, lies in its raw value.

        Only tokenizers whose reader has `axes` define it.
        """
        raise NotImplementedError

    def cut(self, raw: Any) -> tuple[int, int] | None:
        """Return (kept, total) numbers of tokens of a value that is truncated, otherwise None."""
        return None

    def plain(self) -> Tokenizer:
        """Return a tokenizer whose reader does not depend on augmentation.

        Validation and test samples are read with it, so that they are equal to those of a
        prediction.
        """
        return self

    def remark(self, raws: Sequence[Any]) -> str:
        """Return what is unusual about raw values, such as unknown categories. Default: ""."""
        return ""


class Adapter(CheckedMembers, Recorded, nn.Module):
    """Embeds one modality: a batch of its tokenizer becomes `Tokens`.

    Attributes:
        reader: Class of the readers, which is asked what is in a column.
        dim: Width D of a token.
        tokenizer: Tokenizer whose batches are embedded.
        embedding: Embedding of the tokens of a vocabulary, after `fit`.
        lookback: Number of previous tokens on which the embedding of a token depends. None: all.
        tokens_per_column: Number of tokens whose mean is one column.
        num_new_tokens: Number of tokens that its vocabulary can have in addition to those of the
            checkpoint from which it is.
        window: Number of columns that a model without other inputs encodes together. 0: all.
        parts: Number of equal parts of the columns, each of which a model encodes alone.
        is_separate: Whether there can be several parts, so that there must be no other inputs.
    """

    reader: ClassVar[type[Reader]]
    dim: int
    tokenizer: Tokenizer
    embedding: nn.Embedding
    lookback: int | None = None
    tokens_per_column: int = 1
    num_new_tokens: int = 0
    window: int = 0
    parts: int = 1
    is_separate: bool = False

    @property
    def modality(self) -> str:
        """Name of the modality."""
        return self.reader.modality

    def forward(self, batch: Mapping[str, Tensor]) -> Tokens:
        """Embed a batch as Tokens (B, N, D) with one span, named after the modality."""
        raise NotImplementedError

    def fit(self, raws: Sequence[Any]) -> Self:
        """Learn from raw values of the training split, for example train a vocabulary.

        Args:
            raws: Raw values. A file that does not fit into memory is read each time that its item
                is used, so use only as many as are needed.
        """
        return self

    @property
    def plain_values(self) -> Adapter:
        """Adapter of the raw values, from which a drawer reads options. Default: this one."""
        return self

    @property
    def has_vocabulary(self) -> bool:
        """Whether the tokens are from a vocabulary, so that a model can predict them."""
        return self.tokenizer.vocabulary is not None

    def check_columns_are_tokens(self, task: str) -> None:
        """Refuse columns that are means of several tokens, for a task about each token.

        Raises:
            UserError: If a column has several tokens.
        """
        if self.tokens_per_column > 1:
            raise UserError(
                f"head={task}: needs one column per token; set adapters.text.embedding.pool=1"
            )

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Use this vocabulary and create the embedding, if `has_vocabulary`."""
        raise TypeError(f"{type(self).__name__} has no vocabulary")

    def masking(self, *, ratio: float | None = None) -> Masking | None:
        """Create the masking for masked pretraining. None: not supported, or ratio is 0.

        Call it after `fit`, because a masking copies what was learned.

        Args:
            ratio: Fraction of the columns to mask. Default: the adapter's own ratio.
        """
        return None

    def contents(self) -> PatchContents | None:
        """Return the values of the patches that are the columns. None: columns are no patches.

        Call it after `fit`, because the result contains copies of what was learned.
        """
        return None

    def fold(self) -> None:
        """Move constant factors of the input to the weights, for a model that is only used."""

    def describe(self, raw: Any) -> str:
        """Describe the columns of one raw value in one line. Default: ""."""
        return ""

    def tokens(self, cells: Sequence[Any]) -> Tokens:
        """Read cells and embed them as one batch of Tokens.

        Raises:
            BadMedia: If a cell cannot be read, or has no value.
        """
        # A text is a sequence, too: that of its letters.
        if isinstance(cells, str | bytes) or len(cells) == 0:
            received = shortened(cells)
            raise BadMedia(f"{self.modality}: must be a list of at least one value, got {received}")
        raws = [self._read(i, cell) for i, cell in enumerate(cells)]
        # Not `batch`, whose coordinates can be NaN.
        return self(self.tokenizer.collate([self.tokenizer(raw) for raw in raws]))

    def _read(self, i: int, cell: Any) -> Any:
        """Read cell i, counted from 0."""
        reader = self.tokenizer.reader
        path = f"{cell}: " if reader.is_path(cell) else ""
        try:
            raw = None if cell is None else reader.read(cell)
        except BadMedia as error:
            raise BadMedia(f"{self.modality} {i + 1}: {path}{error}") from error
        if raw is None:
            raise BadMedia(
                f"{self.modality} {i + 1}: {path}has no value; leave it out, and `spread` the "
                "tokens over the batch"
            )
        return raw

    def state(self) -> dict[str, Any]:
        """Return what `fit` learned besides the weights, JSON-serializable."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Use what `state` returned, before the weights are loaded.

        Raises:
            ValueError: If it is not valid. It can come from an untrusted source.
        """

    def save(self, folder: Path, name: str) -> None:
        """Write the state to a model folder; name is the key of the adapter."""
        if type(self).state is not Adapter.state:
            with (folder / STATE_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps({name: self.state()}, ensure_ascii=False) + "\n")

    def load(self, folder: Path, name: str) -> None:
        """Load what `save` wrote.

        Raises:
            UserError: If the file is missing or damaged.
        """
        if type(self).state is Adapter.state:
            return
        state, path = read_state(folder, name), folder / STATE_FILE
        try:
            self.load_state(state)
        except KeyError as error:
            raise UserError(f"{path}: {name}: has no {error}; copy the model again") from error
        # PyTorch raises an OverflowError or a RuntimeError for an integer of hundreds of digits.
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise UserError(f"{path}: {name}: {error}; copy the model again") from error


def pad(samples: Sequence[Mapping[str, Any]], fill: Mapping[str, float]) -> Batch:
    """Collate samples to a batch: each key is padded at the end of all its axes, and stacked.

    Args:
        samples: Samples with the same keys.
        fill: Value of the padding, by key. Default: 0.

    Returns:
        Tensors (B, ...), and lists of what is no tensor. `masked` has the shape (B, N), as the
        columns have. `masked_target` and `masked_valid` are concatenated over the masked columns of
        all samples. FULL and, for samples with a key `mask`, NUM_REAL are added.
    """
    batch: Batch = {FULL: True}
    if "mask" in samples[0]:
        batch[NUM_REAL] = sum(len(sample["mask"]) for sample in samples)
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        if not isinstance(values[0], Tensor):
            batch[key] = values
            continue
        if key in JOINED:
            batch[key] = torch.cat(values)
            continue
        shapes = [value.shape for value in values]
        if len(set(shapes)) == 1:
            batch[key] = torch.stack(values)
        else:
            batch[FULL] = False
            largest = [max(lengths) for lengths in zip(*shapes, strict=True)]
            batch[key] = values[0].new_full((len(values), *largest), fill.get(key, 0))
            for row, value in zip(batch[key], values, strict=True):
                row[tuple(map(slice, value.shape))] = value
        if key == MASKED:
            batch[key] = batch[key].flatten(1)
    return batch


def rounded(lengths: np.ndarray | int) -> np.ndarray:
    """Return numbers of tokens rounded up, so that there are few different ones.

    Up to 128, they are multiples of 8, and then of an eighth of the next smaller power of 2, so
    that a batch gets at most 12 % of padding.
    """
    lengths = np.maximum(np.ceil(lengths), 1)
    steps = np.maximum(2 ** (np.ceil(np.log2(lengths)) - 4), 8)
    return (np.ceil(lengths / steps) * steps).astype(np.int64)


def raws_of(reader: Reader, values: Iterable[Any], kind: type) -> Iterator[Any]:
    """Yield raw values, reading those that are still cells, so that `fit` takes both.

    Args:
        reader: The reader.
        values: Raw values, or cells such as paths.
        kind: Type of the raw values.

    Raises:
        BadMedia: If a cell cannot be read.
    """
    for value in values:
        # None: a missing value, such as the sound of a silent video, or a file that is bad.
        raw = value if value is None or isinstance(value, kind) else reader.read(value)
        if raw is not None:
            yield raw


def file_of_adapter(folder: Path, name: str, suffix: str) -> Path:
    """Return the path of a file of an adapter in a model folder.

    Args:
        folder: The model folder.
        name: Key of the adapter. It can be the name of a column, with any characters, and it can
            come from a downloaded model.
        suffix: Rest of the file name, such as "tokenizer.json".
    """
    # A separator would point to another folder, and a long name is refused by the file system.
    stem = quote(name, safe=" ")
    if len(stem.encode()) > MAX_FILE_NAME:
        stem = blake2b(name.encode(), digest_size=16).hexdigest()
    return folder / f"{stem}.{suffix}"


def read_state(folder: Path, name: str) -> dict[str, Any]:
    """Return the state of an adapter in a model folder, see `Adapter.save`.

    Raises:
        UserError: If the file is missing or damaged.
    """
    path = folder / STATE_FILE
    try:
        status = path.stat()
        state = _read_states(path, status.st_mtime_ns, status.st_size)[name]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: has no valid state of the input {name!r}") from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: {name}: must be a mapping, got {type(state).__name__}")
    return state


# Each of thousands of columns asks for its own line.
@functools.lru_cache(maxsize=1)
def _read_states(path: Path, modified: int, size: int) -> dict[str, Any]:
    states: dict[str, Any] = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            states.update(json.loads(line))
    return states
